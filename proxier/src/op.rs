//! Every change of virtual servers and service addresses is an [`Op`].

use std::fmt;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

/// One change of the kernel; prints as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates a virtual server.
    AddService(ipvs::Service),
    /// Changes scheduler, flags or affinity of a virtual server; its connections continue.
    SetService(ipvs::Service),
    /// Adds a destination to a virtual server.
    AddDestination(ipvs::ServiceKey, ipvs::Destination),
    /// Changes weight or forwarding of a destination; its connections continue.
    SetDestination(ipvs::ServiceKey, ipvs::Destination),
    /// Makes an address local, with a preferred source of connections to it.
    AddAddress(IpAddr, Option<IpAddr>),
    /// Changes the preferred source of a local address.
    SetAddress(IpAddr, Option<IpAddr>),
    /// Removes a local address.
    DeleteAddress(IpAddr),
    /// Removes a destination.
    DeleteDestination(ipvs::ServiceKey, ipvs::DestinationKey),
    /// Removes a virtual server and its destinations.
    DeleteService(ipvs::ServiceKey),
}

/// The position of an [`Op`] in the order of application.
///
/// After each Op, every frontend that existed before and remains is reachable. A new frontend
/// becomes reachable only after its destinations exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Virtual servers are added first: the kernel needs them for destinations.
    Services,
    /// Destinations are added before others are removed: a frontend is never without any.
    Destinations,
    /// An address becomes local after its virtual servers exist. If it did earlier, clients would
    /// reach the node's own daemons.
    Addresses,
    /// An address is removed before its virtual servers, for the same reason.
    RemovedAddresses,
    /// Destinations are removed, or begin to drain, after their replacements exist.
    RemovedDestinations,
    /// Virtual servers are removed last.
    RemovedServices,
}

impl Op {
    /// Returns the stage in which to apply the Op.
    pub fn stage(&self) -> Stage {
        match self {
            Self::AddService(_) | Self::SetService(_) => Stage::Services,
            // A destination with weight 0 gets no new connections: for clients it is deleted.
            Self::SetDestination(_, destination) if destination.weight == 0 => {
                Stage::RemovedDestinations
            }
            Self::AddDestination(..) | Self::SetDestination(..) => Stage::Destinations,
            Self::AddAddress(..) | Self::SetAddress(..) => Stage::Addresses,
            Self::DeleteAddress(_) => Stage::RemovedAddresses,
            Self::DeleteDestination(..) => Stage::RemovedDestinations,
            Self::DeleteService(_) => Stage::RemovedServices,
        }
    }

    /// Returns the service address that the Op concerns; `None` for a firewall mark.
    pub fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::AddAddress(address, _)
            | Self::SetAddress(address, _)
            | Self::DeleteAddress(address) => Some(address),
            _ => self.service_key()?.address(),
        }
    }

    /// Returns the virtual server that the Op changes, if any.
    pub fn service_key(&self) -> Option<ipvs::ServiceKey> {
        match *self {
            Self::AddService(service) | Self::SetService(service) => Some(service.key),
            Self::AddDestination(key, _)
            | Self::SetDestination(key, _)
            | Self::DeleteDestination(key, _)
            | Self::DeleteService(key) => Some(key),
            Self::AddAddress(..) | Self::SetAddress(..) | Self::DeleteAddress(_) => None,
        }
    }

    /// Returns the destination that the Op changes, if any.
    pub fn destination_key(&self) -> Option<ipvs::DestinationKey> {
        match *self {
            Self::AddDestination(_, destination) | Self::SetDestination(_, destination) => {
                Some(destination.key)
            }
            Self::DeleteDestination(_, key) => Some(key),
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::AddService(service) => write!(f, "add service {}", ServiceText(service)),
            Self::SetService(service) => write!(f, "set service {}", ServiceText(service)),
            Self::DeleteService(key) => write!(f, "delete service {key}"),
            Self::AddDestination(key, destination) => {
                write!(
                    f,
                    "add destination {} weight {} to {key}",
                    destination.key, destination.weight
                )
            }
            Self::SetDestination(key, destination) => {
                write!(
                    f,
                    "set destination {} weight {} of {key}",
                    destination.key, destination.weight
                )
            }
            Self::DeleteDestination(key, destination) => {
                write!(f, "delete destination {destination} of {key}")
            }
            Self::AddAddress(address, source) => {
                write!(f, "add address {address}{}", SourceText(source))
            }
            Self::SetAddress(address, source) => {
                write!(f, "set address {address}{}", SourceText(source))
            }
            Self::DeleteAddress(address) => write!(f, "delete address {address}"),
        }
    }
}

/// A virtual server as text: key and scheduler, then affinity and flags if set.
struct ServiceText(ipvs::Service);

impl fmt::Display for ServiceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ipvs::Service {
            key,
            scheduler,
            flags,
            timeout_secs,
            ..
        } = self.0;
        match scheduler {
            Some(scheduler) => write!(f, "{key} {scheduler}")?,
            None => write!(f, "{key} none")?,
        }
        if flags.contains(ipvs::ServiceFlags::PERSISTENT) {
            write!(f, " persistent {timeout_secs}s")?;
        }
        match flags.without(ipvs::ServiceFlags::PERSISTENT).bits() {
            0 => Ok(()),
            others => write!(f, " flags {others:#x}"),
        }
    }
}

/// A preferred source as text; empty without one.
struct SourceText(Option<IpAddr>);

impl fmt::Display for SourceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(source) => write!(f, " source {source}"),
            None => Ok(()),
        }
    }
}
