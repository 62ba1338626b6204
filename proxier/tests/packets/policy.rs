//! NetworkPolicy of Calico for a Pod behind a Service.
//!
//! Felix is no Debian package. Its rules for IPVS are rebuilt here from its sources (calico 87c15906f2:
//! `felix/rules/static.go`, `felix/ifacemonitor`, `felix/dataplane/driver.go`), in nftables instead of
//! iptables, with the same hooks, order and conditions. A denied packet is rejected instead of dropped,
//! so that most clients need not wait.

use proxier::testing::plan::ServiceAddresses;

use super::scene::Scene;
use super::services::{POD1, Services};
use crate::at;

/// The bits of Felix' endpoint mark, among its default bits 0xffff0000.
const ENDPOINT_MARK: &str = "0xfff00000";

/// The other bits of a mark.
const OTHER_BITS: &str = "0x000fffff";

/// Returns Felix' view of the node: the addresses of local routes of a family, but those of Pods' devices
/// and of `kube-ipvs0`, as nft elements.
fn this_host(scene: &Scene, family: &str) -> String {
    let show = [
        "ip", family, "route", "show", "table", "local", "type", "local",
    ];
    let routes = scene.client("node").exec(&show);
    let is_counted = |line: &&str| !line.contains("dev veth-") && !line.contains("dev kube-ipvs0");
    let address = |line: &str| line.split(' ').nth(1).unwrap().to_owned();
    let addresses: Vec<String> = routes.lines().filter(is_counted).map(address).collect();
    addresses.join(", ")
}

/// Starts Felix on the node: `allow` are rules that accept connections to pod1 beside its deny-all policy.
fn start_felix(scene: &Scene, allow: &str) {
    let links = scene.client("node").exec(&["ip", "-oneline", "link"]);
    let (v4, v6) = (this_host(scene, "-4"), this_host(scene, "-6"));
    // Felix supports IPVS only if the device exists when it starts.
    let (input, output) = if links.contains("kube-ipvs0") {
        (
            format!(
                "meta mark set meta mark & {OTHER_BITS}; jump forward-check; \
                 meta mark & {ENDPOINT_MARK} != 0 return"
            ),
            format!("meta mark & {ENDPOINT_MARK} != 0 jump forward-endpoint-mark"),
        )
    } else {
        Default::default()
    };
    scene.nft(&format!(
        "table inet felix
         delete table inet felix
         table inet felix {{
             set this-host {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {v4} }} }}
             set this-host-6 {{ type ipv6_addr; flags interval; auto-merge; elements = {{ {v6} }} }}
             chain to-pod1 {{
                 ct state established,related accept
                 {allow}
                 meta l4proto tcp reject with tcp reset
                 reject
             }}
             chain set-endpoint-mark {{
                 meta mark set meta mark | 0x00100000
             }}
             chain forward-check {{
                 ct state established,related return
                 meta l4proto {{ tcp, udp }} th dport 30000-32767 ip daddr @this-host goto set-endpoint-mark
                 meta l4proto {{ tcp, udp }} th dport 30000-32767 ip6 daddr @this-host-6 goto set-endpoint-mark
                 ip daddr != @this-host goto set-endpoint-mark
                 ip6 daddr != @this-host-6 goto set-endpoint-mark
             }}
             chain wl-to-host {{
                 accept
             }}
             chain forward-endpoint-mark {{
                 oifname veth-pod1 jump to-pod1
                 meta mark set meta mark & {OTHER_BITS}
             }}
             chain input {{
                 type filter hook input priority filter
                 {input}
                 iifname \"veth-*\" jump wl-to-host
             }}
             chain output {{
                 type filter hook output priority filter
                 {output}
             }}
             chain forward {{
                 type filter hook forward priority filter
                 oifname veth-pod1 jump to-pod1
             }}
         }}"
    ));
}

/// Each way to pod1: the client, and the frontends of both protocols and families.
fn ways() -> Vec<(&'static str, String)> {
    let pod = at("10.244.1.2", "fd00:244:1::2", 8080, 5353);
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    let load_balancer = at("198.51.100.2", "2001:db8:51::2", 80, 53);
    let node_port = at("172.18.0.2", "fd00:172:18::2", 30080, 30053);
    let of = |client, frontends: &[String; 4]| frontends.clone().map(|frontend| (client, frontend));
    let inside = [&pod, &cluster_ip, &load_balancer].map(|frontends| of("pod3", frontends));
    let outside = [&node_port, &load_balancer].map(|frontends| of("ext", frontends));
    inside.into_iter().chain(outside).flatten().collect()
}

/// Returns the ways whose requests are answered. All are tried at the same time.
fn answered(scene: &Scene) -> Vec<String> {
    let cluster = &scene.cluster;
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |(client, frontend): (&'static str, String)| {
            let host = if client == "pod3" {
                &cluster.pod3
            } else {
                &*cluster.ext
            };
            scope.spawn(move || {
                let (protocol, to) = frontend.split_once(' ').unwrap();
                let answer = match protocol {
                    "tcp" => host.ask_tcp(to),
                    _ => host.ask_udp(to),
                };
                answer.backend().map(|_| format!("{client} to {frontend}"))
            })
        };
        let asking: Vec<_> = ways().into_iter().map(ask).collect();
        asking
            .into_iter()
            .map(|asking| asking.join().unwrap())
            .collect()
    });
    answers.into_iter().flatten().collect()
}

const ALLOW_ALL: &str = "accept";

/// Allows only pod3, by its addresses.
const ALLOW_ONE: &str = "ip saddr 10.244.1.4 accept; ip6 saddr fd00:244:1::4 accept";

/// Returns Services of which `web` has only pod1.
fn services() -> Services {
    Services::dual().edit("web", |service| {
        *service = service.clone().endpoints(&[POD1]);
    })
}

fn scene(form: ServiceAddresses) -> Scene {
    Scene::with(services(), form, |_| {})
}

#[test]
fn a_policy_of_calico_holds_for_every_frontend_of_a_service() {
    lab::test(|| {
        let mut scene = scene(ServiceAddresses::Routes);
        for restart in [false, true] {
            if restart {
                scene.restart();
                scene.program(services());
            }
            start_felix(&scene, ALLOW_ALL);
            assert_eq!(answered(&scene).len(), ways().len());
            start_felix(&scene, "");
            assert_eq!(answered(&scene), [] as [String; 0]);
            start_felix(&scene, ALLOW_ONE);
            let expected = ways().into_iter().filter(|(client, _)| *client == "pod3");
            let expected: Vec<_> = expected
                .map(|(from, to)| format!("{from} to {to}"))
                .collect();
            assert_eq!(answered(&scene), expected);
        }
    });
}

/// Shows that the rules above find the bypass: with routes on `lo`, Felix takes every service address for
/// one of the host.
#[test]
fn without_the_device_a_policy_of_calico_is_bypassed() {
    lab::test(|| {
        let scene = scene(ServiceAddresses::Loopback);
        start_felix(&scene, "");
        let open = answered(&scene);
        assert_eq!(open.len(), ways().len() - 4, "{open:?}");
    });
}
