//! The command `explain`: its verdicts equal what real clients observed.
//!
//! `conformance/README.md` describes the cluster, its clients and their answers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

#[path = "explain/faults.rs"]
mod faults;
#[path = "explain/live.rs"]
mod live;
#[path = "conformance/rows.rs"]
#[expect(dead_code, reason = "the tests of packets use the rest")]
mod observed;
#[path = "explain/page.rs"]
mod page;
#[path = "conformance/recorded.rs"]
#[expect(dead_code, reason = "the tests of the plan use the rest")]
mod recorded;
#[path = "explain/scene.rs"]
mod scene;

use observed::Row;
use recorded::conformance;

/// The answers of kube-proxy in IPVS mode.
const KUBE_PROXY: &str = include_str!("conformance/kube-proxy-1.36.2.json");

/// Ports of external addresses that no Service has. With the dataplane nftables, the address is not local, so the packets
/// leave the node.
const UNLISTED: [&str; 3] = [
    "tcp 198.51.100.10:22",
    "tcp 198.51.100.10:30080",
    "tcp 198.51.100.11:30091",
];

/// The addresses and devices of the clients, by family.
const CLIENTS: [(&str, &str, &str, &str); 6] = [
    ("pod1", "10.244.1.2", "fd00:244:1::2", "veth-pod1"),
    ("pod3", "10.244.1.4", "fd00:244:1::4", "veth-pod3"),
    ("peer", "172.18.0.3", "fd00:172:18::3", "node0"),
    ("ext", "203.0.113.9", "2001:db8:113::9", "ext0"),
    ("ext2", "192.0.2.9", "2001:db8:2::9", "ext1"),
    ("node", "node", "node", ""),
];

/// The Pods, by their addresses.
const PODS: [(&str, &str); 9] = [
    ("10.244.1.2", "pod1"),
    ("10.244.1.3", "pod2"),
    ("10.244.2.2", "podB1"),
    ("10.244.2.3", "podB2"),
    ("fd00:244:1::2", "pod1"),
    ("fd00:244:1::3", "pod2"),
    ("fd00:244:2::2", "podB1"),
    ("fd00:244:2::3", "podB2"),
    ("172.18.0.2", "HOST"),
];

/// Runs `explain` without a kernel. Returns the explanation and the exit code.
fn explain(arguments: &[&str]) -> (Value, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args(["explain", "--against", "empty", "--output", "json"])
        .args(arguments)
        .output()
        .unwrap();
    let explained: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (explained[0].clone(), output.status.code().unwrap())
}

