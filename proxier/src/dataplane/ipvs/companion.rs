//! IPVS, with a relay for the frontends that IPVS cannot serve: node ports at loopback addresses.
//!
//! ```text
//!  Op ─▶ at a loopback address? ─┬─ no ──▶ Linux
//!                                └─ yes ─▶ Userspace
//! ```
//!
//! The kernel drops packets that leave a loopback address for an endpoint (`ip_route_output_key_hash_rcu`,
//! martian sources), so no virtual server at 127.0.0.1 reaches one.

use std::collections::BTreeMap;
use std::iter;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::Kernel;
use super::Wanted;
use super::linux::Linux;
use crate::cluster::problem::Problem;
use crate::dataplane::conntrack::{Stale, Swept};
use crate::dataplane::ipvs::destinations::Destinations;
use crate::dataplane::ipvs::marks::MarkKey;
use crate::dataplane::ipvs::observed::{CountedServer, LocalAddresses};
use crate::dataplane::ipvs::op::Op;
use crate::dataplane::userspace::Userspace;
use crate::dataplane::{Failure, Outcome};
use crate::plan::{Capabilities, Changed, Machine};

/// The kernel, and perhaps a relay for loopback addresses.
#[derive(Debug)]
pub(crate) struct Companion {
    linux: Linux,
    relay: Option<Userspace>,
}

/// Returns whether the relay serves the virtual server.
fn is_relayed(key: &ipvs::ServiceKey) -> bool {
    key.address().is_some_and(|address| address.is_loopback())
}

impl Companion {
    /// Returns a dataplane of IPVS and, if there is one, of a relay.
    pub(crate) fn new(linux: Linux, relay: Option<Userspace>) -> Self {
        Self { linux, relay }
    }

    /// Ends the relay: waits until its connections have ended, for at most `patience`.
    pub(crate) fn stop(self, patience: Duration) {
        if let Some(relay) = self.relay {
            relay.stop(patience);
        }
    }

    /// Returns the dataplane of a virtual server.
    fn of(&mut self, key: &ipvs::ServiceKey) -> &mut dyn Kernel {
        match &mut self.relay {
            Some(relay) if is_relayed(key) => relay,
            _ => &mut self.linux,
        }
    }
}

impl Kernel for Companion {
    fn machine(&mut self) -> Result<Machine, Failure> {
        self.linux.machine()
    }

    fn capabilities(&mut self, machine: &Machine) -> Capabilities {
        self.linux.capabilities(machine)
    }

    fn link_addresses(&mut self) -> Result<BTreeMap<Arc<str>, Ipv4Addr>, Failure> {
        self.linux.link_addresses()
    }

    fn draw_mark_key(&mut self) -> Result<MarkKey, Failure> {
        self.linux.draw_mark_key()
    }

    fn virtual_servers(
        &mut self,
        known: &mut dyn Iterator<Item = ipvs::ServiceKey>,
        each: &mut dyn FnMut(CountedServer),
    ) -> Result<(), Failure> {
        if let Some(relay) = &mut self.relay {
            relay.virtual_servers(&mut iter::empty(), each)?;
        }
        self.linux.virtual_servers(known, each)
    }

    fn services(&mut self) -> Result<Vec<ipvs::Service>, Failure> {
        let mut services = self.linux.services()?;
        if let Some(relay) = &mut self.relay {
            services.extend(relay.services()?);
            services.sort_by_key(|service| service.key);
        }
        Ok(services)
    }

    fn destinations(&mut self, key: &ipvs::ServiceKey) -> Result<Destinations, Failure> {
        self.of(key).destinations(key)
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        self.of(key).virtual_server(key)
    }

    fn addresses(&mut self) -> Result<LocalAddresses, Failure> {
        self.linux.addresses()
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        self.linux.rules_generation()
    }

    fn change_rules(
        &mut self,
        commands: &[nftables::Command],
        table: &dyn Fn() -> nftables::Table,
    ) -> Result<Option<u32>, Failure> {
        self.linux.change_rules(commands, table)
    }

    fn replace_rules(&mut self, table: &nftables::Table) -> Result<Option<u32>, Failure> {
        self.linux.replace_rules(table)
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        self.linux.delete_rules()
    }

    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        self.linux.sweep_flows(stale)
    }

    fn admit(&mut self, wanted: Wanted<'_>, changed: &Changed) {
        if let Some(relay) = &mut self.relay {
            let frontends = changed.frontends.iter().copied();
            let relayed = Changed {
                frontends: frontends.filter(|it| it.address.is_loopback()).collect(),
                ..Changed::default()
            };
            relay.admit(wanted, &relayed);
        }
    }

    fn problems(&self, wanted: Wanted<'_>) -> Vec<Problem> {
        let relay = self.relay.as_ref();
        relay.map_or_else(Vec::new, |relay| relay.problems(wanted))
    }

    fn problems_revision(&self) -> u64 {
        let relay = self.relay.as_ref();
        relay.map_or(0, Kernel::problems_revision)
    }

    fn has_scheduler(&mut self, name: ipvs::SchedulerName) -> Result<Option<bool>, Failure> {
        self.linux.has_scheduler(name)
    }

    fn most_ops(&self) -> usize {
        self.linux.most_ops()
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let is_of_relay = |op: &Op| op.service_key().is_some_and(|key| is_relayed(&key));
        let mut outcomes = Vec::with_capacity(ops.len());
        // Runs of neighbours, so that the kernel gets its Ops in batches.
        for run in ops.chunk_by(|one, next| is_of_relay(one) == is_of_relay(next)) {
            outcomes.extend(match &mut self.relay {
                Some(relay) if run.first().is_some_and(is_of_relay) => relay.apply(run),
                _ => self.linux.apply(run),
            });
        }
        outcomes
    }
}
