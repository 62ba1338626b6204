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

use crate::clock;
use crate::dataplane::Dataplane;
use crate::filter::Filter;
use crate::health::Board;
use crate::manifests::Loaded;
use crate::nftables::{ForeignChains, MarkChains, Tampering};
use crate::problem::Problem;
use crate::serve::{BindFailures, HealthCheckPorts};
use crate::store::Event;
use crate::sync::Proxier;
use crate::sysctl::{Keeper, Roots, Setting};
use crate::timer::Timer;
use crate::traffic::Owners;
use crate::watch::{self, Watch};

mod address_repairs;
mod chain_check;
mod events;
mod gate;
mod log;
mod mark_chains;
mod measure;
mod periods;
mod publish;
mod takeover;

use chain_check::ChainCheck;
use events::Reporter;
use gate::Gate;
use log::RoundLog;
use mark_chains::MarkChainCheck;
use measure::Meter;
pub use periods::Periods;
use publish::Publisher;
pub(crate) use takeover::Takeover;

/// Capacity of the message queue; senders block when it is full.
pub(crate) const QUEUE_LENGTH: usize = 1_024;

/// The pause before a round that failed as a whole is tried again; doubled up to the sync period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The shortest time between two rounds that repair packet rules or local routes, however often
/// another program changes them. Such a repair cannot wait for [`Periods::min_sync`]: traffic is affected.
const REPAIR_PAUSE: Duration = Duration::from_millis(100);

/// How long our Node may be missing after the other objects before the log says so. Its list is read at the
/// same time as theirs, so it usually follows within milliseconds.
const NODE_GRACE: Duration = Duration::from_millis(100);

/// What the daemon receives.
#[derive(Debug)]
pub enum Message {
    /// An event of the API server.
    Event(Event),
    /// The objects of the manifests.
    Manifests(Loaded),
    /// All Problems of this kind that no event carries; they replace the earlier ones.
    Problems {
        /// The kind, in the plural.
        kind: &'static str,
        /// The Problems.
        problems: Vec<Problem>,
    },
    /// The machine's own addresses changed.
    MachineChanged,
    /// Another program changed local routes or the carrier.
    AddressesChanged,
    /// Another program changed our packet rules, or a chain that can drop packets of Services.
    RulesChanged(Tampering),
    /// Stop requested. The kernel keeps its state and continues to serve.
    Stop,
}

impl From<watch::WatchMessage> for Message {
    fn from(message: watch::WatchMessage) -> Self {
        match message {
            watch::WatchMessage::Event(event) => Self::Event(event),
            watch::WatchMessage::Problems { kind, problems } => Self::Problems { kind, problems },
        }
    }
}

