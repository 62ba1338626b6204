//! What is: the state of the machine as far as we may change it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use ipvs_netlink as ipvs;

use crate::op::Op;

/// What is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every virtual server of the network namespace, ours or not.
    pub virtual_servers: BTreeMap<ipvs::ServiceKey, ObservedServer>,
    /// The addresses that we made local, with their preferred source.
    pub addresses: BTreeMap<IpAddr, Option<IpAddr>>,
}

/// A virtual server that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedServer {
    /// Its definition.
    pub service: ipvs::Service,
    /// Its destinations, ordered by key, each key once.
    pub destinations: Destinations,
}

impl ObservedServer {
    /// A virtual server without destinations.
    pub fn empty(service: ipvs::Service) -> Self {
        Self {
            service,
            destinations: Destinations::default(),
        }
    }

    /// Where the destination `key` is, or where it would be inserted.
    pub(crate) fn position(&self, key: ipvs::DestinationKey) -> Result<usize, usize> {
        let order = |destination: &ipvs::Destination| destination.key;
        self.destinations.binary_search_by_key(&key, order)
    }
}

/// Destinations that exist. Nearly always they are those that should exist, and then they are in
/// memory once ([`Destinations::share`]).
#[derive(Clone, Debug)]
pub enum Destinations {
    /// The same as somebody else's.
    Shared(Arc<[ipvs::Destination]>),
    /// Any.
    Own(Vec<ipvs::Destination>),
}

impl Destinations {
    /// Changes these destinations and nobody else's.
    pub fn change<T>(&mut self, work: impl FnOnce(&mut Vec<ipvs::Destination>) -> T) -> T {
        let mut own = match std::mem::take(self) {
            Self::Shared(shared) => shared.to_vec(),
            Self::Own(own) => own,
        };
        let result = work(&mut own);
        *self = Self::Own(own);
        result
    }

    /// Lets go of the memory if these are `others`.
    pub fn share(&mut self, others: &Arc<[ipvs::Destination]>) {
        if **self == **others {
            *self = Self::Shared(others.clone());
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

/// A virtual server as it was found, with what changes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub server: ObservedServer,
    /// The connections of its destinations, in their order.
    pub connections: Vec<Connections>,
}

/// The connections of a destination at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Those in an active state.
    pub active: u32,
    /// The others.
    pub inactive: u32,
}

impl Connections {
    /// Whether there is none of any state.
    pub fn are_none(&self) -> bool {
        self.active == 0 && self.inactive == 0
    }
}

impl Found {
    /// The connections of the destination `key`, if there is one.
    pub fn connections_of(&self, key: &ipvs::DestinationKey) -> Option<Connections> {
        let at = self.server.position(*key).ok()?;
        self.connections.get(at).copied()
    }

    /// Each destination with its connections.
    pub fn destinations(&self) -> impl Iterator<Item = (&ipvs::Destination, Connections)> {
        let connections = self.connections.iter().copied();
        self.server.destinations.iter().zip(connections)
    }
}

impl Observed {
    /// Takes in that `op` took effect.
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
                        Ok(at) => destinations[at] = destination,
                        Err(at) => destinations.insert(at, destination),
                    });
                }
            }
            Op::DeleteDestination(key, destination) => {
                if let Some(server) = self.virtual_servers.get_mut(&key)
                    && let Ok(at) = server.position(destination)
                {
                    server
                        .destinations
                        .change(|destinations| destinations.remove(at));
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
