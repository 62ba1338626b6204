//! The observed state of the kernel: virtual servers and service addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use ipvs_netlink as ipvs;

use crate::op::Op;

/// The observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every virtual server of the network namespace, owned or foreign.
    pub virtual_servers: BTreeMap<ipvs::ServiceKey, ObservedServer>,
    /// Our service addresses, each with its preferred source.
    pub addresses: BTreeMap<IpAddr, Option<IpAddr>>,
}

/// A virtual server in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedServer {
    /// Scheduler, flags and affinity.
    pub service: ipvs::Service,
    /// Its destinations, ordered by key, each key once.
    pub destinations: Destinations,
}

impl ObservedServer {
    /// Returns a virtual server without destinations.
    pub fn empty(service: ipvs::Service) -> Self {
        Self {
            service,
            destinations: Destinations::default(),
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

    /// Shares the memory of the desired destinations if they are equal.
    pub fn share(&mut self, desired: &Arc<[ipvs::Destination]>) {
        if **self == **desired {
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
    /// Returns the connections of a destination; `None` if it does not exist.
    pub fn connections_of(&self, key: &ipvs::DestinationKey) -> Option<Connections> {
        let index = self.server.position(*key).ok()?;
        self.connections.get(index).copied()
    }

    /// Returns every destination with its connections.
    pub fn destinations(&self) -> impl Iterator<Item = (&ipvs::Destination, Connections)> {
        let connections = self.connections.iter().copied();
        self.server.destinations.iter().zip(connections)
    }
}

impl Observed {
    /// Records that `op` took effect.
    pub fn record(&mut self, op: &Op) {
        match *op {
            Op::AddService(service) => {
                let server = ObservedServer::empty(service);
                self.virtual_servers.insert(service.key, server);
            }
            Op::SetService(service) => {
                if let Some(server) = self.virtual_servers.get_mut(&service.key) {
                    server.service = service;
                }
            }
            Op::DeleteService(key) => {
                self.virtual_servers.remove(&key);
            }
            Op::AddDestination(key, destination) | Op::SetDestination(key, destination) => {
                if let Some(server) = self.virtual_servers.get_mut(&key) {
                    let position = server.position(destination.key);
                    server.destinations.change(|destinations| match position {
                        Ok(index) => destinations[index] = destination,
                        Err(index) => destinations.insert(index, destination),
                    });
                }
            }
            Op::DeleteDestination(key, destination) => {
                if let Some(server) = self.virtual_servers.get_mut(&key)
                    && let Ok(index) = server.position(destination)
                {
                    server
                        .destinations
                        .change(|destinations| destinations.remove(index));
                }
            }
            Op::AddAddress(address, source) | Op::SetAddress(address, source) => {
                self.addresses.insert(address, source);
            }
            Op::DeleteAddress(address) => {
                self.addresses.remove(&address);
            }
        }
    }
}
