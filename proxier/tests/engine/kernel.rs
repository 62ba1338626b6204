//! An in-memory kernel that outlives its proxiers and injects faults.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ipvs_netlink as ipvs;
use nftables::{Command, Key, Table};
use proxier::testing::conntrack::{Stale, Swept};
use proxier::testing::dataplane::fake::{FakeKernel, Fault};
use proxier::testing::dataplane::ipvs::Kernel as _;
use proxier::testing::dataplane::{Failure, Outcome, ipvs as dataplane};
use proxier::testing::destinations::Destinations;
use proxier::testing::marks::MarkKey;
use proxier::testing::observed::{Connections, CountedServer, LocalAddresses, Observed};
use proxier::testing::op::{AddressForm, Op};
use proxier::testing::plan::Machine;

/// A handle to the kernel. The test and the proxier share the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel(Rc<RefCell<Inner>>);

#[derive(Debug)]
struct Inner {
    kernel: FakeKernel,
    ledger_file: PathBuf,
    /// The number of the write at which the process is killed.
    killed_at: Option<usize>,
    /// The content of the ledger file at the kill.
    ledger_at_kill: Option<Vec<u8>>,
    /// The service addresses that were local after some write while no rule rejected connections to
    /// them outside their frontends.
    open: BTreeSet<IpAddr>,
    /// The virtual servers and destinations that were deleted with connections.
    lost: Vec<(ipvs::ServiceKey, ipvs::DestinationKey)>,
}

impl Inner {
    /// Applies `op`. If that deletes destinations with connections, adds these to `lost`.
    fn apply(&mut self, op: &Op) -> Vec<Outcome> {
        let kernel = &mut self.kernel;
        let connected = |kernel: &FakeKernel| -> BTreeSet<_> {
            let has = |(key, destination): &(_, _)| {
                let server = kernel.state.virtual_servers.get(key);
                let mut all = server.into_iter().flat_map(|it| it.destinations.iter());
                all.any(|it: ipvs::Destination| it.key == *destination)
            };
            let is_open = |it: &(_, &Connections)| !it.1.are_none();
            let open = kernel.connections.iter().filter(is_open);
            open.map(|(key, _)| *key).filter(has).collect()
        };
        let before = connected(kernel);
        let outcome = kernel.apply(&[*op]);
        let lost = &before - &connected(kernel);
        kernel.connections.retain(|key, _| !lost.contains(key));
        self.lost.extend(lost);
        outcome
    }

    /// Adds the addresses that are open now to `open`.
    fn note_open_addresses(&mut self) {
        let FakeKernel { state, rules, .. } = &self.kernel;
        let is_open = |address: &IpAddr| {
            let set = match address {
                IpAddr::V4(_) => "service-addresses-4",
                IpAddr::V6(_) => "service-addresses-6",
            };
            let key = Key::new([(*address).into()]);
            let set = rules.as_ref().and_then(|rules| rules.sets.get(set));
            set.is_none_or(|set| !set.contains(&key))
        };
        let open = state.addresses.keys().filter(is_open);
        self.open.extend(open);
    }

    /// Returns an error from the kill on. At the kill, saves the content of the ledger file.
    fn check_alive(&mut self) -> Result<(), Failure> {
        if self.killed_at.is_none_or(|at| self.kernel.writes < at) {
            return Ok(());
        }
        let text = || std::fs::read(&self.ledger_file).unwrap_or_default();
        self.ledger_at_kill.get_or_insert_with(text);
        Err(Failure {
            errno: None,
            message: "the process was killed".to_owned(),
        })
    }
}

/// A change by another program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Drift {
    DeleteVirtualServers,
    DeleteVirtualServer,
    DeleteAddresses,
    DeleteAddress,
    DeleteCarrier,
    SetCarrierDown,
    /// Makes service addresses, and an unknown one, local in another form, as kube-proxy does.
    AddOtherForm,
    DeleteDestination,
    ChangeWeight,
    DeleteRules,
}

/// Returns the virtual servers of another program.
fn foreign() -> [ipvs::Service; 2] {
    let rr = || "rr".parse().unwrap();
    let key = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Tcp,
        address: [10, 200, 0, 1].into(),
        port: 443,
    };
    let mark = ipvs::ServiceKey::Mark {
        family: ipvs::Family::V4,
        mark: 7,
    };
    [key, mark].map(|key| ipvs::Service::new(key, rr()))
}

