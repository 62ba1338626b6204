//! A notation for clusters and their plans.
//!
//! ```text
//! options scheduler=mh nodeports=10.0.0.0/8,primary weights=same-node:8  flags; must be the first command
//!     external-ranges=192.0.2.0/24 ingress-ranges=198.51.100.0/24
//!     relay=privileged                                 the userspace dataplane; may change later
//! node here 192.0.2.1 2001:db8::1 zone=a region=r      our node; sets the machine's addresses too
//! node other 192.0.2.3 region=s                        another node
//! machine 192.0.2.1 192.0.2.2                          the machine's addresses, if they differ
//! peers via=192.0.2.254 api=192.0.2.7                  next hops; to where connections to the API server led
//! service ns1/svc1 10.96.0.1 port=p80:80/TCP:3001      cluster IPs; name, number, protocol, node port
//!     type=NodePort external=192.0.2.9 ingress=192.0.2.8/Proxy etp=Local itp=Local affinity=60
//!     created=2026-01-01T00:00:00Z health=30000 ranges=10.0.0.0/8 label.x=y annotation.x=y        (all on one line)
//! slice ns1/svc1-a of=svc1 port=p80:80/TCP 10.0.0.1 10.0.0.2(@here,in=a,terminating)
//! delete slice ns1/svc1-a
//! ```
//!
//! Words in an endpoint's parentheses: `@node`, `in=zone`, hints `to-zone=` and `to-node=`, and
//! `unready`, `serving` (but not ready), `terminating` (and serving), `gone` (terminating, not
//! serving).
//!
//! Indented lines are the plan after the commands above them:
//! 1. Virtual servers, ordered, with `from=` their source ranges, and their destinations: `*weight`
//!    unless it is 1; `source=client` if these see clients' addresses; `none` without destinations;
//!    `none local` if a policy Local excludes all endpoints. `inside ->` has the destinations for
//!    clients inside the cluster, under policy Local.
//! 2. Health checks, with the number of local endpoints.
//! 3. Problems.
//!
//! `nothing` is an empty plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proxier::testing::api::{self, WireObject as _};
use proxier::testing::frontend::Frontend;
use proxier::testing::model::{ObjectName, Protocol, SourceAddress};
use proxier::testing::plan::{
    Availability, Balancing, Capabilities, Changed, Desired, ExternalRanges, FrontendPlan, Machine,
    NodePortAddresses, PlanConfig, Planner, RelayAbilities, SelectedEndpoint, desired,
};
use proxier::testing::problem::Problem;
use proxier::testing::store::{Event, Interner, Snapshot, Touched, Update};
use serde::Deserialize;
use serde_json::{Map, Value, json};

mod words;

use words::Words;

/// The name of the node that is planned for.
pub(crate) const HERE: &str = "here";
/// The time that a removed endpoint keeps its connections, unless an annotation sets another.
const DRAIN: Duration = Duration::from_secs(60);

/// A cluster and the planner that follows it.
pub(crate) struct Scene {
    config: PlanConfig,
    machine: Machine,
    capabilities: Capabilities,
    interner: Interner,
    pub(crate) snapshot: Snapshot,
    touched: Touched,
    pub(crate) planner: Option<Planner>,
    /// The last event of each object, by the object's rank in the order of events.
    last_events: BTreeMap<(usize, String), Event>,
}

/// Returns the configuration, unless `options` change it.
pub(crate) fn config() -> PlanConfig {
    PlanConfig {
        node_name: HERE.into(),
        drain: DRAIN,
        ..PlanConfig::default()
    }
}

impl Default for Scene {
    fn default() -> Self {
        Self {
            config: config(),
            machine: Machine::default(),
            capabilities: Capabilities::default(),
            interner: Interner::default(),
            snapshot: Snapshot::default(),
            touched: Touched::none(),
            planner: None,
            last_events: BTreeMap::new(),
        }
    }
}

