//! Rounds while this node's Node object is unknown.

use super::*;

/// Returns the Service `ranged` with a node port.
fn node_port() -> Manifest {
    let port = serde_json::json!({
        "name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053,
    });
    Manifest::service("ranged")
        .of_type("NodePort")
        .cluster_ip("10.96.3.1")
        .spec("ports", vec![port])
}

/// Returns the Problems about the Node if endpoints run on the node `name`.
fn complaints(name: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    let fields = serde_json::json!({"nodeName": name});
    let slice = slice(&[]).endpoint_with("10.244.1.2", fields);
    receive(&mut proxier, &[service(), slice]);
    proxier.sync(START).unwrap();
    let problems = proxier.problems();
    let lines = problems.iter().map(ToString::to_string);
    let lines = lines.filter(|line| line.starts_with("Node")).collect();
    receive(&mut proxier, &[node()]);
    assert_eq!(proxier.problems(), []);
    lines
}

#[test]
fn a_missing_node_is_a_problem_that_names_similar_nodes() {
    let elsewhere = complaints("node-b");
    assert_eq!(elsewhere.len(), 1);
    assert!(elsewhere[0].starts_with("Node node-a: does not exist (yet): no endpoint is local"));
    assert!(elsewhere[0].ends_with("another name, pass it with --hostname-override"));
    let similar = complaints("node-a.example.com");
    assert!(
        similar[0].contains("(endpoints run on node-a.example.com)"),
        "{similar:?}"
    );
    let same = complaints("node-a");
    assert!(same[0].contains("though endpoints name it"), "{same:?}");
}

#[test]
fn a_loopback_address_of_the_node_is_one_of_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        // As with the userspace dataplane.
        permits_loopback: true,
    };
    let node = Manifest::node("node-a").address("127.0.0.1");
    proxier.receive(manifests::parse(&node.yaml(), "f", &options).events);
    proxier.sync(START).unwrap();
    assert_eq!(proxier.problems(), []);
}

#[test]
fn node_ports_stay_while_the_next_process_does_not_know_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let address = IpAddr::from([172, 18, 0, 2]);
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses = [address, [172, 18, 0, 1].into()].into();
    let primary = |kernel| {
        let mut proxier = proxier(kernel, &ledger);
        proxier.cluster.planner = Planner::new(PlanConfig {
            node_port_addresses: crate::plan::NodePortAddresses::Primary,
            ..proxier.cluster.planner.config().clone()
        });
        proxier
    };
    let mut first = primary(kernel);
    receive(&mut first, &[node(), node_port(), slice(&["10.244.1.2"])]);
    first.sync(START).unwrap();
    assert_eq!(first.dataplane.kernel.state.virtual_servers.len(), 2);
    let mut next = primary(first.dataplane.kernel);
    receive(&mut next, &[node_port(), slice(&["10.244.1.2"])]);
    let is_of_server = |op: &Op| op.service_key().is_some();
    let ops = next.sync(START).unwrap().changes.ops;
    assert_eq!(ops.iter().filter(is_of_server).count(), 0, "{ops:?}");
    // The Node has another address.
    let moved = Manifest::node("node-a").address("172.18.0.1");
    receive(&mut next, &[moved, node_port(), slice(&["10.244.1.2"])]);
    next.sync(START).unwrap();
    let keys: Vec<String> = (next.dataplane.kernel.state.virtual_servers.keys())
        .map(|key| key.to_string())
        .collect();
    assert_eq!(keys, ["UDP 10.96.3.1:53", "UDP 172.18.0.1:30053"]);
}