impl Kernel {
    pub(crate) fn new(ledger_file: &Path) -> Self {
        let mut kernel = FakeKernel::default();
        kernel.machine.addresses.insert([172, 18, 0, 2].into());
        for service in foreign() {
            assert_eq!(kernel.apply(&[Op::AddService(service)]), [Ok(())]);
            let destination = ipvs::DestinationKey {
                address: [10, 244, 9, 9].into(),
                port: 1,
            };
            let destination = ipvs::Destination::new(destination, 0);
            kernel.apply(&[Op::AddDestination(service.key, destination)]);
        }
        Self(Rc::new(RefCell::new(Inner {
            kernel,
            ledger_file: ledger_file.to_owned(),
            killed_at: None,
            ledger_at_kill: None,
            open: BTreeSet::new(),
            lost: Vec::new(),
        })))
    }

    pub(crate) fn state(&self) -> Observed {
        self.0.borrow().kernel.state.clone()
    }

    /// Returns the number of writes so far.
    pub(crate) fn writes(&self) -> usize {
        self.0.borrow().kernel.writes
    }

    pub(crate) fn rules(&self) -> Option<Table> {
        self.0.borrow().kernel.rules.clone()
    }

    /// Returns the service addresses that were local at any time while no rule rejected connections to
    /// them outside their frontends.
    pub(crate) fn open_addresses(&self) -> BTreeSet<IpAddr> {
        self.0.borrow().open.clone()
    }

    /// Returns whether the other program's virtual servers are unchanged.
    pub(crate) fn has_foreign(&self) -> bool {
        let state = &self.0.borrow().kernel.state;
        foreign().iter().all(|service| {
            let found = state.virtual_servers.get(&service.key);
            found.is_some_and(|found| {
                found.definition.at(service.key) == *service && found.destinations.len() == 1
            })
        })
    }

    pub(crate) fn is_foreign(key: &ipvs::ServiceKey) -> bool {
        foreign().iter().any(|service| service.key == *key)
    }

    pub(crate) fn fail_after(&self, writes: usize, fault: Fault) {
        let kernel = &mut self.0.borrow_mut().kernel;
        kernel.faults.insert(kernel.writes + writes, fault);
    }

    /// Cancels the faults and the kill that have not happened yet.
    pub(crate) fn clear_faults(&self) {
        let mut inner = self.0.borrow_mut();
        inner.kernel.faults.clear();
        inner.killed_at = None;
    }

    pub(crate) fn kill_after(&self, writes: usize) {
        let mut inner = self.0.borrow_mut();
        inner.killed_at = Some(inner.kernel.writes + writes);
    }

    /// Returns whether the process was killed. If so, restores the ledger file as it was at the kill, and
    /// accepts the writes of the next process.
    pub(crate) fn finish_kill(&self) -> bool {
        let mut inner = self.0.borrow_mut();
        let Some(text) = inner.ledger_at_kill.take() else {
            return false;
        };
        inner.killed_at = None;
        std::fs::write(&inner.ledger_file, text).unwrap();
        true
    }

    /// Sets the number of active connections of our destination at `index`, modulo their number.
    pub(crate) fn set_connections(&self, index: usize, active: u32) {
        let kernel = &mut self.0.borrow_mut().kernel;
        let servers = kernel.state.virtual_servers.iter();
        let servers = servers.filter(|(key, _)| !Self::is_foreign(key));
        let all: Vec<_> = servers
            .flat_map(|(key, server)| server.destinations.iter().map(move |it| (key, it.key)))
            .collect();
        if !all.is_empty() {
            let connections = Connections {
                active,
                inactive: 0,
            };
            kernel
                .connections
                .insert(all[index % all.len()], connections);
        }
    }

    /// Opens connections to a destination.
    pub(crate) fn connect(&self, key: ipvs::ServiceKey, destination: ipvs::DestinationKey) {
        let open = Connections {
            active: 3,
            inactive: 0,
        };
        let kernel = &mut self.0.borrow_mut().kernel;
        kernel.connections.insert((key, destination), open);
    }

    /// Returns the virtual servers and destinations that were deleted with connections since the last
    /// call.
    pub(crate) fn take_lost(&self) -> Vec<(ipvs::ServiceKey, ipvs::DestinationKey)> {
        std::mem::take(&mut self.0.borrow_mut().lost)
    }

    pub(crate) fn close_all_connections(&self) {
        self.0.borrow_mut().kernel.connections.clear();
    }

