//! The whole vocabulary of change: every write to the machine is an [`Op`].

use std::fmt;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

/// One change to the machine; prints as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates a virtual server.
    AddService(ipvs::Service),
    /// Changes scheduler, flags or affinity of a virtual server; connections live on.
    SetService(ipvs::Service),
    /// Adds a destination to a virtual server.
    AddDestination(ipvs::ServiceKey, ipvs::Destination),
    /// Changes weight or forwarding of a destination; connections live on.
    SetDestination(ipvs::ServiceKey, ipvs::Destination),
    /// Makes an address local, with a preferred source for connections to it.
    AddAddress(IpAddr, Option<IpAddr>),
    /// Changes the preferred source of a local address.
    SetAddress(IpAddr, Option<IpAddr>),
    /// Stops an address from being local.
    DeleteAddress(IpAddr),
    /// Removes a destination.
    DeleteDestination(ipvs::ServiceKey, ipvs::DestinationKey),
    /// Removes a virtual server and its destinations.
    DeleteService(ipvs::ServiceKey),
}

/// When an [`Op`] is applied, relative to others.
///
/// The order keeps every kept frontend reachable after every prefix of the Ops, and makes a new one
/// reachable only once it can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Virtual servers come first: destinations need them.
    Services,
    /// Destinations are added before others are removed, so that a frontend never runs empty.
    Destinations,
    /// An address becomes local when its virtual servers can answer; earlier, the node's own
    /// daemons would.
    Addresses,
    /// An address stops being local before its virtual servers go, for the same reason.
    GoneAddresses,
    /// Destinations go, or begin to drain, after their replacements came.
    GoneDestinations,
    /// Virtual servers go last.
    GoneServices,
}

impl Op {
    /// When the Op is applied.
    pub fn stage(&self) -> Stage {
        match self {
            Self::AddService(_) | Self::SetService(_) => Stage::Services,
            // Weight 0 takes a destination's place away, like its deletion.
            Self::SetDestination(_, destination) if destination.weight == 0 => {
                Stage::GoneDestinations
            }
            Self::AddDestination(..) | Self::SetDestination(..) => Stage::Destinations,
            Self::AddAddress(..) | Self::SetAddress(..) => Stage::Addresses,
            Self::DeleteAddress(_) => Stage::GoneAddresses,
            Self::DeleteDestination(..) => Stage::GoneDestinations,
            Self::DeleteService(_) => Stage::GoneServices,
        }
    }

    /// The service address that the Op is about; `None` for virtual servers of a firewall mark.
    pub fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::AddAddress(address, _)
            | Self::SetAddress(address, _)
            | Self::DeleteAddress(address) => Some(address),
            _ => self.service_key()?.address(),
        }
    }

    /// The virtual server that the Op changes, if it changes one.
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

    /// The destination that the Op changes, if it changes one.
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
            Self::AddAddress(address, source) => write!(f, "add address {address}{}", From(source)),
            Self::SetAddress(address, source) => write!(f, "set address {address}{}", From(source)),
            Self::DeleteAddress(address) => write!(f, "delete address {address}"),
        }
    }
}

/// A virtual server's definition after its key, leaving out what is usual.
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
            others => write!(f, " flags {others:#x}"),
        }
    }
}

/// The preferred source, if any.
struct From(Option<IpAddr>);

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(source) => write!(f, " source {source}"),
            None => Ok(()),
        }
    }
}
