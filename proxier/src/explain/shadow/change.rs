//! The changes that a round would make.

use std::fmt;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::dataplane::ipvs::op::CARRIER;

/// A change of the kernel; prints in the imperative: `add destination 10.244.1.2:8080`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// Adds a virtual server with these destinations.
    AddServer(Vec<ipvs::DestinationKey>),
    /// Deletes a virtual server.
    DeleteServer,
    /// Rejects new connections, and deletes the virtual server when its existing connections have ended.
    RetireServer,
    /// Changes a property of a virtual server.
    SetServer {
        property: &'static str,
        before: String,
        after: String,
    },
    /// Adds destinations.
    AddDestinations(Vec<ipvs::DestinationKey>),
    /// Removes destinations that get new connections at present.
    RemoveDestinations(Vec<ipvs::DestinationKey>),
    /// Removes destinations of weight 0.
    RemoveDrained(Vec<ipvs::DestinationKey>),
    /// Changes the weight of destinations.
    SetWeight {
        before: u32,
        after: u32,
        destinations: Vec<ipvs::DestinationKey>,
    },
    /// Changes the forwarding method of destinations to masquerading.
    SetForwarding(Vec<ipvs::DestinationKey>),
    /// Makes addresses local in the configured form.
    AddAddresses(Vec<IpAddr>),
    /// Changes the preferred source or the MTU of the routes of addresses.
    SetAddresses(Vec<IpAddr>),
    /// Makes addresses no longer local.
    DeleteAddresses(Vec<IpAddr>),
    /// Creates the device of service addresses.
    AddDevice,
    /// Makes the device fit for service addresses.
    SetDevice,
    /// Removes the device.
    DeleteDevice,
    /// Writes our packet rules.
    WriteRules,
}

/// A verb, and the weights before and after a change of weights.
pub(super) type ChangeKind = (&'static str, [u32; 2]);

impl Change {
    /// Returns the words that name the change.
    fn verb(&self) -> &'static str {
        match self {
            Self::AddServer(_) => "add the virtual server",
            Self::DeleteServer => "delete the virtual server",
            Self::RetireServer => "delete the virtual server when its connections have ended",
            Self::SetServer { property, .. } => property,
            Self::AddDestinations(_) => "add",
            Self::RemoveDestinations(_) => "remove",
            Self::RemoveDrained(_) => "remove the drained",
            Self::SetWeight { .. } => "weight",
            Self::SetForwarding(_) => "forward by masquerading to",
            Self::AddAddresses(_) => "make local",
            Self::SetAddresses(_) => "rewrite the route of",
            Self::DeleteAddresses(_) => "stop serving",
            Self::AddDevice => "add the device",
            Self::SetDevice => "set up the device",
            Self::DeleteDevice => "delete the device",
            Self::WriteRules => "write the packet rules",
        }
    }

    /// Returns what two changes have in common if they may become one: the verb, and the weights.
    pub(super) fn kind(&self) -> ChangeKind {
        let weights = match self {
            Self::SetWeight { before, after, .. } => [*before, *after],
            _ => [0, 0],
        };
        (self.verb(), weights)
    }

    /// Adds the destinations or addresses of `other`, which has the same kind.
    pub(super) fn absorb(&mut self, other: &Self) {
        match self {
            Self::AddServer(mine)
            | Self::AddDestinations(mine)
            | Self::RemoveDestinations(mine)
            | Self::RemoveDrained(mine)
            | Self::SetForwarding(mine)
            | Self::SetWeight {
                destinations: mine, ..
            } => mine.extend(other.destinations()),
            Self::AddAddresses(mine) | Self::SetAddresses(mine) | Self::DeleteAddresses(mine) => {
                mine.extend(other.addresses());
            }
            _ => {}
        }
    }

    fn addresses(&self) -> &[IpAddr] {
        match self {
            Self::AddAddresses(all) | Self::SetAddresses(all) | Self::DeleteAddresses(all) => all,
            _ => &[],
        }
    }

    /// Returns the destinations that change.
    pub(crate) fn destinations(&self) -> &[ipvs::DestinationKey] {
        match self {
            Self::AddServer(all)
            | Self::AddDestinations(all)
            | Self::RemoveDestinations(all)
            | Self::RemoveDrained(all)
            | Self::SetForwarding(all)
            | Self::SetWeight {
                destinations: all, ..
            } => all,
            _ => &[],
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.verb();
        match self {
            Self::AddServer(all) => match all.len() {
                0 => write!(f, "{verb} without destinations"),
                _ => write!(f, "{verb} with {}", Listed("destination", all)),
            },
            Self::SetServer {
                property,
                before,
                after,
            } => write!(f, "change {property} from {before} to {after}"),
            Self::SetWeight {
                before,
                after,
                destinations,
            } => write!(
                f,
                "change the weight of {} from {before} to {after}",
                Listed("destination", destinations)
            ),
            Self::AddAddresses(all) | Self::SetAddresses(all) | Self::DeleteAddresses(all) => {
                write!(f, "{verb} {}", Listed("service address", all))
            }
            Self::AddDevice | Self::SetDevice | Self::DeleteDevice => write!(f, "{verb} {CARRIER}"),
            Self::DeleteServer | Self::RetireServer | Self::WriteRules => f.write_str(verb),
            Self::AddDestinations(all)
            | Self::RemoveDestinations(all)
            | Self::RemoveDrained(all)
            | Self::SetForwarding(all) => write!(f, "{verb} {}", Listed("destination", all)),
        }
    }
}

/// A list after its noun. A long list is cut: `destinations A, B, C, D and 7 more`.
pub(super) struct Listed<'a, T>(pub(super) &'static str, pub(super) &'a [T]);

/// The maximum number of printed elements of a long list.
const MAX_LISTED: usize = 4;

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(noun, all) = self;
        let plural = match (all.len(), noun.ends_with('s')) {
            (1, _) => "",
            (_, true) => "es",
            (_, false) => "s",
        };
        write!(f, "{noun}{plural}")?;
        // Cutting a list by one element would save nothing.
        let shown = match all.len() {
            count if count <= MAX_LISTED + 1 => count,
            _ => MAX_LISTED,
        };
        for (index, one) in all[..shown].iter().enumerate() {
            let separator = if index == 0 { " " } else { ", " };
            write!(f, "{separator}{one}")?;
        }
        match all.len() - shown {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
