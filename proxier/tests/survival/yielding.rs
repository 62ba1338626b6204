//! Programs that serve the address of a Service themselves.
//!
//! NodeLocal DNSCache is no Debian package. Its device, addresses and rules in the form for iptables mode are
//! rebuilt here from its sources (dns 9aa70b8f: `cmd/node-cache/app/cache_app.go`, `pkg/netif/netif.go`) and
//! written by iptables, as it writes them. The cache itself is Debian's dnsmasq, and so is the cluster's DNS
//! server in pod1.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use ipvs_netlink as ipvs;
use lab::net::{Cluster, Host};
use serde_json::json;

use super::AT_ONCE;
use super::carrier::{routes, scene_with, sh};
use super::daemon::Daemon;
use super::dataplanes::Kernel;
use super::dns::{self, Transport};

/// The addresses of the cache's device: link-local, and those of the cluster's DNS Service.
const ADDRESSES: [&str; 3] = ["169.254.20.10", "10.96.0.10", "fd00:10:96::a"];

/// The address in the cache's answers, and in those of the cluster's DNS server.
const OF_CACHE: &str = "192.0.2.1";
const OF_CLUSTER: &str = "192.0.2.2";

/// The answers over both protocols and families if only the cache serves.
const OF_CACHE_ONLY: [&str; 4] = [OF_CACHE; 4];

/// The port of the DNS server in pod1.
const ENDPOINT_PORT: u16 = 5300;

/// A dnsmasq that answers every question with one address.
struct Dnsmasq(Child);

impl Dnsmasq {
    fn start(host: &Host, port: u16, addresses: &[&str], answer: &str) -> Self {
        let mut command = Command::new("/usr/sbin/dnsmasq");
        command
            .args(["--keep-in-foreground", "--user=root", "--pid-file"])
            .args(["--conf-file=/dev/null", "--no-resolv", "--no-hosts"])
            .args([
                "--log-facility=-",
                "--bind-interfaces",
                &format!("--address=/#/{answer}"),
            ])
            .arg(format!("--port={port}"));
        for address in addresses {
            command.arg(format!("--listen-address={address}"));
        }
        command.stdin(Stdio::null());
        let child = host.run(|| command.spawn());
        Self(child.expect("run dnsmasq (install the package dnsmasq-base)"))
    }

    /// Ends it with SIGKILL, so that it leaves its device and rules.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Adds (`-A`) or deletes (`-D`) the rules of node-cache with `iptables` and `ip6tables` of one kind: `nft`, `legacy`.
fn write_rules(cluster: &Cluster, kind: &str, action: &str) {
    for address in ADDRESSES {
        let program = match address.contains(':') {
            true => format!("ip6tables-{kind}"),
            false => format!("iptables-{kind}"),
        };
        for protocol in ["tcp", "udp"] {
            let to = format!("-p {protocol} -d {address} --dport 53");
            let from = format!("-p {protocol} -s {address} --sport 53");
            for rule in [
                format!("-t raw {action} PREROUTING {to} -j NOTRACK"),
                format!("-t filter {action} INPUT {to} -j ACCEPT"),
                format!("-t raw {action} OUTPUT {from} -j NOTRACK"),
                format!("-t filter {action} OUTPUT {from} -j ACCEPT"),
                format!("-t raw {action} OUTPUT {to} -j NOTRACK"),
            ] {
                sh(cluster, &format!("{program} {rule}"));
            }
        }
    }
}

/// Creates the device of node-cache and starts the cache.
fn start_cache(cluster: &Cluster) -> Dnsmasq {
    let device = "nodelocaldns";
    sh(
        cluster,
        &format!("ip link add {device} type dummy; ip link set {device} up"),
    );
    for address in ADDRESSES {
        sh(
            cluster,
            &format!("ip address add {address} dev {device} nodad"),
        );
    }
    Dnsmasq::start(&cluster.node, 53, &ADDRESSES, OF_CACHE)
}

/// Creates the cluster's DNS Service, whose endpoint is in pod1.
fn create_dns_service(daemon: &Daemon) {
    let ports = ["UDP", "TCP"].map(|protocol| {
        json!({"name": protocol.to_lowercase(), "port": 53, "targetPort": ENDPOINT_PORT, "protocol": protocol})
    });
    daemon.api.apply(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "kube-system", "name": "kube-dns"},
        "spec": {
            "type": "ClusterIP", "ports": ports,
            "clusterIP": ADDRESSES[1], "clusterIPs": [ADDRESSES[1], ADDRESSES[2]],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
        },
    }));
    let ports = ["UDP", "TCP"].map(|protocol| {
        json!({"name": protocol.to_lowercase(), "port": ENDPOINT_PORT, "protocol": protocol})
    });
    for (family, address) in [("IPv4", "10.244.1.2"), ("IPv6", "fd00:244:1::2")] {
        daemon.api.apply(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "kube-system", "name": format!("kube-dns-{}", family.to_lowercase()),
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": family, "ports": ports,
            "endpoints": [{"addresses": [address], "nodeName": "node-a", "conditions": {"ready": true}}],
        }));
    }
}