impl Scene {
    /// Executes a command.
    pub(crate) fn command(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = Words::of(rest);
        match verb {
            "options" => self.options(&words),
            "machine" => self.machine.addresses = addresses(&words.bare),
            "peers" => {
                let list = |key| addresses(&words.list(key)).into();
                self.machine.peers.next_hops = list("via");
                self.machine.peers.tunnel_ends = list("tunnel");
                self.machine.peers.api_servers = list("api");
            }
            "node" if words.bare[0] == HERE => {
                self.machine.addresses = addresses(&words.bare[1..]);
                let node: api::NodeObject<'_> = read(node(&words));
                let parsed = node.parse(&mut self.interner).unwrap();
                assert_eq!(parsed.problems, []);
                self.receive("node", words.bare[0], Event::Node(parsed.object.unwrap()));
            }
            "node" => {
                let node: api::NodeObject<'_> = read(node(&words));
                let parsed = node.location(&mut self.interner).unwrap();
                self.receive("node", words.bare[0], Event::Nodes(Update::Apply(parsed)));
            }
            "service" => {
                let service: api::ServiceObject<'_> = read(service(&words));
                let parsed = service.parse(&mut self.interner).unwrap();
                self.receive(verb, words.bare[0], Event::Services(Update::Apply(parsed)));
            }
            "slice" => {
                let slice: api::EndpointSliceObject<'_> = read(slice(&words));
                let parsed = slice.parse(&mut self.interner).unwrap();
                self.receive(
                    verb,
                    words.bare[0],
                    Event::EndpointSlices(Update::Apply(parsed)),
                );
            }
            "delete" => self.delete(words.bare[0], words.bare[1]),
            _ => panic!("{line}"),
        }
    }

    fn options(&mut self, words: &Words<'_>) {
        if let Some(scheduler) = words.get("scheduler") {
            self.config.scheduler = scheduler.into();
        }
        let ranges = |key| {
            words
                .list(key)
                .iter()
                .map(|it| it.parse().unwrap())
                .collect()
        };
        self.config.external_ranges = ExternalRanges {
            external_ips: ranges("external-ranges"),
            load_balancer_ips: ranges("ingress-ranges"),
        };
        if let Some(weights) = words.get("weights") {
            self.config.weights = Some(Arc::new(weights.parse().unwrap()));
        }
        if let Some(scheduler) = words.get("missing") {
            self.capabilities.missing_schedulers = [scheduler.into()].into();
        }
        let relay = words.get("relay");
        self.capabilities.relay = relay.map(|word| RelayAbilities {
            keeps_sources: word == "privileged",
        });
        self.capabilities.has_full_affinity = relay.is_some();
        let networks = words.list("nodeports");
        self.config.node_port_addresses = NodePortAddresses::parse(networks).unwrap();
    }

    fn receive(&mut self, kind: &str, name: &str, event: Event) {
        self.snapshot.apply(event.clone(), &mut self.touched);
        self.last_events
            .retain(|(_, object), _| *object != format!("{kind} {name}"));
        let last = self.last_events.keys().last();
        let next = last.map_or(0, |(number, _)| number + 1);
        self.last_events
            .insert((next, format!("{kind} {name}")), event);
    }

    fn delete(&mut self, kind: &str, name: &str) {
        let (namespace, own) = name.split_once('/').unwrap();
        let object = ObjectName::new(namespace, own);
        let event = match kind {
            "service" => Event::Services(Update::Delete(object)),
            "slice" => Event::EndpointSlices(Update::Delete(object)),
            _ => panic!("delete {kind}"),
        };
        self.snapshot.apply(event, &mut self.touched);
        self.last_events
            .retain(|(_, object), _| *object != format!("{kind} {name}"));
    }

    /// Returns the plan, one item a line.
    ///
    /// Asserts that the incremental plan, a plan from scratch, and a plan after the events in reverse
    /// order are equal.
    pub(crate) fn plan(&mut self) -> Vec<String> {
        let touched = std::mem::replace(&mut self.touched, Touched::none());
        let planner = self
            .planner
            .get_or_insert_with(|| Planner::new(self.config.clone()));
        let before = planner.desired().clone();
        let changed = planner.update(&self.snapshot, &self.machine, &self.capabilities, touched);
        assert_reported(&before, &changed, planner.desired());
        let scratch = desired(
            &self.snapshot,
            &self.machine,
            &self.capabilities,
            &self.config,
        );
        let incremental = (planner.desired().clone(), planner.problems(&self.snapshot));
        assert_eq!(incremental, scratch, "incremental planning differs");
        assert_eq!(
            self.in_reverse_order(),
            scratch,
            "the order of events matters"
        );
        render(&scratch.0, &scratch.1)
    }

    fn in_reverse_order(&self) -> (Desired, Vec<Problem>) {
        let mut snapshot = Snapshot::default();
        for event in self.last_events.values().rev() {
            snapshot.apply(event.clone(), &mut Touched::none());
        }
        desired(&snapshot, &self.machine, &self.capabilities, &self.config)
    }
}

