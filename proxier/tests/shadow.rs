//! The output of `plan` and of `plan --audit` for a node where kube-proxy still serves.
//!
//! The table is the recorded one of kube-proxy for the conformance cluster (`conformance/README.md`), or
//! a small one with one fault.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use api_server::Manifest;
use ipvs_netlink as ipvs;
use lab::net::Cluster;
use proxier::testing::dataplane::fake::FakeKernel;
use proxier::testing::filter::FilterConfig;
use proxier::testing::frontend::Frontend;
use proxier::testing::ledger::LedgerFile;
use proxier::testing::manifests;
use proxier::testing::model::{Cidr, ObjectName, Protocol, ServiceCidr};
use proxier::testing::observed::{Carrier, ObservedServer};
use proxier::testing::op::AddressForm;
use proxier::testing::plan::PlanConfig;
use proxier::testing::shadow::{self, Compared, Comparison};
use proxier::testing::store::{Event, Parsed, Update};
use proxier::testing::sync::Proxier;
use serde_json::json;

#[path = "conformance/recorded.rs"]
mod recorded;

use recorded::{Table, conformance};

/// Parses `TCP 10.96.0.1:443`.
fn key(frontend: &str) -> ipvs::ServiceKey {
    let (protocol, socket) = frontend.split_once(' ').unwrap();
    let socket: SocketAddr = socket.parse().unwrap();
    let mut protocols = Protocol::ALL.into_iter();
    let frontend = Frontend {
        protocol: protocols.find(|it| it.to_string() == protocol).unwrap(),
        address: socket.ip(),
        port: socket.port(),
    };
    frontend.into()
}

/// Returns a virtual server: `rr persistent=600`, and `10.244.1.2:8080 masq w=1` for each destination.
fn server(
    frontend: &str,
    scheduler: &str,
    destinations: &BTreeSet<String>,
) -> (ipvs::ServiceKey, ObservedServer) {
    let (name, affinity) = scheduler
        .split_once(" persistent=")
        .unwrap_or((scheduler, ""));
    let mut service = ipvs::Service::new(key(frontend), name.parse().unwrap());
    if !affinity.is_empty() {
        service.flags = ipvs::ServiceFlags::PERSISTENT;
        service.timeout_secs = affinity.parse().unwrap();
    }
    let destination = |text: &String| {
        let (socket, weight) = text.split_once(" masq w=").unwrap();
        let socket: SocketAddr = socket.parse().unwrap();
        ipvs::Destination::new(socket.into(), weight.parse().unwrap())
    };
    let mut destinations: Vec<_> = destinations.iter().map(destination).collect();
    destinations.sort_by_key(|destination| destination.key);
    let mut server = ObservedServer::empty(&service);
    server.destinations = destinations.into();
    (service.key, server)
}

/// Returns a kernel that kube-proxy left: virtual servers, and their addresses on `kube-ipvs0`.
fn kernel(table: &Table) -> FakeKernel {
    let mut kernel = FakeKernel::default();
    // kube-proxy ran on this node.
    let addresses = Cluster::NODE_ADDRESSES.map(|address| address.parse::<IpAddr>().unwrap());
    kernel.machine.addresses = addresses.into();
    kernel.state.carrier = Some(Carrier {
        is_ours: false,
        is_ready: false,
    });
    for (frontend, (scheduler, destinations)) in table {
        let (key, server) = server(frontend, scheduler, destinations);
        let address = key.address().unwrap();
        if !addresses.contains(&address) {
            let leftover = (address, AddressForm::Address);
            kernel.state.leftovers.insert(leftover);
        }
        kernel.state.virtual_servers.insert(key, server);
    }
    kernel
}

/// Returns what `plan` and `plan --audit` print for this kernel and these manifests, in a cluster whose
/// service ranges are unknown.
fn compare(kernel: FakeKernel, documents: &str) -> (String, String) {
    compare_with(kernel, documents, Vec::new())
}

/// Does the same in a cluster with these service ranges.
fn compare_with(kernel: FakeKernel, documents: &str, ranges: Vec<Cidr>) -> (String, String) {
    let config = PlanConfig {
        node_name: "node-a".into(),
        drain: Duration::from_secs(3600),
        ..PlanConfig::default()
    };
    let options = manifests::Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        permits_loopback: false,
    };
    let loaded = manifests::parse(documents, "cluster.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    let mut proxier = Proxier::new(kernel, config, LedgerFile::new("/nonexistent"))
        .unwrap()
        .filtering(FilterConfig::default());
    proxier.receive(loaded.events);
    if !ranges.is_empty() {
        let range = Parsed {
            name: ObjectName::new("", "kubernetes"),
            object: Some(ServiceCidr {
                name: "kubernetes".into(),
                ranges,
            }),
            problems: Vec::new(),
            changed: None,
        };
        proxier.receive([Event::ServiceCidrs(Update::Apply(range))]);
    }
    let preview = proxier.preview(Duration::from_secs(1)).unwrap();
    let view = Compared {
        snapshot: proxier.snapshot(),
        planner: proxier.planner(),
        wanted: proxier.wanted(),
        observed: proxier.observed(),
        retired: proxier.ledger().retired(),
    };
    let mut comparison = Comparison::new(&preview.ops, &view);
    if preview.changes_rules {
        comparison = comparison.writing_rules(&view);
    }
    let texts = (shadow::changes(&comparison), shadow::findings(&comparison));
    assert_eq!(proxier.kernel().writes, 0);
    texts
}

