//! Rounds while this node's Node object is unknown.

use super::*;

const NODE_PORT: &str = "
apiVersion: v1
kind: Service
metadata: {name: ranged}
spec:
  type: NodePort
  clusterIP: 10.96.3.1
  ports: [{name: dns, port: 53, protocol: UDP, nodePort: 30053}]
";

/// Returns the Problems about the Node, where endpoints run on the node `name`.
fn complaints(name: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    let endpoint = format!("{{addresses: [10.244.1.2], nodeName: {name}}}");
    let slice = SLICE.replace("{addresses: [10.244.1.2]}", &endpoint);
    receive(&mut proxier, &[SERVICE, &slice]);
    proxier.sync(START).unwrap();
    let problems = proxier.problems();
    let lines = problems.iter().map(ToString::to_string);
    let lines = lines.filter(|line| line.starts_with("Node")).collect();
    receive(&mut proxier, &[NODE]);
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
fn node_ports_stay_while_the_next_process_does_not_know_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let address = std::net::IpAddr::from([172, 18, 0, 2]);
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses = [address, [172, 18, 0, 1].into()].into();
    let primary = |kernel| {
        let mut proxier = proxier(kernel, &ledger);
        proxier.planner = Planner::new(PlanConfig {
            node_port_addresses: NodePortAddresses::Primary,
            ..proxier.planner.config().clone()
        });
        proxier
    };
    let mut first = primary(kernel);
    receive(&mut first, &[NODE, NODE_PORT, SLICE]);
    first.sync(START).unwrap();
    assert_eq!(first.dataplane.state.virtual_servers.len(), 2);
    let mut next = primary(first.dataplane);
    receive(&mut next, &[NODE_PORT, SLICE]);
    let is_of_server = |op: &&Op| op.service_key().is_some();
    let ops = next.sync(START).unwrap().ops;
    assert_eq!(ops.iter().filter(is_of_server).count(), 0, "{ops:?}");
    // The Node has another address.
    receive(&mut next, &[&NODE.replace("0.2", "0.1"), NODE_PORT, SLICE]);
    next.sync(START).unwrap();
    let keys: Vec<String> = (next.dataplane.state.virtual_servers.keys())
        .map(ToString::to_string)
        .collect();
    assert_eq!(keys, ["UDP 10.96.3.1:53", "UDP 172.18.0.1:30053"]);
}
