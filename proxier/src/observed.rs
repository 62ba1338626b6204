//! The observed state of the kernel: virtual servers and service addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use ipvs_netlink as ipvs;

use crate::definition::ServerDefinition;
use crate::op::{AddressForm, Op};
use crate::split_map::SplitMap;

/// The observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every virtual server of the network namespace, owned or foreign.
    pub virtual_servers: SplitMap<ipvs::ServiceKey, ObservedServer>,
    /// Our service addresses in the configured form, each with its preferred source.
    pub addresses: SplitMap<IpAddr, Option<IpAddr>>,
    /// Our service addresses in other forms. A service address may have several forms.
    pub leftovers: BTreeSet<(IpAddr, AddressForm)>,
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
    pub definition: Arc<ServerDefinition>,
    /// Its destinations, ordered by key, each key once.
    pub destinations: Destinations,
}

impl ObservedServer {
    /// Returns a virtual server without destinations.
    pub fn empty(service: &ipvs::Service) -> Self {
        Self {
            definition: Arc::new(ServerDefinition::of(service)),
            destinations: Destinations::default(),
        }
    }

    /// Shares the memory of the desired definition and destinations, as far as they are equal.
    pub(crate) fn share(
        &mut self,
        definition: &Arc<ServerDefinition>,
        destinations: &Arc<[ipvs::Destination]>,
    ) {
        if self.definition == *definition {
            self.definition.clone_from(definition);
        }
        self.destinations.share(destinations);
    }

    /// Returns whether any destination has a weight above 0.
    pub(crate) fn accepts_connections(&self) -> bool {
        self.destinations.iter().any(|it| it.weight > 0)
    }

    /// Records that `op`, which changes this virtual server or a destination of it, took effect.
    pub(crate) fn record(&mut self, op: &Op) {
        match *op {
            Op::SetService(service) => self.definition = Arc::new(ServerDefinition::of(&service)),
            Op::AddDestination(_, destination) | Op::SetDestination(_, destination) => {
                let position = self.position(destination.key);
                self.destinations.change(|destinations| match position {
                    Ok(index) => destinations[index] = destination,
                    Err(index) => destinations.insert(index, destination),
                });
            }
            Op::DeleteDestination(_, destination) => {
                if let Ok(index) = self.position(destination) {
                    self.destinations
                        .change(|destinations| destinations.remove(index));
                }
            }
            _ => {}
        }
    }

    /// Returns the index of a destination; as an error, the index at which to insert it.
    pub(crate) fn position(&self, key: ipvs::DestinationKey) -> Result<usize, usize> {
        let order = |destination: &ipvs::Destination| destination.key;
        self.destinations.binary_search_by_key(&key, order)
    }
}

/// The destinations of a virtual server in the kernel.
///
/// They nearly always equal the desired ones. Then both share memory ([`Destinations::share`]).
#[derive(Clone, Debug)]
pub enum Destinations {
    /// The desired destinations.
    Shared(Arc<[ipvs::Destination]>),
    /// Other destinations.
    Own(Vec<ipvs::Destination>),
}

impl Destinations {
    /// Changes these destinations. If their memory is shared, copies it first.
    pub fn change<T>(&mut self, work: impl FnOnce(&mut Vec<ipvs::Destination>) -> T) -> T {
        let mut own = match std::mem::take(self) {
            Self::Shared(shared) => shared.to_vec(),
            Self::Own(own) => own,
        };
        let result = work(&mut own);
        *self = Self::Own(own);
        result
    }

    /// Returns whether these are the desired destinations, by their memory alone.
    ///
    /// `false` proves nothing.
    pub fn are(&self, desired: &Arc<[ipvs::Destination]>) -> bool {
        matches!(self, Self::Shared(shared) if Arc::ptr_eq(shared, desired))
    }

    /// Shares the memory of the desired destinations if they are equal.
    pub fn share(&mut self, desired: &Arc<[ipvs::Destination]>) {
        // The pointers first: most destinations share their memory already.
        if !self.are(desired) && **self == **desired {
            *self = Self::Shared(desired.clone());
        }
    }
}

impl Default for Destinations {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl From<Vec<ipvs::Destination>> for Destinations {
    fn from(own: Vec<ipvs::Destination>) -> Self {
        Self::Own(own)
    }
}

impl Deref for Destinations {
    type Target = [ipvs::Destination];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shared(shared) => shared,
            Self::Own(own) => own,
        }
    }
}

impl PartialEq for Destinations {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Destinations {}

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
        let index = self.server.position(*key).ok()?;
        self.connections.get(index).copied()
    }

    /// Returns whether any destination has a connection.
    pub fn has_connections(&self) -> bool {
        self.connections.iter().any(|left| !left.are_none())
    }

    /// Returns every destination with its connections.
    pub fn destinations(&self) -> impl Iterator<Item = (&ipvs::Destination, Connections)> {
        let connections = self.connections.iter().copied();
        self.server.destinations.iter().zip(connections)
    }
}

impl Observed {
    /// Replaces the service addresses and the carrier. Returns the previous ones.
    pub fn replace_addresses(&mut self, found: LocalAddresses) -> LocalAddresses {
        LocalAddresses {
            addresses: std::mem::replace(&mut self.addresses, found.addresses),
            leftovers: std::mem::replace(&mut self.leftovers, found.leftovers),
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

    /// Frees the memory that many insertions in order of the keys left unused.
    pub(crate) fn pack(&mut self) {
        self.virtual_servers.pack();
        self.addresses.pack();
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
                    server.record(op);
                }
            }
            Op::AddAddress(address, source) | Op::SetAddress(address, source) => {
                self.addresses.insert(address, source);
            }
            Op::DeleteAddress(address) => {
                self.addresses.remove(&address);
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
