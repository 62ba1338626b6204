//! The output of `plan`: for the conformance cluster, compared with kube-proxy's table, and for small
//! clusters.
//!
//! `conformance/README.md` describes the data and the departures.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use api_server::Manifest;
use proxier::testing::api::ANNOTATIONS;
use serde_json::{Value, json};

#[path = "conformance/table.rs"]
mod table;

use table::conformance;

/// Addresses of the node that its Node object lacks. A plan without a kernel does not know them.
const OTHER_NODE_ADDRESSES: [&str; 4] = [
    "192.0.2.1",
    "203.0.113.1",
    "2001:db8:113::1",
    "2001:db8:2::1",
];

/// Returns the JSON output of `plan` against an empty kernel, and the exit code.
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
fn the_plan_equals_kube_proxys_table_except_for_the_departures() {
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
        let has_address = |address: &&str| {
            let v4 = frontend.contains(&format!(" {address}:"));
            v4 || frontend.contains(&format!("[{address}]"))
        };
        !OTHER_NODE_ADDRESSES.iter().any(has_address)
    });
    table::compare(table::of_report(&report), theirs);
}

#[test]
fn service_addresses_are_the_frontends_addresses_except_the_nodes() {
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
fn the_order_of_files_and_documents_does_not_change_the_plan() {
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

/// An endpoint moves from one slice to another, which already knows that it is ready.
#[test]
fn of_an_endpoint_in_two_slices_the_better_state_counts() {
    let slice = |name: &str, is_ready: bool| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}, labels: {{kubernetes.io/service-name: web}}}}\n\
             addressType: IPv4\nports: [{{port: 8080}}]\n\
             endpoints: [{{addresses: [10.128.0.1], conditions: {{ready: {is_ready}}}}}]\n"
        )
    };
    for (one, other) in [(true, false), (false, true), (false, false)] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("web.yaml");
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                       spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n";
        let text = [service.to_owned(), slice("a", one), slice("b", other)].concat();
        std::fs::write(&file, text).unwrap();
        let (report, _) = plan(&["--manifests", file.to_str().unwrap()]);
        let destinations = report["virtualServers"][0]["destinations"].as_array();
        let count = destinations.map_or(0, Vec::len);
        assert_eq!(count, usize::from(one || other), "{report}");
    }
}

#[test]
fn a_service_without_a_cluster_ip_gets_one_from_the_service_cidr() {
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

    // Without a service CIDR, the Service has no address and no frontend.
    let (report, code) = plan(&arguments[..2]);
    let lengths = ["virtualServers", "problems"].map(|part| report[part].as_array().unwrap().len());
    assert_eq!(
        (code, lengths),
        (2, [0, 1]),
        "exit code 2 because packet rules are missing"
    );
    assert_eq!(
        report["problems"][0]["object"],
        "Service default/my-service"
    );
}

#[test]
fn packet_rules_are_printed_in_the_syntax_of_nft() {
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
fn a_missing_file_gives_one_line_and_exit_code_1() {
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
fn the_example_of_the_readme_has_the_scheduler_and_weights_it_asks_for() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(readme).unwrap();
    let (_, section) = text.split_once("## Annotations").unwrap();
    let (_, example) = section.split_once("```yaml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let endpoints = Manifest::slice_of("db")
        .port("", "TCP", 5432)
        .endpoint_with("10.244.1.2", json!({"zone": "eu-1a"}))
        .endpoint_with("10.244.1.3", json!({"zone": "eu-1b"}))
        .endpoint_with("10.244.1.4", json!({"zone": "eu-1b", "nodeName": "old-7"}));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db.yaml");
    // No endpoint is in the zone of this node, so the last topology key `*` selects all.
    let node = Manifest::node("here").label("topology.kubernetes.io/zone", "eu-1c");
    let rest = Manifest::documents([&endpoints, &node]);
    std::fs::write(&file, format!("{example}{rest}")).unwrap();
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
    let region = "topology.kubernetes.io/region";
    let node = |name, value| Manifest::node(name).label(region, value);
    let cluster = [
        Manifest::service("db")
            .annotation("ipvs-proxier.io/topology-keys", region)
            .cluster_ip("10.96.0.90")
            .port("", "TCP", 5432),
        Manifest::slice_of("db")
            .port("", "TCP", 5432)
            .endpoint_with("10.244.1.2", json!({"nodeName": "near"}))
            .endpoint_with("10.244.1.3", json!({"nodeName": "far"})),
    ];
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db.yaml");
    let served = |nodes: &[Manifest]| {
        let text = Manifest::documents(cluster.iter().chain(nodes));
        std::fs::write(&file, text).unwrap();
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
    // Without Nodes the regions are unknown: all endpoints serve. The Service and the node each have a
    // Problem.
    assert_eq!(served(&[]), ("\"10.244.1.2\" \"10.244.1.3\"".to_owned(), 2));
}

/// Returns the YAML examples of the page of annotations, each as the annotations of a Service.
fn annotation_examples(page: &str) -> Vec<Value> {
    let blocks = page.split("```yaml\n").skip(1);
    let examples = blocks.map(|block| block.split("```").next().unwrap());
    examples
        .map(|example| serde_saphyr::from_str(example).unwrap())
        .collect()
}

#[test]
fn the_page_of_annotations_has_all_of_them_with_valid_examples() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/annotations.md");
    let page = std::fs::read_to_string(path).unwrap();
    let sections: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## ipvs-proxier.io/"))
        .collect();
    assert_eq!(sections, BTreeSet::from(ANNOTATIONS));
    let mut shown = BTreeSet::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("service.yaml");
    for example in annotation_examples(&page) {
        let mut service = Manifest::service("web")
            .cluster_ip("10.96.0.90")
            .port("", "TCP", 80);
        for (name, value) in example.as_object().unwrap() {
            shown.insert(name.trim_start_matches("ipvs-proxier.io/").to_owned());
            service = service.annotation(name, value.as_str().unwrap());
        }
        let node = Manifest::node("here");
        std::fs::write(&file, Manifest::documents([&service, &node])).unwrap();
        let (report, _) = plan(&["--manifests", file.to_str().unwrap(), "--node-name", "here"]);
        let problems = report["problems"].as_array().unwrap();
        // The annotations for the userspace dataplane are valid. With IPVS, a Problem says that they have no
        // effect.
        let is_for_userspace = |problem: &&Value| {
            let field = problem["field"].as_str().unwrap();
            let names = ["idle-timeout", "proxy-protocol", "source-address"];
            names.iter().any(|name| field.contains(name))
                && problem["message"].to_string().contains("no effect")
        };
        let faults: Vec<_> = problems.iter().filter(|it| !is_for_userspace(it)).collect();
        assert!(faults.is_empty(), "{example}: {faults:?}");
    }
    assert_eq!(shown, ANNOTATIONS.map(str::to_owned).into());
}
