//! A kernel in memory, for tests and `bench`.
//!
//! It returns the same results as a real one (`tests/conformance.rs` compares them), counts requests,
//! and has the faults that a test sets ([`Fault`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use ipvs_netlink as ipvs;
use rustix::io::Errno;

use super::Kernel;
use crate::dataplane::conntrack::{Stale, Swept};
use crate::dataplane::ipvs::marks::MarkKey;
use crate::dataplane::ipvs::observed::{
    Connections, CountedServer, LocalAddresses, Observed, ObservedServer,
};
use crate::dataplane::ipvs::op::Op;
use crate::dataplane::{Failure, Outcome};
use crate::plan::{Machine, Peers};
use nftables::{Command, Set, Table};

/// The kernel in memory.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    /// The machine's own addresses.
    pub machine: Machine,
    /// The next key of firewall marks.
    pub mark_key: MarkKey,
    /// Virtual servers and service addresses.
    pub state: Observed,
    /// The connections of destinations that have any.
    pub connections: BTreeMap<(ipvs::ServiceKey, ipvs::DestinationKey), Connections>,
    /// The packet rules.
    pub rules: Option<Table>,
    /// The generation of the packet rules; each change adds 1.
    pub rules_generation: u32,
    /// The argument of each successful sweep of flows.
    pub swept: Vec<Stale>,
    /// Whether sweeps of flows fail.
    pub refuses_sweeps: bool,
    /// The number of requested writes, of Ops and of packet rules, successful or not.
    pub writes: usize,
    /// The number of times that all virtual servers were read.
    pub reads: usize,
    /// The number of times that only the addresses of other machines were read.
    pub peer_reads: usize,
    /// The number of next reads of a single virtual server that fail.
    pub failing_reads: usize,
    /// Whether the kernel has no nf_tables.
    pub lacks_nf_tables: bool,
    /// Schedulers that this kernel lacks, besides those that no kernel has.
    pub lacks: BTreeSet<ipvs::SchedulerName>,
    /// Whether the kernel cannot tell which schedulers it lacks, as an IPVS without IPv6.
    pub hides_schedulers: bool,
    /// The number of questions for a scheduler.
    pub scheduler_questions: usize,
    /// The faults of writes, by the number of the write, counted from 0.
    pub faults: BTreeMap<usize, Fault>,
}

/// The way in which a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel refuses the write with `ENOMEM`.
    Refused,
    /// The kernel executes the write, but its answer is lost.
    AnswerLost,
    /// The request is lost. To its sender this looks like [`Fault::AnswerLost`].
    RequestLost,
}

impl Kernel for FakeKernel {
    fn machine(&mut self) -> Result<Machine, Failure> {
        Ok(self.machine.clone())
    }

    fn peers(&mut self) -> Result<Peers, Failure> {
        self.peer_reads += 1;
        Ok(self.machine.peers.clone())
    }

    fn draw_mark_key(&mut self) -> Result<MarkKey, Failure> {
        Ok(self.mark_key)
    }

    fn virtual_servers(
        &mut self,
        _: &mut dyn Iterator<Item = ipvs::ServiceKey>,
        each: &mut dyn FnMut(CountedServer),
    ) -> Result<(), Failure> {
        self.reads += 1;
        for (key, server) in self.state.virtual_servers.iter() {
            each(self.counted(&key, server));
        }
        Ok(())
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        if let Some(left) = self.failing_reads.checked_sub(1) {
            self.failing_reads = left;
            return Err(Failure::kernel(Errno::NOBUFS, format!("reading {key}")));
        }
        let server = self.state.virtual_servers.get(key);
        Ok(server.map(|server| self.counted(key, server)))
    }

    fn addresses(&mut self) -> Result<LocalAddresses, Failure> {
        let state = &self.state;
        Ok(LocalAddresses {
            addresses: state.addresses.clone(),
            leftovers: state.leftovers.clone(),
            outdated: state.outdated.clone(),
            carrier: state.carrier,
            foreign: state.foreign.clone(),
        })
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        Ok(self.rules.as_ref().map(|_| self.rules_generation))
    }

