//! The Linux kernel, through netlink sockets: IPVS, rtnetlink, nf_tables and conntrack.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipvs_netlink as ipvs;
use tracing::Level;

use super::kernel::{Kernel, MAX_OPS};
use crate::dataplane::conntrack::{Stale, Sweeper, Swept};
use crate::dataplane::ipvs::destinations::Destinations;
use crate::dataplane::ipvs::filter;
use crate::dataplane::ipvs::marks::MarkKey;
use crate::dataplane::ipvs::observed::{CountedServer, LocalAddresses};
use crate::dataplane::ipvs::op::Op;
use crate::dataplane::ipvs::split_map::SplitMap;
use crate::dataplane::{Failure, Outcome};
use crate::plan::{Answers, Machine, Peers, ServiceAddresses};
use crate::util::clock;
use crate::util::conditions::{Coverage, LastingConditions};

mod addresses;
mod answer_routes;
mod counters;
pub(crate) mod link;
mod link_addresses;
pub(crate) mod monitor;
mod mtu;
mod next_hops;
mod notice_filter;
mod revival;
mod routing_rules;
pub(crate) mod rtnetlink;
mod tunnels;
mod virtual_servers;

use addresses::Addresses;
pub(crate) use answer_routes::{AnswerRoute, AnswerRoutes};
pub(crate) use counters::CounterReader;

/// The kernel of one network namespace: that of the thread that called [`Linux::open`].
///
/// Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Linux {
    ipvs: ipvs::Client,
    addresses: Addresses,
    rules: nftables::RulesClient,
    flows: Sweeper,
    removal: revival::RemovalOrder,
    /// Repairs of packet rules that were logged.
    events: LastingConditions,
}

impl Linux {
    /// Opens the sockets.
    ///
    /// # Errors
    /// If the kernel has no IPVS, or a socket cannot be opened.
    pub fn open(service_addresses: ServiceAddresses) -> Result<Self, Failure> {
        Self::yielding(service_addresses, &[])
    }

    /// Opens the sockets, and leaves the addresses of `devices` to the programs that serve them.
    ///
    /// # Errors
    /// As [`Linux::open`].
    pub fn yielding(
        service_addresses: ServiceAddresses,
        devices: &[String],
    ) -> Result<Self, Failure> {
        Ok(Self {
            ipvs: ipvs::Client::open()?,
            addresses: Addresses::open(service_addresses, devices)?,
            rules: nftables::RulesClient::open(filter::TABLE).map_err(Failure::netfilter_socket)?,
            flows: Sweeper::open()?,
            removal: revival::RemovalOrder::default(),
            events: LastingConditions::default(),
        })
    }

    /// Checks that this process may program IPVS.
    ///
    /// # Errors
    /// If the process lacks `CAP_NET_ADMIN`.
    pub fn check_permission(&mut self) -> Result<(), Failure> {
        // The cheapest request that the kernel permits to an administrator only.
        self.ipvs.info()?;
        Ok(())
    }

    /// Returns the netlink port of our rule changes.
    ///
    /// Notifications carry the port of their cause: it tells our changes from those of other programs.
    pub fn rules_port(&self) -> u32 {
        self.rules.port()
    }

    /// Returns whether the kernel supports packet rules for ARP.
    ///
    /// # Errors
    /// Those of the kernel, except the one that means "not supported".
    pub fn supports_arp_rules(&mut self) -> Result<bool, Failure> {
        Ok(self.rules.supports_arp()?)
    }

    /// Returns the netlink port of our changes of routes, addresses and devices.
    pub fn addresses_port(&self) -> u32 {
        self.addresses.port()
    }

