//! The loop of the command `run`: receives messages, and makes rounds when they are due.
//!
//! ```text
//! manifests ──┐
//! API server ─┼─▶ Message ─▶ Daemon ─▶ Proxier::sync, resync ─▶ RoundLog
//! kernel ─────┘  (bounded       │
//!                channel)       └─ after a change: at once, but at most once per min_sync
//!                                  for retries and drains: when due
//!                                  for a resync: once per sync period
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::dataplane::{Applied, Dataplane, Extent};
use crate::reconcile::Proxier;
use crate::sources::message::{Message, QUEUE_LENGTH};
use crate::sources::watch::{NodeScope, Watch};
use crate::util::clock;
use crate::util::timer::Timer;

mod chore;
mod events;
mod foreign_chains;
mod former_ipvs;
mod former_nftables;
mod gate;
mod log;
mod mark_chain;
mod measure;
mod narrate;
mod patience;
mod periods;
mod publish;
mod settings;
mod standings_file;
mod takeover;
#[cfg(test)]
mod tests;

pub use chore::{Chore, Round};
pub(crate) use events::Reporter;
pub(crate) use foreign_chains::ChainCheck;
pub(crate) use former_ipvs::FormerIpvs;
pub(crate) use former_nftables::FormerNftables;
use gate::Gate;
use log::RoundLog;
pub(crate) use mark_chain::MarkChainCheck;
pub use measure::Meter;
pub(crate) use narrate::Narrator;
pub(crate) use patience::NoInput;
pub use periods::Periods;
pub use publish::Publisher;
pub(crate) use settings::KernelSettings;
pub(crate) use standings_file::StandingsFile;
pub(crate) use takeover::Takeover;

/// The pause before a round that failed as a whole is tried again; doubled up to the sync period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The shortest time between two rounds that repair packet rules or local routes.
///
/// Such a repair cannot wait for [`Periods::min_sync`], because traffic is affected. Without any pause, a
/// program that deletes our rules in a loop would keep this one busy.
const REPAIR_PAUSE: Duration = Duration::from_millis(100);

/// How long a process that ends because of a failure waits until the API server has its Events.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// The time after the other lists at which the log says that our Node is missing. All lists are requested
/// at the same time, so our Node usually follows within milliseconds.
const NODE_GRACE: Duration = Duration::from_millis(100);

/// Keeps one kernel in line with the cluster.
pub struct Daemon<D: Dataplane> {
    proxier: Proxier<D>,
    periods: Periods,
    log: RoundLog,
    /// The connection to the API server; `None` with manifests.
    watch: Option<Watch>,
    /// What acts beside rounds, in this order.
    chores: Vec<Box<dyn Chore<D>>>,
    /// Starts the monitor of packet rules; `None` after the first round.
    rules_monitor: Option<Box<dyn FnOnce()>>,
    /// Decides when the first round may be made.
    gate: Gate,
    /// Whether the wait for Nodes began and the log does not say so yet.
    begins_to_wait: bool,
    /// Whether a message arrived since the last round.
    has_message: bool,
    /// Whether a client waits for an answer about the node.
    is_asked: bool,
    /// Whether another program changed our packet rules or local routes since the last round.
    has_tampering: bool,
    /// When the last round was made, in time since boot; `None` before the first.
    last_round: Option<Duration>,
    /// When the next resync is due, in time since boot.
    next_resync: Duration,
    /// The wait after a round that failed as a whole. Until it is over, no round is made.
    retry: Timer,
}

impl<D: Dataplane> Daemon<D> {
    /// Returns a daemon that has received nothing yet.
    pub fn new(proxier: Proxier<D>, periods: Periods, watch: Option<Watch>) -> Self {
        // Manifests have all Nodes.
        let nodes = watch.as_ref().map_or(NodeScope::All, Watch::nodes);
        Self {
            proxier,
            periods,
            log: RoundLog::default(),
            watch,
            chores: Vec::new(),
            rules_monitor: None,
            gate: Gate::new(nodes),
            begins_to_wait: false,
            has_message: false,
            is_asked: false,
            has_tampering: false,
            last_round: None,
            next_resync: Duration::ZERO,
            retry: Timer::doubling(FIRST_RETRY, periods.sync.max(FIRST_RETRY)),
        }
    }

