//! A kernel in memory, for tests and for `plan --against empty`.
//!
//! It answers as the real one does (`tests/conformance.rs` compares them), counts requests, and fails
//! where a test asks for a [`Fault`].

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;

use ipvs_netlink as ipvs;
use rustix::io::Errno;

use super::{Dataplane, Failure, Outcome};
use crate::conntrack::{Stale, Swept};
use crate::nftables::{Command, Table};
use crate::observed::{Connections, CountedServer, Observed, ObservedServer};
use crate::op::Op;
use crate::plan::Machine;

/// The kernel in memory.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    /// The machine's own addresses.
    pub machine: Machine,
    /// Virtual servers and service addresses.
    pub state: Observed,
    /// The connections of destinations that have any.
    pub connections: BTreeMap<(ipvs::ServiceKey, ipvs::DestinationKey), Connections>,
    /// The packet rules.
    pub rules: Option<Table>,
    /// How often packet rules were changed, by any program.
    pub rules_generation: u32,
    /// The sweeps of connection tracking.
    pub swept: Vec<Stale>,
    /// Whether it refuses to sweep.
    pub refuses_sweeps: bool,
    /// How many writes were requested: Ops and packet rules, successful or not.
    pub writes: usize,
    /// How often all virtual servers were read.
    pub reads: usize,
    /// How many of the next reads of a single virtual server fail.
    pub failing_reads: usize,
    /// The writes that go wrong, by their number (from 0).
    pub faults: BTreeMap<usize, Fault>,
}

/// A way in which a write goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel refuses it with `ENOMEM`.
    Refused,
    /// The kernel does it, but its answer is lost.
    AnswerLost,
    /// The request is lost, and its sender cannot know.
    RequestLost,
}

impl Dataplane for FakeKernel {
    fn machine(&mut self) -> Result<Machine, Failure> {
        Ok(self.machine.clone())
    }

    fn virtual_servers(&mut self, each: &mut dyn FnMut(CountedServer)) -> Result<(), Failure> {
        self.reads += 1;
        for server in self.state.virtual_servers.values() {
            each(self.counted(server));
        }
        Ok(())
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        if let Some(left) = self.failing_reads.checked_sub(1) {
            self.failing_reads = left;
            return Err(Failure::kernel(Errno::NOBUFS, format!("reading {key}")));
        }
        let server = self.state.virtual_servers.get(key);
        Ok(server.map(|server| self.counted(server)))
    }

    fn addresses(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, Failure> {
        Ok(self.state.addresses.clone())
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        Ok(self.rules.as_ref().map(|_| self.rules_generation))
    }

    /// Refuses commands that do not lead from the present rules to `table`.
    fn change_rules(
        &mut self,
        table: &Table,
        commands: &[Command],
    ) -> Result<Option<u32>, Failure> {
        let is_right = self.rules.is_some() && self.commands_to(table) == commands;
        let judgement = refuse_if(!is_right, Errno::NOENT);
        self.write_rules(commands, judgement)
    }

    fn replace_rules(&mut self, table: &Table) -> Result<Option<u32>, Failure> {
        let commands = self.commands_to(table);
        self.write_rules(&commands, Ok(()))
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        self.rules = None;
        self.rules_generation += 1;
        Ok(())
    }

    /// There are no flows in memory; only the request is noted.
    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        if self.refuses_sweeps {
            return Err(Failure::kernel(Errno::NOMEM, "sweeping"));
        }
        self.swept.push(stale.clone());
        Ok(Swept::default())
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let write = |op| {
            let judgement = self.judge(op);
            let result = self.write(op, judgement, |kernel| kernel.carry_out(op));
            result.map_err(Box::new)
        };
        ops.iter().map(write).collect()
    }
}

impl FakeKernel {
    fn counted(&self, server: &ObservedServer) -> CountedServer {
        let connections = |destination: &ipvs::Destination| {
            let which = (server.service.key, destination.key);
            self.connections.get(&which).copied().unwrap_or_default()
        };
        CountedServer {
            server: server.clone(),
            connections: server.destinations.iter().map(connections).collect(),
        }
    }