/// Returns the answers, or errors, to a question to each address of the DNS Service, over UDP and TCP.
fn answers(client: &Host) -> Vec<String> {
    let mut answers = Vec::new();
    for address in &ADDRESSES[1..] {
        for transport in [Transport::Udp, Transport::Tcp] {
            let server = SocketAddr::new(address.parse().unwrap(), 53);
            let answer = client.run(|| dns::ask(server, transport));
            answers
                .push(answer.map_or_else(|error| error.to_string(), |address| address.to_string()));
        }
    }
    answers
}

/// Asserts that ten questions over each protocol and family are answered by the cache.
#[track_caller]
fn assert_asks_the_cache(client: &Host) {
    for _ in 0..10 {
        assert_eq!(answers(client), OF_CACHE_ONLY, "{}", client.name());
    }
}

/// Returns whether the kernel has a frontend at an address of the cache.
fn has_frontend(cluster: &Cluster, kernel: Kernel) -> bool {
    match kernel {
        Kernel::Ipvs => {
            let services = ipvs::Client::open().unwrap().services().unwrap();
            let addresses = services
                .iter()
                .filter_map(|entry| entry.service.key.address());
            let mut addresses = addresses.map(|address| address.to_string());
            addresses.any(|address| ADDRESSES.contains(&&*address))
        }
        Kernel::Nftables => ["4", "6"].into_iter().any(|family| {
            let list = format!("nft list map inet ipvs-proxier-maps frontends-{family}");
            let listed = sh(cluster, &list);
            ADDRESSES
                .iter()
                .any(|address| listed.contains(&format!("{address} . ")))
        }),
    }
}

#[test]
fn a_local_dns_cache_with_iptables_legacy_keeps_its_addresses_while_its_device_exists() {
    lab::test(|| a_local_dns_cache_keeps_its_addresses(Kernel::Ipvs, "legacy"));
}

#[test]
fn a_local_dns_cache_with_iptables_nft_keeps_its_addresses_while_its_device_exists() {
    lab::test(|| a_local_dns_cache_keeps_its_addresses(Kernel::Ipvs, "nft"));
}

#[test]
fn a_local_dns_cache_with_iptables_legacy_keeps_its_addresses_with_nftables() {
    lab::test(|| a_local_dns_cache_keeps_its_addresses(Kernel::Nftables, "legacy"));
}

#[test]
fn a_local_dns_cache_with_iptables_nft_keeps_its_addresses_with_nftables() {
    lab::test(|| a_local_dns_cache_keeps_its_addresses(Kernel::Nftables, "nft"));
}

fn a_local_dns_cache_keeps_its_addresses(kernel: Kernel, iptables: &str) {
    if !std::path::Path::new("/proc/net/ip_tables_names").exists() {
        // node-cache needs iptables.
        return;
    }
    let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1h"]].concat();
    let (cluster, mut daemon) = scene_with(kernel, &flags);
    create_dns_service(&daemon);
    let pod = ["10.244.1.2", "fd00:244:1::2"];
    let _server = Dnsmasq::start(&cluster.pod1, ENDPOINT_PORT, &pod, OF_CLUSTER);
    write_rules(&cluster, iptables, "-A");
    let mut cache = start_cache(&cluster);
    daemon.start();
    for is_restarted in [false, true] {
        daemon.eventually("the node port is served", || {
            cluster.ext.ask_tcp("172.18.0.2:30080").backend() == Some("pod1")
        });
        daemon.eventually("no frontend is at the addresses of the cache", || {
            !has_frontend(&cluster, kernel)
        });
        // Our packet rules follow the virtual servers.
        daemon.eventually("the cache answers", || {
            answers(&cluster.pod3) == OF_CACHE_ONLY
        });
        assert_asks_the_cache(&cluster.pod3);
        assert_asks_the_cache(&cluster.node);

        // The cache is killed, and its device deleted. Its rules stay.
        cache.kill();
        sh(&cluster, "ip link del nodelocaldns");
        let start = Instant::now();
        daemon.eventually("the Service is served again", || {
            has_frontend(&cluster, kernel)
        });
        match kernel {
            Kernel::Ipvs => daemon.eventually("the addresses are local again", || {
                let routes = routes(&cluster);
                ADDRESSES[1..]
                    .iter()
                    .all(|address| routes.contains(address))
            }),
            // Its rules exempt the packets from connection tracking, and so from NAT, as with kube-proxy's modes that
            // translate. node-cache removes them when it ends.
            Kernel::Nftables => {
                let is_of_cluster = |answer: &String| answer == OF_CLUSTER;
                assert!(!answers(&cluster.pod3).iter().any(is_of_cluster));
                write_rules(&cluster, iptables, "-D");
            }
        }
        eprintln!("after {:?}", start.elapsed());
        assert_eq!(answers(&cluster.pod3), [OF_CLUSTER; 4]);
        assert_eq!(answers(&cluster.node), [OF_CLUSTER; 4]);
        if !is_restarted {
            if kernel == Kernel::Nftables {
                write_rules(&cluster, iptables, "-A");
            }
            cache = start_cache(&cluster);
        }
    }
    let log = daemon.log();
    assert!(!log.contains("ERROR"), "{log}");
    let problem = "\"10.96.0.10\": is an address of the device nodelocaldns";
    assert!(log.matches(problem).count() >= 1, "{log}");
}
