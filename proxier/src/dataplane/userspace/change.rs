//! The changes of what the relay serves, as values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use schedulers::Thresholds;

use crate::cluster::model::ServicePortName;
use crate::dataplane::{Planned, Reason};
use crate::plan::SelectedEndpoint;
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
    Frontend(Frontend, FrontendChange),
    Endpoint(Place, SocketAddr, EndpointChange),
    Address(IpAddr, AddressChange),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrontendChange {
    /// Serves it, with its endpoints.
    Open,
    /// Changes scheduler, clients or options; connections continue.
    Configure,
    /// Serves it no longer.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointChange {
    /// Adds it.
    Add(Share),
    /// Changes its weight or limit, or ends its drain.
    Weigh(Share),
    /// Lets it keep its connections until this time, and gives it no new ones.
    Drain(Duration),
    /// Removes it and its connections.
    Remove,
    /// As `Remove`, because it becomes a frontend.
    LeaveOut,
}

/// An endpoint's part of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) weight: u32,
    pub(super) thresholds: Thresholds,
}

impl Share {
    pub(super) fn of(endpoint: &SelectedEndpoint) -> Self {
        let most = endpoint.most_connections.into();
        Self {
            weight: endpoint.weight.into(),
            // The lower one does not exceed it.
            thresholds: Thresholds::new(most, 0).unwrap_or_default(),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {}", self.weight)?;
        match self.thresholds.upper() {
            0 => Ok(()),
            most => write!(f, " at most {most} connections"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressChange {
    /// Makes it local, with a preferred source.
    Add(Option<IpAddr>),
    /// Changes the preferred source.
    Set(Option<IpAddr>),
    /// Makes it local no longer.
    Delete,
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
            (!first.contains(&address), change.stage_and_kind().0)
        });
    }

    pub(super) fn reason(&self, change: &Change) -> Reason {
        match change {
            Change::Address(address, _) if self.drifted.contains(address) => Reason::SummedDrift,
            _ => Reason::Plan,
        }
    }
}

impl Change {
    /// Returns the place in the order, and the kind as in the metrics: the same names as with IPVS.
    ///
    /// An endpoint that becomes a frontend leaves before the frontend opens, so that no connection circles. An address
    /// becomes local after its frontends are open, and is removed before they close. Endpoints are added before a pool
    /// for clients inside ends, so that their connections can move, and removed after one begins.
    fn stage_and_kind(&self) -> (u8, &'static str) {
        match self {
            Self::Endpoint(.., EndpointChange::LeaveOut) => (0, "delete_destination"),
            Self::Frontend(_, FrontendChange::Open) => (1, "add_service"),
            Self::Endpoint(.., EndpointChange::Add(_)) => (2, "add_destination"),
            Self::Frontend(_, FrontendChange::Configure) => (3, "set_service"),
            Self::Endpoint(.., EndpointChange::Weigh(_)) => (4, "set_destination"),
            Self::Address(_, AddressChange::Add(_)) => (5, "add_address"),
            Self::Address(_, AddressChange::Set(_)) => (5, "set_address"),
            Self::Address(_, AddressChange::Delete) => (6, "delete_address"),
            Self::Endpoint(.., EndpointChange::Drain(_)) => (7, "set_destination"),
            Self::Endpoint(.., EndpointChange::Remove) => (7, "delete_destination"),
            Self::Frontend(_, FrontendChange::Close) => (8, "delete_service"),
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        self.stage_and_kind().1
    }

    pub(super) fn target(&self) -> Target {
        match *self {
            Self::Frontend(frontend, _) | Self::Endpoint(Place { frontend, .. }, ..) => {
                Target::Frontend(frontend)
            }
            Self::Address(address, _) => Target::Address(address),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind().replace('_', " "))?;
        match self {
            Self::Frontend(frontend, _) => frontend.fmt(f),
            Self::Endpoint(place, endpoint, change) => {
                let clients = if place.is_inside {
                    " for clients inside"
                } else {
                    ""
                };
                let frontend = place.frontend;
                match change {
                    EndpointChange::Add(share) => {
                        write!(f, "{endpoint} {share} to {frontend}{clients}")
                    }
                    EndpointChange::Weigh(share) => {
                        write!(f, "{endpoint} {share} of {frontend}{clients}")
                    }
                    EndpointChange::Drain(_) => {
                        write!(f, "{endpoint} weight 0 of {frontend}{clients}")
                    }
                    EndpointChange::Remove | EndpointChange::LeaveOut => {
                        write!(f, "{endpoint} of {frontend}{clients}")
                    }
                }
            }
            Self::Address(address, change) => match change {
                AddressChange::Add(Some(source)) | AddressChange::Set(Some(source)) => {
                    write!(f, "{address} source {source}")
                }
                _ => address.fmt(f),
            },
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
        if let (Change::Frontend(..), Some(plan)) = (self.change, plan) {
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
