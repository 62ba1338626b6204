//! Open connections, foreign objects and the kernel's table survive restarts, kills, outages and changes.
//!
//! The daemon follows an API server and programs a real kernel.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "survival/alone.rs"]
mod alone;
#[path = "survival/carrier.rs"]
mod carrier;
#[path = "survival/changes.rs"]
mod changes;
#[path = "survival/daemon.rs"]
mod daemon;
#[path = "survival/dataplanes.rs"]
mod dataplanes;
#[path = "survival/dice.rs"]
mod dice;
#[path = "survival/dns.rs"]
mod dns;
#[path = "survival/elsewhere.rs"]
mod elsewhere;
#[path = "survival/foreign.rs"]
mod foreign;
#[path = "survival/forward.rs"]
mod forward;
#[path = "survival/http.rs"]
mod http;
#[path = "survival/input.rs"]
mod input;
#[path = "survival/ledger.rs"]
mod ledger;
#[path = "survival/mark_chains.rs"]
mod mark_chains;
#[path = "survival/metrics.rs"]
mod metrics;
#[path = "survival/migration.rs"]
mod migration;
#[path = "survival/monitoring.rs"]
mod monitoring;
#[path = "survival/neighbours.rs"]
mod neighbours;
#[path = "survival/networkd.rs"]
mod networkd;
#[path = "survival/one_way.rs"]
mod one_way;
#[path = "survival/privilege.rs"]
mod privilege;
#[path = "survival/repair.rs"]
mod repair;
#[path = "survival/retire.rs"]
mod retire;
#[path = "survival/standings.rs"]
mod standings;
#[path = "survival/turns.rs"]
mod turns;
#[path = "survival/volume.rs"]
mod volume;
#[path = "survival/yielding.rs"]
mod yielding;

use std::time::{Duration, SystemTime};

use api_server::Key;
use ipvs_netlink as ipvs;
use lab::net::{Answer, Cluster, Connection};
use serde_json::json;

use daemon::{Daemon, NFTABLES, virtual_server, web, web_key};
use dataplanes::Kernel;

/// Pods of node-a, as [`Daemon::endpoints`] names them.
const POD1: (u8, u8) = (1, 2);
const POD2: (u8, u8) = (1, 3);
const POD3: (u8, u8) = (1, 4);

/// Pods of node-b.
const POD_B1: (u8, u8) = (2, 2);
const POD_B2: (u8, u8) = (2, 3);

/// Open connections from pod3 to Service web, each with the Pod that answers on it.
struct Connections(Vec<(Connection, String)>);

impl Connections {
    /// Opens at least four connections, and as many as pod1 and pod2 need to serve some: nftables chooses at random.
    fn open(cluster: &Cluster) -> Self {
        let mut all = Self(Vec::new());
        while all.0.len() < 4 || !["pod1", "pod2"].iter().all(|pod| all.have(pod)) {
            let connection = cluster.pod3.connect("10.96.1.1:80").unwrap();
            let pod = connection.greeting().backend().unwrap().to_owned();
            all.0.push((connection, pod));
            assert!(all.0.len() < 50, "one Pod serves all");
        }
        all
    }

    fn have(&self, pod: &str) -> bool {
        self.0.iter().any(|(_, it)| it == pod)
    }

    /// Asserts that each connection is still answered by the same Pod.
    #[track_caller]
    fn assert_alive(&mut self, after: &str) {
        for (connection, pod) in &mut self.0 {
            let answer = connection.ask();
            let is_alive = matches!(&answer, Answer::Reply { backend, .. } if backend == pod);
            assert!(is_alive, "after {after}: {answer:?} instead of {pod}");
        }
    }
}

/// Starts a daemon with IPVS that serves pod1 and pod2, and opens connections to both.
fn serving(flags: &[&str]) -> (Cluster, Daemon, Connections) {
    Kernel::Ipvs.serving(flags)
}