/// Keeps one kernel in line with the cluster.
#[derive(Debug)]
pub struct Daemon<D> {
    proxier: Proxier<D>,
    periods: Periods,
    log: RoundLog,
    /// The connection to the API server; `None` with manifests.
    watch: Option<Watch>,
    /// What the HTTP servers read.
    publisher: Publisher,
    meter: Meter,
    events: Reporter,
    /// Kernel settings.
    settings: Keeper,
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
        Self {
            proxier,
            periods,
            log: RoundLog::default(),
            watch,
            publisher: Publisher::default(),
            meter: Meter::default(),
            events: Reporter::default(),
            settings: Keeper::new(Roots::default(), Vec::new()),
            foreign_chains: None,
            mark_chains: None,
            takeover: None,
            gate: Gate::default(),
            begins_to_wait: false,
            has_message: false,
            has_tampering: false,
            last_round: None,
            next_resync: Duration::ZERO,
            retry: Timer::doubling(FIRST_RETRY, periods.sync.max(FIRST_RETRY)),
        }
    }

    /// Writes these kernel settings too, and checks them at each resync.
    #[must_use]
    pub fn setting(mut self, settings: Vec<Setting>) -> Self {
        self.settings = Keeper::new(Roots::default(), settings);
        self
    }

    /// Publishes health, health checks and the names of virtual servers there.
    #[must_use]
    pub fn publishing(
        mut self,
        board: Arc<Board>,
        health_ports: Arc<HealthCheckPorts>,
        owners: Arc<Owners>,
    ) -> Self {
        self.publisher.board = board;
        self.publisher.health_ports = health_ports;
        self.publisher.owners = owners;
        self
    }

    /// Reports these failures as Events too.
    pub(crate) fn reporting(mut self, failures: Arc<BindFailures>) -> Self {
        self.events.bind_failures = failures;
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

    /// Makes one round as soon as the input is complete, and up to four that are due right after it.
    ///
    /// Returns whether all of the last one took effect.
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
    /// Returns `false` if a stop was requested or every sender is dropped. When the first round is
    /// due, `daemon/gate.rs` decides.
    pub fn listen(&mut self, messages: &Receiver<Message>) -> bool {
        loop {
            let now = clock::since_boot();
            let due = self.due();
            let mut wait = due.map_or(self.periods.sync, |due| due.saturating_sub(now));
            if self.begins_to_wait {
                wait = wait.min(NODE_GRACE);
            }
            let first = match messages.recv_timeout(wait) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) if std::mem::take(&mut self.begins_to_wait) => {
                    self.log_missing_node(now);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) if self.due().is_some() => return true,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return false,
            };
            // One round handles all queued messages. The limit keeps an endless stream from delaying it.
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
                if let Some(watch) = &self.watch {
                    watch.set_other_nodes(self.proxier.snapshot().needs_other_nodes());
                }
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
            Message::MachineChanged => self.next_resync = Duration::ZERO,
            Message::AddressesChanged => {
                self.proxier.distrust_addresses();
                self.has_tampering = true;
            }
            Message::RulesChanged(tampering) => {
                if tampering.concerns_foreign_chains()
                    && let Some(chains) = &mut self.foreign_chains
                {
                    chains.note_change();
                }
                if tampering.concerns_our_table() {
                    self.log.tampering(&tampering, clock::since_boot());
                    metrics::counter!("ipvs_proxier_rules_repairs_total").increment(1);
                    self.proxier.distrust_rules();
                    self.has_tampering = true;
                }
            }
            Message::Stop => return false,
        }
        true
    }

    /// Logs that the first round waits for our Node if it does, so that a wrong name is noticed at once.
    fn log_missing_node(&mut self, now: Duration) {
        if self.proxier.snapshot().node().is_some() {
            return;
        }
        let is_listed = |watch: &Watch| watch.status().node.is_synced();
        if self.watch.as_ref().is_some_and(is_listed) {
            return self.log.problems(&self.proxier.problems(), now);
        }
        // At an ordinary start the list with our Node may follow in a moment.
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
        Some(self.retry.due().map_or(due, |retry| due.max(retry)))
    }

    /// Makes a round at `now`, in time since boot, even if none is due.
    ///
    /// Returns whether all of it took effect; `false` also if the gate permits no round yet.
    pub fn act(&mut self, now: Duration) -> bool {
        match self.gate.pass(&mut self.proxier) {
            Ok(true) => {}
            Ok(false) => {
                self.log.refused_start(&self.proxier.problems(), now);
                return false;
            }
            Err(failure) => return self.fail(&failure, now),
        }
        let is_resync = self.next_resync <= now;
        self.publisher.begin(now);
        let began = Instant::now();
        let result = if is_resync {
            self.log.settings(&self.settings.check(), now);
            self.proxier.resync(now)
        } else {
            self.proxier.sync(now)
        };
        let took = began.elapsed();
        if let Some(chains) = &mut self.foreign_chains
            && (is_resync || chains.due().is_some_and(|due| due <= now))
        {
            chains.apply(now, &mut self.log);
        }
        // A program that flushes all rules (`nft flush ruleset`) changes our table too.
        if let Some(chains) = &mut self.mark_chains
            && (is_resync || self.has_tampering)
        {
            chains.apply();
        }
        match result {
            Ok(applied) => {
                self.has_message = false;
                self.has_tampering = false;
                self.last_round = Some(now);
                self.retry.reset();
                if is_resync {
                    self.next_resync = now + self.periods.sync;
                }
                self.publisher.end(&mut self.proxier, clock::since_boot());
                self.meter.round(&applied, &self.proxier, is_resync, took);
                let problems = || self.proxier.problems();
                self.events.round(self.watch.as_ref(), &applied, problems);
                let has_succeeded = self.log.round(&applied, &self.proxier, now);
                if let Some(takeover) = &mut self.takeover
                    && (is_resync || takeover.due().is_some_and(|due| due <= now))
                {
                    let rules = self.proxier.filter();
                    match has_succeeded && rules.is_none_or(Filter::is_in_step) {
                        true => takeover.look(now),
                        false => takeover.wait_for_resync(),
                    }
                }
                has_succeeded
            }
            Err(error) => {
                self.meter.failed_round(is_resync);
                self.fail(&error, now)
            }
        }
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use api_server::Manifest;

    use super::*;
    use crate::dataplane::fake::FakeKernel;
    use crate::ledger::LedgerFile;
    use crate::manifests::{self, Options};
    use crate::plan::{NodePortAddresses, PlanConfig, ServiceAddresses};

    #[test]
    fn the_first_round_waits_for_the_nodes_that_topology_keys_need() {
        let region = "topology.kubernetes.io/region";
        let cluster = Manifest::documents([
            &Manifest::service("db")
                .annotation("ipvs-proxier.io/topology-keys", region)
                .cluster_ip("10.96.0.90")
                .port("", "TCP", 5432),
            &Manifest::node("here").label(region, "r"),
        ]);
        let options = Options {
            service_cidr: Vec::new(),
            node_name: "here".into(),
            permits_loopback: false,
        };
        let loaded = manifests::parse(&cluster, "cluster.yaml", &options);
        assert_eq!(loaded.problems, []);
        let (nodes, other_events): (Vec<_>, Vec<_>) =
            (loaded.events.into_iter()).partition(|event| matches!(event, Event::Nodes(_)));
        assert_eq!((nodes.len(), other_events.len()), (1, 3));

        let config = PlanConfig {
            node_name: "here".into(),
            scheduler: "rr".parse().unwrap(),
            node_port_addresses: NodePortAddresses::default(),
            has_localhost_node_ports: false,
            service_addresses: ServiceAddresses::Routes,
            drain: Duration::ZERO,
        };
        let directory = tempfile::tempdir().unwrap();
        let ledger = LedgerFile::new(directory.path().join("ledger"));
        let proxier = Proxier::new(FakeKernel::default(), config, ledger).unwrap();
        let periods = Periods {
            sync: Duration::from_millis(10),
            ..Periods::default()
        };
        let mut daemon = Daemon::new(proxier, periods, None);
        let (sender, messages) = channel();
        other_events
            .into_iter()
            .for_each(|event| sender.send(Message::Event(event)).unwrap());
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                nodes
                    .into_iter()
                    .for_each(|event| sender.send(Message::Event(event)).unwrap());
            });
            assert!(daemon.listen(&messages));
        });
        assert!(daemon.proxier.snapshot().knows_other_nodes());
        assert!(start.elapsed() < gate::NODE_PATIENCE);
    }
}
