//! Tests of the daemon on the in-memory kernel.

use std::io::Write;
use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use api_server::Manifest;

use super::*;
use crate::cluster::model::ObjectName;
use crate::cluster::problem::{self, MAX_PROBLEMS, Problem};
use crate::cluster::store::{Event, Parsed, Update};
use crate::dataplane::ipvs::Ipvs;
use crate::dataplane::ipvs::fake::FakeKernel;
use crate::dataplane::ipvs::filter::FilterConfig;
use crate::dataplane::ipvs::ledger::LedgerFile;
use crate::plan::PlanConfig;
use crate::sources::manifests::{self, Options};

fn config() -> PlanConfig {
    PlanConfig {
        node_name: "here".into(),
        drain: Duration::ZERO,
        ..PlanConfig::default()
    }
}

/// Returns the events of a Service with the topology key for regions, and that with the locations of nodes.
fn events_with_regions() -> (Vec<Event>, Event) {
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
    let (mut nodes, mut other_events): (Vec<_>, Vec<_>) =
        (loaded.events.into_iter()).partition(|event| matches!(event, Event::Nodes(_)));
    assert_eq!((nodes.len(), other_events.len()), (1, 3));
    other_events.push(Event::ServiceCidrs(Update::Reset(Vec::new())));
    (other_events, nodes.remove(0))
}

#[test]
fn the_first_round_waits_for_the_nodes_that_topology_keys_need() {
    let (other_events, nodes) = events_with_regions();
    let directory = tempfile::tempdir().unwrap();
    let ledger = LedgerFile::new(directory.path().join("ledger"));
    let proxier = Proxier::new(FakeKernel::default(), config(), ledger).unwrap();
    let mut daemon = Daemon::new(proxier, Periods::default(), None);
    let start = clock::since_boot();
    for event in other_events {
        assert!(daemon.receive(Message::Event(event)));
    }
    let waits = |due| due >= start + gate::NODE_PATIENCE;
    assert!(daemon.due().is_some_and(waits));

    let (sender, messages) = channel();
    sender.send(Message::Event(nodes)).unwrap();
    assert!(daemon.listen(&messages));
    assert!(daemon.proxier.snapshot().knows_other_nodes());
    assert_eq!(daemon.due(), Some(Duration::ZERO));
}

#[test]
fn without_permission_to_watch_nodes_a_key_that_needs_them_is_a_problem() {
    let (other_events, _) = events_with_regions();
    let directory = tempfile::tempdir().unwrap();
    let ledger = LedgerFile::new(directory.path().join("ledger"));
    let proxier = Proxier::new(FakeKernel::default(), config(), ledger).unwrap();
    let mut daemon = Daemon::new(proxier, Periods::default(), None);
    daemon.gate = Gate::new(NodeScope::Own);
    for event in other_events {
        // The last one has the service ranges.
        assert_ne!(daemon.due(), Some(Duration::ZERO));
        assert!(daemon.receive(Message::Event(event)));
    }
    assert_eq!(daemon.due(), Some(Duration::ZERO), "no wait for Nodes");
    assert!(daemon.act(Duration::from_secs(1)));
    let problems = daemon.proxier.problems();
    let says = |problem: &Problem| problem.to_string().contains("--watch-nodes=all");
    assert!(problems.iter().any(says), "{problems:?}");
}

#[test]
fn the_monitor_of_packet_rules_starts_after_the_first_write_and_misses_no_change() {
    for is_changed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let ledger = LedgerFile::new(directory.path().join("ledger"));
        let mut proxier = Proxier::new(FakeKernel::default(), config(), ledger)
            .unwrap()
            .filtering(FilterConfig::default());
        proxier.receive([
            Event::Services(Update::Reset(Vec::new())),
            Event::EndpointSlices(Update::Reset(Vec::new())),
        ]);
        let mut daemon = Daemon::new(proxier, Periods::default(), None);
        assert!(daemon.act(Duration::from_secs(1)));

        // Another program changes a rule after our write, and before the monitor listens.
        daemon.proxier.kernel().rules_generation += u32::from(is_changed);
        let (sender, starts) = channel();
        daemon = daemon.monitoring_rules(move || sender.send(()).unwrap());
        assert!(daemon.act(Duration::from_secs(2)));
        assert!(starts.try_recv().is_ok());
        assert_eq!(daemon.has_tampering, is_changed);
        let is_in_step = |daemon: &Daemon<_>| daemon.proxier.filter().unwrap().is_in_step();
        assert_eq!(is_in_step(&daemon), !is_changed);

        assert!(daemon.act(Duration::from_secs(3)));
        assert!(starts.try_recv().is_err(), "the monitor starts once");
        assert!(!daemon.has_tampering && is_in_step(&daemon));
    }
}

