//! The loop of `run`: news in, rounds out.
//!
//! ```text
//! manifests ─┐
//! API server ─┼─▶ News ─▶ Daemon ─▶ Proxier::sync, resync ─▶ Journal
//! machine   ─┘  (bounded      │
//!               channel)      └─ when: at once, but not more often than min_sync;
//!                                what failed or drains, when due; all of it every sync period
//! ```

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::clock;
use crate::dataplane::Dataplane;
use crate::nftables::{Forwarding, Tampering};
use crate::problem::Problem;
use crate::store::Event;
use crate::sync::{Input, Proxier};
use crate::sysctl::{Roots, Setting};
use crate::watch::{self, Watch};

mod forward;
mod journal;

use forward::Forward;
use journal::Journal;

/// How many pieces of news may wait to be taken in; whoever has more waits.
pub const WAITING_NEWS: usize = 1_024;

/// How soon a round is tried again that could not be made at all; doubled up to the sync period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// No two rounds are closer that repair packet rules, however often somebody else changes them; other
/// than what the cluster tells, this cannot wait for [`Periods::min_sync`].
const REPAIR_PAUSE: Duration = Duration::from_millis(100);

/// How long the first round waits for our Node's object, which may never come.
const NODE_PATIENCE: Duration = Duration::from_secs(5);

/// What the daemon is told.
#[derive(Debug)]
pub enum News {
    /// Something about objects.
    Event(Event),
    /// All objects there are, or all that could be read of them.
    Objects {
        /// The objects.
        events: Vec<Event>,
        /// Whether they are all.
        input: Input,
        /// What was wrong with those that became no event.
        problems: Vec<Problem>,
    },
    /// What is wrong with objects of a kind that no event tells of, in place of what was told before.
    Problems {
        /// The kind, in the plural.
        kind: &'static str,
        /// What is wrong.
        problems: Vec<Problem>,
    },
    /// The machine's own addresses are not what they were.
    MachineChanged,
    /// Somebody else changed our packet rules, or a chain that is in the way of answers.
    RulesChanged(Tampering),
    /// It is time to go. The kernel stays as it is and goes on serving.
    Stop,
}

impl From<watch::Message> for News {
    fn from(message: watch::Message) -> Self {
        match message {
            watch::Message::Event(event) => Self::Event(event),
            watch::Message::Problems { kind, problems } => Self::Problems { kind, problems },
        }
    }
}

/// How often rounds are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// The machine is read back this often (`ipvs.syncPeriod`).
    pub sync: Duration,
    /// Changes are programmed at most this often (`ipvs.minSyncPeriod`); 0 = each at once.
    pub min_sync: Duration,
}

/// kube-proxy's.
impl Default for Periods {
    fn default() -> Self {
        Self {
            sync: Duration::from_secs(30),
            min_sync: Duration::from_secs(1),
        }
    }
}

/// Keeps a machine what it should be.
#[derive(Debug)]
pub struct Daemon<D> {
    proxier: Proxier<D>,
    periods: Periods,
    journal: Journal,
    /// Who tells of the API server's objects, if they come from there.
    watch: Option<Watch>,
    /// Kernel settings to see to.
    settings: Vec<Setting>,
    /// Who sees to forward chains of others, if anybody should.
    forward: Option<Forward>,
    /// Whether something was told since the last round.
    has_news: bool,
    /// Whether packet rules are to be repaired.
    has_tampering: bool,
    /// When the last round was made.
    last_round: Option<Duration>,
    /// When everything is read back next.
    next_resync: Duration,
    /// No round before this: the last ones could not be made.
    not_before: Duration,
    retry: Duration,
    /// Until when the first round waits for the objects of nodes.
    node_deadline: Option<Duration>,
}

impl<D: Dataplane> Daemon<D> {
    /// A daemon that has been told nothing yet.
    pub fn new(proxier: Proxier<D>, periods: Periods, watch: Option<Watch>) -> Self {
        Self {
            proxier,
            periods,
            journal: Journal::default(),
            watch,
            settings: Vec::new(),
            forward: None,
            has_news: false,
            has_tampering: false,
            last_round: None,
            next_resync: Duration::ZERO,
            not_before: Duration::ZERO,
            retry: FIRST_RETRY,
            node_deadline: None,
        }
    }

