//! A kernel in memory that outlives its proxiers and misbehaves on demand.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ipvs_netlink as ipvs;
use proxier::conntrack::{Stale, Swept};
use proxier::dataplane::fake::{FakeKernel, Fault};
use proxier::dataplane::{Dataplane, Failure, Outcome};
use proxier::nftables::{Command, Key, Table};
use proxier::observed::{Connections, CountedServer, Observed};
use proxier::op::Op;
use proxier::plan::Machine;

/// A handle on it.
#[derive(Clone, Debug)]
pub(crate) struct Kernel(Rc<RefCell<Inner>>);

#[derive(Debug)]
struct Inner {
    kernel: FakeKernel,
    state_file: PathBuf,
    /// At which write the process dies.
    dies_at: Option<usize>,
    /// What the state file said when it died.
    at_death: Option<Vec<u8>>,
    /// Addresses that were local after some write, and not refused where no frontend is.
    open: BTreeSet<IpAddr>,
}

impl Inner {
    /// Sees which addresses are local and not refused.
    fn look(&mut self) {
        let FakeKernel { state, rules, .. } = &self.kernel;
        let is_open = |address: &&IpAddr| {
            let set = match address {
                IpAddr::V4(_) => "service-addresses-4",
                IpAddr::V6(_) => "service-addresses-6",
            };
            let key = Key::new([(**address).into()]);
            let set = rules.as_ref().and_then(|rules| rules.sets.get(set));
            set.is_none_or(|set| !set.elements.contains_key(&key))
        };
        let open = state.addresses.keys().filter(is_open);
        self.open.extend(open);
    }

    /// Fails once the process is to die, and keeps the state file as it is then.
    fn live(&mut self) -> Result<(), Failure> {
        if self.dies_at.is_none_or(|at| self.kernel.writes < at) {
            return Ok(());
        }
        let text = || std::fs::read(&self.state_file).unwrap_or_default();
        self.at_death.get_or_insert_with(text);
        Err(Failure {
            errno: None,
            message: "nobody is left to see this".to_owned(),
        })
    }
}