/// Flags with which the daemon programs the kernel after each change without delay.
const AT_ONCE: [&str; 2] = ["--ipvs-min-sync-period", "0"];

/// The same with the dataplane nftables.
const AT_ONCE_BY_NFTABLES: [&str; 3] = [AT_ONCE[0], AT_ONCE[1], NFTABLES];

/// Under policy Local, clients inside the cluster reach remote endpoints too, through a virtual server
/// with a firewall mark. This virtual server must exist also while all endpoints are local.
#[test]
fn connections_inside_survive_the_end_of_the_last_remote_endpoint() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--cluster-cidr", "10.244.0.0/16"]].concat();
        let (cluster, daemon, _) = serving(&flags);
        let mut web = web(&json!({}));
        web["spec"]["type"] = json!("LoadBalancer");
        web["spec"]["externalTrafficPolicy"] = json!("Local");
        web["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}});
        daemon.api.apply(web);
        daemon.endpoints(&[POD1, (2, 2)]);
        daemon.await_endpoints(&[POD1, (2, 2)]);
        let mut open = Vec::new();
        daemon.eventually("connections to both endpoints", || {
            open = (0..4)
                .filter_map(|_| {
                    let connection = cluster.pod3.connect("198.51.100.1:80").ok()?;
                    let pod = connection.greeting().backend()?.to_owned();
                    Some((connection, pod))
                })
                .collect();
            let has = |name| open.iter().any(|(_, pod): &(_, String)| pod == name);
            has("pod1") && has("podB1")
        });
        let mut connections = Connections(open);
        daemon.endpoints(&[POD1]);
        daemon.await_endpoints(&[POD1]);
        connections.assert_alive("the end of the last remote endpoint");
        daemon.endpoints(&[POD1, (2, 2)]);
        daemon.await_endpoints(&[POD1, (2, 2)]);
        connections.assert_alive("its return");
        daemon.endpoints(&[(2, 2)]);
        daemon.await_endpoints(&[(2, 2)]);
        connections.assert_alive("the end of the last local endpoint");
    });
}

#[test]
fn connections_survive_a_minute_without_an_api_server() {
    lab::test(|| {
        let (cluster, daemon, mut connections) = serving(&AT_ONCE);
        daemon.api.refuse();
        for _ in 0..12 {
            std::thread::sleep(Duration::from_secs(5));
            connections.assert_alive("a part of the outage");
            assert!(cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some());
        }
        daemon.api.resume();
        daemon.endpoints(&[POD1, POD2, POD3]);
        daemon.await_endpoints(&[POD1, POD2, POD3]);
        connections.assert_alive("the outage");
    });
}

#[test]
fn drift_is_repaired_and_logged() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1s"]].concat();
        let (cluster, daemon, _) = serving(&flags);
        let mut client = ipvs::Client::open().unwrap();
        let both = [POD1, POD2];
        let repairs = |daemon: &Daemon| daemon.log().matches("repaired").count();

        client.flush().unwrap();
        daemon.await_endpoints(&both);
        client.delete_service(&virtual_server()).unwrap();
        daemon.await_endpoints(&both);
        // The log line is written after the kernel changed. Equal repairs share a line for a minute.
        daemon.eventually("the log names the repairs", || repairs(&daemon) >= 3);

        let entry = client.destinations(&virtual_server()).unwrap()[0];
        let mut destination = entry.destination;
        destination.weight = 7;
        client
            .set_destination(&virtual_server(), &destination)
            .unwrap();
        daemon.eventually("the weight is repaired", || {
            let entries = client.destinations(&virtual_server()).unwrap();
            entries.iter().all(|entry| entry.destination.weight == 1)
        });

        let local = ["ip", "route", "show", "table", "local", "10.96.1.1"];
        let remove = [
            "ip",
            "route",
            "del",
            "local",
            "10.96.1.1",
            "dev",
            "kube-ipvs0",
            "table",
            "local",
        ];
        cluster.node.exec(&remove);
        daemon.eventually("the route is repaired", || {
            cluster.node.exec(&local).contains("10.96.1.1")
        });
        assert!(cluster.node.ask_tcp("10.96.1.1:80").backend().is_some());

        // All destinations and the route at once.
        cluster.node.exec(&remove);
        client.flush().unwrap();
        daemon.await_endpoints(&both);
        daemon.eventually("the route is repaired again", || {
            cluster.node.exec(&local).contains("10.96.1.1")
        });
        assert!(daemon.log().contains("default/web:http"));
    });
}