    /// Makes the device `kube-ipvs0` that of another program, which a later [`Op::DeleteCarrier`] by our
    /// plan does not delete.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn release_carrier(&mut self) -> Result<(), Failure> {
        Ok(self.addresses.release_carrier()?)
    }

    /// Sets the timeouts of IPVS connections; a timeout of 0 remains unchanged.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_ipvs_timeouts(&mut self, timeouts: &ipvs::Timeouts) -> Result<(), Failure> {
        Ok(self.ipvs.set_timeouts(timeouts)?)
    }

    /// Returns the timeouts of IPVS.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn ipvs_timeouts(&mut self) -> Result<ipvs::Timeouts, Failure> {
        Ok(self.ipvs.timeouts()?)
    }
}

/// The addresses of a machine without IPVS.
#[derive(Debug)]
pub(crate) struct AddressTable(Addresses);

impl AddressTable {
    /// Leaves the addresses of `yield_devices` to the programs that serve them.
    pub(crate) fn open(yield_devices: &[String]) -> Result<Self, Failure> {
        // Without IPVS, no neighbour depends on the device kube-ipvs0.
        let form = ServiceAddresses::Loopback;
        Ok(Self(Addresses::open(form, yield_devices)?))
    }

    /// Returns the netlink port of our changes, which notifications carry.
    pub(crate) fn port(&self) -> u32 {
        self.0.port()
    }

    /// Reads the machine's own addresses.
    pub(crate) fn read_machine(&mut self) -> Result<Machine, Failure> {
        Ok(Machine {
            peers: self.0.read_peers(),
            ..self.0.read_machine()?
        })
    }

    /// Reads the addresses of other machines with which this one speaks.
    pub(crate) fn read_peers(&mut self) -> Peers {
        self.0.read_peers()
    }

    /// Reads our routes, each with its preferred source.
    pub(crate) fn read_routes(&mut self) -> Result<SplitMap<IpAddr, Option<IpAddr>>, Failure> {
        Ok(self.0.read()?.addresses)
    }

    /// Makes an address local, with a preferred source. Needs `CAP_NET_ADMIN`.
    pub(crate) fn add(&mut self, address: IpAddr, source: Option<IpAddr>) -> Result<(), Failure> {
        self.apply(Op::AddAddress(address, source))
    }

    /// Changes the preferred source. Needs `CAP_NET_ADMIN`.
    pub(crate) fn set(&mut self, address: IpAddr, source: Option<IpAddr>) -> Result<(), Failure> {
        self.apply(Op::SetAddress(address, source))
    }

    /// Makes an address local no longer. Needs `CAP_NET_ADMIN`.
    pub(crate) fn delete(&mut self, address: IpAddr) -> Result<(), Failure> {
        self.apply(Op::DeleteAddress(address))
    }

    fn apply(&mut self, op: Op) -> Result<(), Failure> {
        let outcomes = self.0.apply(&[op]);
        let outcome = outcomes.into_iter().next().unwrap_or(Ok(()));
        outcome.map_err(|failure| *failure)
    }
}

impl Kernel for Linux {
    fn machine(&mut self) -> Result<Machine, Failure> {
        let mut machine = self.addresses.read_machine()?;
        self.addresses.read_rules(&mut machine)?;
        machine.peers = self.addresses.read_peers();
        Ok(machine)
    }

    fn peers(&mut self) -> Result<Peers, Failure> {
        Ok(self.addresses.read_peers())
    }

    fn link_addresses(&mut self) -> Result<BTreeMap<Arc<str>, Ipv4Addr>, Failure> {
        link_addresses::read()
    }

