//! A restart with another dataplane, while connections are open and new ones begin.

use std::time::Duration;

use ipvs_netlink as ipvs;
use lab::net::{Answer, Cluster, Connection, Host};
use serde_json::{Value, json};

use super::daemon::{Daemon, web};
use super::{AT_ONCE, POD_B1, POD_B2, POD1, POD2};

const CLUSTER_IP: &str = "10.96.1.1:80";
const LOAD_BALANCER: &str = "198.51.100.1:80";
const NODE_PORT: &str = "172.18.0.2:30080";

/// A connection that stays open, with the Pod that answers on it.
struct Open {
    name: String,
    connection: Connection,
    pod: String,
}

/// Clients, and the addresses that each may use.
fn paths(cluster: &Cluster) -> Vec<(&Host, &'static str)> {
    let inside = [&cluster.pod3, &*cluster.node].into_iter();
    let inside = inside.flat_map(|it| [CLUSTER_IP, LOAD_BALANCER, NODE_PORT].map(|to| (it, to)));
    let outside = [LOAD_BALANCER, NODE_PORT].map(|to| (&*cluster.ext, to));
    inside.chain(outside).collect()
}

fn open(cluster: &Cluster) -> Vec<Open> {
    let each = |(client, to): (&Host, &str)| {
        let connection = client.connect(to).unwrap();
        let pod = connection.greeting().backend().unwrap().to_owned();
        let name = format!("{} to {to}", client.name());
        Open {
            name,
            connection,
            pod,
        }
    };
    let paths = paths(cluster);
    let twice = paths.iter().chain(&paths);
    twice.copied().map(each).collect()
}

#[track_caller]
fn assert_alive(open: &mut [Open], when: &str) {
    for Open {
        name,
        connection,
        pod,
    } in open
    {
        let answer = connection.ask();
        let is_alive = matches!(&answer, Answer::Reply { backend, .. } if backend == pod);
        assert!(is_alive, "{name} {when}: {answer:?} instead of {pod}");
    }
}

/// Asks along every path. Each question is a new connection, and is answered. It is reset then: IPVS counts a closed one
/// for two minutes.
#[track_caller]
fn ask_all(cluster: &Cluster, when: &str) {
    for (client, to) in paths(cluster) {
        let name = client.name();
        let connection = client.connect(to);
        let connection = connection.unwrap_or_else(|it| panic!("{name} to {to} {when}: {it:?}"));
        let answer = connection.greeting();
        let Answer::Reply { source, .. } = &answer else {
            panic!("{name} to {to} {when}: {answer:?}");
        };
        // Under policy Cluster, only connections of Pods to cluster IPs keep their source.
        let source = source.ip().to_string();
        let is_kept = (name, to) == ("pod3", CLUSTER_IP);
        let is_right = is_kept == (source == "10.244.1.4") && source != "10.96.1.1";
        assert!(is_right, "{name} to {to} {when}: {answer:?}");
        connection.reset();
    }
}

