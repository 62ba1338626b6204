//! The result of a round.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::dataplane::conntrack::Swept;
use crate::dataplane::{Failure, Outcome};

/// The maximum number of addresses that the line about repaired addresses names.
const SAMPLES: usize = 5;

/// The changes of a round and their failures.
#[derive(Clone, Debug, Default)]
pub struct Applied<C> {
    /// The result of writing packet rules; `None` if no write was due.
    pub rules: Option<Result<(), Failure>>,
    /// The result of sweeping stale flows; `None` if no flow could be stale.
    pub flows: Option<Result<Swept, Failure>>,
    /// The changes, in order.
    pub changes: C,
    /// The result of each change, in order.
    pub outcomes: Outcomes,
    /// The failure of writing the ledger.
    ///
    /// If the process ended before a later write succeeds, the next process would treat new virtual
    /// servers outside the service ranges as foreign.
    pub unrecorded: Option<Failure>,
    /// Whether the round tried every change that failed before. A change that did not fail again works now.
    pub has_tried_all: bool,
    /// The frontends that are not created as long as the packet rules cannot be written.
    pub held_back: Vec<String>,
    /// The schedulers that the kernel lacked before and has now. Services that request them use them again.
    pub found_schedulers: Vec<Arc<str>>,
}

impl<C> Applied<C> {
    /// Returns changes of which none was made yet.
    pub(crate) fn of(changes: C) -> Self {
        Self {
            rules: None,
            flows: None,
            changes,
            outcomes: Outcomes::default(),
            unrecorded: None,
            has_tried_all: false,
            held_back: Vec::new(),
            found_schedulers: Vec::new(),
        }
    }

    /// Returns every failure of the round.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        let rules = self.rules.iter().filter_map(|result| result.as_ref().err());
        let changes = self.outcomes.failures();
        let flows = self.flows.iter().filter_map(|result| result.as_ref().err());
        rules.chain(changes).chain(flows).chain(&self.unrecorded)
    }
}

/// One change of a round, with its outcome, for the log and the metrics.
#[derive(Clone, Copy)]
pub struct AppliedChange<'a> {
    /// What is done to which kind of object: `add_service`.
    pub kind: &'static str,
    /// How many such changes it sums up, usually 1.
    pub count: usize,
    /// The change as one line, with the name of its Service port.
    pub line: &'a dyn fmt::Display,
    /// Why it was made.
    pub reason: Reason,
    /// Its outcome.
    pub outcome: Result<(), &'a Failure>,
}

/// Why a change was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The plan differs from what was programmed before.
    Plan,
    /// Another program changed what was programmed.
    Drift,
    /// As `Drift`; and [`Dataplane::repairs`](super::Dataplane::repairs) mentions the change.
    SummedDrift,
}

/// The outcome of each change of a round, in order. Only failures take memory: a first programming has 100,000 changes.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    count: usize,
    /// By the place of the change.
    failures: BTreeMap<usize, Box<Failure>>,
}

impl Outcomes {
    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there was no change.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the outcomes.
    pub fn iter(&self) -> impl Iterator<Item = Result<(), &Failure>> {
        let mut failures = self.failures.iter().peekable();
        (0..self.count).map(move |place| {
            let failure = failures.next_if(|(failed, _)| **failed == place);
            failure.map_or(Ok(()), |(_, failure)| Err(&**failure))
        })
    }

    /// Appends the outcomes of further changes.
    pub(crate) fn append(&mut self, others: Self) {
        let failures = others.failures.into_iter();
        let count = self.count;
        (self.failures).extend(failures.map(|(place, failure)| (count + place, failure)));
        self.count += others.count;
    }

    /// Returns the failures, in the order of the changes.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.failures.values().map(|failure| &**failure)
    }
}

impl Extend<Outcome> for Outcomes {
    fn extend<I: IntoIterator<Item = Outcome>>(&mut self, outcomes: I) {
        for outcome in outcomes {
            if let Err(failure) = outcome {
                self.failures.insert(self.count, failure);
            }
            self.count += 1;
        }
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(all: I) -> Self {
        let mut outcomes = Self::default();
        outcomes.extend(all);
        outcomes
    }
}

/// Returns repairs of service addresses and of their device as one line; `None` without any. An address may be
/// repeated.
///
/// One line, because one command such as `ip route flush` may delete 10,000 addresses.
pub(crate) fn repairs(
    device: Option<impl fmt::Display>,
    mut addresses: Vec<IpAddr>,
) -> Option<String> {
    if device.is_none() && addresses.is_empty() {
        return None;
    }
    addresses.dedup();
    let count = addresses.len();
    let noun = if count == 1 { "address" } else { "addresses" };
    let etc = if count > SAMPLES { ", .." } else { "" };
    let samples = addresses.iter().take(SAMPLES).map(ToString::to_string);
    let samples = samples.collect::<Vec<_>>().join(", ");
    let addresses = format!("{count} service {noun} ({samples}{etc})");
    Some(match (device, count) {
        (None, _) => {
            format!("repaired drift: another program changed {addresses}; programmed again")
        }
        (Some(change), 0) => format!("repaired drift: {change}"),
        (Some(change), _) => format!("repaired drift: {change}, and with it {addresses}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_in_the_order_of_the_changes() {
        let failure = |message: &str| Failure {
            errno: None,
            message: message.to_owned(),
        };
        let mut outcomes: Outcomes = [Err(failure("a").into()), Ok(())].into_iter().collect();
        outcomes.extend([Ok(())]);
        outcomes.append([Err(failure("b").into()), Ok(())].into_iter().collect());
        let (a, b) = (failure("a"), failure("b"));
        let expected = [Err(&a), Ok(()), Ok(()), Err(&b), Ok(())];
        assert_eq!(outcomes.iter().collect::<Vec<_>>(), expected);
        assert_eq!(outcomes.failures().collect::<Vec<_>>(), [&a, &b]);
        assert_eq!(outcomes.len(), 5);
    }
}