    fn draw_mark_key(&mut self) -> Result<MarkKey, Failure> {
        let mut bytes = [0; 16];
        // A request for at most 256 bytes is answered in full (getrandom(2)).
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Failure::kernel(errno, "drawing the key of firewall marks"))?;
        Ok(MarkKey::new(bytes))
    }

    fn virtual_servers(
        &mut self,
        known: &mut dyn Iterator<Item = ipvs::ServiceKey>,
        each: &mut dyn FnMut(CountedServer),
    ) -> Result<(), Failure> {
        let mut order = revival::ServerOrder::default();
        virtual_servers::walk(&mut self.ipvs, known, &mut |server| {
            order.push(&server.key);
            each(server);
        })?;
        self.removal.learn_from_read(order);
        Ok(())
    }

    fn services(&mut self) -> Result<Vec<ipvs::Service>, Failure> {
        let mut services = self.ipvs.services_once()?;
        let mut order = revival::ServerOrder::default();
        services.iter().for_each(|service| order.push(&service.key));
        self.removal.learn_from_read(order);
        services.sort_unstable_by_key(|service| service.key);
        services.dedup_by_key(|service| service.key);
        Ok(services)
    }

    fn destinations(&mut self, key: &ipvs::ServiceKey) -> Result<Destinations, Failure> {
        Ok(virtual_servers::destinations(&mut self.ipvs, key)?)
    }

    fn answers(
        &mut self,
        key: &ipvs::ServiceKey,
        each: &mut dyn FnMut(IpAddr, Answers),
    ) -> Result<(), Failure> {
        for entry in self.ipvs.destinations(key)? {
            let answers = Answers {
                connections: entry.stats.connections,
                packets: entry.stats.packets_out,
            };
            each(entry.destination.key.address, answers);
        }
        Ok(())
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        Ok(virtual_servers::find(&mut self.ipvs, key)?)
    }

    fn addresses(&mut self) -> Result<LocalAddresses, Failure> {
        self.addresses.read_mtu()?;
        self.addresses.read()
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        // The generation is that of the namespace: the kernel returns one without our table, too.
        if !self.rules.exists()? {
            return Ok(None);
        }
        Ok(Some(self.rules.read_generation()?))
    }

    fn rule_elements(&mut self, set: &nftables::Set) -> Result<nftables::Set, Failure> {
        Ok(self.rules.read_elements(set)?)
    }

    fn change_rules(
        &mut self,
        commands: &[nftables::Command],
        table: &dyn Fn() -> nftables::Table,
    ) -> Result<Option<u32>, Failure> {
        match self.rules.apply(commands) {
            Err(error) if error.is_out_of_step() => {
                let text = format_args!("{error}; reading all packet rules back to repair them");
                let kind = "refused changes of packet rules, each repaired";
                let now = clock::since_boot();
                (self.events).add(Coverage::Events, Level::WARN, kind, text, now);
                return self.replace_rules(&table());
            }
            other => other?,
        }
        Ok(self.rules.generation())
    }

    fn replace_rules(&mut self, table: &nftables::Table) -> Result<Option<u32>, Failure> {
        self.rules.restore(table)?;
        Ok(self.rules.generation())
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        Ok(self.rules.delete()?)
    }

    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        self.flows.sweep(stale)
    }

    fn has_scheduler(&mut self, name: ipvs::SchedulerName) -> Result<Option<bool>, Failure> {
        match self.ipvs.has_scheduler(name) {
            // IPVS without IPv6.
            Err(error) if error.is_unsupported() => Ok(None),
            other => Ok(Some(other?)),
        }
    }

    fn most_ops(&self) -> usize {
        // An order of many additions needs all of them (`revival`).
        match self.removal.is_known() {
            true => usize::MAX,
            false => MAX_OPS,
        }
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(ops.len());
        // Adjacent Ops of one kind share a system call. Grouping all Ops of a kind would need fewer, but
        // would break their order (`Stage`).
        for run in
            ops.chunk_by(|one, next| one.service_key().is_some() == next.service_key().is_some())
        {
            match run.first().and_then(Op::service_key) {
                Some(_) => {
                    virtual_servers::apply(&mut self.ipvs, &self.removal, run, &mut outcomes);
                }
                None => outcomes.extend(self.addresses.apply(run)),
            }
        }
        outcomes
    }
}

impl From<ipvs::Error> for Failure {
    fn from(error: ipvs::Error) -> Self {
        match error {
            ipvs::Error::Netlink(error) => error.into(),
            error => Self {
                errno: error.errno(),
                message: error.to_string(),
            },
        }
    }
}