#[test]
fn foreign_virtual_servers_and_routes_survive_start_run_and_cleanup() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let mut client = ipvs::Client::open().unwrap();
        let foreign = ["192.0.2.200", "10.96.200.1"].map(|address| ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: address.parse().unwrap(),
            port: 443,
        });
        for key in foreign {
            let service = ipvs::Service::new(key, "wlc".parse().unwrap());
            client.add_service(&service).unwrap();
        }
        let route = "local 192.0.2.77 dev lo table local proto static scope host";
        let add = [
            &["ip", "route", "add"][..],
            &route.split(' ').collect::<Vec<_>>(),
        ]
        .concat();
        cluster.node.exec(&add);

        // One of the foreign virtual servers is in the range of cluster IPs. Without the flag, it would
        // count as ours.
        let exclude = ["--ipvs-exclude-cidrs", "10.96.200.0/24"];
        let mut daemon = Daemon::new(&[&AT_ONCE[..], &exclude].concat());
        daemon.endpoints(&[POD1]);
        daemon.start();
        daemon.await_endpoints(&[POD1]);
        daemon.eventually("a plan with the same ranges has no changes", || {
            let plan = daemon.command("plan").args(exclude).output().unwrap();
            assert_ne!(plan.status.code(), Some(1), "{plan:?}");
            plan.status.success()
        });
        daemon.endpoints(&[POD2]);
        daemon.await_endpoints(&[POD2]);
        let status = daemon.command("status").output().unwrap();
        let status = String::from_utf8(status.stdout).unwrap();
        for foreign in ["192.0.2.200:443", "10.96.200.1:443"] {
            let line = status.lines().find(|line| line.contains(foreign)).unwrap();
            assert!(line.contains("(foreign)"), "{status}");
        }
        assert!(status.contains("192.0.2.77"), "{status}");
        daemon.terminate();

        let cleanup = daemon.command("cleanup").output().unwrap();
        assert!(cleanup.status.success(), "{cleanup:?}");
        let left: Vec<_> = client.services().unwrap();
        let left: Vec<_> = left.iter().map(|entry| entry.service.key).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(foreign.iter().all(|key| left.contains(key)), "{left:?}");
        let routes = cluster
            .node
            .exec(&["ip", "route", "show", "table", "local"]);
        assert!(routes.contains("192.0.2.77"), "{routes}");
        assert!(!routes.contains("10.96.1.1"), "{routes}");
    });
}

#[test]
fn node_ports_follow_the_addresses_of_the_node() {
    lab::test(|| {
        // No resync happens during the test.
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1h"]].concat();
        let (cluster, daemon, _) = serving(&flags);
        let mut web = web(&json!({}));
        web["spec"]["type"] = json!("NodePort");
        web["spec"]["ports"][0]["nodePort"] = json!(30_080);
        daemon.api.apply(web);
        let mut client = ipvs::Client::open().unwrap();
        let mut has = |address: &str| {
            let services = client.services().unwrap();
            let mut keys = services.iter().map(|entry| entry.service.key.to_string());
            keys.any(|key| key == format!("TCP {address}:30080"))
        };
        daemon.eventually("the node port", || has("172.18.0.2"));
        let address = ["172.18.0.77/24", "dev", "node0"];
        cluster
            .node
            .exec(&[&["ip", "address", "add"][..], &address].concat());
        daemon.eventually("the new address serves", || has("172.18.0.77"));
        cluster
            .node
            .exec(&[&["ip", "address", "del"][..], &address].concat());
        daemon.eventually("the deleted address serves no longer", || {
            !has("172.18.0.77")
        });
        assert!(has("172.18.0.2"));
    });
}

