//! The plan for the conformance cluster against what kube-proxy programmed for it.
//!
//! `conformance/README.md` says where the data comes from and where the Kubernetes documentation
//! wins over what was observed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[path = "conformance/table.rs"]
mod table;

use table::conformance;

/// The node's other addresses: a plan without a kernel knows those of the Node object only.
const OTHER_NODE_ADDRESSES: [&str; 4] = [
    "192.0.2.1",
    "203.0.113.1",
    "2001:db8:113::1",
    "2001:db8:2::1",
];

fn plan(arguments: &[&str]) -> (Value, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args(["plan", "--against", "empty", "--output", "json"])
        .args(arguments)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (report, output.status.code().unwrap())
}

#[test]
fn equals_kube_proxy_but_for_the_departures() {
    let cluster = conformance("cluster.yaml");
    let (report, code) = plan(&[
        "--manifests",
        &cluster,
        "--node-name",
        "node-a",
        "--cluster-cidr",
        "10.244.0.0/16,fd00:244::/32",
    ]);
    assert_eq!(code, 2, "an empty kernel needs changes");
    assert_eq!(report["problems"], Value::Array(vec![]));

    let mut theirs = table::of_kube_proxy();
    theirs.retain(|frontend, _| {
        let elsewhere = |address: &&str| {
            let v4 = frontend.contains(&format!(" {address}:"));
            v4 || frontend.contains(&format!("[{address}]"))
        };
        !OTHER_NODE_ADDRESSES.iter().any(elsewhere)
    });
    table::compare(table::of_report(&report), theirs);
}