#[test]
fn the_table_of_kube_proxy_is_explained_and_audited() {
    let cluster = std::fs::read_to_string(conformance("cluster.yaml")).unwrap();
    let (changes, findings) = compare(kernel(&recorded::of_kube_proxy()), &cluster);
    insta::assert_snapshot!("changes", changes);
    insta::assert_snapshot!("findings", findings);
}

/// The frontends of the Service `web`, and kube-proxy's destinations for them.
fn web_table() -> Table {
    let row = || {
        let destinations = ["10.244.1.2:8080 masq w=1", "10.244.2.2:8080 masq w=1"];
        let destinations = destinations.map(str::to_owned).into();
        ("rr".to_owned(), destinations)
    };
    BTreeMap::from([("TCP 10.96.1.1:80".to_owned(), row())])
}

fn web() -> Manifest {
    Manifest::service("web")
        .cluster_ip("10.96.1.1")
        .port("http", "TCP", 80)
}

fn slice() -> Manifest {
    Manifest::slice_of("web")
        .port("http", "TCP", 8080)
        .endpoint_with("10.244.1.2", json!({"nodeName": "node-a"}))
        .endpoint_with("10.244.2.2", json!({"nodeName": "node-b"}))
}

/// Returns the lines of `plan` about the Service `web`, and the rules that `plan --audit` finds broken.
fn verdict(table: &Table, objects: &[Manifest]) -> (Vec<String>, Vec<String>) {
    let (changes, findings) = compare(kernel(table), &Manifest::documents(objects));
    let mut paragraphs = changes.split("\n\n");
    let is_of_service = |part: &&str| !part.starts_with("This node") && part.contains('\n');
    let service = paragraphs.find(is_of_service).unwrap_or_default();
    let lines = service.lines().skip(1).map(|line| line.trim().to_owned());
    let rules = findings.lines().filter_map(|line| {
        let (_, rule) = line.rsplit_once(" [")?;
        Some(rule.trim_end_matches(']').to_owned())
    });
    (lines.collect(), rules.collect())
}

#[track_caller]
fn check(table: &Table, objects: &[Manifest], line: &str, rule: &str) {
    let (lines, rules) = verdict(table, objects);
    assert_eq!(lines, [line]);
    let expected: Vec<&str> = Some(rule)
        .filter(|rule| !rule.is_empty())
        .into_iter()
        .collect();
    assert_eq!(rules, expected, "{lines:?}");
}

#[test]
fn a_service_that_stays_is_not_mentioned() {
    let (lines, rules) = verdict(&web_table(), &[web(), slice()]);
    assert_eq!((lines.len(), rules.len()), (0, 0), "{lines:?} {rules:?}");
}

#[test]
fn each_difference_has_its_reason_and_its_rule() {
    let table = web_table();
    let at = "TCP 10.96.1.1:80:";
    let endpoint = |address: &str, rest: serde_json::Value| {
        Manifest::slice_of("web")
            .port("http", "TCP", 8080)
            .endpoint_with("10.244.1.2", json!({"nodeName": "node-a"}))
            .endpoint_with(address, rest)
    };
    let remote = "10.244.2.2";
    let conditions = |ready: bool, serving: bool, terminating: bool| {
        let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
        json!({"nodeName": "node-b", "conditions": conditions})
    };
    let remove = format!("{at} remove destination 10.244.2.2:8080, because");

    let only_local = Manifest::slice_of("web")
        .port("http", "TCP", 8080)
        .endpoint_with("10.244.1.2", json!({"nodeName": "node-a"}));
    let why = "no EndpointSlice of the Service lists it";
    check(
        &table,
        &[web(), only_local],
        &format!("{remove} {why}"),
        "ready-endpoints-only",
    );

    let unready = endpoint(remote, conditions(false, false, false));
    let why = "the endpoint is not ready";
    check(
        &table,
        &[web(), unready],
        &format!("{remove} {why}"),
        "ready-endpoints-only",
    );

    let leaving = endpoint(remote, conditions(false, true, true));
    let why = "the endpoint is terminating, and others are ready";
    check(
        &table,
        &[web(), leaving],
        &format!("{remove} {why}"),
        "ready-endpoints-only",
    );

    let local = web().spec("internalTrafficPolicy", "Local");
    let why = "internalTrafficPolicy is Local, and node node-b has it";
    check(
        &table,
        &[local, slice()],
        &format!("{remove} {why}"),
        "internal-traffic-policy-local",
    );

    let third = slice().endpoint_with("10.244.2.3", json!({"nodeName": "node-b"}));
    let line = format!("{at} add destination 10.244.2.3:8080, because the endpoint is ready");
    check(&table, &[web(), third], &line, "ready-endpoints-serve");

    let sticky = web().spec("sessionAffinity", "ClientIP");
    let line = format!(
        "{at} change session affinity from none to 10800 s, because spec.sessionAffinity says so"
    );
    check(&table, &[sticky, slice()], &line, "session-affinity");

    // Choices of the operator are no findings.
    let scheduled = web().annotation("ipvs-proxier.io/scheduler", "wlc");
    let line = format!(
        "{at} change the scheduler from rr to wlc, because the annotation ipvs-proxier.io/scheduler \
         says so"
    );
    check(&table, &[scheduled, slice()], &line, "");

    let keys = web().annotation("ipvs-proxier.io/topology-keys", "kubernetes.io/hostname");
    let why = "the annotation ipvs-proxier.io/topology-keys selects other endpoints";
    check(&table, &[keys, slice()], &format!("{remove} {why}"), "");
}