/// Asserts that `reported` has exactly the differences of the two plans.
fn assert_reported(before: &Desired, reported: &Changed, after: &Desired) {
    let frontends = different(&before.frontends, &after.frontends);
    assert_eq!(reported.frontends, frontends);
    assert_eq!(
        reported.addresses,
        different(&before.addresses, &after.addresses)
    );
    let endpoints = &before.local_endpoints ^ &after.local_endpoints;
    assert_eq!(reported.local_endpoints, endpoints);
    let ports = different(&before.health_checks, &after.health_checks);
    assert_eq!(reported.health_checks, ports);
}

/// Returns the keys whose values differ.
fn different<K: Ord + Copy, V: PartialEq>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
) -> BTreeSet<K> {
    let all = before.keys().chain(after.keys()).copied();
    all.filter(|key| before.get(key) != after.get(key))
        .collect()
}

fn read<T: Deserialize<'static>>(object: Value) -> T {
    T::deserialize(object).unwrap()
}

fn addresses(words: &[&str]) -> BTreeSet<IpAddr> {
    words.iter().map(|word| word.parse().unwrap()).collect()
}

fn metadata(name: &str, words: &Words<'_>) -> Value {
    let (namespace, own) = name.split_once('/').unwrap();
    let annotations = words.with_prefix("annotation.");
    json!({
        "namespace": namespace,
        "name": own,
        "labels": words.with_prefix("label."),
        "creationTimestamp": words.get("created"),
        "annotations": annotations
            .into_iter()
            .map(|(name, value)| (format!("ipvs-proxier.io/{name}"), value))
            .collect::<Map<_, _>>(),
    })
}

fn node(words: &Words<'_>) -> Value {
    let label = |key: &str| {
        (
            format!("topology.kubernetes.io/{key}"),
            json!(words.get(key)),
        )
    };
    let address = |address: &&str| json!({"type": "InternalIP", "address": address});
    json!({
        "metadata": {
            "name": words.bare[0],
            "labels": Map::from_iter(["zone", "region"].map(label)),
        },
        "status": {"addresses": words.bare[1..].iter().map(address).collect::<Vec<_>>()},
    })
}

fn service(words: &Words<'_>) -> Value {
    let port = |text: &str| {
        let (port, node_port) = port(text);
        let mut port = port;
        port["nodePort"] = json!(node_port);
        port
    };
    let ingress = |text: &str| match text.split_once('/') {
        Some((ip, mode)) => json!({"ip": ip, "ipMode": mode}),
        None => json!({"ip": text}),
    };
    let number = |key| words.get(key).map(|text| text.parse::<u32>().unwrap());
    json!({
        "metadata": metadata(words.bare[0], words),
        "spec": {
            "type": words.get("type").unwrap_or("ClusterIP"),
            "clusterIP": words.bare.get(1),
            "clusterIPs": words.bare[1..],
            "ports": words.all("port").map(port).collect::<Vec<_>>(),
            "externalIPs": words.list("external"),
            "externalTrafficPolicy": words.get("etp"),
            "internalTrafficPolicy": words.get("itp"),
            "sessionAffinity": words.get("affinity").map(|_| "ClientIP"),
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": number("affinity")}},
            "healthCheckNodePort": number("health"),
            "loadBalancerSourceRanges": words.list("ranges"),
        },
        "status": {
            "loadBalancer": {
                "ingress": words.list("ingress").into_iter().map(ingress).collect::<Vec<_>>(),
            },
        },
    })
}

/// Reads `name:number/protocol:node-port`. The name may be empty; `:node-port` may be absent.
fn port(text: &str) -> (Value, Option<u16>) {
    let (name, rest) = text.split_once(':').unwrap();
    let (number, rest) = rest.split_once('/').unwrap();
    let (protocol, node_port) = match rest.split_once(':') {
        Some((protocol, node_port)) => (protocol, Some(node_port.parse().unwrap())),
        None => (rest, None),
    };
    let number: Option<u16> = number.parse().ok();
    (
        json!({"name": name, "protocol": protocol, "port": number}),
        node_port,
    )
}

