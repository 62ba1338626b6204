//! Rules of network agents that mark or translate the packets of Services.
//!
//! The agents do not run: their rules are rebuilt from their sources, in nft's syntax. The answers must
//! stay as they were observed with kube-proxy: each agent leaves packets alone that have kube-proxy's
//! mark or stay in the cluster. The lab's kernels have no connection marks; a set or map of connections
//! takes their place.

use super::observed::{self, Row};
use super::scene::{Scene, Subject, with_each_dataplane};
use crate::{CLUSTER, KUBE_PROXY};

/// flannel, `pkg/trafficmngr/nftables/nftables.go` (cdf76059), `addMasqRules`: packets with exactly
/// kube-proxy's mark return first. The form for iptables has the same rules.
const FLANNEL: &str = "
    table ip flannel-ipv4 {
        chain postrtg {
            type nat hook postrouting priority srcnat
            meta mark 0x4000 return
            ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
            ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
            ip saddr != 10.244.1.0/24 ip daddr 10.244.0.0/16 return
            ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
            ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
        }
    }
    table ip6 flannel-ipv6 {
        chain postrtg {
            type nat hook postrouting priority srcnat
            meta mark 0x4000 return
            ip6 saddr fd00:244:1::/64 ip6 daddr fd00:244::/32 return
            ip6 saddr fd00:244::/32 ip6 daddr fd00:244:1::/64 return
            ip6 saddr != fd00:244:1::/64 ip6 daddr fd00:244::/32 return
            ip6 saddr fd00:244::/32 ip6 daddr != ff00::/8 masquerade fully-random
            ip6 saddr != fd00:244::/32 ip6 daddr fd00:244::/32 masquerade fully-random
        }
    }";

/// The VPC CNI of AWS (b52188387), `pkg/networkutils/network.go`, `updateHostIptablesRules` and
/// `iptables_connmark.go`: connections of Pods to addresses outside the VPC get the node's address, and
/// connections that arrive at the primary device get a mark. Here the VPC has the networks of nodes and
/// Pods, the primary device is `node0`, and Pods' devices begin with `veth-` instead of `eni`.
const AWS: &str = "
    table ip aws {
        set marked { typeof ct id; flags dynamic, timeout; timeout 1m; size 1024; }
        chain aws-snat {
            ip daddr { 10.244.0.0/16, 172.18.0.0/24 } return
            oifname != vlan* fib daddr type != local snat to 172.18.0.2 fully-random
        }
        chain postrouting {
            type nat hook postrouting priority srcnat
            jump aws-snat
        }
        chain mangle {
            type filter hook prerouting priority mangle
            iifname node0 fib daddr . iif type local update @marked { ct id }
            iifname veth-* ct id @marked meta mark set meta mark or 0x80
        }
        chain outbound {
            ip daddr { 10.244.0.0/16, 172.18.0.0/24 } return
            update @marked { ct id }
        }
        chain prerouting {
            type nat hook prerouting priority dstnat
            iifname veth-* jump outbound
            ct id @marked meta mark set meta mark or 0x80
        }
    }";

/// netd of GKE (e11d1570), `pkg/config/config_policy_routing.go`: the marks of connections with
/// kube-proxy's bit are saved and restored.
const NETD: &str = "
    table ip netd {
        map saved { typeof ct id : meta mark; flags dynamic, timeout; timeout 1m; size 1024; }
        chain prerouting {
            type filter hook prerouting priority mangle
            meta mark set ct id map @saved
        }
        chain postrouting {
            type filter hook postrouting priority mangle
            meta mark and 0x4000 == 0x4000 update @saved { ct id : meta mark }
        }
    }";

/// netd's routing rules: packets with the bit use the main table, and packets of Pods a second one. On GKE,
/// the second table has a default route to the gateway. Here it has none, so an answer without the bit is lost.
const NETD_ROUTES: [&str; 4] = [
    "ip route add unreachable default table 1",
    "ip rule add priority 30000 fwmark 0x4000/0x4000 lookup main",
    "ip rule add priority 30001 iif lo lookup main",
    "ip rule add priority 30002 not iif node0 lookup 1",
];

/// The Services with a masquerade and without; TCP and UDP.
const FRONTENDS: [&str; 8] = [
    "tcp 10.96.1.1:80",
    "tcp 172.18.0.2:30080",
    "tcp 172.18.0.2:30081",
    "tcp 198.51.100.10:80",
    "tcp 198.51.100.11:80",
    "udp 10.96.1.3:53",
    "udp 172.18.0.2:30054",
    "tcp [fd00:10:96::24]:80",
];

/// Asserts that the rows of [`FRONTENDS`] for which `is_checked` stay.
fn answers_stay<D: Subject>(scene: &Scene<D>, is_checked: impl Fn(&Row) -> bool) {
    let is_checked = |row: &Row| FRONTENDS.contains(&&*row.frontend) && is_checked(row);
    let rows = observed::rows(KUBE_PROXY).into_iter().filter(is_checked);
    let rows: Vec<Row> = rows.collect();
    assert!(rows.len() >= 10, "{}", rows.len());
    let differences = observed::differences(&rows, scene.clients());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

with_each_dataplane!(
    sources_are_those_of_kube_proxy_beside_flannel,
    sources_are_those_of_kube_proxy_beside_the_vpc_cni_of_aws,
    masqueraded_answers_find_their_way_beside_netd,
);

fn sources_are_those_of_kube_proxy_beside_flannel<D: Subject>() {
    let scene = Scene::<D>::serving(CLUSTER);
    scene.nft(FLANNEL);
    answers_stay(&scene, |_| true);
}

fn sources_are_those_of_kube_proxy_beside_the_vpc_cni_of_aws<D: Subject>() {
    let scene = Scene::<D>::serving(CLUSTER);
    scene.nft(AWS);
    answers_stay(&scene, |_| true);
}

fn masqueraded_answers_find_their_way_beside_netd<D: Subject>() {
    let scene = Scene::<D>::serving(CLUSTER);
    scene.nft(NETD);
    let node = scene.client("node");
    let setting = "/proc/sys/net/ipv4/conf/all/src_valid_mark";
    node.run(|| std::fs::write(setting, "1")).unwrap();
    for command in NETD_ROUTES {
        node.exec(&command.split(' ').collect::<Vec<_>>());
    }
    // Answers without a masquerade need the route to the gateway, which this network lacks.
    answers_stay(&scene, |row| {
        let is_masqueraded = |answer: &String| answer.ends_with("/node");
        row.client.starts_with("ext") && row.answers.iter().all(is_masqueraded)
    });
}
