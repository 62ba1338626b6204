//! Programs that serve the address of a Service themselves.
//!
//! NodeLocal DNSCache is no Debian package. Its device, addresses and rules in the form for iptables are
//! rebuilt here from its sources (dns 9aa70b8f: `cmd/node-cache/app/cache_app.go`, `pkg/netif/netif.go`),
//! the rules in nftables. The servers of the lab's node stand in for the cache.

use std::time::{Duration, Instant};

use ipvs_netlink as ipvs;
use lab::net::{Cluster, Host};

use super::AT_ONCE;
use super::carrier::{TCP, UDP, answers, routes, scene, sh};

/// The rules of node-cache. They stay when it is killed.
const RULES: &str = "table inet node-cache {
    chain prerouting {
        type filter hook prerouting priority raw
        ip daddr { 169.254.20.10, 10.96.2.1 } th dport { 53, 80 } notrack
        ip6 daddr fd00:10:96::2:1 th dport { 53, 80 } notrack
    }
    chain output {
        type filter hook output priority raw
        ip daddr { 169.254.20.10, 10.96.2.1 } th dport { 53, 80 } notrack
        ip saddr { 169.254.20.10, 10.96.2.1 } th sport { 53, 80 } notrack
        ip6 daddr fd00:10:96::2:1 th dport { 53, 80 } notrack
        ip6 saddr fd00:10:96::2:1 th sport { 53, 80 } notrack
    }
}";

/// The addresses of the cache's device.
const ADDRESSES: [&str; 3] = ["169.254.20.10", "10.96.2.1", "fd00:10:96::2:1"];

fn start_cache(cluster: &Cluster) {
    sh(
        cluster,
        "ip link add nodelocaldns type dummy; ip link set nodelocaldns up",
    );
    for address in ADDRESSES {
        sh(
            cluster,
            &format!("ip address add {address} dev nodelocaldns"),
        );
    }
}

/// Asserts that ten questions over TCP and UDP in both families are answered by the cache.
#[track_caller]
fn assert_asks_the_cache(client: &Host) {
    for _ in 0..10 {
        for (tcp, udp) in TCP.iter().zip(UDP) {
            for (frontend, answer) in [(*tcp, client.ask_tcp(*tcp)), (udp, client.ask_udp(udp))] {
                assert_eq!(answer.backend(), Some("node-a"), "{frontend}: {answer}");
            }
        }
    }
}

/// Returns the addresses of all virtual servers.
fn virtual_servers() -> Vec<String> {
    let services = ipvs::Client::open().unwrap().services().unwrap();
    let addresses = services
        .iter()
        .filter_map(|entry| entry.service.key.address());
    addresses.map(|address| address.to_string()).collect()
}

#[test]
fn a_local_dns_cache_keeps_its_addresses_while_its_device_exists() {
    lab::test(|| {
        let (cluster, mut daemon) = scene(&[&AT_ONCE[..], &["--ipvs-sync-period", "1h"]].concat());
        cluster.node.serve_udp(53);
        cluster.node.serve_tcp(53);
        cluster.node.serve_tcp(80);
        sh(&cluster, &format!("nft '{RULES}'"));
        start_cache(&cluster);
        daemon.start();
        for is_restarted in [false, true] {
            daemon.eventually("the node port is served", || {
                cluster.ext.ask_tcp("172.18.0.2:30080").backend() == Some("pod1")
            });
            daemon.eventually("no virtual server is at the addresses of the cache", || {
                let all = virtual_servers();
                !all.iter().any(|address| ADDRESSES.contains(&&**address))
            });
            assert_asks_the_cache(&cluster.pod3);
            assert_asks_the_cache(&cluster.node);
            assert_eq!(
                cluster.ext.ask_tcp("198.51.100.7:80").backend(),
                Some("pod1")
            );

            // The cache is killed, and its device deleted.
            sh(&cluster, "ip link del nodelocaldns");
            let start = Instant::now();
            daemon.eventually("the Service's endpoint answers", || {
                let routes = routes(&cluster);
                ADDRESSES[1..]
                    .iter()
                    .all(|address| routes.contains(address))
            });
            let took = start.elapsed();
            assert!(took < lab::patience(Duration::from_secs(2)), "{took:?}");
            assert!(answers(&cluster.pod3) && answers(&cluster.node));
            if !is_restarted {
                start_cache(&cluster);
            }
        }
        let log = daemon.log();
        assert!(!log.contains("ERROR"), "{log}");
        let problem = "\"10.96.2.1\": is an address of the device nodelocaldns";
        assert!(log.matches(problem).count() >= 1, "{log}");
    });
}
