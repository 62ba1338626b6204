//! One round of making the machine what it should be.
//!
//! ```text
//! Snapshot ──plan──▶ Desired ──┐
//! Dataplane ─observe─▶ Observed ┴─diff──▶ Vec<Op> ──apply──▶ Vec<Outcome>
//! ```

use std::collections::BTreeSet;

use crate::dataplane::{Dataplane, Failure, Outcome};
use crate::diff::{Observed, diff};
use crate::op::Op;
use crate::owned::{self, Owned, StateFile};
use crate::plan::{Config, Desired, desired};
use crate::problem::Problem;
use crate::store::{Event, Snapshot};

/// Everything that one node's proxy owns: what it was told, what it programs, what is its own.
#[derive(Debug)]
pub struct Proxier<D> {
    dataplane: D,
    config: Config,
    snapshot: Snapshot,
    owned: Owned,
    state_file: StateFile,
    input: Input,
}

/// Whether what was read is all there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// What is absent does not exist.
    #[default]
    Whole,
    /// Some of it could not be read: what is absent may exist.
    Partial,
}

/// A planned round.
#[derive(Clone, Debug)]
pub struct Round {
    /// What should be.
    pub desired: Desired,
    /// What is.
    pub observed: Observed,
    /// What has to change, in order.
    pub ops: Vec<Op>,
    /// What of the input was worked around.
    pub problems: Vec<Problem>,
}

/// An applied round.
#[derive(Clone, Debug)]
pub struct Applied {
    /// What was planned.
    pub round: Round,
    /// What became of each Op of the round, in order.
    pub outcomes: Vec<Outcome>,
}

impl Applied {
    /// The Ops that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.outcomes
            .iter()
            .filter_map(|outcome| outcome.as_ref().err())
    }
}

/// Why a round could not be applied at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine could not be read.
    #[error(transparent)]
    Dataplane(#[from] Failure),
    /// What is ours could not be recorded, so nothing was programmed: it could not be told from
    /// foreign virtual servers later.
    #[error(transparent)]
    State(#[from] owned::Error),
}

impl<D: Dataplane> Proxier<D> {
    /// A proxier that has been told nothing yet.
    ///
    /// # Errors
    /// When the state file exists and cannot be read.
    pub fn new(dataplane: D, config: Config, mut state_file: StateFile) -> Result<Self, Error> {
        let owned = state_file.load()?;
        let (snapshot, input) = (Snapshot::default(), Input::Whole);
        Ok(Self {
            dataplane,
            config,
            snapshot,
            owned,
            state_file,
            input,
        })
    }

    /// Takes in events, which tell all there is or only part of it.
    ///
    /// While only part is known no frontend is removed or left without destinations: an object that
    /// cannot be read today was perhaps served yesterday.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>, input: Input) {
        for event in events {
            self.snapshot.apply(event);
        }
        self.input = input;
    }

    /// What is ours, by the Service port it serves.
    pub fn owned(&self) -> &Owned {
        &self.owned
    }

    /// The machine.
    pub fn dataplane(&mut self) -> &mut D {
        &mut self.dataplane
    }

    /// Reads the machine and works out what has to change. Writes nothing.
    ///
    /// # Errors
    /// When the machine cannot be read.
    pub fn plan(&mut self) -> Result<Round, Error> {
        let machine = self.dataplane.machine()?;
        let observed = self.dataplane.observe()?;
        let (desired, problems) = desired(&self.snapshot, &machine, &self.config);
        let mut ops = diff(&desired, &observed, &self.owned.keys());
        if self.input == Input::Partial {
            ops.retain(|op| !takes_away(op, &desired));
        }
        Ok(Round {
            desired,
            observed,
            ops,
            problems,
        })
    }

    /// Plans and applies.
    ///
    /// # Errors
    /// When the machine cannot be read or ownership cannot be recorded; nothing was changed then.
    /// Ops that fail are not errors here but outcomes.
    pub fn sync(&mut self) -> Result<Applied, Error> {
        let round = self.plan()?;
        self.owned.adopt(&round.desired);
        self.state_file.save(&self.owned)?;
        let outcomes = self.dataplane.apply(&round.ops);
        self.forget_deleted(&round, &outcomes);
        self.state_file.save(&self.owned)?;
        Ok(Applied { round, outcomes })
    }

    /// What is gone is not ours any more; what could not be deleted, or was not, still is.
    fn forget_deleted(&mut self, round: &Round, outcomes: &[Outcome]) {
        let deleted: BTreeSet<_> = round
            .ops
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| outcome.is_ok())
            .filter_map(|(op, _)| match op {
                Op::DeleteService(key) => Some(*key),
                _ => None,
            })
            .collect();
        let is_there = |key: &ipvs_netlink::ServiceKey| {
            round.observed.virtual_servers.contains_key(key) && !deleted.contains(key)
        };
        let wanted = &round.desired.virtual_servers;
        self.owned
            .forget(|key| wanted.contains_key(key) || is_there(key));
    }
}

/// Whether the Op removes a frontend, or its last destinations.
fn takes_away(op: &Op, desired: &Desired) -> bool {
    match op {
        Op::DeleteService(_) | Op::DeleteAddress(_) => true,
        Op::DeleteDestination(key, _) => {
            let wanted = desired.virtual_servers.get(key);
            wanted.is_none_or(|server| server.destinations.is_empty())
        }
        _ => false,
    }
}