    /// Takes over what an earlier process learnt of endpoints, and keeps that in the file at `path`.
    #[must_use]
    pub(crate) fn remembering(self, path: PathBuf) -> Self {
        let daemon = Self {
            proxier: (self.proxier).knowing(StandingsFile::read(&path, clock::since_boot())),
            ..self
        };
        daemon.doing(StandingsFile::new(path))
    }

    /// Makes the daemon call this chore after those that it has.
    #[must_use]
    pub fn doing(mut self, chore: impl Chore<D> + 'static) -> Self {
        self.chores.push(Box::new(chore));
        self
    }

    /// Makes the daemon call `start` after the first round. It must start to send [`Message::RulesChanged`].
    ///
    /// Not earlier: while a program listens, the kernel makes a notification for each element that a transaction
    /// adds, and keeps them all until the commit. The first transaction adds elements for every frontend, and the
    /// monitor would ignore each notification, because it is about our own change.
    #[must_use]
    pub(crate) fn monitoring_rules(mut self, start: impl FnOnce() + 'static) -> Self {
        self.rules_monitor = Some(Box::new(start));
        self
    }

    /// Writes the Events of the present failures, for at most [`LAST_EVENTS`]. The daemon follows the API
    /// server no longer.
    pub(crate) fn report_end(&mut self) {
        if let Some(watch) = self.watch.take() {
            self.chores.iter_mut().for_each(|chore| chore.end(&watch));
            watch.finish(LAST_EVENTS);
        }
    }

    /// Makes rounds until a stop is requested or every sender is dropped.
    pub fn run(&mut self, messages: &Receiver<Message>) {
        while self.listen(messages) {
            self.act(clock::since_boot());
        }
        (self.chores.iter_mut()).for_each(|chore| chore.stop(&self.proxier));
    }

    /// Makes one round as soon as the input is complete, and up to four more that are due at once.
    ///
    /// Returns whether all of the last round took effect.
    ///
    /// # Errors
    /// If the input does not become complete; see [`Daemon::await_input`].
    pub(crate) fn run_once(&mut self, messages: &Receiver<Message>) -> Result<bool, NoInput> {
        self.await_input(messages)?;
        let mut has_succeeded = self.act(clock::since_boot());
        // If the kernel lacks the scheduler of a plan, the next round uses the default one. If it lacks
        // that too, the round after uses rr. Routes on the carrier replace addresses on it in four rounds.
        for _ in 0..4 {
            let now = clock::since_boot();
            if self.proxier.next_due().is_none_or(|due| due > now) {
                break;
            }
            has_succeeded = self.act(now);
        }
        Ok(has_succeeded)
    }

    /// Returns the proxier.
    pub fn into_proxier(self) -> Proxier<D> {
        self.proxier
    }

    /// Receives messages until a round is due.
    ///
    /// Returns `false` if a stop was requested or every sender is dropped. [`Gate`] decides when the first
    /// round is due.
    pub fn listen(&mut self, messages: &Receiver<Message>) -> bool {
        loop {
            if let ControlFlow::Break(is_due) = self.hear(messages, self.periods.sync) {
                return is_due;
            }
        }
    }

