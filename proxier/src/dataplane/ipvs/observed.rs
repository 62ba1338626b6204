//! The observed state of the kernel: virtual servers and service addresses.

use ipvs_netlink as ipvs;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::dataplane::ipvs::definition::ServerDefinition;
use crate::dataplane::ipvs::destinations::{Destinations, planned};
use crate::dataplane::ipvs::op::{AddressForm, Op};
use crate::dataplane::ipvs::split_map::SplitMap;
use crate::plan::Endpoints;

/// The observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every virtual server of the network namespace, owned or foreign.
    pub virtual_servers: SplitMap<ipvs::ServiceKey, ObservedServer>,
    /// Our service addresses in the configured form, each with its preferred source.
    pub addresses: SplitMap<IpAddr, Option<IpAddr>>,
    /// Our service addresses in other forms. A service address may have several forms.
    pub leftovers: BTreeSet<(IpAddr, AddressForm)>,
    /// Those of [`addresses`](Self::addresses) whose route must be written again, with the same source: its MTU
    /// differs from the present one.
    pub outdated: BTreeSet<IpAddr>,
    /// The device `kube-ipvs0`; `None` if it does not exist.
    pub carrier: Option<Carrier>,
    /// Local routes of other programs to single addresses, each with a description. Addresses on
    /// interfaces are not included.
    pub foreign: BTreeMap<IpAddr, String>,
}

/// The part of [`Observed`] that is read from routes and interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddresses {
    /// As [`Observed::addresses`].
    pub addresses: SplitMap<IpAddr, Option<IpAddr>>,
    /// As [`Observed::leftovers`].
    pub leftovers: BTreeSet<(IpAddr, AddressForm)>,
    /// As [`Observed::outdated`].
    pub outdated: BTreeSet<IpAddr>,
    /// As [`Observed::carrier`].
    pub carrier: Option<Carrier>,
    /// As [`Observed::foreign`].
    pub foreign: BTreeMap<IpAddr, String>,
}

impl LocalAddresses {
    /// Returns whether any of them, or the carrier, is ours.
    pub fn have_ours(&self) -> bool {
        let has_carrier = self.carrier.is_some_and(|carrier| carrier.is_ours);
        !self.addresses.is_empty() || !self.leftovers.is_empty() || has_carrier
    }
}

/// The state of the device `kube-ipvs0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Whether ipvs-proxier created it. Only then it deletes it.
    pub is_ours: bool,
    /// Whether it is up and gets no IPv6 address of its own.
    pub is_ready: bool,
}

/// A virtual server in the kernel. Its key is that of its entry in [`Observed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedServer {
    /// Scheduler, flags and affinity.
    pub definition: ServerDefinition,
    /// Its destinations.
    pub destinations: Destinations,
}

impl ObservedServer {
    /// Returns a virtual server without destinations.
    pub fn empty(service: &ipvs::Service) -> Self {
        Self {
            definition: ServerDefinition::of(service),
            destinations: Destinations::default(),
        }
    }

    /// Returns whether any destination has a weight above 0.
    pub(crate) fn accepts_connections(&self) -> bool {
        self.destinations.iter().any(|it| it.weight > 0)
    }

    /// Returns whether `ops` give all `endpoints` to this virtual server, which has no destination yet.
    ///
    /// [`ObservedServer::record`] would make a copy, although the plan's memory can be shared.
    pub(crate) fn is_filled_by(&self, ops: &[&Op], endpoints: &Endpoints) -> bool {
        let added = ops.iter().map(|op| match **op {
            Op::AddDestination(_, destination) => Some(destination),
            _ => None,
        });
        self.destinations.is_empty() && added.eq(endpoints.iter().map(|it| Some(planned(it))))
    }

    /// Records that `ops`, which change this virtual server or its destinations, took effect.
    pub(crate) fn record(&mut self, ops: &[&Op]) {
        for op in ops {
            if let Op::SetService(service) = op {
                self.definition = ServerDefinition::of(service);
            }
        }
        // All changes at once, because each change copies the destinations.
        if ops.iter().any(|op| op.destination_key().is_some()) {
            self.destinations
                .change(|all| ops.iter().for_each(|op| record_destination(all, op)));
        }
    }
}

