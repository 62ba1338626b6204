//! Every change of virtual servers and service addresses is an [`Op`].

use std::fmt;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

mod list;

pub use self::list::Ops;

/// The carrier: the dummy device of kube-proxy's IPVS mode. Calico and other programs recognise
/// service addresses by its name.
pub(crate) const CARRIER: &str = "kube-ipvs0";

/// A way in which a service address of ours is local.
///
/// `--service-addresses` selects one. The others are leftovers of another choice, or of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressForm {
    /// A local route with our protocol number and this metric.
    Route(u32),
    /// An address on [`CARRIER`].
    Address,
}

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
    /// Writes the route of a local address again, with a preferred source.
    SetAddress(IpAddr, Option<IpAddr>),
    /// Removes a local address.
    DeleteAddress(IpAddr),
    /// Removes a form of a local address that is not the configured one.
    DeleteLeftover(IpAddr, AddressForm),
    /// Creates the device [`CARRIER`].
    AddCarrier,
    /// Makes the device [`CARRIER`] fit for service addresses: up, without addresses of its own.
    SetCarrier,
    /// Removes the device [`CARRIER`].
    DeleteCarrier,
    /// Removes a destination.
    DeleteDestination(ipvs::ServiceKey, ipvs::DestinationKey),
    /// Removes a virtual server and its destinations.
    DeleteService(ipvs::ServiceKey),
}

/// What an [`Op`] changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// A virtual server, with its destinations.
    Server(ipvs::ServiceKey),
    /// A service address.
    Address(IpAddr),
    /// The device [`CARRIER`].
    Carrier,
}

impl Target {
    /// Returns the service address.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Server(_) | Self::Carrier => None,
        }
    }
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
    /// The carrier exists before the addresses that need it.
    Carrier,
    /// An address becomes local after its virtual servers exist. If it did earlier, clients would
    /// reach the node's own daemons.
    Addresses,
    /// An address is removed before its virtual servers, for the same reason.
    RemovedAddresses,
    /// Destinations are removed, or begin to drain, after their replacements exist.
    RemovedDestinations,
    /// Virtual servers are removed after their addresses.
    RemovedServices,
    /// The carrier is removed last: the kernel deletes all addresses with it.
    RemovedCarrier,
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
            Self::DeleteAddress(_) | Self::DeleteLeftover(..) => Stage::RemovedAddresses,
            Self::AddCarrier | Self::SetCarrier => Stage::Carrier,
            Self::DeleteCarrier => Stage::RemovedCarrier,
            Self::DeleteDestination(..) => Stage::RemovedDestinations,
            Self::DeleteService(_) => Stage::RemovedServices,
        }
    }

    /// Returns the kind of change, as the Op prints it: `add service`.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::AddService(_) => "add service",
            Self::SetService(_) => "set service",
            Self::AddDestination(..) => "add destination",
            Self::SetDestination(..) => "set destination",
            Self::AddAddress(..) => "add address",
            Self::SetAddress(..) => "set address",
            Self::DeleteAddress(_) | Self::DeleteLeftover(..) => "delete address",
            Self::DeleteDestination(..) => "delete destination",
            Self::DeleteService(_) => "delete service",
            Self::AddCarrier => "add device",
            Self::SetCarrier => "set device",
            Self::DeleteCarrier => "delete device",
        }
    }

    /// Returns the service address that the Op concerns; `None` for a firewall mark and the carrier.
    pub fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::AddAddress(address, _)
            | Self::SetAddress(address, _)
            | Self::DeleteAddress(address)
            | Self::DeleteLeftover(address, _) => Some(address),
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
            Self::AddAddress(..)
            | Self::SetAddress(..)
            | Self::DeleteAddress(_)
            | Self::DeleteLeftover(..)
            | Self::AddCarrier
            | Self::SetCarrier
            | Self::DeleteCarrier => None,
        }
    }

    /// Returns what the Op changes.
    pub(crate) fn target(&self) -> Target {
        match (self.service_key(), self.address()) {
            (Some(key), _) => Target::Server(key),
            (None, Some(address)) => Target::Address(address),
            (None, None) => Target::Carrier,
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
        write!(f, "{} ", self.verb())?;
        match *self {
            Self::AddService(service) | Self::SetService(service) => ServiceText(service).fmt(f),
            Self::DeleteService(key) => key.fmt(f),
            Self::AddDestination(key, to) => write!(f, "{} to {key}", DestinationText(to)),
            Self::SetDestination(key, to) => write!(f, "{} of {key}", DestinationText(to)),
            Self::DeleteDestination(key, destination) => write!(f, "{destination} of {key}"),
            Self::AddAddress(address, source) | Self::SetAddress(address, source) => {
                write!(f, "{address}{}", SourceText(source))
            }
            Self::DeleteAddress(address) => address.fmt(f),
            Self::DeleteLeftover(address, form) => {
                write!(f, "{address} in its other form ({form})")
            }
            Self::SetCarrier => write!(f, "{CARRIER} up"),
            Self::AddCarrier | Self::DeleteCarrier => f.write_str(CARRIER),
        }
    }
}

impl fmt::Display for AddressForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(metric) => write!(f, "local route of metric {metric}"),
            Self::Address => write!(f, "on device {CARRIER}"),
        }
    }
}

/// A destination as text: key and weight, then the limit of connections if set.
struct DestinationText(ipvs::Destination);

impl fmt::Display for DestinationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(it) = self;
        write!(f, "{} weight {}", it.key, it.weight)?;
        match it.upper_threshold {
            0 => Ok(()),
            most => write!(f, " at most {most} connections"),
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
