//! Tests of the daemon on the in-memory kernel.

use std::io::Write;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use api_server::Manifest;

use super::*;
use crate::dataplane::fake::FakeKernel;
use crate::filter::FilterConfig;
use crate::ledger::LedgerFile;
use crate::manifests::{self, Options};
use crate::plan::{NodePortAddresses, PlanConfig, ServiceAddresses};
use crate::problem::Problem;
use crate::store::{ObjectList, Update};

fn config() -> PlanConfig {
    PlanConfig {
        node_name: "here".into(),
        scheduler: "rr".parse().unwrap(),
        node_port_addresses: NodePortAddresses::default(),
        has_localhost_node_ports: false,
        service_addresses: ServiceAddresses::Routes,
        drain: Duration::ZERO,
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
    let (mut nodes, other_events): (Vec<_>, Vec<_>) =
        (loaded.events.into_iter()).partition(|event| matches!(event, Event::Nodes(_)));
    assert_eq!((nodes.len(), other_events.len()), (1, 3));
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
            Event::Services(Update::Reset(ObjectList::default())),
            Event::EndpointSlices(Update::Reset(ObjectList::default())),
        ]);
        let mut daemon = Daemon::new(proxier, Periods::default(), None);
        assert!(daemon.act(Duration::from_secs(1)));

        // Another program changes a rule after our write, and before the monitor listens.
        daemon.proxier.dataplane().rules_generation += u32::from(is_changed);
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
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "here".into(),
        permits_loopback: false,
    };
    let directory = tempfile::tempdir().unwrap();
    let ledger = LedgerFile::new(directory.path().join("ledger"));
    let proxier = Proxier::new(FakeKernel::default(), config(), ledger).unwrap();
    let mut daemon = Daemon::new(proxier, Periods::default(), None);
    daemon.receive(Message::Manifests(manifests::parse(
        &cluster, "f", &options,
    )));
    let mut now = Duration::from_secs(1);
    assert!(daemon.act(now));
    let (at_start, text) = count();
    assert!(text.contains("synced"), "{text}");

    let mut undo = |rounds| {
        for _ in 0..rounds {
            let state = &mut daemon.proxier.dataplane().state;
            state.addresses.clear();
            state.virtual_servers.clear();
            daemon.receive(Message::AddressesChanged);
            // The virtual servers are read at a resync.
            daemon.next_resync = Duration::ZERO;
            now += REPAIR_PAUSE;
            assert!(daemon.act(now));
            assert_eq!(daemon.proxier.dataplane().state.addresses.len(), 1);
        }
        count()
    };
    // A minute, then an hour.
    let (minute, text) = undo(600);
    assert!(minute - at_start <= 10, "{text}");
    let (hour, text) = undo(36_000);
    assert!(hour - minute <= 40, "{text}");
}