/// Returns a daemon after its first round with the objects of a manifest.
fn daemon_of(cluster: &str, directory: &tempfile::TempDir) -> Daemon<Ipvs<FakeKernel>> {
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "here".into(),
        permits_loopback: false,
    };
    let ledger = LedgerFile::new(directory.path().join("ledger"));
    let proxier = Proxier::new(FakeKernel::default(), config(), ledger).unwrap();
    let mut daemon = Daemon::new(proxier, Periods::default(), None);
    let loaded = manifests::parse(cluster, "cluster.yaml", &options);
    daemon.receive(Message::Manifests(loaded));
    assert!(daemon.act(Duration::from_secs(1)));
    daemon
}

/// Addresses of the machine that change all the time cause no more whole resyncs than Services that do.
#[test]
fn a_change_of_the_machine_causes_a_resync_after_the_least_period() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = daemon_of("", &directory);
    let first = Duration::from_secs(1);
    for _ in 0..9 {
        assert!(daemon.receive(Message::MachineChanged));
    }
    let due = first + daemon.periods.min_sync;
    assert_eq!(daemon.due(), Some(due));
    let reads = daemon.proxier.kernel().reads;
    assert!(daemon.act(due));
    assert_eq!(daemon.proxier.kernel().reads, reads + 1);
    // A later one counts from that round.
    assert!(daemon.receive(Message::MachineChanged));
    assert_eq!(daemon.due(), Some(due + daemon.periods.min_sync));
}

#[test]
fn tenants_do_not_choose_how_often_slow_starts_cause_rounds_and_writes() {
    let cluster = |endpoints: u8| {
        let web = Manifest::service("web")
            .annotation("ipvs-proxier.io/slow-start", "8s")
            .annotation("ipvs-proxier.io/scheduler", "wlc")
            .cluster_ip("10.96.0.80")
            .port("", "TCP", 80);
        let slice = Manifest::slice_of("web").port("", "TCP", 80);
        let slice = (1..=endpoints).fold(slice, |slice, number| {
            slice.endpoint(&format!("10.244.1.{number}"))
        });
        Manifest::documents([&web, &slice])
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("standings");
    let mut daemon = daemon_of(&cluster(3), &directory).doing(StandingsFile::new(file.clone()));
    daemon.periods.min_sync = Duration::from_secs(10);
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "here".into(),
        permits_loopback: false,
    };
    let has = |number: u8| {
        let text = std::fs::read_to_string(&file).unwrap();
        text.contains(&format!("10.244.1.{number}"))
    };
    let at = Duration::from_secs;
    let start = |daemon: &mut Daemon<_>, endpoints, secs| {
        let loaded = manifests::parse(&cluster(endpoints), "cluster.yaml", &options);
        daemon.receive(Message::Manifests(loaded));
        daemon.act(at(secs));
    };
    start(&mut daemon, 4, 20);
    assert!(has(4));
    // The step is after at most 8 s.
    assert_eq!(daemon.due(), Some(at(20 + 10)));
    start(&mut daemon, 5, 22);
    assert!(!has(5));
    assert_eq!(daemon.due(), Some(at(20 + 3)));
    daemon.act(at(23));
    assert!(has(5));
    start(&mut daemon, 6, 24);
    assert!(!has(6));
    let (sender, messages) = channel();
    sender.send(Message::Stop).unwrap();
    daemon.run(&messages);
    assert!(has(6));
}