    /// Sees to these kernel settings, too.
    #[must_use]
    pub fn setting(mut self, settings: Vec<Setting>) -> Self {
        self.settings = settings;
        self
    }

    /// Sees to it that forward chains of others let the answers of endpoints pass, too.
    #[must_use]
    pub fn forwarding(mut self, forwarding: Forwarding) -> Self {
        self.forward = Some(Forward::new(forwarding));
        self
    }

    /// Works until told to stop, or until nobody is left to tell anything.
    pub fn run(&mut self, news: &Receiver<News>) {
        while self.listen(news) {
            self.act(clock::since_boot());
        }
    }

    /// Makes one round as soon as everything has been told, and those that are due right after it.
    /// Answers whether all of it took effect.
    pub fn run_once(&mut self, news: &Receiver<News>) -> bool {
        if !self.listen(news) {
            return false;
        }
        let mut is_done = self.act(clock::since_boot());
        // A scheduler that the kernel turns out not to have is replaced in the second round.
        for _ in 0..2 {
            let now = clock::since_boot();
            if self.proxier.next_due().is_none_or(|due| due > now) {
                break;
            }
            is_done = self.act(now);
        }
        is_done
    }

    /// What it works with.
    pub fn into_proxier(self) -> Proxier<D> {
        self.proxier
    }

