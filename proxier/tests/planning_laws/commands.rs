//! Random commands in the notation of `kube_proxy_cases/scene.rs`.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Select, select, subsequence};

use crate::scene::HERE;

/// The largest number of objects of each kind; small, so that objects conflict.
const NAMES: u8 = 4;
const NODES: [&str; 3] = [HERE, "n1", "n2"];

fn word(words: &'static [&'static str]) -> Select<&'static str> {
    select(words)
}

fn some(words: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    subsequence(words.to_vec(), 0..=most).prop_map(|words| words.join(" "))
}

/// Returns commands that create or replace Service `number`.
fn service(number: u8) -> impl Strategy<Value = String> {
    let addresses = word(&[
        "10.96.0.1",
        "10.96.0.2",
        "fd00::1",
        "10.96.0.3 fd00::2",
        "fd00::3 10.96.0.3",
        "None",
    ]);
    let kind = word(&["type=NodePort", "type=LoadBalancer"]);
    let policies = word(&["", "etp=Local", "itp=Local", "etp=Local itp=Local"]);
    let ports = word(&[
        "port=a:80/TCP",
        "port=a:80/TCP:30001",
        "port=a:80/TCP port=b:80/UDP:30001",
        "port=b:81/TCP:30002 port=a:80/TCP:30001",
    ]);
    let more = some(
        &[
            "external=192.0.2.8,2001:db8::8",
            "ingress=192.0.2.8,192.0.2.9,2001:db8::9",
            "affinity=60",
            "created=2026-01-01T00:00:00Z",
        ],
        4,
    );
    let health = word(&["health=30100", "health=30101"]);
    let annotations = some(
        &[
            "annotation.scheduler=mh",
            "annotation.scheduler-flags=fallback",
            "annotation.weights=zone=a:3,node=n1:0,10.0.0.1:7,*:2",
            "annotation.topology-keys=kubernetes.io/hostname,topology.kubernetes.io/region",
            "annotation.drain-seconds=5",
            "annotation.drain-seconds=soon",
        ],
        2,
    );
    (addresses, kind, policies, ports, more, health, annotations).prop_map(
        move |(addresses, kind, policies, ports, more, health, annotations)| {
            let mut annotations = annotations;
            if annotations.matches("drain-seconds").count() > 1 {
                annotations.truncate(annotations.rfind("annotation").unwrap_or_default());
            }
            format!(
                "service ns/s{number} {addresses} {kind} {policies} {ports} {more} {health} \
                 {annotations}"
            )
        },
    )
}

fn endpoint(is_v6: bool) -> impl Strategy<Value = String> {
    let state = word(&["", "", ",unready", ",terminating", ",gone"]);
    let zone = word(&["", ",in=a", ",in=b"]);
    let hints = word(&[
        "",
        ",to-zone=a",
        ",to-zone=b,to-node=here",
        ",to-zone=a,to-node=n1",
    ]);
    (0..5_u8, zone, hints, state).prop_map(move |(last, zone, hints, state)| {
        // Slices may disagree about the state of an endpoint, but not about its node.
        let node = ["@here", "@n1", "@n2", "@here", "@n3"][usize::from(last)];
        let network = if is_v6 { "fd00:1::" } else { "10.0.0." };
        format!("{network}{last}({node}{zone}{hints}{state})")
    })
}

fn slice(number: u8) -> impl Strategy<Value = String> {
    let ports = word(&[
        "port=a:8080/TCP",
        "port=a:8081/TCP port=b:8080/UDP",
        "port=b:8080/TCP port=a:8080/TCP",
    ]);
    any::<bool>().prop_flat_map(move |is_v6| {
        (0..NAMES, ports.clone(), vec(endpoint(is_v6), 0..5)).prop_map(
            move |(service, ports, endpoints)| {
                let endpoints = endpoints.join(" ");
                format!("slice ns/e{number} of=s{service} {ports} {endpoints}")
            },
        )
    })
}

/// Returns commands that create or replace a node: our own, or another one.
fn node(name: &'static str) -> impl Strategy<Value = String> {
    let words: &[&str] = match name {
        HERE => &[
            "192.0.2.1 2001:db8::1",
            "192.0.2.1 192.0.2.2 zone=a region=r",
            "2001:db8::1 192.0.2.1 zone=b region=s",
        ],
        _ => &[
            "",
            "region=r",
            "192.0.2.8 region=s",
            "192.0.2.9 2001:db8::9",
        ],
    };
    word(words).prop_map(move |words| format!("node {name} {words}"))
}

/// Returns commands that tell the other machines with which this one speaks.
fn peers() -> impl Strategy<Value = String> {
    let words = some(&["via=192.0.2.8,2001:db8::8", "api=192.0.2.9,192.0.2.8"], 2);
    words.prop_map(|words| format!("peers {words}"))
}

/// Returns commands that tell the API servers. Services may ask for their addresses, or lead to them.
fn api_servers() -> impl Strategy<Value = String> {
    let endpoints = word(&[
        "",
        "192.0.2.8",
        "10.0.0.0 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4",
    ]);
    endpoints.prop_map(|endpoints| {
        format!("slice default/kubernetes of=kubernetes port=https:6443/TCP {endpoints}")
    })
}

/// Returns commands of a history.
pub(crate) fn past_command() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0..NAMES).prop_flat_map(service),
        4 => (0..NAMES).prop_flat_map(slice),
        1 => select(NODES.to_vec()).prop_flat_map(node),
        1 => peers(),
        1 => api_servers(),
        1 => (0..NAMES).prop_map(|number| format!("delete service ns/s{number}")),
        1 => (0..NAMES).prop_map(|number| format!("delete slice ns/e{number}")),
    ]
}

/// Returns one command for each possible object, which creates, replaces or deletes it.
pub(crate) fn final_commands() -> impl Strategy<Value = Vec<String>> {
    let service = |number| {
        option::weighted(0.8, service(number))
            .prop_map(move |text| text.unwrap_or_else(|| format!("delete service ns/s{number}")))
    };
    let slice = |number| {
        option::weighted(0.8, slice(number))
            .prop_map(move |text| text.unwrap_or_else(|| format!("delete slice ns/e{number}")))
    };
    let services = (0..NAMES).map(service).collect::<Vec<_>>();
    let slices = (0..NAMES).map(slice).collect::<Vec<_>>();
    let nodes = NODES.map(node);
    let others = (peers(), api_servers());
    (services, slices, nodes, others).prop_map(|(services, slices, nodes, (peers, servers))| {
        let objects = services.into_iter().chain(slices).chain(nodes);
        objects.chain([peers, servers]).collect()
    })
}
