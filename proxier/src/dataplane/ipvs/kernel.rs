//! The kernel behind a trait: reads its state, and applies [`Op`]s and packet rules.
//!
//! `tests/conformance.rs` runs the same tests on a real kernel and on the one in memory, so that tests on the latter say
//! something about the former.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipvs_netlink::{SchedulerName, Service, ServiceKey};

use super::Wanted;
use crate::dataplane::conntrack::{Stale, Swept};
use crate::dataplane::ipvs::destinations::Destinations;
use crate::dataplane::ipvs::marks::MarkKey;
use crate::dataplane::ipvs::observed::{CountedServer, LocalAddresses, Observed};
use crate::dataplane::ipvs::op::Op;
use crate::dataplane::{Failure, Outcome};
use crate::plan::{Answers, Machine, Peers};

/// The most Ops of one call, if the kernel does not sort them itself.
///
/// It bounds the memory of the first round. One system call takes 128, so larger parts would save few
/// calls.
pub(crate) const MAX_OPS: usize = 2_048;

/// A kernel with virtual servers, service addresses and packet rules. By default, it has no packet rules and no flows.
pub trait Kernel {
    /// Reads the machine's own addresses.
    ///
    /// # Errors
    /// If they cannot be read.
    fn machine(&mut self) -> Result<Machine, Failure>;

    /// Reads the addresses of other machines with which this one speaks.
    ///
    /// # Errors
    /// If they cannot be read.
    fn peers(&mut self) -> Result<Peers, Failure> {
        Ok(self.machine()?.peers)
    }

    /// Reads each link's first IPv4 address that is not link-local, by the link's name.
    ///
    /// # Errors
    /// If they cannot be read.
    fn link_addresses(&mut self) -> Result<BTreeMap<Arc<str>, Ipv4Addr>, Failure> {
        Ok(BTreeMap::new())
    }

    /// Returns a new key of firewall marks, which nobody can predict.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    fn draw_mark_key(&mut self) -> Result<MarkKey, Failure>;

    /// Calls `each` once for every virtual server of the network namespace, owned or foreign.
    ///
    /// Virtual servers of `known`, some of which need not exist, are never missing. Another one may be while
    /// a second program changes virtual servers ([`ipvs_netlink::Client::walk`]).
    ///
    /// The order is arbitrary. Memory does not grow with the number of virtual servers.
    ///
    /// # Errors
    /// If any part cannot be read whole.
    fn virtual_servers(
        &mut self,
        known: &mut dyn Iterator<Item = ServiceKey>,
        each: &mut dyn FnMut(CountedServer),
    ) -> Result<(), Failure>;

    /// Reads the virtual servers without their destinations, each once, in the order of their keys.
    ///
    /// One may be missing while a second program changes virtual servers; [`Kernel::virtual_server`] shows
    /// whether it exists.
    ///
    /// # Errors
    /// If they cannot be read.
    fn services(&mut self) -> Result<Vec<Service>, Failure> {
        let mut services = Vec::new();
        let mut each = |found: CountedServer| services.push(found.service());
        self.virtual_servers(&mut std::iter::empty(), &mut each)?;
        services.sort_by_key(|service| service.key);
        Ok(services)
    }

    /// Reads the destinations of a virtual server; none if it does not exist.
    ///
    /// # Errors
    /// If they cannot be read whole.
    fn destinations(&mut self, key: &ServiceKey) -> Result<Destinations, Failure> {
        let found = self.virtual_server(key)?;
        Ok(found
            .map(|found| found.server.destinations)
            .unwrap_or_default())
    }

    /// Reads one virtual server; `None` if it does not exist.
    ///
    /// # Errors
    /// If it cannot be read whole.
    fn virtual_server(&mut self, key: &ServiceKey) -> Result<Option<CountedServer>, Failure>;