/// The log of this thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_number_of_lines_does_not_depend_on_how_often_another_program_undoes_a_repair() {
    let lines = Lines::default();
    let writer = lines.clone();
    // With one subscriber in the process, `tracing` would ask that of the thread that logs a line first, which may be
    // another test's.
    let _second = tracing::Dispatch::new(tracing_subscriber::fmt().finish());
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let count = || {
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        (text.lines().count(), text)
    };

    let cluster = Manifest::documents([
        &Manifest::service("web")
            .cluster_ip("10.96.0.80")
            .port("", "UDP", 53),
        &Manifest::slice_of("web")
            .port("", "UDP", 53)
            .endpoint("10.244.1.2"),
    ]);
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = daemon_of(&cluster, &directory);
    let mut now = Duration::from_secs(1);
    let (at_start, text) = count();
    assert!(text.contains("synced"), "{text}");

    let mut undo = |rounds| {
        for _ in 0..rounds {
            let state = &mut daemon.proxier.kernel().state;
            state.addresses.clear();
            state.virtual_servers.clear();
            daemon.receive(Message::AddressesChanged);
            // The virtual servers are read at a resync.
            daemon.next_resync = Duration::ZERO;
            now += REPAIR_PAUSE;
            assert!(daemon.act(now));
            assert_eq!(daemon.proxier.kernel().state.addresses.len(), 1);
        }
        count()
    };
    // A minute, then an hour.
    let (minute, text) = undo(600);
    assert!(minute - at_start <= 10, "{text}");
    let (hour, text) = undo(36_000);
    assert!(hour - minute <= 40, "{text}");
}

fn service(name: &str, address: &str) -> Manifest {
    let service = Manifest::service(name).cluster_ip(address);
    service.port("", "TCP", 80)
}

/// Each Service has a misspelled annotation, and each second one the address of the one before it.
fn faulty(count: usize) -> Vec<Manifest> {
    let faulty = (0..count).map(|number| {
        let (high, low) = (number / 2 / 250, number / 2 % 250);
        let address = format!("10.96.{high}.{low}");
        service(&format!("faulty-{number:05}"), &address)
            .annotation("ipvs-proxier.io/misspelled", "x")
    });
    faulty.collect()
}

#[test]
fn a_round_makes_and_formats_no_problem_of_other_services() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = faulty(100);
    cluster.push(service("web", "10.97.0.1"));
    let mut daemon = daemon_of(&Manifest::documents(&cluster), &directory);
    let before = daemon.proxier.current_problems();
    // A misspelled annotation of each, and an address that half of them did not get.
    assert_eq!(before.len(), 150);
    let counted = problem::work::counted();
    for number in 2..10 {
        let name = ObjectName::new("default", "web");
        let mut web = daemon.proxier.snapshot().service(&name).unwrap().clone();
        web.cluster_ips = [IpAddr::from([10, 97, 0, number])].into();
        let changed = Parsed {
            name,
            object: Some(web),
            problems: Vec::new(),
            changed: None,
        };
        daemon.receive(Message::Event(Event::Services(Update::Apply(changed))));
        assert!(daemon.act(Duration::from_secs(u64::from(number))));
    }
    assert!(Arc::ptr_eq(&daemon.proxier.current_problems(), &before));
    assert_eq!(problem::work::counted(), counted);

    // A solved Problem is noticed.
    let solved = ObjectName::new("default", "faulty-00001");
    daemon.receive(Message::Event(Event::Services(Update::Delete(solved))));
    assert!(daemon.act(Duration::from_secs(20)));
    assert_eq!(daemon.proxier.current_problems().len(), 148);
    assert_eq!(
        *daemon.proxier.current_problems(),
        *daemon.proxier.problems()
    );
}

#[test]
fn problems_are_bounded_in_all() {
    let directory = tempfile::tempdir().unwrap();
    let count = MAX_PROBLEMS + 500;
    let mut daemon = daemon_of(&Manifest::documents(&faulty(count)), &directory);
    let problems = daemon.proxier.current_problems();
    assert_eq!(problems.len(), MAX_PROBLEMS + 1);
    let last = problems.last().unwrap();
    assert_eq!((&*last.object, &*last.field), ("This node", "problems"));
    // The annotations of 500, and the addresses of half of all.
    assert_eq!(last.value, (500 + count / 2).to_string());
}
