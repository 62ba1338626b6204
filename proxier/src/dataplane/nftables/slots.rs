//! The slots of a frontend: which endpoints a number stands for, as a function of its plan.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use nftables::{Key, Table, Value};
use schedulers::kernel::{Dh, Mh};
use schedulers::{Balancer, Flags, MhTable, Options, Request};

use super::names::ENDPOINTS;
use super::pick::Pick;
use crate::cluster::model::Family;
use crate::plan::frontend::Frontend;
use crate::plan::{Balancing, FrontendPlan, SelectedEndpoint};

/// The first slot of the endpoints for clients outside the cluster, if clients inside reach others.
pub(super) const OUTSIDE: u32 = 65_536;

/// The most slots that weights give a frontend, besides one for each endpoint.
const MOST_BY_WEIGHT: u64 = 1_024;

/// The most slots that weights give all frontends of a Service, besides one for each endpoint of each. A Service can have
/// thousands of ports, and all slots are in the memory of the kernel of every node.
const MOST_PER_SERVICE: u64 = 16_384;

/// The schedulers that slots can be. All others count connections, which nf_tables cannot.
pub(super) const SCHEDULERS: [&str; 6] = ["rr", "wrr", "sh", "mh", "dh", "fo"];

/// The index of the table of mh: 251 slots. The kernel's 4,093 would cost a hundred times the memory of IPVS' table.
const MH_INDEX: u32 = 8;

/// How a connection gets its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draw {
    /// At random.
    Random,
    /// By a hash of the client's address.
    Client,
    /// By a hash of the client's address and port.
    ClientPort,
}

/// The endpoints of the slots, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) draw: Draw,
    pub(super) endpoints: Vec<SocketAddr>,
}

/// The slots that a frontend has in a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Present {
    /// From 0 on.
    pub(super) first: Vec<SocketAddr>,
    /// From [`OUTSIDE`] on.
    pub(super) outside: Vec<SocketAddr>,
}

impl Present {
    pub(super) fn of(table: &Table, frontend: &Frontend) -> Self {
        let Some(map) = table.sets.get(ENDPOINTS.of(frontend.family())) else {
            return Self::default();
        };
        let from = |first: u32| {
            let slots = (first..).map_while(|slot| map.target(&key(frontend, slot)));
            slots.collect()
        };
        Self {
            first: from(0),
            outside: from(OUTSIDE),
        }
    }

    /// Returns whether all endpoints of these slots are among those of `other`.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        let others: BTreeSet<SocketAddr> = other.endpoints().collect();
        self.endpoints().all(|endpoint| others.contains(&endpoint))
    }

    /// Returns the endpoints that clients outside the cluster may have.
    pub(super) fn for_outside(&self) -> &[SocketAddr] {
        if self.outside.is_empty() {
            &self.first
        } else {
            &self.outside
        }
    }

    /// Returns the endpoint of each slot.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = SocketAddr> {
        self.first.iter().chain(&self.outside).copied()
    }

    /// Returns the slots with their endpoints.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u32, SocketAddr)> {
        let outside = (OUTSIDE..).zip(&self.outside);
        let all = (0..).zip(&self.first).chain(outside);
        all.map(|(slot, endpoint)| (slot, *endpoint))
    }
}

/// Returns the key of a slot.
pub(super) fn key(frontend: &Frontend, slot: u32) -> Key {
    Key::new([
        frontend.address.into(),
        Value::Protocol(frontend.protocol),
        Value::Port(frontend.port),
        Value::Mark(slot),
    ])
}

/// Returns the most slots that weights give each list of endpoints of a frontend.
pub(super) fn budget(plan: &FrontendPlan) -> u64 {
    let lists = plan.profile.siblings.max(1) as u64 * if plan.inside.is_some() { 2 } else { 1 };
    (MOST_PER_SERVICE / lists).min(MOST_BY_WEIGHT)
}

impl Slots {
    /// Returns the slots of `endpoints` at `frontend`, of which weights give at most `budget`.
    ///
    /// nf_tables cannot count connections. So every scheduler that does is a random choice by weight.
    pub(super) fn of(
        frontend: &Frontend,
        endpoints: &[SelectedEndpoint],
        balancing: &Balancing,
        budget: u64,
    ) -> Self {
        let serving = endpoints.iter().filter(|endpoint| endpoint.weight > 0);
        let serving: Vec<(SocketAddr, u16)> = serving
            .map(|it| ((it.address, it.port).into(), it.weight))
            .collect();
        let by_client = if balancing.flags.port {
            Draw::ClientPort
        } else {
            Draw::Client
        };
        let (draw, endpoints) = match &*balancing.scheduler {
            "rr" | "lc" => {
                let equal = serving.iter().map(|(endpoint, _)| *endpoint);
                (Draw::Random, equal.collect())
            }
            "sh" => (by_client, by_weight(&serving, budget)),
            "mh" => (by_client, by_table(frontend.family(), &serving, budget)),
            "dh" => (Draw::Random, by_destination(frontend, &serving)),
            "fo" => (Draw::Random, heaviest(&serving)),
            _ => (Draw::Random, by_weight(&serving, budget)),
        };
        Self { draw, endpoints }
    }

