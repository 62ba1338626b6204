//! Measures one proxy in the phases of a scenario.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::api::{Api, ApiKind};
use super::clients::Clients;
use super::kernel;
use super::limit::Recording;
use super::outcome::{Cost, Latency, Outcome, Start, Step};
use super::population::{ChangeKind, Population};
use super::probe::Probe;
use super::scenario::{Phase, Scenario};
use super::subject::{Proxy, Subject};
use super::tap::{Counts, Tap, now};
use super::way::Way;
use crate::process::{Cpu, Memory, ip, page_faults};
use crate::report::progress::StatusLine;

/// The time limit for the first programming.
const PATIENCE: Duration = Duration::from_secs(900);

/// The time limit for the kernel to have all changes of a phase.
const LATE: Duration = Duration::from_secs(60);

/// A proxy that sends no request for this time has programmed everything: kube-proxy pauses for up
/// to 1 s between two rounds.
const QUIET: Duration = Duration::from_secs(2);

/// The number of looks for requests in this time.
const QUIET_LOOKS: u32 = 20;

/// The memory that is touched before a start, in bytes: enough for 250,000 endpoints.
const TOUCHED: usize = 1 << 30;

/// How long the API server is gone or slow.
const ABSENCE: Duration = Duration::from_secs(10);

/// The number of changes during an absence.
const MISSED_CHANGES: u32 = 20;

/// A proxy under test with its API server and its tap.
pub(super) struct Run<'a> {
    scenario: &'a Scenario,
    population: Population,
    tap: Tap,
    api: Box<dyn Api>,
    proxy: Proxy,
    progress: &'a StatusLine,
    title: String,
    begin: Duration,
    /// The same moment as `begin`.
    started: Instant,
}

/// The counters at the start of a phase.
struct Before {
    at: Duration,
    cpu: Cpu,
    server: Cpu,
    counts: Counts,
}

/// Measures `subject` in the network namespace of the calling thread.
pub(super) fn measure(
    scenario: &Scenario,
    subject: &Subject,
    api: ApiKind,
    folder: &Path,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let population = Population::new(scenario.shape, scenario.seed);
    let tap = prepare_node(&population)?;
    let progress = StatusLine::new();
    let title = format!(
        "{}, {}, round {}",
        scenario.name, subject.name, outcome.round
    );
    progress.show(|| format!("{title}: starting the API server"));
    let mut api = api.start(&population)?;
    api.fill(&population, &|number| {
        progress.show(|| format!("{title}: {number} objects"));
    })?;
    // Before the proxy starts: it may send its first message at once.
    tap.expect(population.words());
    let kubeconfig = api.kubeconfig(folder)?;
    // As after other clients: the server has its code, its objects and its buffers in memory. Without this, the first
    // list took it 0.05 s more, on the processor that it shares with the proxy.
    let read = api_server::reader::read_lists(&kubeconfig);
    read.map_err(anyhow::Error::from_boxed)
        .context("reading the lists before the proxy")?;
    subject.cache()?;
    kernel::touch_memory(TOUCHED)?;
    tap.record();
    let (begin, started) = (now(), Instant::now());
    let server = Cpu::of(std::process::id())?;
    let proxy = subject.start(&kubeconfig, folder)?;
    let probe = Probe::start(SocketAddr::from((population.api_service(), 443)));
    let sampler = Sampler::start(proxy.id(), begin);
    let mut run = Run {
        scenario,
        population,
        tap,
        api,
        proxy,
        progress: &progress,
        title,
        begin,
        started,
    };
    let before = Before {
        at: begin,
        cpu: Cpu::default(),
        server,
        counts: Counts::default(),
    };
    let result = run.phases(before, &probe, outcome);
    outcome.memory = sampler.stop();
    progress.end();
    result.with_context(|| format!("the log ends with\n{}", run.proxy.log()))
}

/// Gives the network namespace of the calling thread a node's addresses and a tap.
fn prepare_node(population: &Population) -> anyhow::Result<Tap> {
    let node = population.node_addresses();
    // The namespace has no real link: the dummy device carries the addresses of the node, and
    // packets to Pods vanish in it.
    ip("link add node0 type dummy")?;
    ip("link set node0 up")?;
    for address in &node {
        let (family, length, flag) = match address.is_ipv4() {
            true => ("-4", 24, ""),
            false => ("-6", 64, " nodad"),
        };
        ip(&format!("address add {address}/{length} dev node0{flag}"))?;
        // Without a route, a proxy that translates addresses never sees the packets of local clients.
        ip(&format!("{family} route replace default dev node0"))?;
    }
    Tap::open()
}

