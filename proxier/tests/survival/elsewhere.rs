//! Services that ask for the address of the API server, as with k3s' servicelb on an agent.

use std::net::{SocketAddr, TcpListener};

use api_server::{ApiServer, Scheme};
use lab::net::{Answer, Cluster};
use serde_json::{Value, json};

use super::carrier::{routes, sh};
use super::daemon::Daemon;

/// An address of the host `peer`, where the API server runs.
const SERVER: &str = "172.18.0.3";

/// The address of another node, to which no route leads.
const WORKER: &str = "192.0.2.77";

/// Returns Service `name` with a cluster IP and these load-balancer addresses.
fn balanced(name: &str, cluster_ip: &str, addresses: &[&str]) -> Value {
    let ingress: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "type": "LoadBalancer", "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
            "ipFamilies": ["IPv4"], "ports": [{"port": 80, "protocol": "TCP"}],
        },
        "status": {"loadBalancer": {"ingress": ingress}},
    })
}

/// The daemon knows the address from its connection only: no route leads over the server, and no object has it. Another node it
/// knows as the far end of a tunnel that appears later.
#[test]
fn an_agent_keeps_its_api_server() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        for family in ["-4", "-6"] {
            sh(
                &cluster,
                &format!("ip {family} route flush table main via {SERVER} || true"),
            );
        }
        sh(
            &cluster,
            &format!("ip route show | grep -q 'via {SERVER}' && exit 1 || true"),
        );
        let at = SocketAddr::new(SERVER.parse().unwrap(), 0);
        let listener = cluster.peer.run(|| TcpListener::bind(at)).unwrap();
        let mut daemon = Daemon::bare(&["--ipvs-sync-period", "1h"]);
        daemon.api = ApiServer::serve(listener, Scheme::Plain);
        daemon.api.apply(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
            "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.2"}]},
        }));
        cluster.peer.serve_tcp(9999);
        let mut open = cluster.node.connect((SERVER, 9999)).unwrap();
        let mut reaches = |step: &str| {
            let answers = [
                open.ask(),
                cluster.node.ask_tcp((SERVER, 9999)),
                cluster.pod3.ask_tcp((SERVER, 9999)),
            ];
            let is_reply = |answer: &Answer| matches!(answer, Answer::Reply { .. });
            assert!(answers.iter().all(is_reply), "{step}: {answers:?}");
        };
        let programs = |daemon: &Daemon, last: u8| {
            let address = format!("10.96.7.{last}");
            daemon
                .api
                .apply(balanced(&format!("probe{last}"), &address, &[]));
            daemon.eventually("a change of the API server is programmed", || {
                routes(&cluster).contains(&address)
            });
        };
        daemon.start();
        programs(&daemon, 1);
        reaches("before");
        daemon.api.apply(balanced(
            "greedy",
            "10.96.8.1",
            &["172.18.0.2", SERVER, "198.51.100.9"],
        ));
        daemon.eventually("its other address is served", || {
            routes(&cluster).contains("198.51.100.9")
        });
        programs(&daemon, 2);
        reaches("with the Service");
        let log = daemon.log();
        assert!(
            log.contains("is the address to which this node's connection to the API server leads"),
            "{log}"
        );

        daemon.terminate();
        daemon.start();
        programs(&daemon, 3);
        reaches("after a restart");
        daemon.api.break_connections();
        programs(&daemon, 4);
        reaches("after other connections");
        assert!(!routes(&cluster).contains(SERVER));

        // As flannel does when a node joins, and then servicelb.
        let device = "ip link add flannel.1 type vxlan id 1 dstport 8472 nolearning";
        let other = format!("bridge fdb append 02:00:00:00:00:07 dev flannel.1 dst {WORKER}");
        sh(&cluster, &format!("{device} && {other}"));
        let greedy = balanced("late", "10.96.8.2", &[WORKER, "198.51.100.10"]);
        daemon.api.apply(greedy);
        daemon.eventually("its other address is served", || {
            routes(&cluster).contains("198.51.100.10")
        });
        assert!(!routes(&cluster).contains(WORKER));
        let log = daemon.log();
        assert!(
            log.contains("is the far end of a tunnel of this node"),
            "{log}"
        );
    });
}