fn record_destination(all: &mut Vec<ipvs::Destination>, op: &Op) {
    let position = |key| all.binary_search_by_key(&key, |it| it.key);
    match *op {
        Op::AddDestination(_, destination) | Op::SetDestination(_, destination) => {
            match position(destination.key) {
                Ok(index) => all[index] = destination,
                Err(index) => all.insert(index, destination),
            }
        }
        Op::DeleteDestination(_, key) => {
            if let Ok(index) = position(key) {
                all.remove(index);
            }
        }
        _ => {}
    }
}

/// A virtual server with the connections of its destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedServer {
    /// Its key.
    pub key: ipvs::ServiceKey,
    /// The virtual server.
    pub server: ObservedServer,
    /// The connections of its destinations, in the same order.
    pub connections: Vec<Connections>,
}

/// The connections of a destination at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Connections that the kernel counts as active (TCP: established).
    pub active: u32,
    /// All other connections, such as closing ones.
    pub inactive: u32,
}

impl Connections {
    /// Returns whether there is no connection in any state.
    pub fn are_none(&self) -> bool {
        self.active == 0 && self.inactive == 0
    }
}

impl CountedServer {
    /// Returns its key, scheduler, flags and affinity.
    pub fn service(&self) -> ipvs::Service {
        self.server.definition.at(self.key)
    }

    /// Returns the connections of a destination; `None` if it does not exist.
    pub fn connections_of(&self, key: &ipvs::DestinationKey) -> Option<Connections> {
        let (index, _) = self.server.destinations.find(key)?;
        self.connections.get(index).copied()
    }

    /// Returns whether any destination has a connection.
    pub fn has_connections(&self) -> bool {
        self.connections.iter().any(|left| !left.are_none())
    }

    /// Returns every destination with its connections.
    pub fn destinations(&self) -> impl Iterator<Item = (ipvs::Destination, Connections)> {
        let connections = self.connections.iter().copied();
        self.server.destinations.iter().zip(connections)
    }
}

impl Observed {
    /// Replaces the service addresses and the carrier. Returns the previous ones.
    pub fn replace_addresses(&mut self, mut found: LocalAddresses) -> LocalAddresses {
        found.addresses.pack();
        LocalAddresses {
            addresses: std::mem::replace(&mut self.addresses, found.addresses),
            leftovers: std::mem::replace(&mut self.leftovers, found.leftovers),
            outdated: std::mem::replace(&mut self.outdated, found.outdated),
            carrier: std::mem::replace(&mut self.carrier, found.carrier),
            foreign: std::mem::replace(&mut self.foreign, found.foreign),
        }
    }

    /// Returns the forms of `address` that are not the configured one.
    pub fn leftovers_of(&self, address: IpAddr) -> impl Iterator<Item = AddressForm> + '_ {
        // Forms are ordered: routes by metric, then addresses.
        let (first, last) = (AddressForm::Route(0), AddressForm::Address);
        let found = self.leftovers.range((address, first)..=(address, last));
        found.map(|&(_, form)| form)
    }

    /// Returns whether `address` is local in any form of ours.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address) || self.leftovers_of(address).next().is_some()
    }

    /// Records that `op` took effect.
    pub fn record(&mut self, op: &Op) {
        match *op {
            Op::AddService(service) => {
                let server = ObservedServer::empty(&service);
                self.virtual_servers.insert(service.key, server);
            }
            Op::DeleteService(key) => {
                self.virtual_servers.remove(&key);
            }
            Op::SetService(ipvs::Service { key, .. })
            | Op::AddDestination(key, _)
            | Op::SetDestination(key, _)
            | Op::DeleteDestination(key, _) => {
                if let Some(server) = self.virtual_servers.get_mut(&key) {
                    server.record(&[op]);
                }
            }
            Op::AddAddress(address, source) | Op::SetAddress(address, source) => {
                self.addresses.insert(address, source);
                self.outdated.remove(&address);
            }
            Op::DeleteAddress(address) => {
                self.addresses.remove(&address);
                self.outdated.remove(&address);
            }
            Op::DeleteLeftover(address, form) => {
                self.leftovers.remove(&(address, form));
            }
            Op::AddCarrier => {
                self.carrier = Some(Carrier {
                    is_ours: true,
                    is_ready: true,
                });
            }
            Op::SetCarrier => {
                if let Some(carrier) = &mut self.carrier {
                    carrier.is_ready = true;
                }
            }
            Op::DeleteCarrier => self.carrier = None,
        }
    }
}