    /// Takes in news until a round is due: for the first one, until everything was told. Answers
    /// whether to go on.
    pub fn listen(&mut self, news: &Receiver<News>) -> bool {
        loop {
            let now = clock::since_boot();
            let wait = self
                .due()
                .map_or(self.periods.sync, |due| due.saturating_sub(now));
            let first = match news.recv_timeout(wait) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) if self.due().is_some() => return true,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return false,
            };
            // Everything that waits belongs to the same round; but news that never end must not
            // put it off.
            for piece in std::iter::once(first).chain(news.try_iter().take(WAITING_NEWS)) {
                if !self.take(piece) {
                    return false;
                }
            }
            if self.due().is_some_and(|due| due <= now) {
                return true;
            }
        }
    }

    /// Takes in a piece of news. Answers whether to go on.
    pub fn take(&mut self, piece: News) -> bool {
        self.has_news = true;
        match piece {
            News::Event(event) => {
                self.proxier.take([event], Input::Whole);
                self.ask_for_nodes();
                if self.proxier.is_complete() && self.node_deadline.is_none() {
                    self.node_deadline = Some(clock::since_boot() + NODE_PATIENCE);
                }
            }
            News::Objects {
                events,
                input,
                problems,
            } => {
                if input == Input::Partial {
                    tracing::warn!(
                        "some objects cannot be read; nothing is removed until they can"
                    );
                }
                self.proxier.take(events, input);
                self.proxier.set_unread("manifests", problems);
                // A Node that is not among all objects does not exist.
                self.node_deadline = Some(Duration::ZERO);
            }
            News::Problems { kind, problems } => self.proxier.set_unread(kind, problems),
            News::MachineChanged => self.next_resync = Duration::ZERO,
            News::RulesChanged(tampering) => {
                if tampering.concerns_forwarding()
                    && let Some(forward) = &mut self.forward
                {
                    forward.note_change();
                }
                if tampering.concerns_our_table() {
                    tracing::warn!("packet rules: {tampering}; bringing them back");
                    metrics::counter!("ipvs_proxier_rules_repairs_total").increment(1);
                    self.proxier.distrust_rules();
                    self.has_tampering = true;
                }
            }
            News::Stop => return false,
        }
        true
    }

    /// When the next round is to be made, in time since boot; `None` before everything was told.
    fn due(&self) -> Option<Duration> {
        if !self.proxier.is_complete() {
            return None;
        }
        let due = match self.last_round {
            None if self.knows_places() => Duration::ZERO,
            None => self.node_deadline?,
            Some(last) => {
                let change = self.has_news.then(|| last + self.periods.min_sync);
                let inner = self.proxier.next_due();
                let repair = self.has_tampering.then(|| last + REPAIR_PAUSE);
                let forward = self.forward.as_ref().and_then(Forward::due);
                let due = change.into_iter().chain(repair).chain(inner).chain(forward);
                due.fold(self.next_resync, Duration::min)
            }
        };
        Some(due.max(self.not_before))
    }

    /// Whether it was told where this node is, and other nodes if a Service wants to know.
    fn knows_places(&self) -> bool {
        let snapshot = self.proxier.snapshot();
        let knows_others = !snapshot.needs_other_nodes() || snapshot.knows_other_nodes();
        snapshot.node().is_some() && knows_others
    }

    /// Has other nodes followed as long as a Service wants to know where they are.
    fn ask_for_nodes(&self) {
        if let Some(watch) = &self.watch {
            watch.set_other_nodes(self.proxier.snapshot().needs_other_nodes());
        }
    }

    /// Makes a round, whether it is due or not, at `now` in time since boot. Answers whether all of
    /// it took effect.
    pub fn act(&mut self, now: Duration) -> bool {
        let is_resync = self.next_resync <= now;
        let result = if is_resync {
            self.journal
                .settings(&Roots::default().apply(&self.settings));
            self.proxier.resync(now)
        } else {
            self.proxier.sync(now)
        };
        if let Some(forward) = &mut self.forward
            && (is_resync || forward.due().is_some_and(|due| due <= now))
        {
            forward.apply(now, &mut self.journal);
        }
        match result {
            Ok(applied) => {
                self.has_news = false;
                self.has_tampering = false;
                self.last_round = Some(now);
                self.retry = FIRST_RETRY;
                if is_resync {
                    self.next_resync = now + self.periods.sync;
                }
                self.journal.write(&applied, &self.proxier)
            }
            Err(error) => {
                tracing::error!("{error}; trying again in {:?}", self.retry);
                self.not_before = now + self.retry;
                self.retry = (self.retry * 2).min(self.periods.sync).max(FIRST_RETRY);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;
    use crate::dataplane::fake::FakeKernel;
    use crate::manifests::{self, Options};
    use crate::plan::{Config, NodePortAddresses, ServiceAddresses};
    use crate::state_file::StateFile;

    const CLUSTER: &str = "
apiVersion: v1
kind: Service
metadata:
  name: db
  annotations:
    ipvs-proxier.io/topology-keys: topology.kubernetes.io/region
spec:
  clusterIP: 10.96.0.90
  ports: [{port: 5432}]
---
apiVersion: v1
kind: Node
metadata: {name: here, labels: {topology.kubernetes.io/region: r}}
";

    #[test]
    fn the_first_round_waits_for_the_nodes_that_a_service_asks_for() {
        let options = Options {
            service_cidr: Vec::new(),
            node_name: "here".into(),
        };
        let loaded = manifests::parse(CLUSTER, "cluster.yaml", &options);
        assert_eq!(loaded.problems, []);
        let (nodes, others): (Vec<_>, Vec<_>) =
            (loaded.events.into_iter()).partition(|event| matches!(event, Event::Nodes(_)));
        assert_eq!((nodes.len(), others.len()), (1, 3));

        let config = Config {
            node_name: "here".into(),
            scheduler: "rr".parse().unwrap(),
            node_port_addresses: NodePortAddresses::default(),
            service_addresses: ServiceAddresses::Routes,
            drain: Duration::ZERO,
        };
        let directory = tempfile::tempdir().unwrap();
        let state_file = StateFile::new(directory.path().join("state"));
        let proxier = Proxier::new(FakeKernel::default(), config, state_file).unwrap();
        let periods = Periods {
            sync: Duration::from_millis(10),
            ..Periods::default()
        };
        let mut daemon = Daemon::new(proxier, periods, None);
        let (sender, news) = channel();
        others
            .into_iter()
            .for_each(|event| sender.send(News::Event(event)).unwrap());
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                nodes
                    .into_iter()
                    .for_each(|event| sender.send(News::Event(event)).unwrap());
            });
            assert!(daemon.listen(&news));
        });
        assert!(daemon.proxier.snapshot().knows_other_nodes());
        assert!(start.elapsed() < NODE_PATIENCE);
    }
}
