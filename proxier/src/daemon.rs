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

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::cluster::store::Event;
use crate::dataplane::{Applied, Dataplane, Extent};
use crate::host::sysctl::{Keeper, Roots, Setting};
use crate::host::{ForeignChains, MarkChains};
use crate::observe::health::Board;
use crate::observe::serve::{BindFailures, HealthCheckPorts};
use crate::reconcile::Proxier;
use crate::sources::message::{Message, QUEUE_LENGTH};
use crate::sources::watch::{NodeScope, Watch};
use crate::util::clock;
use crate::util::timer::Timer;

mod chain_check;
mod consult;
mod events;
mod gate;
mod log;
mod mark_chains;
mod measure;
mod periods;
mod publish;
mod rules_monitor;
mod takeover;
#[cfg(test)]
mod tests;

use chain_check::ChainCheck;
use events::Reporter;
use gate::Gate;
use log::RoundLog;
use mark_chains::MarkChainCheck;
use measure::Meter;
pub use periods::Periods;
use publish::Publisher;
use rules_monitor::RulesMonitor;
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
#[derive(Debug)]
pub struct Daemon<D> {
    proxier: Proxier<D>,
    periods: Periods,
    log: RoundLog,
    /// The connection to the API server; `None` with manifests.
    watch: Option<Watch>,
    /// The values that the HTTP servers read.
    publisher: Publisher,
    meter: Meter,
    events: Reporter,
    /// Kernel settings.
    settings: Keeper,
    /// The monitor of packet rules, until it starts.
    rules_monitor: Option<RulesMonitor>,
    /// The chains of other programs; `None` if they are left alone.
    foreign_chains: Option<ChainCheck>,
    /// The chain KUBE-MARK-MASQ; `None` without `--compat-chains`.
    mark_chains: Option<MarkChainCheck>,
    /// The leftovers of kube-proxy; `None` if they stay.
    takeover: Option<Takeover>,
    /// Decides when the first round may be made.
    gate: Gate,
    /// Whether the wait for Nodes began and the log does not say so yet.
    begins_to_wait: bool,
    /// Whether a message arrived since the last round.
    has_message: bool,
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
            publisher: Publisher::default(),
            meter: Meter::default(),
            events: Reporter::default(),
            settings: Keeper::new(Roots::default(), Vec::new()),
            rules_monitor: None,
            foreign_chains: None,
            mark_chains: None,
            takeover: None,
            gate: Gate::new(nodes),
            begins_to_wait: false,
            has_message: false,
            has_tampering: false,
            last_round: None,
            next_resync: Duration::ZERO,
            retry: Timer::doubling(FIRST_RETRY, periods.sync.max(FIRST_RETRY)),
        }
    }

    /// Makes the daemon write these kernel settings, and check them at each resync.
    #[must_use]
    pub fn setting(mut self, settings: Vec<Setting>) -> Self {
        self.settings = Keeper::new(Roots::default(), settings);
        self
    }

    /// Publishes health and health checks to the HTTP servers.
    #[must_use]
    pub fn publishing(mut self, board: Arc<Board>, health_ports: Arc<HealthCheckPorts>) -> Self {
        self.publisher.board = board;
        self.publisher.health_ports = health_ports;
        self
    }

    /// Reports these failures as Events too.
    pub(crate) fn reporting(mut self, failures: Arc<BindFailures>) -> Self {
        self.events.bind_failures = failures;
        self
    }

    /// Writes the Events of the present failures, for at most [`LAST_EVENTS`]. The daemon follows the API
    /// server no longer.
    pub(crate) fn report_end(&mut self) {
        if let Some(watch) = self.watch.take() {
            self.events.report(&watch, &[]);
            watch.finish(LAST_EVENTS);
        }
    }

    /// Makes the daemon call `start` after the first round. It must start to send
    /// [`Message::RulesChanged`].
    #[must_use]
    pub(crate) fn monitoring_rules(mut self, start: impl FnOnce() + Send + 'static) -> Self {
        self.rules_monitor = Some(RulesMonitor(Box::new(start)));
        self
    }

    /// Makes the daemon maintain the chain KUBE-MARK-MASQ.
    #[must_use]
    pub fn marking(mut self, chains: MarkChains) -> Self {
        self.mark_chains = Some(MarkChainCheck::new(chains));
        self
    }

    /// Makes the daemon remove the leftovers of kube-proxy.
    #[must_use]
    pub(crate) fn succeeding(mut self, takeover: Takeover) -> Self {
        self.takeover = Some(takeover);
        self
    }

    /// Makes the daemon maintain our rules in the chains of other programs.
    #[must_use]
    pub fn passing(mut self, chains: ForeignChains) -> Self {
        self.foreign_chains = Some(ChainCheck::new(chains));
        self
    }

    /// Makes rounds until a stop is requested or every sender is dropped.
    pub fn run(&mut self, messages: &Receiver<Message>) {
        self.publisher.start();
        while self.listen(messages) {
            self.act(clock::since_boot());
        }
    }

    /// Makes one round as soon as the input is complete, and up to four more that are due at once.
    ///
    /// Returns whether all of the last round took effect.
    pub fn run_once(&mut self, messages: &Receiver<Message>) -> bool {
        if !self.listen(messages) {
            return false;
        }
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
        has_succeeded
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
            let now = clock::since_boot();
            let due = self.due();
            // While no round is due, the gate waits for a message, which ends the wait.
            let mut wait = due.map_or(self.periods.sync, |due| due.saturating_sub(now));
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
                    continue;
                }
                Err(RecvTimeoutError::Timeout) if self.due().is_some() => return true,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return false,
            };
            // One round handles all queued messages. Without the limit, an endless stream would delay it.
            for message in std::iter::once(first).chain(messages.try_iter().take(QUEUE_LENGTH)) {
                if !self.receive(message) {
                    return false;
                }
            }
            if self.due().is_some_and(|due| due <= now) {
                return true;
            }
        }
    }

    /// Receives a message. Returns `false` if it requests a stop.
    pub fn receive(&mut self, message: Message) -> bool {
        self.has_message = true;
        self.publisher.queue(clock::since_boot());
        match message {
            Message::Event(event) => {
                let is_node = matches!(event, Event::Node(_));
                self.meter.event(&event);
                self.proxier.receive([event]);
                if is_node {
                    self.publisher.node(&self.proxier);
                }
                // Here too, not only before a round, because `plan` makes none.
                self.consult_watch();
                self.begins_to_wait |= self.gate.event(self.proxier.snapshot());
            }
            Message::Manifests(loaded) => {
                self.log.manifests(loaded.is_whole, clock::since_boot());
                self.gate.manifests();
                self.proxier.receive(loaded.events);
                self.publisher.has_manifests = true;
                self.publisher.node(&self.proxier);
                self.proxier
                    .set_other_problems("manifests", loaded.problems);
            }
            Message::Problems { kind, problems } => self.proxier.set_other_problems(kind, problems),
            // Node ports depend on the machine's addresses, which only a resync reads.
            Message::MachineChanged => self.next_resync = Duration::ZERO,
            Message::AddressesChanged => {
                self.proxier.dataplane_mut().distrust_addresses();
                self.has_tampering = true;
            }
            Message::RulesChanged(tampering) => {
                if tampering.concerns_foreign()
                    && let Some(chains) = &mut self.foreign_chains
                {
                    chains.note_change();
                }
                if tampering.concerns_our_table() {
                    self.log.tampering(&tampering, clock::since_boot());
                    metrics::counter!("ipvs_proxier_rules_repairs_total").increment(1);
                    self.proxier.dataplane_mut().distrust_rules();
                    self.has_tampering = true;
                }
            }
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
            return self.log.problems(&self.proxier.current_problems(), now);
        }
        // The Node may exist.
        let patience = gate::NODE_PATIENCE;
        tracing::info!("waiting up to {patience:?} for our Node before the first round");
    }

    /// Returns when the next round is due, in time since boot; `None` while the gate waits for input.
    fn due(&self) -> Option<Duration> {
        let due = match self.last_round {
            None => self.gate.opens(self.proxier.snapshot())?,
            Some(last) => {
                let change = self.has_message.then(|| last + self.periods.min_sync);
                let repair = self.has_tampering.then(|| last + REPAIR_PAUSE);
                let inner = self.proxier.next_due();
                let chains = self.foreign_chains.as_ref().and_then(ChainCheck::due);
                let takeover = self.takeover.as_ref().and_then(Takeover::due);
                let due = change.into_iter().chain(repair).chain(inner);
                let due = due.chain(chains).chain(takeover);
                due.fold(self.next_resync, Duration::min)
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
            Err(failure) => return self.fail(&failure, now),
        }
        let extent = match self.next_resync <= now {
            true => Extent::All,
            false => Extent::Pending,
        };
        self.consult_watch();
        self.publisher.begin(now);
        let began = Instant::now();
        let result = match extent {
            Extent::All => {
                self.log.settings(&self.settings.check(), now);
                self.proxier.resync(now)
            }
            Extent::Pending => self.proxier.sync(now),
        };
        let took = began.elapsed();
        // Before the check of foreign chains, so that no change of one between the two is lost.
        let monitor = self.rules_monitor.take_if(|_| result.is_ok());
        let are_changed = monitor.is_some_and(|monitor| monitor.start(&mut self.proxier));
        // After a failed round too: the kernel still serves what earlier rounds programmed.
        self.check_chains(extent, now);
        let has_succeeded = match result {
            Ok(applied) => self.end_round(&applied, extent, now, took),
            Err(error) => {
                self.meter.failed_round(extent);
                self.fail(&error, now)
            }
        };
        // After `end_round`, which clears it: this round did not repair that change yet.
        self.has_tampering |= are_changed;
        has_succeeded
    }

    /// Checks the chains of other programs, at each resync and when something suggests a change.
    fn check_chains(&mut self, extent: Extent, now: Duration) {
        if let Some(chains) = &mut self.foreign_chains
            && (extent == Extent::All || chains.due().is_some_and(|due| due <= now))
        {
            chains.apply(now, &mut self.log);
        }
        // Notifications about KUBE-MARK-MASQ are not read. But a program that flushes all rules (`nft flush
        // ruleset`) changes our table too.
        if let Some(chains) = &mut self.mark_chains
            && (extent == Extent::All || self.has_tampering)
        {
            chains.apply(now, &mut self.log);
        }
    }

    /// Publishes and logs a round that was made at `now`. Returns whether all of it took effect.
    fn end_round(
        &mut self,
        applied: &Applied<D::Changes>,
        extent: Extent,
        now: Duration,
        took: Duration,
    ) -> bool {
        // A round that failed as a whole leaves these set, so that the next try is due.
        self.has_message = false;
        self.has_tampering = false;
        self.last_round = Some(now);
        self.retry.reset();
        if extent == Extent::All {
            // From the beginning of the round, so that a slow resync does not stretch the period.
            self.next_resync = now + self.periods.sync;
        }
        self.publisher.end(&mut self.proxier, clock::since_boot());
        let problems = self.proxier.current_problems();
        self.meter
            .round(applied, &self.proxier, &problems, extent, took);
        self.events.round(self.watch.as_ref(), applied, &problems);
        let has_succeeded = self.log.round(applied, &self.proxier, &problems, now);
        if let Some(takeover) = &mut self.takeover
            && (extent == Extent::All || takeover.due().is_some_and(|due| due <= now))
        {
            // Without our rules or virtual servers, kube-proxy's leftovers may still serve the node.
            match has_succeeded && self.proxier.dataplane().has_written_rules() {
                true => takeover.look(now),
                false => takeover.wait_for_resync(),
            }
        }
        has_succeeded
    }

    /// Logs the error of a round that failed as a whole, and schedules the next try. Returns `false`.
    fn fail(&mut self, error: &dyn std::error::Error, now: Duration) -> bool {
        self.publisher.fail(&error.to_string(), clock::since_boot());
        self.events
            .failed_round(self.watch.as_ref(), &error.to_string());
        self.retry.back_off(now);
        let pause = self.retry.due().unwrap_or(now) - now;
        self.log.failed_round(&error.to_string(), pause, now);
        false
    }
}
