//! A write to the IPVS table.

use std::fmt;

use crate::destination::{Destination, DestinationKey};
use crate::service::{Service, ServiceKey};

/// One change of the table; many go into one system call ([`crate::Client::apply`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a virtual server.
    AddService(Service),
    /// Replaces everything but the key of a virtual server; destinations and connections stay.
    SetService(Service),
    /// Removes a virtual server with its destinations; connections stay but lead nowhere.
    DeleteService(ServiceKey),
    /// Adds a destination.
    AddDestination(ServiceKey, Destination),
    /// Replaces everything but the key of a destination; connections stay.
    SetDestination(ServiceKey, Destination),
    /// Removes a destination; connections to it stay but lead nowhere.
    DeleteDestination(ServiceKey, DestinationKey),
}

/// What is being done, as error messages say it: `adding destination 10.1.2.3:80 to TCP ..`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddService(service) => write!(f, "adding service {}", service.key),
            Self::SetService(service) => write!(f, "changing service {}", service.key),
            Self::DeleteService(key) => write!(f, "deleting service {key}"),
            Self::AddDestination(key, destination) => {
                write!(f, "adding destination {} to {key}", destination.key)
            }
            Self::SetDestination(key, destination) => {
                write!(f, "changing destination {} of {key}", destination.key)
            }
            Self::DeleteDestination(key, destination) => {
                write!(f, "deleting destination {destination} of {key}")
            }
        }
    }
}
