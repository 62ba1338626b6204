//! The changes of what the relay serves, as values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::cluster::model::ServicePortName;
use crate::dataplane::{Planned, Reason};
use crate::plan::frontend::Frontend;

/// The changes of a round, in the order in which they are applied.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub(super) list: Vec<Change>,
    /// The addresses that another program changed.
    pub(super) drifted: BTreeSet<IpAddr>,
    /// The Service ports of the frontends that the plan no longer has.
    pub(super) left: BTreeMap<Frontend, ServicePortName>,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Serves a frontend, with its endpoints.
    Open(Frontend),
    /// Changes scheduler, clients or options of a frontend; its connections continue.
    Configure(Frontend),
    /// Serves a frontend no longer.
    Close(Frontend),
    /// Adds an endpoint with this weight.
    Add(Place, SocketAddr, u16),
    /// Changes the weight of an endpoint, or ends its drain.
    Weigh(Place, SocketAddr, u16),
    /// Lets an endpoint keep its connections until this time, and gives it no new ones.
    Drain(Place, SocketAddr, Duration),
    /// Removes an endpoint and its connections.
    Remove(Place, SocketAddr),
    /// As `Remove`, for an endpoint that becomes a frontend.
    LeaveOut(Place, SocketAddr),
    /// Makes an address local, with a preferred source.
    AddAddress(IpAddr, Option<IpAddr>),
    /// Changes the preferred source.
    SetAddress(IpAddr, Option<IpAddr>),
    /// Makes an address local no longer.
    DeleteAddress(IpAddr),
}

/// The pool that has an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) frontend: Frontend,
    /// Whether it is the pool for clients inside the cluster, where these have their own.
    pub(super) is_inside: bool,
}

/// What a failed change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Frontend(Frontend),
    Address(IpAddr),
}

impl Changes {
    /// Sorts the changes. Those that concern an address in `first` come first.
    pub(super) fn sort(&mut self, first: &BTreeSet<IpAddr>) {
        self.list.sort_by_key(|change| {
            let address = match change.target() {
                Target::Frontend(frontend) => frontend.address,
                Target::Address(address) => address,
            };
            (!first.contains(&address), change.stage())
        });
    }

    pub(super) fn reason(&self, change: &Change) -> Reason {
        match change.target() {
            Target::Address(address) if self.drifted.contains(&address) => Reason::SummedDrift,
            _ => Reason::Plan,
        }
    }
}

impl Change {
    /// Returns the place in the order.
    ///
    /// An endpoint that becomes a frontend leaves before the frontend opens, so that no connection circles. An address
    /// becomes local after its frontends are open, and is removed before they close. Endpoints are added before a pool
    /// for clients inside ends, so that their connections can move, and removed after one begins.
    fn stage(&self) -> u8 {
        match self {
            Self::LeaveOut(..) => 0,
            Self::Open(_) => 1,
            Self::Add(..) => 2,
            Self::Configure(_) => 3,
            Self::Weigh(..) => 4,
            Self::AddAddress(..) | Self::SetAddress(..) => 5,
            Self::DeleteAddress(_) => 6,
            Self::Drain(..) | Self::Remove(..) => 7,
            Self::Close(_) => 8,
        }
    }

    /// Returns the kind, as in the metrics: the same names as with IPVS.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Open(_) => "add_service",
            Self::Configure(_) => "set_service",
            Self::Close(_) => "delete_service",
            Self::Add(..) => "add_destination",
            Self::Weigh(..) | Self::Drain(..) => "set_destination",
            Self::Remove(..) | Self::LeaveOut(..) => "delete_destination",
            Self::AddAddress(..) => "add_address",
            Self::SetAddress(..) => "set_address",
            Self::DeleteAddress(_) => "delete_address",
        }
    }

    pub(super) fn target(&self) -> Target {
        match *self {
            Self::Open(frontend) | Self::Configure(frontend) | Self::Close(frontend) => {
                Target::Frontend(frontend)
            }
            Self::Add(place, ..)
            | Self::Weigh(place, ..)
            | Self::Drain(place, ..)
            | Self::Remove(place, _)
            | Self::LeaveOut(place, _) => Target::Frontend(place.frontend),
            Self::AddAddress(address, _)
            | Self::SetAddress(address, _)
            | Self::DeleteAddress(address) => Target::Address(address),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind().replace('_', " "))?;
        match self {
            Self::Open(frontend) | Self::Configure(frontend) | Self::Close(frontend) => {
                frontend.fmt(f)
            }
            Self::Add(place, endpoint, weight) => {
                write!(f, "{endpoint} weight {weight} to {place}")
            }
            Self::Weigh(place, endpoint, weight) => {
                write!(f, "{endpoint} weight {weight} of {place}")
            }
            Self::Drain(place, endpoint, _) => write!(f, "{endpoint} weight 0 of {place}"),
            Self::Remove(place, endpoint) | Self::LeaveOut(place, endpoint) => {
                write!(f, "{endpoint} of {place}")
            }
            Self::AddAddress(address, source) | Self::SetAddress(address, source) => match source {
                Some(source) => write!(f, "{address} source {source}"),
                None => address.fmt(f),
            },
            Self::DeleteAddress(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.frontend.fmt(f)?;
        match self.is_inside {
            true => f.write_str(" for clients inside"),
            false => Ok(()),
        }
    }
}

/// A change with the name of its Service port: `add service TCP 10.96.0.10:53 rr, endpoints: 2 (kube-system/dns:tcp)`.
pub(super) struct NamedChange<'a> {
    pub(super) change: &'a Change,
    pub(super) planned: Planned<'a>,
    pub(super) left: &'a BTreeMap<Frontend, ServicePortName>,
}

impl fmt::Display for NamedChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.change.fmt(f)?;
        let Target::Frontend(frontend) = self.change.target() else {
            return Ok(());
        };
        let plan = self.planned.desired().frontends.get(&frontend);
        if let (Change::Open(_) | Change::Configure(_), Some(plan)) = (self.change, plan) {
            let balancing = &plan.profile.balancing;
            write!(f, " {}", balancing.scheduler)?;
            if let Some(secs) = balancing.affinity_secs {
                write!(f, " persistent {secs}s")?;
            }
            write!(f, ", endpoints: {}", plan.endpoints.len())?;
        }
        let owner = plan.map(|plan| &plan.owner);
        match owner.or_else(|| self.left.get(&frontend)) {
            Some(owner) => write!(f, " ({owner})"),
            None => Ok(()),
        }
    }
}
