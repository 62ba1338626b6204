//! What is: the state of the machine as far as we may change it.

use std::collections::BTreeMap;
use std::net::IpAddr;

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
    pub destinations: Vec<ObservedDestination>,
}

impl ObservedServer {
    /// A virtual server without destinations.
    pub fn empty(service: ipvs::Service) -> Self {
        Self {
            service,
            destinations: Vec::new(),
        }
    }

    /// Where the destination `key` is, or where it would be inserted.
    pub(crate) fn position(&self, key: ipvs::DestinationKey) -> Result<usize, usize> {
        let order = |entry: &ObservedDestination| entry.destination.key;
        self.destinations.binary_search_by_key(&key, order)
    }

    /// Whether this and `other` are defined alike, whatever their connections.
    pub fn is_like(&self, other: &Self) -> bool {
        let definitions = |server: &Self| -> Vec<ipvs::Destination> {
            let entries = server.destinations.iter();
            entries.map(|entry| entry.destination).collect()
        };
        self.service == other.service && definitions(self) == definitions(other)
    }
}

/// A destination that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedDestination {
    /// Its definition.
    pub destination: ipvs::Destination,
    /// Connections in an active state.
    pub active_connections: u32,
    /// Other connections.
    pub inactive_connections: u32,
}

impl ObservedDestination {
    /// A destination without connections.
    pub fn idle(destination: ipvs::Destination) -> Self {
        Self {
            destination,
            active_connections: 0,
            inactive_connections: 0,
        }
    }

    /// Whether no connection of any state is left.
    pub fn is_idle(&self) -> bool {
        self.active_connections == 0 && self.inactive_connections == 0
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
                    match server.position(destination.key) {
                        Ok(at) => server.destinations[at].destination = destination,
                        Err(at) => server
                            .destinations
                            .insert(at, ObservedDestination::idle(destination)),
                    }
                }
            }
            Op::DeleteDestination(key, destination) => {
                if let Some(server) = self.virtual_servers.get_mut(&key)
                    && let Ok(at) = server.position(destination)
                {
                    server.destinations.remove(at);
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
