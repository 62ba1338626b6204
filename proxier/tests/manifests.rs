//! Tests of `proxier::testing::manifests`: manifests written by hand, printed by kubectl, and damaged ones.
//!
//! `tests/manifests/` has an input and the expected result of each case. Review the results after
//! `INSTA_UPDATE=always cargo test -p proxier --test manifests`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use proxier::testing::manifests::{self, Loaded, Options};
use proxier::testing::model;
use proxier::testing::model::{EndpointSlice, Node, Service};
use proxier::testing::problem::Problem;
use proxier::testing::store::{Event, Parsed, Update};

#[path = "manifests/assigned.rs"]
mod assigned;
#[path = "manifests/files.rs"]
mod files;
#[path = "manifests/hostile.rs"]
mod hostile;

fn options() -> Options {
    let networks = ["10.96.0.0/24", "fd00:10:96::/112"];
    Options {
        service_cidr: networks.map(|text| text.parse().unwrap()).to_vec(),
        node_name: "node-a".into(),
        permits_loopback: false,
    }
}

#[test]
fn each_input_gives_its_golden_result() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests");
    let mut inputs: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    inputs.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "yaml" || extension == "json")
    });
    inputs.sort();
    assert!(inputs.len() >= 10, "{inputs:?}");
    for input in inputs {
        let name = input.file_stem().unwrap().to_str().unwrap();
        let file = input.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&input).unwrap();
        let shown = show(&manifests::parse(&text, file, &options()));
        golden(name, &shown);
    }
}

/// Compares `shown` with the snapshot `name` in `tests/manifests/`.
fn golden(name: &str, shown: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("manifests");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, shown));
}

#[test]
fn the_conformance_cluster_loads_without_a_problem() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/cluster.yaml");
    let loaded = manifests::load(&path, &options()).unwrap();
    assert_eq!(problems(&loaded), [""; 0]);
    let (services, slices, node) = objects(&loaded);
    // One more is left to another proxy by its label.
    assert_eq!(services.len(), 43);
    assert_eq!(
        services
            .iter()
            .filter(|service| service.object.is_some())
            .count(),
        41
    );
    assert!(slices.iter().all(|slice| slice.object.is_some()));
    let node = node.unwrap();
    assert_eq!(node.addresses.len(), 2);
    assert_eq!(node.zone.as_deref(), Some("zone-a"));
}

/// Returns all problems, as printed.
fn problems(loaded: &Loaded) -> Vec<String> {
    let (services, slices, _) = objects(loaded);
    let of_services = services.iter().flat_map(|parsed| &parsed.problems);
    let of_slices = slices.iter().flat_map(|parsed| &parsed.problems);
    let all = loaded.problems.iter().chain(of_services).chain(of_slices);
    all.map(Problem::to_string).collect()
}

fn objects(
    loaded: &Loaded,
) -> (
    Vec<Parsed<Service>>,
    Vec<Parsed<EndpointSlice>>,
    Option<&Node>,
) {
    let (services, slices, rest) = match &loaded.events[..] {
        [
            Event::Services(services),
            Event::EndpointSlices(slices),
            rest @ ..,
        ] => (
            list_of(services, loaded.is_whole),
            list_of(slices, loaded.is_whole),
            rest,
        ),
        other => panic!("{other:#?}"),
    };
    match rest {
        [] => (services, slices, None),
        [Event::Node(node)] => (services, slices, Some(node)),
        other => panic!("{other:#?}"),
    }
}

fn list_of<T: Clone + std::fmt::Debug>(update: &Update<T>, is_whole: bool) -> Vec<Parsed<T>> {
    match update {
        Update::Reset(all) if is_whole => all.clone(),
        Update::Merge(some) if !is_whole => some.clone(),
        other => panic!("{other:#?}"),
    }
}

/// Returns the objects as short text, then the problems.
fn show(loaded: &Loaded) -> String {
    let (services, slices, node) = objects(loaded);
    let mut text = String::new();
    for parsed in services {
        match &parsed.object {
            None => writeln!(text, "service {}: none", parsed.name).unwrap(),
            Some(service) => show_service(&mut text, service),
        }
    }
    for parsed in slices {
        match &parsed.object {
            None => writeln!(text, "slice {}: none", parsed.name).unwrap(),
            Some(slice) => show_slice(&mut text, slice),
        }
    }
    if let Some(node) = node {
        writeln!(
            text,
            "node {}: {:?} zone {:?}",
            node.name, node.addresses, node.zone
        )
        .unwrap();
    }
    for problem in problems(loaded) {
        writeln!(text, "! {problem}").unwrap();
    }
    text
}

fn show_service(text: &mut String, service: &Service) {
    writeln!(text, "service {}: {:?}", service.name, service.cluster_ips).unwrap();
    for port in &*service.ports {
        let model::ServicePort {
            name,
            protocol,
            port,
            node_port,
        } = port;
        write!(text, "  {protocol} {port} {name:?}").unwrap();
        match node_port {
            Some(node_port) => writeln!(text, " node port {node_port}").unwrap(),
            None => writeln!(text).unwrap(),
        }
    }
    let plain = Service {
        name: service.name.clone(),
        created: None,
        cluster_ips: service.cluster_ips.clone(),
        ports: service.ports.clone(),
        affinity_secs: None,
        internal_policy: Default::default(),
        external_policy: Default::default(),
        external: None,
        health_check_node_port: None,
        annotations: None,
    };
    let time = |time| humantime::format_rfc3339_seconds(time).to_string();
    // Only the fields that differ from the default.
    let shown = |service: &Service| -> Vec<String> {
        let external = service.external();
        vec![
            format!("created {:?}", service.created.map(time)),
            format!("affinity {:?}", service.affinity_secs),
            format!("inside {:?}", service.internal_policy),
            format!("outside {:?}", service.external_policy),
            format!("external {:?}", external.external_ips),
            format!("load balancer {:?}", external.load_balancer_ips),
            format!("sources {}", list(&external.source_ranges)),
            format!("health check {:?}", service.health_check_node_port),
            format!("annotations {:?}", service.annotations),
        ]
    };
    for (line, usual) in shown(service).into_iter().zip(shown(&plain)) {
        if line != usual {
            writeln!(text, "  {line}").unwrap();
        }
    }
}

fn show_slice(text: &mut String, slice: &EndpointSlice) {
    writeln!(text, "slice {} of {}", slice.name, slice.service.name()).unwrap();
    for port in &*slice.ports {
        writeln!(text, "  {} {} {:?}", port.protocol, port.port, port.name).unwrap();
    }
    for endpoint in &slice.endpoints {
        write!(text, "  {}", endpoint.address).unwrap();
        for (is_so, word) in [
            (!endpoint.is_ready, "unready"),
            (!endpoint.is_serving, "not serving"),
            (endpoint.is_terminating, "terminating"),
        ] {
            if is_so {
                write!(text, " {word}").unwrap();
            }
        }
        if let Some(node) = &endpoint.location.node {
            write!(text, " on {node}").unwrap();
        }
        let hints = &endpoint.location.hints;
        if *hints != model::Hints::default() {
            write!(text, " for zones {:?} nodes {:?}", hints.zones, hints.nodes).unwrap();
        }
        writeln!(text).unwrap();
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}
