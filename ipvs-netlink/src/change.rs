//! Changes of the kernel's IPVS table.

use std::fmt;

use crate::destination::{Destination, DestinationKey};
use crate::service::{Service, ServiceKey};

/// One change of the IPVS table; [`crate::Client::apply`] sends many in one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a virtual server.
    AddService(Service),
    /// Replaces all fields of a virtual server except its key; destinations and connections remain.
    SetService(Service),
    /// Deletes a virtual server and its destinations.
    ///
    /// Connection entries remain until they time out, but their packets are dropped.
    DeleteService(ServiceKey),
    /// Adds a destination.
    AddDestination(ServiceKey, Destination),
    /// Replaces all fields of a destination except its key.
    ///
    /// Existing connections keep the forwarding method with which they were created.
    SetDestination(ServiceKey, Destination),
    /// Deletes a destination.
    ///
    /// Connection entries remain until they time out, but their packets are dropped. If the same
    /// destination is added again, they work again.
    DeleteDestination(ServiceKey, DestinationKey),
}

/// Formats as the first part of an error message: `adding destination 10.1.2.3:80 to TCP ..`.
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