/// Returns what `explain` says about a row, in the words of the conformance data.
fn predicted(row: &Row, dataplane: &str) -> (BTreeSet<String>, Value) {
    let (protocol, to) = row.frontend.split_once(' ').unwrap();
    let client = CLIENTS.iter().find(|(name, ..)| *name == row.client);
    let (_, v4, v6, device) = client.unwrap();
    let from = if to.starts_with('[') { v6 } else { v4 };
    let cluster = conformance("cluster.yaml");
    let mut arguments = vec![from, to, "--protocol", protocol, "--manifests", &cluster];
    arguments.extend(["--node-name", "node-a", "--dataplane", dataplane]);
    arguments.extend(["--cluster-cidr", "10.244.0.0/16,fd00:244::/32"]);
    if !device.is_empty() {
        arguments.extend(["--device", device]);
    }
    let (explained, code) = explain(&arguments);
    let word = |endpoint: &Value| {
        let address: std::net::SocketAddr = endpoint["address"].as_str().unwrap().parse().unwrap();
        let address = address.ip().to_string();
        let name = PODS.iter().find(|(known, _)| *known == address).unwrap().1;
        let is_hidden = endpoint["masqueraded"] == true || row.client == "node";
        format!("{name}/{}", if is_hidden { "node" } else { "client" })
    };
    let outcome = explained["verdict"]["outcome"].as_str().unwrap();
    let answers: BTreeSet<String> = match outcome {
        "answered" => explained["endpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(word)
            .collect(),
        "refused" => ["refused".to_owned()].into(),
        "dropped" => ["timeout".to_owned()].into(),
        // Without a kernel, the route that a packet to no Service takes is unknown. In the network there is none.
        "unknown" => {
            let code = &explained["steps"][0]["finding"]["code"];
            assert!(code == "X010" || code == "X011", "{explained}");
            ["timeout".to_owned()].into()
        }
        other => panic!("{other}"),
    };
    let expected_code = match outcome {
        "answered" => 0,
        "refused" => 3,
        "dropped" => 4,
        _ => 5,
    };
    assert_eq!(code, expected_code, "{explained}");
    (answers, explained)
}

/// Compares the verdicts about the conformance cluster with what its clients observed, row by row.
fn check(dataplane: &str, change: impl Fn(&mut Row)) {
    let mut differences = Vec::new();
    let mut rows = observed::rows(KUBE_PROXY);
    // The Node object lacks this address, and without a kernel no other is known.
    rows.retain(|row| row.frontend != "tcp 203.0.113.1:30080");
    for row in &mut rows {
        change(row);
        let (answers, explained) = predicted(row, dataplane);
        let expected = row.expected();
        let expected = observed::without_icmp_errors(&expected);
        let is_same = match &*row.frontend {
            // A client stays at one of the three.
            observed::AFFINITY => answers.len() == 3,
            _ => observed::without_icmp_errors(&answers) == expected,
        };
        if !is_same {
            let Row {
                frontend, client, ..
            } = row;
            let text = &explained["verdict"]["text"];
            differences.push(format!(
                "{client} to {frontend}: {answers:?}, not {expected:?}: {text}"
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn verdicts_with_ipvs_are_what_clients_observed() {
    check("ipvs", |_| {});
}

#[test]
fn verdicts_with_maps_are_what_clients_observed() {
    check("nftables", |row| {
        if UNLISTED.contains(&&*row.frontend) {
            row.answers = ["timeout".to_owned()].into();
        }
    });
}

/// An endpoint has the weight that the operator gives its node. Both endpoints of the Service are ready.
#[test]
fn the_operators_weights_are_explained() {
    let cluster = conformance("cluster.yaml");
    let explained = |weights: &[&str]| {
        let arguments = ["10.244.1.4", "10.96.1.6:80", "--manifests", &cluster];
        let node = ["--node-name", "node-a", "--cluster-cidr", "10.244.0.0/16"];
        explain(&[&arguments[..], &node, weights].concat())
    };
    let (without, _) = explained(&[]);
    assert_eq!(without["endpoints"].as_array().unwrap().len(), 2);
    let (with, code) = explained(&["--weights", "same-node:3,*:0"]);
    assert_eq!((with["endpoints"].as_array().unwrap().len(), code), (1, 0));
    let text = with.to_string();
    assert!(
        text.contains("10.244.1.2:8080 on node-a, weight 3"),
        "{with:#}"
    );
    assert!(
        text.contains("10.244.2.2:8080 on node-b, left out: weight 0"),
        "{with:#}"
    );
}

/// A relay connects itself, so that endpoints see the node's address; it serves node ports at 127.0.0.1 too.
#[test]
fn a_relay_is_explained_by_the_plan() {
    let cluster = conformance("cluster.yaml");
    for (from, to, outcome, endpoints) in [
        ("10.244.1.4", "10.96.1.6:80", "answered", 2),
        ("node", "127.0.0.1:30080", "answered", 2),
        ("192.0.2.9", "198.51.100.12:80", "refused", 0),
        ("203.0.113.9", "172.18.0.2:30081", "answered", 1),
        ("10.244.1.4", "172.18.0.2:30081", "answered", 2),
        ("10.244.1.4", "10.96.1.5:80", "refused", 0),
    ] {
        let flags = [
            "--dataplane",
            "userspace",
            "--node-name",
            "node-a",
            "--cluster-cidr",
        ];
        let arguments = [
            &[from, to, "--manifests", &cluster][..],
            &flags,
            &["10.244.0.0/16"],
        ];
        let (explained, _) = explain(&arguments.concat());
        assert_eq!(explained["verdict"]["outcome"], outcome, "{explained:#}");
        let found = explained["endpoints"].as_array().unwrap();
        assert_eq!(found.len(), endpoints, "{explained:#}");
        assert!(
            found.iter().all(|it| it["masqueraded"] == true),
            "{explained:#}"
        );
    }
}