    /// Calls `each` with the address of every destination of a virtual server, and what it got and gave; not at all if the
    /// virtual server does not exist.
    ///
    /// # Errors
    /// If they cannot be read whole.
    fn answers(
        &mut self,
        key: &ServiceKey,
        each: &mut dyn FnMut(IpAddr, Answers),
    ) -> Result<(), Failure> {
        let _ = (key, each);
        Ok(())
    }

    /// Reads the service addresses and their device.
    ///
    /// # Errors
    /// If they cannot be read whole.
    fn addresses(&mut self) -> Result<LocalAddresses, Failure>;

    /// Reads the state that [`crate::dataplane::ipvs::diff`] compares with what is `wanted`.
    ///
    /// No virtual server that is desired or of `known` is missing. Destinations that equal the desired ones
    /// share their memory.
    ///
    /// # Errors
    /// If any part cannot be read whole.
    fn observe(
        &mut self,
        wanted: Wanted<'_>,
        known: &mut dyn Iterator<Item = ServiceKey>,
    ) -> Result<Observed, Failure> {
        let mut observed = Observed::default();
        let servers = &mut observed.virtual_servers;
        let mut known = wanted.keys().chain(known);
        self.virtual_servers(&mut known, &mut |found| {
            let mut server = found.server;
            if let Some(wanted) = wanted.get(&found.key) {
                server.destinations.settle(wanted.endpoints);
            }
            servers.insert(found.key, server);
        })?;
        servers.pack();
        observed.replace_addresses(self.addresses()?);
        Ok(observed)
    }

    /// Returns the generation of the namespace's packet rules; `None` if our table does not exist.
    ///
    /// Each transaction of any program changes the generation.
    ///
    /// # Errors
    /// If it cannot be read.
    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        Ok(None)
    }

    /// Reads the elements of a set of our packet rules into a copy of `set`; none if the kernel has no such set.
    ///
    /// # Errors
    /// If they cannot be read.
    fn rule_elements(&mut self, set: &nftables::Set) -> Result<nftables::Set, Failure> {
        Ok(set.without_elements())
    }

    /// Applies `commands`, which lead to what `table` returns, to our packet rules in one transaction.
    ///
    /// Commands that do not fit the kernel's rules fail, or lead to [`Kernel::replace_rules`].
    /// Returns the generation in which the kernel has exactly this table; `None` if it is unknown.
    ///
    /// # Errors
    /// If the kernel refuses, or its answer is lost. Its rules are unknown then.
    fn change_rules(
        &mut self,
        commands: &[nftables::Command],
        table: &dyn Fn() -> nftables::Table,
    ) -> Result<Option<u32>, Failure> {
        let _ = (commands, table);
        Ok(None)
    }

    /// Reads our packet rules back and changes what differs from `table`.
    ///
    /// Returns a generation as [`Kernel::change_rules`] does.
    ///
    /// # Errors
    /// If the kernel refuses, or its answer is lost.
    fn replace_rules(&mut self, table: &nftables::Table) -> Result<Option<u32>, Failure> {
        let _ = table;
        Ok(None)
    }

    /// Deletes our packet rules, if they exist.
    ///
    /// # Errors
    /// If the kernel refuses, or its answer is lost.
    fn delete_rules(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Deletes exactly the stale flows from connection tracking.
    ///
    /// # Errors
    /// If the kernel refuses. Some flows may be deleted then.
    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        let _ = stale;
        Ok(Swept::default())
    }

    /// Returns whether the kernel has the scheduler `name`, without a change of any virtual server.
    ///
    /// `None` if the kernel cannot tell. Then only an Op shows it ([`Failure::is_scheduler_missing`]).
    ///
    /// # Errors
    /// If the request fails.
    fn has_scheduler(&mut self, name: SchedulerName) -> Result<Option<bool>, Failure>;

    /// Returns the most Ops that one call of [`Kernel::apply`] should get. It bounds the memory for them.
    fn most_ops(&self) -> usize {
        MAX_OPS
    }

    /// Applies `ops` in order and returns the outcome of each.
    ///
    /// After a failed Op, the following ones are applied all the same.
    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome>;
}