    fn rule_elements(&mut self, set: &Set) -> Result<Set, Failure> {
        let found = self.rules.as_ref();
        let found = found.and_then(|rules| rules.sets.get(&set.name));
        Ok(found.cloned().unwrap_or_else(|| set.without_elements()))
    }

    /// Refuses commands that do not lead from the present rules to this table.
    fn change_rules(
        &mut self,
        commands: &[Command],
        table: &dyn Fn() -> Table,
    ) -> Result<Option<u32>, Failure> {
        let do_fit = self.rules.is_some() && self.commands_to(&table()) == commands;
        let check = refuse_if(!do_fit, Errno::NOENT);
        self.write_rules(commands, check)
    }

    fn replace_rules(&mut self, table: &Table) -> Result<Option<u32>, Failure> {
        let commands = self.commands_to(table);
        let check = refuse_if(self.lacks_nf_tables, Errno::OPNOTSUPP);
        self.write_rules(&commands, check)
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        self.rules = None;
        self.rules_generation += 1;
        Ok(())
    }

    /// Only records the request, because this kernel has no flows.
    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        if self.refuses_sweeps {
            return Err(Failure::kernel(Errno::NOMEM, "sweeping"));
        }
        self.swept.push(stale.clone());
        Ok(Swept::default())
    }

    fn has_scheduler(&mut self, name: ipvs::SchedulerName) -> Result<Option<bool>, Failure> {
        self.scheduler_questions += 1;
        Ok((!self.hides_schedulers).then(|| self.knows_scheduler(&name)))
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let write = |op| {
            let check = self.check(op);
            let result = self.write(op, check, |kernel| kernel.execute(op));
            result.map_err(Box::new)
        };
        ops.iter().map(write).collect()
    }
}

impl FakeKernel {
    fn counted(&self, key: &ipvs::ServiceKey, server: &ObservedServer) -> CountedServer {
        let connections = |destination: ipvs::Destination| {
            let key = (*key, destination.key);
            self.connections.get(&key).copied().unwrap_or_default()
        };
        CountedServer {
            key: *key,
            server: server.clone(),
            connections: server.destinations.iter().map(connections).collect(),
        }
    }

    fn execute(&mut self, op: &Op) {
        self.state.record(op);
        // The kernel deletes the routes of a device with it.
        if *op == Op::DeleteCarrier {
            self.state.addresses.clear();
        }
        if let Op::AddDestination(key, destination) = *op {
            self.connections.remove(&(key, destination.key));
        }
    }

    /// Returns the commands that lead from the present rules to this table.
    fn commands_to(&self, table: &Table) -> Vec<Command> {
        match &self.rules {
            Some(rules) => rules.difference(table),
            None => Table::default().difference(table),
        }
    }

    fn write_rules(
        &mut self,
        commands: &[Command],
        check: Result<(), Errno>,
    ) -> Result<Option<u32>, Failure> {
        self.write(&"setting packet rules", check, |kernel| {
            let rules = kernel.rules.get_or_insert_default();
            commands.iter().for_each(|command| rules.apply(command));
            kernel.rules_generation += 1;
        })?;
        Ok(Some(self.rules_generation))
    }

    /// Executes `work` if the kernel accepts it (`check`), unless this write has a fault.
    fn write(
        &mut self,
        doing: &dyn Display,
        check: Result<(), Errno>,
        work: impl FnOnce(&mut Self),
    ) -> Result<(), Failure> {
        let fault = self.faults.get(&self.writes).copied();
        self.writes += 1;
        if fault == Some(Fault::Refused) {
            return Err(Failure::kernel(Errno::NOMEM, doing));
        }
        if fault != Some(Fault::RequestLost) {
            check.map_err(|errno| Failure::kernel(errno, doing))?;
            work(self);
        }
        match fault {
            None => Ok(()),
            Some(_) => Err(Failure {
                errno: None,
                message: format!("{doing}: no answer"),
            }),
        }
    }

