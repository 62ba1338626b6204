//! Ops: the changes to IPVS and to service addresses, and their order.
//!
//! Packet rules, kernel settings and flows are changed without Ops.

use std::fmt;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

/// One change to a virtual server, a destination or a service address; prints as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates a virtual server.
    AddService(ipvs::Service),
    /// Changes scheduler, flags or affinity of a virtual server; connections stay.
    SetService(ipvs::Service),
    /// Adds a destination to a virtual server.
    AddDestination(ipvs::ServiceKey, ipvs::Destination),
    /// Changes weight or forwarding of a destination; connections stay.
    SetDestination(ipvs::ServiceKey, ipvs::Destination),
    /// Makes an address local, with a preferred source for connections to it.
    AddAddress(IpAddr, Option<IpAddr>),
    /// Changes the preferred source of a local address.
    SetAddress(IpAddr, Option<IpAddr>),
    /// Stops an address from being local.
    DeleteAddress(IpAddr),
    /// Deletes a destination.
    DeleteDestination(ipvs::ServiceKey, ipvs::DestinationKey),
    /// Deletes a virtual server and its destinations.
    DeleteService(ipvs::ServiceKey),
}

/// The place of an [`Op`] in the order of a round.
///
/// After each single Op, every frontend that was and stays desired is reachable. A new frontend becomes
/// reachable only when it has its destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Virtual servers are added or changed first, because destinations need them.
    Services,
    /// Destinations are added before others are deleted, so that a frontend always has one.
    Destinations,
    /// An address becomes local after its virtual servers have destinations. Before, the node's own
    /// daemons would answer there.
    Addresses,
    /// An address stops being local before its virtual servers are deleted, for the same reason.
    DeletedAddresses,
    /// Destinations are deleted, or begin to drain, after their replacements were added.
    DeletedDestinations,
    /// Virtual servers are deleted last.
    DeletedServices,
}

impl Op {
    /// Returns the stage in which the Op is applied.
    pub fn stage(&self) -> Stage {
        match self {
            Self::AddService(_) | Self::SetService(_) => Stage::Services,
            // A destination with weight 0 gets no new connections, like a deleted one.
            Self::SetDestination(_, destination) if destination.weight == 0 => {
                Stage::DeletedDestinations
            }
            Self::AddDestination(..) | Self::SetDestination(..) => Stage::Destinations,
            Self::AddAddress(..) | Self::SetAddress(..) => Stage::Addresses,
            Self::DeleteAddress(_) => Stage::DeletedAddresses,
            Self::DeleteDestination(..) => Stage::DeletedDestinations,
            Self::DeleteService(_) => Stage::DeletedServices,
        }
    }

    /// Returns the service address that the Op concerns; `None` for a virtual server of a firewall mark.
    pub fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::AddAddress(address, _)
            | Self::SetAddress(address, _)
            | Self::DeleteAddress(address) => Some(address),
            _ => self.service_key()?.address(),
        }
    }

    /// Returns the virtual server that the Op changes; `None` if it changes an address.
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

    /// Returns the destination that the Op changes, if it changes one.
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
            Self::AddService(service) => write!(f, "add service {}", Definition(service)),
            Self::SetService(service) => write!(f, "set service {}", Definition(service)),
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
                write!(f, "add address {address}{}", PreferredSource(source))
            }
            Self::SetAddress(address, source) => {
                write!(f, "set address {address}{}", PreferredSource(source))
            }
            Self::DeleteAddress(address) => write!(f, "delete address {address}"),
        }
    }
}

/// Prints the key and definition of a virtual server, without usual values.
struct Definition(ipvs::Service);

impl fmt::Display for Definition {
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
            flags => write!(f, " flags {flags:#x}"),
        }
    }
}

/// Prints the preferred source, if any.
struct PreferredSource(Option<IpAddr>);

impl fmt::Display for PreferredSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(source) => write!(f, " source {source}"),
            None => Ok(()),
        }
    }
}