    /// Changes our objects as another program would: all of a kind, or the one at `index`, modulo their
    /// number.
    pub(crate) fn drift(&self, drift: Drift, index: usize) {
        let FakeKernel { state, rules, .. } = &mut self.0.borrow_mut().kernel;
        let keys = state.virtual_servers.keys();
        let ours: Vec<_> = keys.filter(|key| !Self::is_foreign(key)).collect();
        let addresses: Vec<IpAddr> = state.addresses.keys().collect();
        let Some(key) = ours.get(index % ours.len().max(1)) else {
            return;
        };
        let destinations = &mut state.virtual_servers.get_mut(key).unwrap().destinations;
        match drift {
            Drift::DeleteVirtualServers => {
                state.virtual_servers.retain(Self::is_foreign);
            }
            Drift::DeleteVirtualServer => drop(state.virtual_servers.remove(key)),
            Drift::DeleteAddresses => state.addresses.clear(),
            Drift::DeleteAddress => {
                if let Some(address) = addresses.get(index % addresses.len().max(1)) {
                    state.addresses.remove(address);
                }
            }
            Drift::DeleteCarrier => {
                state.addresses.clear();
                state.carrier = None;
            }
            Drift::SetCarrierDown => {
                if let Some(carrier) = &mut state.carrier {
                    carrier.is_ready = false;
                }
            }
            Drift::AddOtherForm => {
                let all = addresses.into_iter().chain([[10, 96, 99, 99].into()]);
                let all = all.skip(index % 3);
                (state.leftovers).extend(all.map(|address| (address, AddressForm::Address)));
            }
            Drift::DeleteDestination => destinations.change(|all| _ = all.pop()),
            Drift::ChangeWeight => destinations.change(|all| {
                if let Some(first) = all.first_mut() {
                    first.weight ^= 5;
                }
            }),
            Drift::DeleteRules => *rules = None,
        }
    }
}

impl dataplane::Kernel for Kernel {
    fn machine(&mut self) -> Result<Machine, Failure> {
        self.0.borrow_mut().kernel.machine()
    }

    fn draw_mark_key(&mut self) -> Result<MarkKey, Failure> {
        self.0.borrow_mut().kernel.draw_mark_key()
    }

    fn virtual_servers(
        &mut self,
        known: &mut dyn Iterator<Item = ipvs::ServiceKey>,
        each: &mut dyn FnMut(CountedServer),
    ) -> Result<(), Failure> {
        self.0.borrow_mut().kernel.virtual_servers(known, each)
    }

    fn services(&mut self) -> Result<Vec<ipvs::Service>, Failure> {
        self.0.borrow_mut().kernel.services()
    }

    fn destinations(&mut self, key: &ipvs::ServiceKey) -> Result<Destinations, Failure> {
        self.0.borrow_mut().kernel.destinations(key)
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        self.0.borrow_mut().kernel.virtual_server(key)
    }

    fn addresses(&mut self) -> Result<LocalAddresses, Failure> {
        self.0.borrow_mut().kernel.addresses()
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        self.0.borrow_mut().kernel.rules_generation()
    }

    fn change_rules(
        &mut self,
        commands: &[Command],
        table: &dyn Fn() -> Table,
    ) -> Result<Option<u32>, Failure> {
        let inner = &mut *self.0.borrow_mut();
        inner.check_alive()?;
        let result = inner.kernel.change_rules(commands, table);
        inner.note_open_addresses();
        result
    }

    fn replace_rules(&mut self, table: &Table) -> Result<Option<u32>, Failure> {
        let inner = &mut *self.0.borrow_mut();
        inner.check_alive()?;
        let result = inner.kernel.replace_rules(table);
        inner.note_open_addresses();
        result
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        self.0.borrow_mut().kernel.delete_rules()
    }

    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        self.0.borrow_mut().kernel.sweep_flows(stale)
    }

    fn has_scheduler(&mut self, name: ipvs::SchedulerName) -> Result<Option<bool>, Failure> {
        self.0.borrow_mut().kernel.has_scheduler(name)
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let inner = &mut *self.0.borrow_mut();
        let mut outcomes = Vec::new();
        for op in ops {
            match inner.check_alive() {
                Ok(()) => {
                    outcomes.extend(inner.apply(op));
                    inner.note_open_addresses();
                }
                Err(killed) => outcomes.push(Err(killed.into())),
            }
        }
        outcomes
    }
}
