//! Random histories of the dataplane of nf_tables: after each round, the kernel has the table of the plan.

use std::time::Duration;

use proxier::testing::clock;
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::nftables::{Nftables, TABLE};
use proxier::testing::manifests::{self, Options};
use proxier::testing::plan::{PlanConfig, ServiceAddresses};
use proxier::testing::sync::Proxier;
use serde_json::{Value, json};

use super::services::rules;
use crate::dice::Dice;
use crate::{assert_same, lines, nft};

const SERVICES: usize = 6;

/// Each may be an endpoint of each Service, or not.
const ENDPOINTS: usize = 7;

const STEPS: usize = 40;

/// A Service, as far as it changes.
#[derive(Clone, Default)]
struct Drawn {
    scheduler: &'static str,
    is_local: bool,
    affinity_secs: Option<u32>,
    has_ranges: bool,
    node_port: Option<u16>,
    /// The weights of its endpoints, by number.
    endpoints: Vec<(usize, u16)>,
}

impl Drawn {
    fn new(number: usize, dice: &mut Dice) -> Self {
        let schedulers = ["rr", "wrr", "sh", "mh", "dh", "fo", "wlc"];
        let mut endpoints = Vec::new();
        for endpoint in 0..ENDPOINTS {
            if !dice.one_in(3) {
                endpoints.push((endpoint, [0, 1, 1, 2][dice.below(4)]));
            }
        }
        if dice.one_in(6) {
            endpoints.clear();
        }
        Self {
            scheduler: schedulers[dice.below(schedulers.len())],
            is_local: dice.one_in(2),
            affinity_secs: dice.one_in(3).then(|| [60, 90, 10_800][dice.below(3)]),
            has_ranges: dice.one_in(3),
            node_port: dice
                .one_in(2)
                .then(|| 30_000 + u16::try_from(number).unwrap()),
            endpoints,
        }
    }

    /// Returns its manifests.
    fn objects(&self, number: usize) -> Vec<Value> {
        let name = format!("service-{number}");
        let mut weights = vec!["*:1".to_owned()];
        for (endpoint, weight) in &self.endpoints {
            weights.push(format!("10.244.0.{}:{weight}", endpoint + 1));
            weights.push(format!("[fd00:244::{}]:{weight}", endpoint + 1));
        }
        let policy = if self.is_local { "Local" } else { "Cluster" };
        let affinity = self
            .affinity_secs
            .map(|secs| json!({"clientIP": {"timeoutSeconds": secs}}));
        let mut service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "annotations": {
                "ipvs-proxier.io/scheduler": self.scheduler,
                "ipvs-proxier.io/weights": weights.join(", "),
            }},
            "spec": {
                "type": "LoadBalancer",
                "externalTrafficPolicy": policy,
                "sessionAffinity": if affinity.is_some() { "ClientIP" } else { "None" },
                "clusterIP": format!("10.96.0.{}", number + 1),
                "clusterIPs": [format!("10.96.0.{}", number + 1), format!("fd00:96::{}", number + 1)],
                "ipFamilies": ["IPv4", "IPv6"],
                "ports": [
                    {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080},
                    {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 5353},
                ],
            },
            "status": {"loadBalancer": {"ingress": [
                {"ip": format!("198.51.100.{}", number + 1)},
                {"ip": format!("2001:db8::{}", number + 1)},
            ]}},
        });
        let spec = &mut service["spec"];
        if let Some(affinity) = affinity {
            spec["sessionAffinityConfig"] = affinity;
        }
        if self.has_ranges {
            spec["loadBalancerSourceRanges"] = json!(["203.0.113.0/24", "2001:db8:1::/48"]);
        }
        if let Some(port) = self.node_port {
            spec["ports"][0]["nodePort"] = json!(port);
        }
        let slices = [("IPv4", "10.244.0."), ("IPv6", "fd00:244::")].map(|(family, network)| {
            let endpoints = self.endpoints.iter().map(|(endpoint, _)| {
                json!({
                    "addresses": [format!("{network}{}", endpoint + 1)],
                    "conditions": {"ready": true},
                    "nodeName": if endpoint % 2 == 0 { "node-a" } else { "node-b" },
                })
            });
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{name}-{}", family.to_lowercase()),
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": family,
                "endpoints": endpoints.collect::<Vec<_>>(),
                "ports": [
                    {"name": "http", "protocol": "TCP", "port": 8080},
                    {"name": "dns", "protocol": "UDP", "port": 5353},
                ],
            })
        });
        [service].into_iter().chain(slices).collect()
    }
}