#[test]
fn node_ports_survive_a_restart_without_the_node_and_the_log_names_it() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--nodeport-addresses", "primary"]].concat();
        let (_cluster, mut daemon, _) = serving(&flags);
        let mut web = web(&json!({}));
        web["spec"]["type"] = json!("NodePort");
        web["spec"]["ports"][0]["nodePort"] = json!(30_080);
        daemon.api.apply(web);
        let node_port = || {
            let services = ipvs::Client::open().unwrap().services().unwrap();
            let mut keys = services.iter().map(|entry| entry.service.key.to_string());
            keys.any(|key| key == "TCP 172.18.0.2:30080")
        };
        daemon.eventually("the node port", node_port);
        daemon.terminate();
        daemon.api.delete(&Key::new("Node", "", "node-a").unwrap());
        daemon.endpoints(&[POD1, POD2, POD3]);
        daemon.start();
        daemon.await_endpoints(&[POD1, POD2, POD3]);
        assert!(node_port());
        daemon.eventually("the log names the Node", || {
            daemon.log().contains("Node node-a: does not exist (yet)")
        });

        // The log names it at once, seconds before the first round. A daemon that stands still meanwhile names
        // it late, so there are three tries.
        let mut tries = [&[POD1, POD2][..], &[POD1], &[POD1, POD2]].into_iter();
        let is_early = tries.any(|endpoints| {
            named_before_first_round(&mut daemon, endpoints) > Duration::from_secs(3)
        });
        let log = daemon.log();
        assert!(is_early, "{log}");
        let [starts, named] =
            ["programming IPVS", "does not exist (yet)"].map(|words| log.matches(words).count());
        assert_eq!(
            named,
            starts - 1,
            "once by each daemon after the first: {log}"
        );
    });
}

/// Starts the next daemon, with changed endpoints and without the Node. Returns how long before the first
/// round its log named the Node.
fn named_before_first_round(daemon: &mut Daemon, endpoints: &[(u8, u8)]) -> Duration {
    daemon.kill();
    daemon.endpoints(endpoints);
    let before = daemon.log().len();
    daemon.start();
    daemon.await_endpoints(endpoints);
    daemon.eventually("the log names the round", || {
        daemon.log()[before..].contains("synced")
    });
    let log = &daemon.log()[before..];
    let [start, named, round] =
        ["programming IPVS", "does not exist (yet)", "synced"].map(|words| first_time(log, words));
    // The wait for the Node lasts 5 s, from a time after the start, when the other lists are complete.
    let waited = round.duration_since(start).unwrap();
    assert!(waited >= Duration::from_secs(5), "{log}");
    round.duration_since(named).unwrap()
}

/// Returns the time of the first line with `words`.
///
/// The times are the daemon's own: on a busy machine, a test may read a line seconds later.
fn first_time(log: &str, words: &str) -> SystemTime {
    let line = log.lines().find(|line| line.contains(words)).unwrap();
    let time = line.split(' ').next().unwrap();
    humantime::parse_rfc3339(time).unwrap()
}

#[test]
fn a_deleted_service_is_removed_and_served_again_when_it_is_added() {
    lab::test(|| {
        let (cluster, daemon, _) = serving(&AT_ONCE);
        daemon.api.delete(&web_key());
        let mut client = ipvs::Client::open().unwrap();
        daemon.eventually("the virtual server is gone", || {
            client.services().unwrap().is_empty()
        });
        daemon.api.apply(web(&json!({})));
        // The address becomes local after the virtual server is added.
        daemon.eventually("the Service answers", || {
            cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some()
        });
    });
}