fn slice(words: &Words<'_>) -> Value {
    let mut metadata = metadata(words.bare[0], words);
    metadata["labels"]["kubernetes.io/service-name"] = json!(words.get("of"));
    let endpoints: Vec<Value> = words.bare[1..].iter().map(|word| endpoint(word)).collect();
    let is_v6 = words.bare[1..]
        .iter()
        .any(|word| word.split('(').next().unwrap().contains(':'));
    let address_type = words
        .get("type")
        .unwrap_or(if is_v6 { "IPv6" } else { "IPv4" });
    json!({
        "metadata": metadata,
        "addressType": address_type,
        "ports": words.all("port").map(|text| port(text).0).collect::<Vec<_>>(),
        "endpoints": endpoints,
    })
}

fn endpoint(word: &str) -> Value {
    let (address, rest) = word.split_once('(').unwrap_or((word, ")"));
    let mut endpoint = json!({"addresses": [address]});
    let (mut zones, mut nodes) = (Vec::new(), Vec::new());
    let words = rest.strip_suffix(')').unwrap().split(',');
    for word in words.filter(|word| !word.is_empty()) {
        if let Some(node) = word.strip_prefix('@') {
            endpoint["nodeName"] = json!(node);
            continue;
        }
        match word.split_once('=') {
            Some(("in", zone)) => endpoint["zone"] = json!(zone),
            Some(("to-zone", name)) => zones.push(json!({"name": name})),
            Some(("to-node", name)) => nodes.push(json!({"name": name})),
            _ => {
                let (serving, terminating) = match word {
                    "unready" => (false, false),
                    "serving" => (true, false),
                    "terminating" => (true, true),
                    "gone" => (false, true),
                    _ => panic!("{word}"),
                };
                endpoint["conditions"] =
                    json!({"ready": false, "serving": serving, "terminating": terminating});
            }
        }
    }
    endpoint["hints"] = json!({"forZones": zones, "forNodes": nodes});
    endpoint
}

fn render(desired: &Desired, problems: &[Problem]) -> Vec<String> {
    // In the order of protocols, addresses and ports.
    let mut frontends: Vec<_> = desired.frontends.iter().collect();
    frontends.sort_by_key(|(it, _)| (it.protocol, it.address, it.port));
    let frontends = frontends.into_iter();
    let mut lines: Vec<String> = frontends.map(|(it, plan)| line(it, plan)).collect();
    for (port, check) in &desired.health_checks {
        let counts = check.local_endpoints.iter();
        let counts = counts.map(|(family, count)| format!(" {family:?}={count}"));
        lines.push(format!(
            "health {port} of {}:{}",
            check.service,
            counts.collect::<String>()
        ));
    }
    lines.extend(problems.iter().map(|it| {
        let line = format!("problem {}: {} {}", it.object, it.field, it.value);
        line.trim_end().to_owned()
    }));
    if lines.is_empty() {
        lines.push("nothing".to_owned());
    }
    lines
}

fn line(frontend: &Frontend, plan: &FrontendPlan) -> String {
    let profile = &plan.profile;
    let Balancing {
        scheduler,
        flags,
        affinity_secs,
    } = &profile.balancing;
    let mut line = frontend.to_string();
    if **scheduler != *"rr" {
        line += &format!(" {scheduler}");
    }
    for (is_set, word) in [(flags.fallback, "fallback"), (flags.port, "port")] {
        if is_set {
            line += &format!(" {word}");
        }
    }
    if let Some(secs) = affinity_secs {
        line += &format!(" affinity={secs}");
    }
    let drains = frontend.protocol == Protocol::Tcp;
    if profile.drain != if drains { DRAIN } else { Duration::ZERO } {
        line += &format!(" drain={}", profile.drain.as_secs());
    }
    if profile.relay.source == SourceAddress::Client {
        line += " source=client";
    }
    if let Some(ranges) = &profile.access.source_ranges {
        line += &format!(" from={ranges}");
    }
    line += &format!(" ->{}", endpoints(&plan.endpoints));
    if profile.access.endpoints == Availability::RemoteOnly {
        line += " local";
    }
    if let Some(inside) = &plan.inside {
        line += &format!("; inside ->{}", endpoints(&inside.endpoints));
    }
    line
}

fn endpoints(endpoints: &[SelectedEndpoint]) -> String {
    if endpoints.is_empty() {
        return " none".to_owned();
    }
    let word = |endpoint: &SelectedEndpoint| {
        let address = std::net::SocketAddr::new(endpoint.address, endpoint.port);
        match endpoint.weight {
            1 => format!(" {address}"),
            weight => format!(" {address}*{weight}"),
        }
    };
    endpoints.iter().map(word).collect()
}