#[test]
fn a_restart_with_another_dataplane_loses_no_connection() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        // With nftables no service address is local, so a process of the node needs a route.
        let route = "ip route add default via 172.18.0.1 src 172.18.0.2";
        let route: Vec<&str> = route.split(' ').collect();
        cluster.node.exec(&route);
        let common = [
            &AT_ONCE[..],
            &[
                "--cluster-cidr",
                "10.244.0.0/16",
                "--ipvs-sync-period",
                "1s",
            ],
        ]
        .concat();
        let mut daemon = Daemon::new(&common);
        let mut service = web(&json!({}));
        service["spec"]["type"] = json!("LoadBalancer");
        service["spec"]["ports"][0]["nodePort"] = json!(30_080);
        service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}});
        daemon.api.apply(service);
        daemon.endpoints(&[POD1, POD2, POD_B1]);
        let mut alive: Vec<Open> = Vec::new();
        for (number, dataplane) in ["ipvs", "nftables", "ipvs", "nftables"]
            .into_iter()
            .enumerate()
        {
            if number > 0 {
                daemon.terminate();
            }
            daemon.set_flags(&[&common[..], &["--dataplane", dataplane]].concat());
            let rounds = daemon.log().matches("synced").count();
            daemon.start();
            let when = format!("while {dataplane} starts ({number})");
            daemon.eventually(&when, || {
                if number > 0 {
                    ask_all(&cluster, &when);
                }
                daemon.log().matches("synced").count() > rounds
            });
            let when = format!("after the start of {dataplane} ({number})");
            for _ in 0..5 {
                ask_all(&cluster, &when);
            }
            assert_alive(&mut alive, &when);
            alive.extend(open(&cluster));
            assert_alive(&mut alive, &when);
            if dataplane == "ipvs" {
                // The next process ends the drain of an endpoint that has no connection.
                daemon.endpoints(&[POD1, POD2, POD_B1, POD_B2]);
                daemon.await_endpoints(&[POD1, POD2, POD_B1, POD_B2]);
                daemon.endpoints(&[POD1, POD2, POD_B1]);
                daemon.await_endpoints(&[POD1, POD2, POD_B1]);
            } else {
                std::thread::sleep(Duration::from_secs(3));
                assert_alive(&mut alive, "after the end of a drain");
            }
        }
        for (end, starts) in [("programming IPVS", 2), ("programming nftables", 2)] {
            assert_eq!(daemon.log().matches(end).count(), starts, "{end}");
        }
        let left = |dataplane| format!("nothing of the dataplane {dataplane} is left");
        daemon.eventually("the table of nftables was removed", || {
            daemon.log().contains(&left("nftables"))
        });
        assert!(
            !daemon.log().contains(&left("ipvs")),
            "connections are open"
        );
        for open in alive {
            open.connection.reset();
        }
        daemon.eventually("nothing of IPVS is left", || {
            daemon.log().contains(&left("ipvs"))
        });
        let servers = ipvs::Client::open().unwrap().services().unwrap();
        assert!(servers.is_empty(), "{servers:?}");
        let routes = (cluster.node).exec(&["ip", "route", "show", "table", "local"]);
        assert!(!routes.contains("10.96.1.1"), "{routes}");
        let tables = cluster.node.exec(&["/usr/sbin/nft", "list", "tables"]);
        assert!(tables.contains("table inet ipvs-proxier-maps"), "{tables}");
        assert!(!tables.contains("table inet ipvs-proxier\n"), "{tables}");
        assert!(!daemon.ledger().exists());
        ask_all(&cluster, "with nftables alone");

        let open = open(&cluster);
        let mut status = daemon.command("status");
        let status = status.args(["--output", "json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        let frontends = status["maps"].as_array().unwrap();
        let is_load_balancer = |it: &&Value| it["address"] == "198.51.100.1";
        let found = frontends.iter().find(is_load_balancer).unwrap();
        let endpoints = found["endpoints"].as_array().unwrap();
        assert!(
            endpoints.len() == 3 && endpoints.iter().all(|it| it["slots"] == 1),
            "{found}"
        );
        // Two of each client.
        let connections = endpoints
            .iter()
            .map(|it| it["connections"].as_u64().unwrap());
        assert!(connections.sum::<u64>() >= 6, "{found}");
        drop(open);

        let flags = ["--dataplane", "nftables", "--cluster-cidr", "10.244.0.0/16"];
        let plan = |daemon: &Daemon| daemon.command("plan").args(flags).output().unwrap();
        let same = plan(&daemon);
        assert!(same.status.success(), "{same:?}");
        let element = "add element inet ipvs-proxier-maps pingable-4 { 192.0.2.9 }";
        cluster.node.exec(&["/usr/sbin/nft", element]);
        daemon.eventually("the foreign element is removed", || {
            plan(&daemon).status.success()
        });
        daemon.terminate();
        cluster.node.exec(&["/usr/sbin/nft", element]);
        let changed = plan(&daemon);
        assert_eq!(changed.status.code(), Some(2), "{changed:?}");
        let text = String::from_utf8(changed.stdout).unwrap();
        assert!(
            text.contains("delete element") && text.contains("192.0.2.9"),
            "{text}"
        );
        let cleanup = daemon.command("cleanup").output().unwrap();
        assert!(cleanup.status.success(), "{cleanup:?}");
        let tables = cluster.node.exec(&["/usr/sbin/nft", "list", "tables"]);
        assert!(!tables.contains("ipvs-proxier"), "{tables}");
    });
}