/// Virtual servers of somebody else.
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
    pub(crate) fn new(state_file: &Path) -> Self {
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
            state_file: state_file.to_owned(),
            dies_at: None,
            at_death: None,
            open: BTreeSet::new(),
        })))
    }

    pub(crate) fn state(&self) -> Observed {
        self.0.borrow().kernel.state.clone()
    }

    /// How often anything was written.
    pub(crate) fn writes(&self) -> usize {
        self.0.borrow().kernel.writes
    }

    pub(crate) fn rules(&self) -> Option<Table> {
        self.0.borrow().kernel.rules.clone()
    }

    /// The addresses that were local at any time without being refused where no frontend is.
    pub(crate) fn open_addresses(&self) -> BTreeSet<IpAddr> {
        self.0.borrow().open.clone()
    }

    pub(crate) fn has_foreign(&self) -> bool {
        let state = &self.0.borrow().kernel.state;
        foreign().iter().all(|service| {
            let found = state.virtual_servers.get(&service.key);
            found.is_some_and(|found| found.service == *service && found.destinations.len() == 1)
        })
    }

    pub(crate) fn is_foreign(key: &ipvs::ServiceKey) -> bool {
        foreign().iter().any(|service| service.key == *key)
    }

    pub(crate) fn fail_after(&self, writes: usize, fault: Fault) {
        let kernel = &mut self.0.borrow_mut().kernel;
        kernel.faults.insert(kernel.writes + writes, fault);
    }

    pub(crate) fn behave(&self) {
        let mut inner = self.0.borrow_mut();
        inner.kernel.faults.clear();
        inner.dies_at = None;
    }

    pub(crate) fn die_after(&self, writes: usize) {
        let mut inner = self.0.borrow_mut();
        inner.dies_at = Some(inner.kernel.writes + writes);
    }

    /// Whether the process has died. From now on the next one lives; it finds the state file as it
    /// was at that moment.
    pub(crate) fn stop_dying(&self) -> bool {
        let mut inner = self.0.borrow_mut();
        let Some(text) = inner.at_death.take() else {
            return false;
        };
        inner.dies_at = None;
        std::fs::write(&inner.state_file, text).unwrap();
        true
    }

    /// Lets a destination have connections, or none.
    pub(crate) fn connections(&self, which: usize, up: bool) {
        let kernel = &mut self.0.borrow_mut().kernel;
        let servers = kernel.state.virtual_servers.iter();
        let servers = servers.filter(|(key, _)| !Self::is_foreign(key));
        let all: Vec<_> = servers
            .flat_map(|(&key, server)| server.destinations.iter().map(move |it| (key, it.key)))
            .collect();
        if !all.is_empty() {
            let connections = Connections {
                active: u32::from(up) * 3,
                inactive: 0,
            };
            kernel
                .connections
                .insert(all[which % all.len()], connections);
        }
    }

    pub(crate) fn close_all_connections(&self) {
        self.0.borrow_mut().kernel.connections.clear();
    }

    /// Somebody changes something that is not theirs.
    pub(crate) fn drift(&self, what: u8, which: usize) {
        let FakeKernel { state, rules, .. } = &mut self.0.borrow_mut().kernel;
        let keys: Vec<_> = state.virtual_servers.keys().copied().collect();
        let ours: Vec<_> = keys.iter().filter(|key| !Self::is_foreign(key)).collect();
        let addresses: Vec<IpAddr> = state.addresses.keys().copied().collect();
        let Some(&&key) = ours.get(which % ours.len().max(1)) else {
            return;
        };
        match what % 7 {
            6 => *rules = None,
            0 => state.virtual_servers.retain(|key, _| Self::is_foreign(key)),
            1 => drop(state.virtual_servers.remove(&key)),
            2 => state.addresses.clear(),
            3 => {
                if let Some(address) = addresses.get(which % addresses.len().max(1)) {
                    state.addresses.remove(address);
                }
            }
            kind => {
                let server = state.virtual_servers.get_mut(&key).unwrap();
                server.destinations.change(|destinations| {
                    if kind == 4 {
                        destinations.pop();
                    } else if let Some(destination) = destinations.first_mut() {
                        destination.weight ^= 5;
                    }
                });
            }
        }
    }
}

impl Dataplane for Kernel {
    fn machine(&mut self) -> Result<Machine, Failure> {
        self.0.borrow_mut().kernel.machine()
    }

    fn virtual_servers(&mut self, each: &mut dyn FnMut(CountedServer)) -> Result<(), Failure> {
        self.0.borrow_mut().kernel.virtual_servers(each)
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        self.0.borrow_mut().kernel.virtual_server(key)
    }

    fn addresses(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, Failure> {
        self.0.borrow_mut().kernel.addresses()
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        self.0.borrow_mut().kernel.rules_generation()
    }

    fn change_rules(
        &mut self,
        table: &Table,
        commands: &[Command],
    ) -> Result<Option<u32>, Failure> {
        let inner = &mut *self.0.borrow_mut();
        inner.live()?;
        let result = inner.kernel.change_rules(table, commands);
        inner.look();
        result
    }

    fn replace_rules(&mut self, table: &Table) -> Result<Option<u32>, Failure> {
        let inner = &mut *self.0.borrow_mut();
        inner.live()?;
        let result = inner.kernel.replace_rules(table);
        inner.look();
        result
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        self.0.borrow_mut().kernel.delete_rules()
    }

    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        self.0.borrow_mut().kernel.sweep_flows(stale)
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let inner = &mut *self.0.borrow_mut();
        let mut outcomes = Vec::new();
        for op in ops {
            match inner.live() {
                Ok(()) => {
                    outcomes.extend(inner.kernel.apply(&[*op]));
                    inner.look();
                }
                Err(dead) => outcomes.push(Err(dead.into())),
            }
        }
        outcomes
    }
}
