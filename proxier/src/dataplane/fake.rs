//! A kernel in memory, for tests and for `plan --against empty`.
//!
//! Answers as the real one does (`tests/conformance.rs` holds it to that), and counts what it is
//! asked.

use ipvs_netlink as ipvs;
use rustix::io::Errno;

use super::{Dataplane, Failure, Outcome};
use crate::diff::{Observed, ObservedDestination, ObservedServer};
use crate::op::Op;
use crate::plan::Machine;

/// The kernel in memory.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    /// The machine's own addresses.
    pub machine: Machine,
    /// What has been made of it so far.
    pub state: Observed,
    /// How many Ops were applied, successful or not.
    pub writes: usize,
    /// Ops whose place in the order of all writes (from 0) is listed here fail with `ENOMEM`.
    pub failing_writes: Vec<usize>,
}

impl Dataplane for FakeKernel {
    fn machine(&mut self) -> Result<Machine, Failure> {
        Ok(self.machine.clone())
    }

    fn observe(&mut self) -> Result<Observed, Failure> {
        Ok(self.state.clone())
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        ops.iter().map(|op| self.write(op)).collect()
    }
}

impl FakeKernel {
    fn write(&mut self, op: &Op) -> Outcome {
        let number = self.writes;
        self.writes += 1;
        let result = match self.failing_writes.contains(&number) {
            true => Err(Errno::NOMEM),
            false => self.state.take(op),
        };
        result.map_err(|errno| Failure::kernel(errno, op))
    }
}

impl Observed {
    /// Does to this state what the kernel would do.
    fn take(&mut self, op: &Op) -> Result<(), Errno> {
        let servers = &mut self.virtual_servers;
        match *op {
            Op::AddService(service) => {
                if servers.contains_key(&service.key) {
                    return Err(Errno::EXIST);
                }
                valid(&service)?;
                servers.insert(
                    service.key,
                    ObservedServer {
                        service,
                        destinations: Vec::new(),
                    },
                );
            }
            Op::SetService(service) => {
                let server = servers.get_mut(&service.key).ok_or(Errno::SRCH)?;
                valid(&service)?;
                server.service = service;
            }
            Op::DeleteService(key) => {
                servers.remove(&key).ok_or(Errno::SRCH)?;
            }
            Op::AddDestination(key, destination) => {
                let server = servers.get_mut(&key).ok_or(Errno::SRCH)?;
                acceptable(&key, &destination)?;
                match position(server, destination.key) {
                    Ok(_) => return Err(Errno::EXIST),
                    Err(at) => server.destinations.insert(at, idle(destination)),
                }
            }
            Op::SetDestination(key, destination) => {
                let server = servers.get_mut(&key).ok_or(Errno::SRCH)?;
                acceptable(&key, &destination)?;
                let at = position(server, destination.key).map_err(|_| Errno::NOENT)?;
                server.destinations[at].destination = destination;
            }
            Op::DeleteDestination(key, destination) => {
                let server = servers.get_mut(&key).ok_or(Errno::SRCH)?;
                let at = position(server, destination).map_err(|_| Errno::NOENT)?;
                server.destinations.remove(at);
            }
            Op::AddAddress(address, source) => {
                if self.addresses.contains_key(&address) {
                    return Err(Errno::EXIST);
                }
                self.addresses.insert(address, source);
            }
            Op::SetAddress(address, source) => {
                // The kernel's replacing request creates what is missing.
                self.addresses.insert(address, source);
            }
            Op::DeleteAddress(address) => {
                self.addresses.remove(&address).ok_or(Errno::SRCH)?;
            }
        }
        Ok(())
    }
}

/// The schedulers that every kernel with IPVS can have.
const SCHEDULERS: [&str; 13] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf",
];

/// `ip_vs_add_service` / `ip_vs_edit_service`: scheduler first, then the IPv6 prefix.
fn valid(service: &ipvs::Service) -> Result<(), Errno> {
    let known = |name: &ipvs::SchedulerName| SCHEDULERS.contains(&name.as_str());
    if !service.scheduler.as_ref().is_none_or(known) {
        return Err(Errno::NOENT);
    }
    match service.client_mask {
        ipvs::ClientMask::V6(prefix) if !(1..=128).contains(&prefix) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// The checks of `ip_vs_genl_set_cmd` and `ip_vs_add_dest` that need no routing table.
fn acceptable(key: &ipvs::ServiceKey, destination: &ipvs::Destination) -> Result<(), Errno> {
    let same_family = key.family() == ipvs::Family::from(destination.key.address);
    if !same_family && destination.forwarding != ipvs::Forwarding::Tunnel {
        return Err(Errno::INVAL);
    }
    if i32::try_from(destination.weight).is_err() {
        return Err(Errno::RANGE);
    }
    if destination.lower_threshold > destination.upper_threshold {
        return Err(Errno::RANGE);
    }
    Ok(())
}

fn position(server: &ObservedServer, key: ipvs::DestinationKey) -> Result<usize, usize> {
    server
        .destinations
        .binary_search_by_key(&key, |entry| entry.destination.key)
}

fn idle(destination: ipvs::Destination) -> ObservedDestination {
    ObservedDestination {
        destination,
        active_connections: 0,
        inactive_connections: 0,
    }
}