impl Run<'_> {
    fn phases(
        &mut self,
        before: Before,
        probe: &Probe,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let programmed = self.first_programming(&before, probe, &mut outcome.notes)?;
        let Some((start, recording)) = programmed else {
            outcome.is_late = true;
            return Ok(());
        };
        let start = outcome.start.insert(start);
        let population = &self.population;
        // Three times the kernel's work of the first programming, of which the way of a packet has no figure.
        if self.scenario.phases != [Phase::Way] {
            match recording.limit(|| prepare_node(population)) {
                Ok(limit) => start.limit = Some(limit),
                Err(error) => outcome.notes.push(format!("no limit: {error:#}")),
            }
        }
        for &phase in &self.scenario.phases {
            self.show(&format!("{phase:?}").to_lowercase());
            let step = self.phase(phase);
            let step = step.with_context(|| format!("{phase:?}"))?;
            if step.missed > 0 {
                let missed = step.missed;
                outcome.notes.push(format!(
                    "{phase:?}: the proxy sent no request for {missed} endpoints within {LATE:?}"
                ));
            }
            outcome.steps.push(step);
            self.proxy.check()?;
        }
        Ok(())
    }

    /// Waits until all endpoints are programmed. Returns the figures, without the limit, and the requests; `None` after
    /// the time limit.
    fn first_programming(
        &mut self,
        before: &Before,
        probe: &Probe,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Option<(Start, Recording)>> {
        let endpoints = self.population.endpoints();
        let mut unseen = None;
        let deadline = Instant::now() + PATIENCE;
        while self.tap.missing() > 0 {
            self.proxy.check()?;
            let missing = self.tap.missing();
            if Instant::now() > deadline {
                notes.push(format!(
                    "first programming: not reached in {PATIENCE:?}: {missing} of {endpoints} endpoints are missing"
                ));
                return Ok(None);
            }
            self.show(&format!(
                "first programming, {missing} endpoints are missing"
            ));
            std::thread::sleep(Duration::from_millis(100));
            if missing == endpoints && probe.connected().is_some() {
                self.calm()?;
                if self.tap.missing() == endpoints {
                    // The kernel copies no message above 4 MB to the tap.
                    self.tap.give_up();
                    unseen = probe.connected();
                    notes.push("the tap did not see the message with the endpoints".to_owned());
                }
            }
        }
        self.quiet();
        probe.wait(LATE);
        // Discards the latencies of the first programming, which count from before the start of the
        // proxy.
        self.tap.latencies();
        let recording = self.tap.recorded();
        let since = |at: Duration| at.saturating_sub(self.begin).as_secs_f64();
        let listed = self.api.last_list();
        let start = Start {
            first_request_secs: self.tap.first_request().map(since),
            lists_secs: listed.map(|at| at.saturating_duration_since(self.started).as_secs_f64()),
            rules_secs: recording.most_rules().map(since),
            first_server_secs: recording.first_server().map(since),
            programmed_secs: since(unseen.unwrap_or_else(|| self.tap.last_found())),
            // Not the last request of the tap: later ones read.
            settled_secs: since(
                recording
                    .last()
                    .max(unseen)
                    .context("the proxy sent no request for a change")?,
            ),
            api_service_secs: probe.connected().map(since),
            page_faults: Some(page_faults(self.proxy.id())?),
            cost: self.cost(before)?,
            limit: None,
        };
        Ok(Some((start, recording)))
    }

    /// Waits until the proxy sends no more requests, for example about drained endpoints.
    ///
    /// Looks are counted, not time: while the machine stands still, the proxy is not quiet.
    fn quiet(&self) {
        let deadline = Instant::now() + LATE;
        let (mut last, mut looks) = (self.tap.last_request(), 0);
        while looks < QUIET_LOOKS && Instant::now() < deadline {
            std::thread::sleep(QUIET / QUIET_LOOKS);
            let latest = self.tap.last_request();
            looks = if latest == last { looks + 1 } else { 0 };
            last = latest;
        }
    }

    fn phase(&mut self, phase: Phase) -> anyhow::Result<Step> {
        Memory::reset_peak(self.proxy.id())?;
        let before = self.before()?;
        let mut step = Step::new(phase);
        let clients = match phase {
            Phase::Relist | Phase::Reset | Phase::Outage | Phase::Slow if self.api.has_echo() => {
                let address = SocketAddr::from((self.population.api_service(), 443));
                Some(Clients::start(address)?)
            }
            _ => None,
        };
        match phase {
            Phase::Idle => {
                std::thread::sleep(Duration::from_secs(self.scenario.idle_secs.into()));
            }
            Phase::Churn => {
                step.changes = self.churn()?;
                self.arrive(&mut step);
            }
            Phase::Way => {
                self.calm()?;
                let service = self.population.last_service();
                let (address, pods) = service.context("a cluster without Services")?;
                step.way = Some(Way::measure(address, &pods)?);
            }
            Phase::Relist => {
                self.api.forget_versions()?;
                self.calm()?;
            }
            Phase::Reset => {
                self.api.reset_watches()?;
                self.calm()?;
            }
            Phase::Outage => {
                self.api.set_gone()?;
                self.absence(&mut step)?;
            }
            Phase::Slow => {
                self.api.set_slow()?;
                self.absence(&mut step)?;
            }
            Phase::Flush => {
                // Before the flush: a proxy that watches the kernel repairs its table at once.
                self.tap.expect(self.population.words());
                let since = now();
                kernel::flush()?;
                self.arrive(&mut step);
                let found = self.tap.last_found().saturating_sub(since);
                step.caught_up_secs = (step.missed == 0).then_some(found.as_secs_f64());
                step.latency = None;
            }
        }
        // Before the wait below, which is no work of the phase.
        step.cost = self.cost(&before)?;
        step.connections = clients.map(Clients::stop);
        // The tap finds an endpoint at its first virtual server. Wait for the requests of the
        // others.
        self.quiet();
        step.is_correct = kernel::has_exactly(&self.population)?;
        Ok(step)
    }

    /// Changes objects at the scenario's rate, and returns their number.
    fn churn(&mut self) -> anyhow::Result<u32> {
        let churn = self.scenario.churn;
        let all = churn.secs.saturating_mul(churn.per_second);
        let start = Instant::now();
        for number in 0..all {
            // The time of each change is fixed in advance: a slow change must not lower the rate.
            let due = Duration::from_secs_f64(f64::from(number) / f64::from(churn.per_second));
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            self.change(churn.kind)?;
            self.show(&format!("{number} of {all} changes"));
        }
        Ok(all)
    }

    fn change(&mut self, kind: ChangeKind) -> anyhow::Result<()> {
        let change = self.population.change(kind);
        // Before the API server has the change: a fast proxy could program it meanwhile.
        self.tap.forget(&change.removed);
        self.tap.expect(change.words);
        for slice in change.slices {
            self.api.replace(slice)?;
        }
        Ok(())
    }

    /// Waits until the kernel has all changes, and records the latencies.
    fn arrive(&self, step: &mut Step) {
        let deadline = Instant::now() + LATE;
        while self.tap.missing() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        step.missed = self.tap.give_up();
        step.latency = Latency::of(self.tap.latencies());
    }

    /// Changes objects while the API server is away; then lets it return.
    fn absence(&mut self, step: &mut Step) -> anyhow::Result<()> {
        let start = Instant::now();
        for number in 0..MISSED_CHANGES {
            let due = ABSENCE * number / MISSED_CHANGES;
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            self.change(self.scenario.churn.kind)?;
        }
        std::thread::sleep(ABSENCE.saturating_sub(start.elapsed()));
        step.changes = MISSED_CHANGES;
        self.api.resume()?;
        let back = now();
        self.arrive(step);
        let found = self.tap.last_found().saturating_sub(back);
        step.caught_up_secs = (step.missed == 0).then_some(found.as_secs_f64());
        // These latencies would be the server's absence, not the proxy's work.
        step.latency = None;
        Ok(())
    }

    /// Waits until the proxy is idle.
    fn calm(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LATE;
        let pause = Duration::from_secs(2);
        let mut before = self.proxy.cpu()?.all();
        // A proxy that reconnects waits for its backoff first.
        std::thread::sleep(pause);
        loop {
            std::thread::sleep(pause);
            let after = self.proxy.cpu()?.all();
            // Below 2 % of a core.
            if after - before < 0.04 || Instant::now() > deadline {
                return Ok(());
            }
            before = after;
        }
    }

    fn before(&self) -> anyhow::Result<Before> {
        Ok(Before {
            at: now(),
            cpu: self.proxy.cpu()?,
            server: Cpu::of(std::process::id())?,
            counts: self.tap.counts(),
        })
    }

    fn cost(&self, before: &Before) -> anyhow::Result<Cost> {
        let after = self.before()?;
        Ok(Cost {
            secs: (after.at.saturating_sub(before.at)).as_secs_f64(),
            cpu: after.cpu.since(before.cpu),
            server_cpu: after.server.since(before.server).all(),
            messages: after.counts.since(before.counts),
            memory: self.proxy.memory()?,
        })
    }

    fn show(&self, what: &str) {
        self.progress.show(|| {
            let mut line = format!("{}: {what}", self.title);
            // Writing to a string cannot fail.
            let _ = write!(
                line,
                " ({:.0} s)",
                now().saturating_sub(self.begin).as_secs_f64()
            );
            line
        });
    }
}

/// Records the resident memory of a process every second.
struct Sampler {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<(f64, u64)>>,
}

impl Sampler {
    fn start(process: u32, begin: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !stops.load(Ordering::Relaxed) {
                if let Ok(memory) = Memory::of(process) {
                    let at = now().saturating_sub(begin).as_secs_f64();
                    samples.push(((at * 10.0).round() / 10.0, memory.resident));
                }
                std::thread::sleep(Duration::from_secs(1));
            }
            samples
        });
        Self { stop, thread }
    }

    fn stop(self) -> Vec<(f64, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