#[test]
fn service_addresses_are_those_of_the_frontends_but_the_nodes_own() {
    let (report, _) = plan(&[
        "--manifests",
        &conformance("cluster.yaml"),
        "--node-name",
        "node-a",
    ]);
    let addresses: BTreeSet<&str> = report["addresses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a.as_str().unwrap())
        .collect();
    let frontends: BTreeSet<&str> = report["virtualServers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|server| server["address"].as_str().unwrap())
        .filter(|address| !["172.18.0.2", "fd00:172:18::2"].contains(address))
        .collect();
    assert_eq!(addresses, frontends);
}

#[test]
fn the_same_plan_whatever_the_order_of_the_files() {
    let text = std::fs::read_to_string(conformance("cluster.yaml")).unwrap();
    let mut documents: Vec<&str> = text.split("\n---\n").collect();
    documents.reverse();
    let directory = tempfile::tempdir().unwrap();
    for (number, chunk) in documents.chunks(7).enumerate() {
        let file = directory.path().join(format!("{number:03}.yaml"));
        std::fs::write(file, chunk.join("\n---\n")).unwrap();
    }
    let node = ["--node-name", "node-a"];
    let one = plan(&[&["--manifests", &conformance("cluster.yaml")][..], &node].concat());
    let directory = directory.path().to_str().unwrap();
    let many = plan(&[&["--manifests", directory][..], &node].concat());
    assert_eq!(one, many);
}

#[test]
fn a_service_alone_is_planned_without_complaint() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("service.yaml");
    let service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: my-service\nspec:\n  \
                   selector:\n    app.kubernetes.io/name: MyApp\n  ports:\n    - protocol: TCP\n      \
                   port: 80\n      targetPort: 9376\n";
    std::fs::write(&file, service).unwrap();
    let arguments = [
        "--manifests",
        file.to_str().unwrap(),
        "--service-cidr",
        "10.96.0.0/16",
    ];
    let (report, code) = plan(&arguments);
    assert_eq!((code, &report["problems"]), (2, &Value::Array(vec![])));
    assert_eq!(report["virtualServers"].as_array().unwrap().len(), 1);
    assert_eq!(plan(&arguments).0, report);

    // Without a range to take it from, an address is missed, and nothing is planned.
    let (report, code) = plan(&arguments[..2]);
    let lengths = ["virtualServers", "problems"].map(|part| report[part].as_array().unwrap().len());
    assert_eq!(
        (code, lengths),
        (2, [0, 1]),
        "packet rules are set all the same"
    );
    assert_eq!(
        report["problems"][0]["object"],
        "Service default/my-service"
    );
}

#[test]
fn packet_rules_are_printed_as_nft_reads_them() {
    let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args(["plan", "--against", "empty", "--output", "nft"])
        .args(["--node-name", "node-a", "--cluster-cidr", "10.244.0.0/16"])
        .args(["--manifests", &conformance("cluster.yaml")])
        .output()
        .unwrap();
    let rules = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(rules.starts_with("table inet ipvs-proxier {\n"), "{rules}");
    for part in ["10.96.1.1 . tcp . 80", "10.244.0.0/16", "masquerade"] {
        assert!(rules.contains(part), "{part} in {rules}");
    }
}

#[test]
fn a_missing_file_is_one_line_and_exit_code_1() {
    let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args(["plan", "--against", "empty", "--manifests", "/no/such/file"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(words.lines().count(), 1, "{words}");
    assert!(words.contains("/no/such/file"), "{words}");
}

#[test]
fn the_example_of_the_readme_is_planned_as_it_says() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(readme).unwrap();
    let (_, section) = text.split_once("## Annotations").unwrap();
    let (_, example) = section.split_once("```yaml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let slice = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: db-1\n  \
                 labels:\n    kubernetes.io/service-name: db\naddressType: IPv4\nports:\n  - port: 5432\n\
                 endpoints:\n  - addresses: [10.244.1.2]\n    zone: eu-1a\n  - addresses: \
                 [10.244.1.3]\n    zone: eu-1b\n  - addresses: [10.244.1.4]\n    nodeName: old-7\n    \
                 zone: eu-1b\n";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db.yaml");
    // A node in a zone without endpoints: the last key, which is all, leaves some.
    let node = "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: here\n  labels:\n    \
                topology.kubernetes.io/zone: eu-1c\n";
    std::fs::write(&file, format!("{example}{slice}{node}")).unwrap();
    let (report, _) = plan(&["--manifests", file.to_str().unwrap(), "--node-name", "here"]);
    assert_eq!(report["problems"], Value::Array(vec![]));
    let server = &report["virtualServers"][0];
    assert_eq!(server["scheduler"], "wlc");
    let weights = server["destinations"].as_array().unwrap().iter();
    let weights: Vec<_> = weights.map(|destination| &destination["weight"]).collect();
    assert_eq!(weights, [3, 1, 0]);
}

#[test]
fn regions_come_from_the_nodes_among_the_manifests() {
    let node = |name: &str, region: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  labels:\n    \
             topology.kubernetes.io/region: {region}\n"
        )
    };
    let service = "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: db\n  annotations:\n    \
                   ipvs-proxier.io/topology-keys: topology.kubernetes.io/region\nspec:\n  clusterIP: \
                   10.96.0.90\n  ports:\n    - port: 5432\n";
    let slice = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: db-1\n  \
                 labels:\n    kubernetes.io/service-name: db\naddressType: IPv4\nports:\n  - port: 5432\n\
                 endpoints:\n  - addresses: [10.244.1.2]\n    nodeName: near\n  - addresses: \
                 [10.244.1.3]\n    nodeName: far\n";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db.yaml");
    let served = |nodes: &[String]| {
        std::fs::write(&file, format!("{service}{slice}{}", nodes.concat())).unwrap();
        let (report, _) = plan(&["--manifests", file.to_str().unwrap(), "--node-name", "here"]);
        let destinations = report["virtualServers"][0]["destinations"]
            .as_array()
            .unwrap();
        let addresses = destinations
            .iter()
            .map(|destination| destination["address"].to_string());
        let problems = report["problems"].as_array().unwrap().len();
        (addresses.collect::<Vec<_>>().join(" "), problems)
    };
    let nodes = [node("here", "r"), node("near", "r"), node("far", "s")];
    assert_eq!(served(&nodes), ("\"10.244.1.2\"".to_owned(), 0));
    // Without Nodes, regions are unknown: one Problem of the Service, one of this node.
    assert_eq!(served(&[]), ("\"10.244.1.2\" \"10.244.1.3\"".to_owned(), 2));
}