const NODE: &str = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
    "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.2"}]}}"#;

fn start() -> Proxier<Nftables> {
    let config = PlanConfig {
        node_name: "node-a".into(),
        service_addresses: ServiceAddresses::None,
        drain: Duration::from_secs(60),
        ..PlanConfig::default()
    };
    Proxier::of(Nftables::open(rules(), &[]).unwrap(), config)
}

/// Programs the Services that are there.
fn program(proxier: &mut Proxier<Nftables>, services: &[Option<Drawn>], is_resync: bool) {
    let numbered = services.iter().enumerate();
    let objects = numbered.filter_map(|(number, it)| Some(it.as_ref()?.objects(number)));
    let documents = objects.flatten().map(|object| format!("\n---\n{object}"));
    let text = NODE.to_owned() + &documents.collect::<String>();
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        permits_loopback: false,
    };
    let loaded = manifests::parse(&text, "test.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    proxier.receive(loaded.events);
    let now = clock::since_boot();
    let applied = match is_resync {
        true => proxier.resync(now),
        false => proxier.sync(now),
    };
    let applied = applied.unwrap();
    let failures: Vec<_> = applied.failures().collect();
    assert!(failures.is_empty(), "{failures:?}");
}

/// Returns commands of nft that another program might run.
fn sabotage(dice: &mut Dice) -> String {
    let commands = [
        "delete table inet T",
        "flush chain inet T new",
        "flush chain inet T random-2",
        "flush map inet T frontends-4",
        "flush map inet T endpoints-6",
        "flush set inet T service-addresses-4",
        "add rule inet T dispatch drop",
        "add chain inet T other",
        "add set inet T other { type ipv4_addr; }",
        "add element inet T pingable-4 { 192.0.2.1 }",
        "add element inet T guarded-4 { 192.0.2.1 . tcp . 80 : drop }",
        "add element inet T endpoints-4 { 10.96.0.1 . tcp . 80 . 0x00000063 : 192.0.2.1 . 80 }",
        "flush table inet T",
        "add table inet T { flags dormant; }",
    ];
    commands[dice.below(commands.len())].replace('T', TABLE)
}

/// Returns the lines of each set and chain. The kernel lists them in the order of their creation.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<Vec<String>> = text.split("\n\n").map(lines).collect();
    for block in &mut blocks {
        // The first and the last are also those of the table.
        block.retain(|line| line != "}" && !line.starts_with("table "));
    }
    blocks.sort();
    blocks.into_iter().flatten().collect()
}

#[test]
fn after_each_round_of_a_random_history_the_kernel_has_the_table_of_the_plan() {
    lab::test(|| {
        let address = ["ip", "address", "add", "172.18.0.2/32", "dev", "lo"];
        let added = std::process::Command::new("/sbin/ip")
            .args(&address[1..])
            .status();
        assert!(added.unwrap().success());
        let mut dice = Dice::new(49);
        let mut services: Vec<Option<Drawn>> = vec![None; SERVICES];
        let mut proxier = start();
        for step in 0..STEPS {
            for _ in 0..=dice.below(3) {
                let number = dice.below(SERVICES);
                let is_there = !dice.one_in(5);
                services[number] = is_there.then(|| Drawn::new(number, &mut dice));
            }
            let is_restart = dice.one_in(8);
            if dice.one_in(4) {
                let commands = sabotage(&mut dice);
                // The first tables may lack what is sabotaged.
                let is_done = nft(&["-f", "-"], &commands).is_ok();
                let found = proxier.dataplane_mut().finds_changed_rules();
                assert_eq!(found, is_done, "{step}: {commands}");
            }
            if is_restart {
                proxier = start();
            }
            program(&mut proxier, &services, dice.one_in(8));
            let listed = nft(&["list", "table", "inet", TABLE], "").unwrap();
            let table = proxier.dataplane().table(proxier.planned()).unwrap();
            assert_same(&blocks(&listed), &blocks(&table.named(TABLE).to_string()));
        }
    });
}