    /// Receives the next messages, if some arrive within `limit`. Breaks with `true` if a round is due, and with
    /// `false` if a stop was requested or every sender is dropped.
    fn hear(&mut self, messages: &Receiver<Message>, limit: Duration) -> ControlFlow<bool> {
        let now = clock::since_boot();
        let due = self.due();
        // While no round is due, the gate waits for a message, which ends the wait.
        let mut wait = due.map_or(limit, |due| due.saturating_sub(now).min(limit));
        if self.begins_to_wait {
            wait = wait.min(NODE_GRACE);
        }
        // Before the look at the queue, so that a Node that was sent is in it.
        let was_node_sent =
            self.begins_to_wait && self.watch.as_ref().is_some_and(Watch::has_sent_node);
        let first = match messages.recv_timeout(wait) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) if std::mem::take(&mut self.begins_to_wait) => {
                self.log_missing_node(now, was_node_sent);
                return ControlFlow::Continue(());
            }
            Err(RecvTimeoutError::Timeout) => {
                return match self.due().is_some_and(|due| due <= now + wait) {
                    true => ControlFlow::Break(true),
                    false => ControlFlow::Continue(()),
                };
            }
            Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(false),
        };
        // One round handles all queued messages. Without the limit, an endless stream would delay it.
        for message in std::iter::once(first).chain(messages.try_iter().take(QUEUE_LENGTH)) {
            if !self.receive(message) {
                return ControlFlow::Break(false);
            }
        }
        // Once for all of a batch, so that clients who ask again and again delay no round.
        if std::mem::take(&mut self.is_asked) {
            self.chores.iter_mut().for_each(|it| it.look(&self.proxier));
        }
        match self.due().is_some_and(|due| due <= now) {
            true => ControlFlow::Break(true),
            false => ControlFlow::Continue(()),
        }
    }

    /// Receives a message. Returns `false` if it requests a stop.
    pub fn receive(&mut self, message: Message) -> bool {
        // After a question, nothing has changed, so no round is due.
        self.has_message |= !matches!(message, Message::Inquiry);
        self.chores.iter_mut().for_each(|it| it.receive(&message));
        match message {
            Message::Event(event) => {
                self.proxier.receive([event]);
                // Here too, not only before a round, because `plan` makes none.
                self.consult_watch();
                self.begins_to_wait |= self.gate.event(self.proxier.snapshot());
            }
            Message::Manifests(loaded) => {
                self.log.manifests(loaded.is_whole, clock::since_boot());
                self.gate.manifests();
                self.proxier.receive(loaded.events);
                self.proxier
                    .set_other_problems("manifests", loaded.problems);
            }
            Message::Problems { kind, problems } => self.proxier.set_other_problems(kind, problems),
            // Node ports depend on the machine's addresses, which only a resync reads.
            Message::MachineChanged => {
                let last = self.last_round.unwrap_or_default();
                self.next_resync = self.next_resync.min(last + self.periods.min_sync);
            }
            Message::AddressesChanged => {
                self.proxier.dataplane_mut().distrust_addresses();
                self.has_tampering = true;
            }
            Message::RulesChanged(tampering) => {
                if tampering.concerns_our_table() {
                    self.log.tampering(&tampering, clock::since_boot());
                    self.proxier.dataplane_mut().distrust_rules();
                    self.has_tampering = true;
                }
            }
            Message::Inquiry => self.is_asked = true,
            Message::Stop => return false,
        }
        true
    }

    /// If the first round waits for our Node, logs that, so that the operator notices a wrong name at once.
    fn log_missing_node(&mut self, now: Duration, was_node_sent: bool) {
        if self.proxier.snapshot().node().is_some() {
            return;
        }
        if was_node_sent {
            self.log.problems(&self.proxier.current_problems(), now);
        }
        // The Node may exist, or be created by then.
        let (patience, name) = (
            gate::NODE_PATIENCE,
            &self.proxier.planner().config().node_name,
        );
        tracing::info!(
            "waiting up to {patience:?} for Node {name} before the first round; if this node has another name, \
             pass it with --hostname-override"
        );
    }

    /// Returns when the next round is due, in time since boot; `None` while the gate waits for input.
    fn due(&self) -> Option<Duration> {
        let due = match self.last_round {
            None => self.gate.opens(self.proxier.snapshot())?,
            Some(last) => {
                let change = self.has_message.then(|| last + self.periods.min_sync);
                let repair = self.has_tampering.then(|| last + REPAIR_PAUSE);
                let judgement = self.proxier.next_judgement();
                let judgement = judgement.map(|due| due.max(last + self.periods.min_sync));
                let inner = self.proxier.next_due();
                let chores = self.chores.iter().filter_map(|chore| chore.due());
                let due = change.into_iter().chain(repair).chain(inner);
                due.chain(judgement)
                    .chain(chores)
                    .fold(self.next_resync, Duration::min)
            }
        };
        // While the kernel cannot be read, each earlier round would fail too.
        Some(self.retry.due().map_or(due, |retry| due.max(retry)))
    }

    /// Makes a round at `now`, in time since boot, even if none is due.
    ///
    /// Returns whether all of the round took effect; `false` if the gate permits no round yet.
    pub fn act(&mut self, now: Duration) -> bool {
        match self.gate.pass(&mut self.proxier) {
            Ok(true) => {}
            Ok(false) => {
                (self.log).refused_start(&self.proxier.current_problems(), now);
                return false;
            }
            Err(failure) => return self.fail(&failure, Extent::All, now),
        }
        let extent = match self.next_resync <= now {
            true => Extent::All,
            false => Extent::Pending,
        };
        self.consult_watch();
        (self.chores.iter_mut()).for_each(|chore| chore.before(extent, now));
        let began = Instant::now();
        let result = match extent {
            Extent::All => self.proxier.resync(now),
            Extent::Pending => self.proxier.sync(now),
        };
        let took = began.elapsed();
        match result {
            Ok(applied) => {
                self.end_round(extent, now);
                let health_ports = self.proxier.take_health_ports();
                self.tell(extent, now, took, Ok(&applied), health_ports)
            }
            Err(failure) => self.fail(&failure, extent, now),
        }
    }

    /// Tells the watch what to follow, and the proxier where the connections to the API server led.
    fn consult_watch(&mut self) {
        let Some(watch) = &self.watch else {
            return;
        };
        // Other nodes are watched only while a Service has topology keys: in a cluster of 5,000 nodes
        // each kubelet updates its Node every few minutes.
        watch.set_other_nodes(self.proxier.snapshot().needs_other_nodes());
        self.proxier.set_api_servers(watch.reached_servers());
    }

    /// Decides when the next round is due after one that was made at `now`. After a round that failed as a whole,
    /// all this stays as it was, so that the next try is due.
    fn end_round(&mut self, extent: Extent, now: Duration) {
        self.has_message = false;
        self.has_tampering = false;
        self.last_round = Some(now);
        self.retry.reset();
        if extent == Extent::All {
            // From the beginning of the round, so that a slow resync does not stretch the period.
            self.next_resync = now + self.periods.sync;
        }
        // Before the check of foreign chains, so that no change of one between the two is lost.
        if let Some(start) = self.rules_monitor.take() {
            start();
            // There is no notification of a change between our write and the start.
            self.has_tampering = self.proxier.dataplane_mut().finds_changed_rules();
        }
    }

    /// Schedules the next try of a round that failed as a whole. Returns `false`.
    fn fail(&mut self, error: &dyn std::error::Error, extent: Extent, now: Duration) -> bool {
        let error = error.to_string();
        self.retry.back_off(now);
        let pause = self.retry.due().unwrap_or(now) - now;
        self.tell(extent, now, Duration::ZERO, Err(&error), BTreeSet::new());
        self.log.failed_round(&error, pause, now);
        false
    }

    /// Tells the log and the chores what the round was like that began at `now`. Returns whether all of it took
    /// effect.
    fn tell(
        &mut self,
        extent: Extent,
        now: Duration,
        took: Duration,
        result: Result<&Applied<D::Changes>, &str>,
        health_ports: BTreeSet<u16>,
    ) -> bool {
        let round = Round {
            now,
            extent,
            took,
            result,
            problems: self.proxier.current_problems(),
            health_ports,
            proxier: &self.proxier,
            watch: self.watch.as_ref(),
        };
        self.chores.iter_mut().for_each(|chore| chore.after(&round));
        if let Ok(applied) = result {
            (self.log).round(applied, &self.proxier, &round.problems, now);
        }
        round.has_succeeded()
    }
}

impl<D: Dataplane + fmt::Debug> fmt::Debug for Daemon<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f.debug_struct("Daemon").field("proxier", &self.proxier)).finish_non_exhaustive()
    }
}