    /// Returns the pick of these slots, which begin at `first`; `None` without slots.
    pub(super) fn pick(&self, first: u32) -> Option<Pick> {
        let slots = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        let draw = self.draw;
        (slots > 0).then_some(Pick { draw, slots, first })
    }
}

/// Returns whether the weights of `endpoints` need more slots than `budget`, so that shares are rounded.
pub(super) fn are_rounded(
    endpoints: &[SelectedEndpoint],
    balancing: &Balancing,
    budget: u64,
) -> bool {
    let uses_weights = !["rr", "lc", "mh", "dh", "fo"].contains(&&*balancing.scheduler);
    let weights = endpoints.iter().map(|endpoint| endpoint.weight);
    let weights = weights.filter(|weight| *weight > 0);
    let total = units(weights.clone()).0;
    // Equal weights are exact with a slot for each endpoint.
    uses_weights && total > budget && total > weights.count() as u64
}

/// Returns the sum of the weights after division by their greatest common divisor, and the divisor.
fn units(weights: impl Iterator<Item = u16> + Clone) -> (u64, u64) {
    let divisor = weights.clone().map(u64::from).fold(0, gcd).max(1);
    (weights.map(u64::from).sum::<u64>() / divisor, divisor)
}

/// Returns a slot for each unit of weight, after division by the greatest common divisor; if these exceed `budget`, a share of
/// it, but at least one slot for each endpoint.
fn by_weight(serving: &[(SocketAddr, u16)], budget: u64) -> Vec<SocketAddr> {
    let (total, divisor) = units(serving.iter().map(|(_, weight)| *weight));
    let slots = serving.iter().flat_map(|(endpoint, weight)| {
        let weight = u64::from(*weight) / divisor;
        let share = if total > budget {
            (weight * budget / total).max(1)
        } else {
            weight
        };
        (0..share).map(|_| *endpoint)
    });
    slots.collect()
}

fn gcd(one: u64, other: u64) -> u64 {
    match other {
        0 => one,
        _ => gcd(other, one % other),
    }
}

/// Returns the table of mh; if it exceeds `budget` or has fewer slots than endpoints, the slots of sh.
fn by_table(family: Family, serving: &[(SocketAddr, u16)], budget: u64) -> Vec<SocketAddr> {
    let mut options = options(family);
    options.mh_table = MhTable::from_index(MH_INDEX).unwrap_or_default();
    let balancer = balancer(Mh::new(&options), &options, serving);
    let rows = balancer.scheduler().rows().iter();
    let rows = rows.map_while(|id| {
        let server = balancer.servers().get((*id)?)?;
        Some((server.address(), server.port()).into())
    });
    let rows: Vec<SocketAddr> = rows.collect();
    if rows.is_empty() || serving.len() > rows.len() || rows.len() as u64 > budget {
        by_weight(serving, budget)
    } else {
        rows
    }
}

/// Returns the endpoint that dh picks: a frontend has one address.
fn by_destination(frontend: &Frontend, serving: &[(SocketAddr, u16)]) -> Vec<SocketAddr> {
    let options = options(frontend.family());
    let mut balancer = balancer(Dh::default(), &options, serving);
    let picked = balancer.pick(&Request {
        // dh reads neither client nor port.
        source: frontend.address,
        source_port: 0,
        destination: frontend.address,
        destination_port: frontend.port,
        at: Duration::ZERO,
    });
    let server = picked.and_then(|id| balancer.servers().get(id));
    let endpoint = server.map(|server| (server.address(), server.port()).into());
    endpoint.into_iter().collect()
}

/// Returns the endpoint that fo picks: the first with the greatest weight.
fn heaviest(serving: &[(SocketAddr, u16)]) -> Vec<SocketAddr> {
    let first = serving.iter().rev().max_by_key(|(_, weight)| *weight);
    first.map(|(endpoint, _)| *endpoint).into_iter().collect()
}

fn options(family: Family) -> Options {
    Options {
        family: match family {
            Family::V4 => schedulers::Family::V4,
            Family::V6 => schedulers::Family::V6,
        },
        flags: Flags::default(),
        ..Options::default()
    }
}

fn balancer<S: schedulers::Scheduler>(
    scheduler: S,
    options: &Options,
    serving: &[(SocketAddr, u16)],
) -> Balancer<S> {
    let mut balancer = Balancer::new(scheduler, options);
    for (endpoint, weight) in serving {
        // Fails for a duplicate or a wrong family, neither of which is in a plan.
        let _ = balancer.add(*endpoint, (*weight).into());
    }
    balancer
}