#[test]
fn a_destination_of_weight_0_with_a_ready_endpoint_is_found() {
    let mut table = web_table();
    let (_, destinations) = table.get_mut("TCP 10.96.1.1:80").unwrap();
    *destinations = ["10.244.1.2:8080 masq w=0", "10.244.2.2:8080 masq w=1"]
        .map(str::to_owned)
        .into();
    let line = "TCP 10.96.1.1:80: change the weight of destination 10.244.1.2:8080 from 0 to 1, because \
                the endpoint is ready";
    check(&table, &[web(), slice()], line, "ready-endpoints-serve");
}

#[test]
fn each_new_weight_has_a_line_of_its_own() {
    let weights = "ipvs-proxier.io/weights";
    let web = web().annotation(weights, "10.244.1.2:5, *:3");
    let (lines, _) = verdict(&web_table(), &[web, slice()]);
    let line = |address, weight| {
        format!(
            "TCP 10.96.1.1:80: change the weight of destination {address}:8080 from 1 to {weight}, because the \
             annotation {weights} says so"
        )
    };
    assert_eq!(lines, [line("10.244.2.2", 3), line("10.244.1.2", 5)]);
}

#[test]
fn a_missing_frontend_and_one_without_a_service_are_found() {
    let table = BTreeMap::from([(
        "TCP 10.96.1.9:80".to_owned(),
        (
            "rr".to_owned(),
            BTreeSet::from(["10.244.1.9:8080 masq w=1".to_owned()]),
        ),
    )]);
    let ranges = vec!["10.96.0.0/16".parse().unwrap()];
    let documents = Manifest::documents(&[web(), slice()]);
    let (changes, findings) = compare_with(kernel(&table), &documents, ranges);
    for line in [
        "  TCP 10.96.1.1:80: add the virtual server with destinations 10.244.1.2:8080, 10.244.2.2:8080, \
         because the Service has this frontend (spec.clusterIPs)\n",
        "  make local service address 10.96.1.1, because no route or device makes it local\n",
        "No Service\n  TCP 10.96.1.9:80: delete the virtual server when its connections have ended, because no \
         Service has this frontend\n",
    ] {
        assert!(changes.contains(line), "{line}{changes}");
    }
    for rule in [
        "[every-frontend-is-served]",
        "[no-frontend-without-a-service]",
    ] {
        assert!(findings.contains(rule), "{rule} {findings}");
    }
}

#[test]
fn a_contested_frontend_names_the_other_service() {
    // Both Services have the external IP. kube-proxy lets each replace the other's destinations.
    // Without a creation time, the first name counts as older.
    let external = |name: &str, address: &str| {
        Manifest::service(name)
            .cluster_ip(address)
            .spec("externalIPs", json!(["198.51.100.7"]))
            .port("http", "TCP", 80)
    };
    let younger = Manifest::slice_of("younger")
        .port("http", "TCP", 8080)
        .endpoint("10.244.1.9");
    let objects = [
        external("web", "10.96.1.1"),
        external("younger", "10.96.1.2"),
        slice(),
        younger,
    ];
    let mut table = web_table();
    let row = |destination: &str| ("rr".to_owned(), BTreeSet::from([destination.to_owned()]));
    let theirs = "10.244.1.9:8080 masq w=1";
    table.insert("TCP 10.96.1.2:80".to_owned(), row(theirs));
    table.insert("TCP 198.51.100.7:80".to_owned(), row(theirs));
    let (changes, findings) = compare(kernel(&table), &Manifest::documents(&objects));
    let line = "TCP 198.51.100.7:80: remove destination 10.244.1.9:8080, because it serves Service \
                default/younger, which has the same frontend and is younger\n";
    assert!(changes.contains(line), "{changes}");
    assert!(
        findings.contains("[one-service-per-frontend]"),
        "{findings}"
    );
}