    fn carry_out(&mut self, op: &Op) {
        self.state.record(op);
        if let Op::AddDestination(key, destination) = *op {
            self.connections.remove(&(key, destination.key));
        }
    }

    /// Returns the commands that lead from the present rules to `table`.
    fn commands_to(&self, table: &Table) -> Vec<Command> {
        match &self.rules {
            Some(rules) => rules.difference(table),
            None => Table::default().difference(table),
        }
    }

    fn write_rules(
        &mut self,
        commands: &[Command],
        judgement: Result<(), Errno>,
    ) -> Result<Option<u32>, Failure> {
        self.write(&"setting packet rules", judgement, |kernel| {
            let rules = kernel.rules.get_or_insert_default();
            commands.iter().for_each(|command| rules.apply(command));
            kernel.rules_generation += 1;
        })?;
        Ok(Some(self.rules_generation))
    }

    /// Does `work` if the kernel would, unless a fault is due.
    fn write(
        &mut self,
        doing: &dyn Display,
        judgement: Result<(), Errno>,
        work: impl FnOnce(&mut Self),
    ) -> Result<(), Failure> {
        let fault = self.faults.get(&self.writes).copied();
        self.writes += 1;
        if fault == Some(Fault::Refused) {
            return Err(Failure::kernel(Errno::NOMEM, doing));
        }
        if fault != Some(Fault::RequestLost) {
            judgement.map_err(|errno| Failure::kernel(errno, doing))?;
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

    /// Returns the error with which the kernel would refuse `op`.
    fn judge(&self, op: &Op) -> Result<(), Errno> {
        let servers = &self.state.virtual_servers;
        let server = |key| servers.get(key).ok_or(Errno::SRCH);
        let exists = |server: &ObservedServer, key| server.position(key).is_ok();
        match *op {
            Op::AddService(service) => {
                refuse_if(servers.contains_key(&service.key), Errno::EXIST)?;
                valid(&service)
            }
            Op::SetService(service) => {
                server(&service.key)?;
                valid(&service)
            }
            Op::DeleteService(key) => server(&key).map(drop),
            Op::AddDestination(key, destination) => {
                let server = server(&key)?;
                acceptable(&key, &destination)?;
                refuse_if(exists(server, destination.key), Errno::EXIST)
            }
            Op::SetDestination(key, destination) => {
                let server = server(&key)?;
                acceptable(&key, &destination)?;
                refuse_if(!exists(server, destination.key), Errno::NOENT)
            }
            Op::DeleteDestination(key, destination) => {
                refuse_if(!exists(server(&key)?, destination), Errno::NOENT)
            }
            Op::AddAddress(address, _) => {
                refuse_if(self.state.addresses.contains_key(&address), Errno::EXIST)
            }
            // The kernel's replacing request creates what is missing.
            Op::SetAddress(..) => Ok(()),
            Op::DeleteAddress(address) => {
                refuse_if(!self.state.addresses.contains_key(&address), Errno::SRCH)
            }
        }
    }
}

fn refuse_if(condition: bool, errno: Errno) -> Result<(), Errno> {
    if condition { Err(errno) } else { Ok(()) }
}

/// The schedulers that this kernel has.
const SCHEDULERS: [&str; 13] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf",
];

/// `ip_vs_add_service` / `ip_vs_edit_service`: scheduler first, then the IPv6 prefix.
fn valid(service: &ipvs::Service) -> Result<(), Errno> {
    let known = |name: &ipvs::SchedulerName| SCHEDULERS.contains(&name.as_str());
    refuse_if(!service.scheduler.as_ref().is_none_or(known), Errno::NOENT)?;
    match service.client_mask {
        ipvs::ClientMask::V6(prefix) if !(1..=128).contains(&prefix) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// The checks of `ip_vs_genl_set_cmd` and `ip_vs_add_dest` that need no routing table.
fn acceptable(key: &ipvs::ServiceKey, destination: &ipvs::Destination) -> Result<(), Errno> {
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
