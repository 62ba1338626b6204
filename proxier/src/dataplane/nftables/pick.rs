//! Picks: the chains that choose a frontend's endpoint.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nftables::{Chain, Match, Rule, Selector, Statement, Verdict};

use super::chains::original_key;
use super::names::{AFFINITY, ENDPOINTS, learn};
use super::slots::{Draw, OUTSIDE};
use crate::cluster::model::Family;
use crate::dataplane::packet_rules::{FAMILIES, frontend_key, goto, rule};

/// The most slots whose random pick exists from the start, so that a change of an endpoint adds no chain.
pub(super) const PREPARED: u32 = 64;

/// A choice among the slots of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pick {
    pub(super) draw: Draw,
    /// The number of slots, at least 1.
    pub(super) slots: u32,
    /// The first slot.
    pub(super) first: u32,
}

/// The way of a frontend's clients to their endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// All clients have the same endpoints.
    One(Pick),
    /// Clients inside the cluster have other endpoints than clients outside. `None` are none, and a guard rejects the
    /// client.
    Split {
        inside: Option<Pick>,
        outside: Option<Pick>,
    },
}

/// The chains through which a frontend's clients go. Frontends with equal ones share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) way: Way,
    /// How long clients keep their endpoints, if they do.
    pub(super) affinity_secs: Option<u32>,
}

impl Route {
    /// Returns the name of the first chain.
    pub(super) fn name(self) -> Arc<str> {
        let name = self.way.to_string();
        match self.affinity_secs {
            None => name.into(),
            Some(_) => format!("sticky/{name}").into(),
        }
    }

    /// Returns whether all its chains exist from the start.
    pub(super) fn is_prepared(self) -> bool {
        matches!(self.way, Way::One(pick) if pick.is_prepared()) && self.affinity_secs.is_none()
    }

    /// Returns the chains that exist on demand.
    pub(super) fn chains(self, inside: &[Match]) -> Vec<Chain> {
        let picks = self.way.picks().into_iter().flatten();
        let mut chains: Vec<Chain> = picks
            .filter(|pick| !pick.is_prepared())
            .map(Pick::chain)
            .collect();
        if let Way::Split {
            inside: first,
            outside,
        } = self.way
        {
            let then = first.map_or_else(|| Verdict::Return.into(), |pick| goto(&pick.name()));
            let of_inside = |client: &Match| Rule::new([client.clone().into(), then.clone()]);
            let mut rules: Vec<Rule> = inside.iter().map(of_inside).collect();
            rules.extend(outside.map(|pick| rule([goto(&pick.name())])));
            chains.push(Chain::new(self.way.to_string(), rules));
        }
        if let Some(seconds) = self.affinity_secs {
            let then = self.way.to_string();
            chains.push(Chain::new(self.name(), learned_first(&then)));
            chains.push(Chain::new(learn(seconds), learning(seconds)));
        }
        chains
    }
}

impl Way {
    /// Returns the pick for all clients, or for those inside the cluster, and the one for those outside.
    pub(super) fn picks(self) -> [Option<Pick>; 2] {
        match self {
            Self::One(pick) => [Some(pick), None],
            Self::Split { inside, outside } => [inside, outside],
        }
    }
}

impl Pick {
    /// Returns whether its chain exists from the start.
    fn is_prepared(self) -> bool {
        self.draw == Draw::Random && self.slots <= PREPARED && self.first == 0
    }

    /// Returns the name of its chain.
    pub(super) fn name(self) -> Arc<str> {
        match self.is_prepared() {
            true => self.to_string().into(),
            false => format!("pick/{self}").into(),
        }
    }

    /// Returns its chain.
    ///
    /// A frontend's last slot may be deleted while a packet is on its way there, and before Linux 6.17 a lookup may
    /// miss an element that a transaction replaces. A connection that misses is not translated for its whole life. So
    /// the second rule takes the first slot, which exists as long as the frontend has endpoints.
    pub(super) fn chain(self) -> Chain {
        let mut rules = Vec::new();
        for family in FAMILIES {
            if self.slots > 1 {
                rules.push(translate(family, self.number(family)));
            }
            rules.push(translate(family, Selector::Number(self.first)));
        }
        Chain::new(self.name(), rules)
    }

    fn number(self, family: Family) -> Selector {
        let (count, first) = (self.slots, self.first);
        match self.draw {
            Draw::Random => Selector::Random { count, first },
            Draw::Client | Draw::ClientPort => Selector::SourceHash {
                family,
                with_port: self.draw == Draw::ClientPort,
                count,
                first,
            },
        }
    }
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let draw = match self.draw {
            Draw::Random => "random",
            Draw::Client => "client",
            Draw::ClientPort => "client-port",
        };
        let side = match self.first {
            OUTSIDE => "-outside",
            _ => "",
        };
        write!(f, "{draw}-{}{side}", self.slots)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(pick) => f.write_str(&pick.name()),
            Self::Split { inside, outside } => {
                let name = |pick: &Option<Pick>| match pick {
                    Some(pick) => pick.to_string(),
                    None => "none".to_owned(),
                };
                write!(f, "inside/{}/{}", name(inside), name(outside))
            }
        }
    }
}

fn translate(family: Family, number: Selector) -> Rule {
    let key = frontend_key(family).into_iter().chain([number]);
    rule([Statement::DestinationNat {
        family,
        key: key.collect(),
        map: ENDPOINTS.of(family).into(),
    }])
}

/// Returns the rules that send a client to the endpoint that it had, and others to `then`.
fn learned_first(then: &str) -> Vec<Rule> {
    let learned = FAMILIES.map(|family| {
        let client = Selector::Source(family);
        let key = frontend_key(family).into_iter().chain([client]);
        rule([Statement::DestinationNat {
            family,
            key: key.collect(),
            map: AFFINITY.of(family).into(),
        }])
    });
    learned.into_iter().chain([rule([goto(then)])]).collect()
}

/// Returns the rules that keep a client's endpoint for so long after its last new connection.
///
/// After NAT, because the packet's destination is then the endpoint: nft 1.0.6 cannot print a rule that learns what
/// another lookup found.
fn learning(seconds: u32) -> [Rule; 2] {
    FAMILIES.map(|family| {
        let client = Selector::OriginalSource(family);
        let key = original_key(family).into_iter().chain([client]);
        rule([Statement::Learn {
            family,
            map: AFFINITY.of(family).into(),
            key: key.collect(),
            timeout: Duration::from_secs(seconds.into()),
        }])
    })
}