    fn knows_scheduler(&self, name: &ipvs::SchedulerName) -> bool {
        SCHEDULERS.contains(&name.as_str()) && !self.lacks.contains(name)
    }

    /// The checks of `ip_vs_add_service` and `ip_vs_edit_service`, in their order.
    fn check_service(&self, service: &ipvs::Service) -> Result<(), Errno> {
        let scheduler = service.scheduler.as_ref();
        let is_known = scheduler.is_none_or(|name| self.knows_scheduler(name));
        refuse_if(!is_known, Errno::NOENT)?;
        match service.client_mask {
            ipvs::ClientMask::V6(prefix) if !(1..=128).contains(&prefix) => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    /// Returns the error with which the kernel would refuse `op`.
    fn check(&self, op: &Op) -> Result<(), Errno> {
        let servers = &self.state.virtual_servers;
        let server = |key| servers.get(key).ok_or(Errno::SRCH);
        let exists = |server: &ObservedServer, key| server.destinations.find(&key).is_some();
        match *op {
            Op::AddService(service) => {
                refuse_if(servers.contains_key(&service.key), Errno::EXIST)?;
                self.check_service(&service)
            }
            Op::SetService(service) => {
                server(&service.key)?;
                self.check_service(&service)
            }
            Op::DeleteService(key) => server(&key).map(drop),
            Op::AddDestination(key, destination) => {
                let server = server(&key)?;
                check_destination(&key, &destination)?;
                refuse_if(exists(server, destination.key), Errno::EXIST)
            }
            Op::SetDestination(key, destination) => {
                let server = server(&key)?;
                check_destination(&key, &destination)?;
                refuse_if(!exists(server, destination.key), Errno::NOENT)
            }
            Op::DeleteDestination(key, destination) => {
                refuse_if(!exists(server(&key)?, destination), Errno::NOENT)
            }
            Op::AddAddress(address, _) => {
                self.check_carrier()?;
                refuse_if(self.state.addresses.contains_key(&address), Errno::EXIST)
            }
            // The kernel's replacing request creates what is missing.
            Op::SetAddress(..) => self.check_carrier(),
            Op::DeleteAddress(address) => {
                refuse_if(!self.state.addresses.contains_key(&address), Errno::SRCH)
            }
            Op::DeleteLeftover(address, form) => {
                let exists = self.state.leftovers.contains(&(address, form));
                refuse_if(!exists, Errno::SRCH)
            }
            Op::AddCarrier => refuse_if(self.state.carrier.is_some(), Errno::EXIST),
            Op::SetCarrier | Op::DeleteCarrier => self.check_carrier(),
        }
    }

    /// This kernel has addresses on the carrier only, as with `--service-addresses=routes`.
    fn check_carrier(&self) -> Result<(), Errno> {
        refuse_if(self.state.carrier.is_none(), Errno::NODEV)
    }
}

fn refuse_if(condition: bool, errno: Errno) -> Result<(), Errno> {
    if condition { Err(errno) } else { Ok(()) }
}

/// The schedulers that this kernel has.
const SCHEDULERS: [&str; 13] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf",
];

/// The checks of `ip_vs_genl_set_cmd` and `ip_vs_add_dest` that need no routing table.
fn check_destination(key: &ipvs::ServiceKey, destination: &ipvs::Destination) -> Result<(), Errno> {
    let same_family = key.family() == ipvs::Family::from(destination.key.address);
    refuse_if(
        !same_family && destination.forwarding != ipvs::Forwarding::Tunnel,
        Errno::INVAL,
    )?;
    refuse_if(i32::try_from(destination.weight).is_err(), Errno::RANGE)?;
    refuse_if(
        destination.lower_threshold > destination.upper_threshold,
        Errno::RANGE,
    )
}
