//! What rounds did and why, and answers about the plan, for people who look at the node.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::{Chore, Round};
use crate::cluster::store::{Event, Update};
use crate::dataplane::{Applied, Dataplane, Reason};
use crate::observe::overview::{self, Change, Desk, History, KEPT_CHANGES, Told};
use crate::reconcile::Proxier;
use crate::sources::message::Message;

/// The most objects that a cause names.
const MAX_NAMES: usize = 2;

/// Tells what rounds did, and answers questions about the plan.
#[derive(Debug)]
pub(crate) struct Narrator {
    history: Arc<History>,
    desk: Arc<Desk>,
    news: News,
}

/// What was received since the last round: the cause of its changes.
#[derive(Debug, Default)]
struct News {
    named: Vec<String>,
    others: u64,
}

impl News {
    fn add(&mut self, what: impl FnOnce() -> String) {
        if self.named.len() >= MAX_NAMES {
            self.others += 1;
            return;
        }
        let what = what();
        if !self.named.contains(&what) {
            self.named.push(what);
        }
    }

    fn update<T>(&mut self, kind: &str, update: &Update<T>) {
        self.add(|| match update {
            Update::Apply(one) => format!("{kind} {}", one.name),
            Update::Delete(name) => format!("{kind} {name} deleted"),
            Update::Reset(all) => format!("list of {} {kind}s", all.len()),
            Update::Merge(some) => format!("partial list of {} {kind}s", some.len()),
        });
    }

    fn message(&mut self, message: &Message) {
        match message {
            Message::Event(event) => self.event(event),
            Message::Manifests(loaded) => loaded.events.iter().for_each(|event| self.event(event)),
            Message::MachineChanged => self.add(|| "addresses of this machine".to_owned()),
            // The changes themselves say that another program caused them.
            Message::AddressesChanged | Message::RulesChanged(_) => {}
            Message::Problems { .. } | Message::Inquiry | Message::Stop => {}
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Services(update) => self.update("Service", update),
            Event::EndpointSlices(update) => self.update("EndpointSlice", update),
            Event::ServiceCidrs(update) => self.update("ServiceCIDR", update),
            Event::Nodes(update) => self.update("Node", update),
            Event::Node(node) => self.add(|| format!("our Node {}", node.name)),
        }
    }

    /// Returns them as the cause of changes.
    fn cause(&self) -> String {
        let named = self.named.join(", ");
        match (self.named.is_empty(), self.others) {
            (true, _) => "due: a drain that ended, or another try".to_owned(),
            (false, 0) => named,
            (false, others) => format!("{named} and {others} more"),
        }
    }
}

impl Narrator {
    /// Returns a narrator that tells these readers.
    pub(crate) fn new(history: Arc<History>, desk: Arc<Desk>) -> Self {
        Self {
            history,
            desk,
            news: News::default(),
        }
    }

    /// Answers the questions that wait.
    fn answer<D: Dataplane>(&self, proxier: &Proxier<D>) {
        self.desk.answer(|question| {
            let began = Instant::now();
            let directory = question
                .needs_directory
                .then(|| overview::directory(proxier));
            let took = began.elapsed();
            let service = question.service.as_ref();
            Told {
                directory,
                detail: service.and_then(|name| overview::detail(proxier, name)),
                took,
            }
        });
    }
}

impl<D: Dataplane> Chore<D> for Narrator {
    fn receive(&mut self, message: &Message) {
        self.news.message(message);
    }

    fn after(&mut self, round: &Round<'_, D>) {
        let wall = SystemTime::now();
        match round.result {
            Ok(applied) => {
                let news = std::mem::take(&mut self.news);
                let (changes, repairs) = changes(round, applied, &news.cause(), wall);
                let planned = round.proxier.planned();
                let counts = round.proxier.dataplane().counts(planned);
                self.history.change(|past| {
                    past.rounds += 1;
                    past.repairs += repairs;
                    past.took = round.took;
                    past.counts = counts;
                    past.problems = round.problems.clone();
                    changes.into_iter().for_each(|change| past.add(change));
                });
            }
            Err(why) => self.history.change(|past| {
                past.failed_rounds += 1;
                past.add(Change::new(wall, why, "round failed; nothing was changed"));
            }),
        }
        self.answer(round.proxier);
    }

    fn look(&mut self, proxier: &Proxier<D>) {
        self.answer(proxier);
    }
}

/// Returns the last changes of a round, and the number of its repairs.
fn changes<D: Dataplane>(
    round: &Round<'_, D>,
    applied: &Applied<D::Changes>,
    cause: &str,
    wall: SystemTime,
) -> (Vec<Change>, u64) {
    let (dataplane, planned) = (round.proxier.dataplane(), round.proxier.planned());
    let (mut changes, mut repairs, mut place) = (Vec::new(), 0, 0);
    let count = applied.outcomes.len();
    dataplane.report(planned, applied, &mut |change| {
        let is_repair = change.reason != Reason::Plan && change.outcome.is_ok();
        repairs += u64::from(is_repair);
        place += 1;
        // Formatting all of a first programming would take long.
        if place + KEPT_CHANGES <= count {
            return;
        }
        let cause = match (change.outcome, change.reason) {
            (Err(_), _) => "refused by the kernel; tried again later",
            (Ok(()), Reason::Plan) => cause,
            (Ok(()), Reason::Drift | Reason::SummedDrift) => "repair: another program changed it",
        };
        let what = match change.outcome {
            Ok(()) => change.line.to_string(),
            Err(failure) => failure.to_string(),
        };
        changes.push(Change::new(wall, cause, &what));
    });
    if let Some(Err(failure)) = &applied.rules {
        changes.push(Change::new(
            wall,
            "refused by the kernel; tried again later",
            &failure.to_string(),
        ));
    }
    let swept = applied.flows.iter().filter_map(|swept| swept.as_ref().ok());
    for swept in swept.filter(|swept| swept.deleted > 0) {
        let what = format!("{} stale flows deleted", swept.deleted);
        changes.push(Change::new(wall, cause, &what));
    }
    (changes, repairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::{ObjectName, Service};

    #[test]
    fn a_cause_names_the_first_objects_and_counts_the_others() {
        let mut news = News::default();
        assert_eq!(news.cause(), "due: a drain that ended, or another try");
        let deleted = |name| Event::Services(Update::Delete(ObjectName::new("shop", name)));
        news.event(&deleted("a"));
        news.event(&deleted("a"));
        assert_eq!(news.cause(), "Service shop/a deleted");
        news.event(&Event::Services(Update::<Service>::Reset(Vec::new())));
        news.event(&deleted("b"));
        assert_eq!(
            news.cause(),
            "Service shop/a deleted, list of 0 Services and 1 more"
        );
    }
}
