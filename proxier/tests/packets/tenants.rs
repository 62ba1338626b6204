//! Whatever a tenant writes into Services and EndpointSlices, and whatever marks other programs use, the packets of
//! others go where they went before.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::local::{PLAIN, check_rows, load_balancer, marking, node_port};
use super::scene::Scene;
use super::services::Services;
use crate::{at, check};

/// The number of random clusters.
const CASES: usize = 40;

/// The masquerade bit: a program that sets it asks for masquerading.
const MASQUERADE: u32 = 1 << 14;

/// The addresses that tenants name as endpoints. All are said to be on this node, and only the first is: the
/// others are a Pod of another node, which is an endpoint of others too, and clients.
const ENDPOINTS: [(&str, &str); 5] = [
    ("10.244.1.4", "fd00:244:1::4"),
    ("10.244.2.2", "fd00:244:2::2"),
    ("10.244.2.3", "fd00:244:2::3"),
    ("203.0.113.9", "2001:db8:113::9"),
    ("172.18.0.3", "fd00:172:18::3"),
];

/// Addresses that tenants ask for: frontends of others, addresses of the node, an address of their own.
const ADDRESSES: [(&str, &str); 5] = [
    ("198.51.100.4", "2001:db8:51::4"),
    ("198.51.100.1", "2001:db8:51::1"),
    ("172.18.0.2", "fd00:172:18::2"),
    ("10.96.1.1", "fd00:10:96::1"),
    ("198.51.100.77", "2001:db8:51::77"),
];

/// Ports that tenants ask for: those of others, IPVS' port of FTP, one of their own.
const PORTS: [u16; 5] = [80, 53, 21, 30081, 7000];

/// A tenant's Service with its EndpointSlices.
#[derive(Clone, Debug)]
struct Tenant {
    name: String,
    external: usize,
    balanced: usize,
    port: usize,
    protocol: &'static str,
    node_port: u16,
    policies: [&'static str; 2],
    affinity: &'static str,
    scheduler: &'static str,
    endpoints: Vec<usize>,
}

fn tenant() -> impl Strategy<Value = Tenant> {
    let policy = || prop_oneof![3 => Just("Local"), 1 => Just("Cluster")];
    let choices = (
        0..ADDRESSES.len(),
        0..ADDRESSES.len(),
        0..PORTS.len(),
        30_200..30_210_u16,
    );
    let words = (
        prop_oneof![Just("TCP"), Just("UDP")],
        [policy(), policy()],
        prop_oneof![Just("ClientIP"), Just("None")],
        prop_oneof![Just("rr"), Just("sh"), Just("mh"), Just("lc")],
    );
    let endpoints = proptest::sample::subsequence((0..ENDPOINTS.len()).collect::<Vec<_>>(), 0..=3);
    ("[a-z]{8}", choices, words, endpoints).prop_map(|(name, choices, words, endpoints)| {
        let (external, balanced, port, node_port) = choices;
        let (protocol, policies, affinity, scheduler) = words;
        Tenant {
            name,
            external,
            balanced,
            port,
            protocol,
            node_port,
            policies,
            affinity,
            scheduler,
            endpoints,
        }
    })
}

impl Tenant {
    /// Returns the objects. Their namespace comes after that of the others, whose Services so count as older.
    fn objects(&self, index: usize) -> Vec<Value> {
        let name = format!("{}-{index}", self.name);
        let both = |(v4, v6): (&str, &str)| [v4.to_owned(), v6.to_owned()];
        let ingress = both(ADDRESSES[self.balanced]).map(|ip| json!({"ip": ip}));
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": name,
                "namespace": "tenant",
                "annotations": {"ipvs-proxier.io/scheduler": self.scheduler},
            },
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": format!("10.96.200.{index}"),
                "clusterIPs": [format!("10.96.200.{index}"), format!("fd00:10:96::200:{index}")],
                "ipFamilies": ["IPv4", "IPv6"],
                "externalTrafficPolicy": self.policies[0],
                "internalTrafficPolicy": self.policies[1],
                "sessionAffinity": self.affinity,
                "externalIPs": both(ADDRESSES[self.external]),
                "ports": [{
                    "name": "http",
                    "protocol": self.protocol,
                    "port": PORTS[self.port],
                    "targetPort": 8080,
                    "nodePort": self.node_port,
                }],
            },
            "status": {"loadBalancer": {"ingress": ingress}},
        });
        let slice = |family: &str, address: fn(&(&'static str, &'static str)) -> &'static str| {
            let endpoints = self.endpoints.iter().map(
                |index| json!({"addresses": [address(&ENDPOINTS[*index])], "nodeName": "node-a"}),
            );
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{name}-{}", family.to_lowercase()),
                    "namespace": "tenant",
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": family,
                "ports": [{"name": "http", "protocol": self.protocol, "port": 8080}],
                "endpoints": endpoints.collect::<Vec<_>>(),
            })
        };
        vec![service, slice("IPv4", |it| it.0), slice("IPv6", |it| it.1)]
    }
}

/// Returns the mark that versions without a key gave to a tenant's Service port, which its author could choose.
fn chosen_mark(tenant: &Tenant, index: usize) -> u32 {
    let text = format!("tenant/{}-{index}:http/{}/V4", tenant.name, tenant.protocol);
    text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[test]
fn tenants_and_marks_of_other_programs_change_no_way_of_others() {
    lab::test(|| {
        let mut runner = TestRunner::deterministic();
        let mut scene = Scene::new(Services::dual());
        let clusters = (proptest::collection::vec(tenant(), 3..6), any::<u32>());
        for case in 0..CASES {
            let (tenants, any_mark) = clusters.new_tree(&mut runner).unwrap().current();
            let mut manifests = Services::dual().to_string();
            for (index, tenant) in tenants.iter().enumerate() {
                for object in tenant.objects(index + 1) {
                    manifests += &format!("---\n{object}\n");
                }
            }
            scene.program(manifests);
            let mark = match case % 2 {
                0 => chosen_mark(&tenants[0], 1),
                _ => any_mark,
            };
            scene.nft(&marking(&format!("{:#x}", mark & !MASQUERADE)));
            let told = format!("case {case}, mark {mark:#x}: {tenants:#?}");
            let checked =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unchanged(&scene)));
            assert!(checked.is_ok(), "{told}");
            scene.nft("delete table inet marking");
        }
    });
}

/// Asserts that clients reach the Services of others, and daemons of the node, as without tenants.
fn unchanged(scene: &Scene) {
    check_rows(scene, &load_balancer(), &PLAIN);
    check_rows(scene, &node_port(), &PLAIN);
    let web = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    check(scene, "pod3", &web, &["pod1/client", "podB1/client"]);
    check(scene, "ext", &web, &["pod1/node", "podB1/node"]);
    let daemons = ["tcp 172.18.0.2:22", "tcp [fd00:172:18::2]:9999"].map(String::from);
    for client in ["ext", "pod3", "podB2"] {
        check(scene, client, &daemons, &["HOST/client"]);
    }
}
