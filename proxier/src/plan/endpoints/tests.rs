use std::net::IpAddr;
use std::sync::Arc;

use super::*;
use crate::cluster::model::{
    Annotations, Location, Node, NodeLocation, ObjectName, Protocol, SlicePort, TrafficPolicy,
    Weights,
};
use crate::cluster::store::{Event, Parsed, Snapshot, Touched, Update};
use crate::plan::{PlanConfig, Standings};

/// A Service with one unnamed TCP port, seen from node `here` in zone `a` of region `r`.
struct Scene {
    snapshot: Snapshot,
    service: Service,
}

impl Scene {
    /// One slice with these endpoints on port 80.
    fn new(endpoints: &[&str]) -> Self {
        Self::slices(&[(80, endpoints)])
    }

    fn slices(slices: &[(u16, &[&str])]) -> Self {
        Self::without_node(slices).on_node(Some("a"), Some("r"))
    }

    /// A scene before the Node object arrived.
    fn without_node(slices: &[(u16, &[&str])]) -> Self {
        let mut scene = Self {
            snapshot: Snapshot::default(),
            service: service(),
        };
        for (index, (port, endpoints)) in slices.iter().enumerate() {
            let name = ObjectName::new("default", format!("web-{index}"));
            let slice = EndpointSlice {
                name: name.clone(),
                service: ObjectName::new("default", "web"),
                ports: [SlicePort {
                    name: "".into(),
                    protocol: Protocol::Tcp,
                    port: *port,
                }]
                .into(),
                endpoints: endpoints.iter().map(|words| endpoint(words)).collect(),
            };
            scene.apply(Event::EndpointSlices(Update::Apply(parsed(name, slice))));
        }
        scene
    }

    fn apply(&mut self, event: Event) {
        self.snapshot.apply(event, &mut Touched::none());
    }

    fn on_node(mut self, zone: Option<&str>, region: Option<&str>) -> Self {
        self.apply(Event::Node(Node {
            name: "here".into(),
            addresses: vec![],
            zone: zone.map(Arc::from),
            region: region.map(Arc::from),
            pod_cidrs: vec![],
            is_leaving: false,
        }));
        self
    }

    /// Adds other nodes with their regions.
    fn regions(mut self, nodes: &[(&str, &str)]) -> Self {
        for &(node, region) in nodes {
            let location = NodeLocation {
                addresses: Vec::new(),
                name: node.into(),
                region: Some(region.into()),
            };
            let name = ObjectName::new("", node);
            self.apply(Event::Nodes(Update::Apply(parsed(name, location))));
        }
        self
    }

    fn annotations(&mut self) -> &mut Annotations {
        self.service.annotations.get_or_insert_default()
    }

    fn keys(mut self, keys: &[TopologyKey]) -> Self {
        self.annotations().topology_keys = Some(keys.into());
        self
    }

    fn weights(mut self, weights: Weights) -> Self {
        self.annotations().weights = Some(weights);
        self
    }

    /// Returns the weights of the endpoints 10.0.0.1, .2 and so on, if these are new and those silent.
    fn weights_with(&self, new: &[u8], silent: &[u8]) -> Vec<u16> {
        let addresses = |last: &[u8]| last.iter().map(|it| [10, 0, 0, *it].into()).collect();
        let mut standings = Standings::default();
        standings.set_new(&self.service.name, addresses(new));
        standings.set_silent(&self.service.name, addresses(silent));
        let config = PlanConfig {
            slow_start: Some(std::time::Duration::from_secs(60)),
            scheduler: "wlc".into(),
            ..PlanConfig::default()
        };
        let topology = Topology::new("here", &self.snapshot);
        let slices: Vec<&EndpointSlice> = self.snapshot.slices(&self.service.name).collect();
        let weighing = Weighing::of(&self.service, &config, &standings);
        let port = &self.service.ports[0];
        let sets = EndpointSets::of(
            &slices,
            &self.service,
            port,
            Family::V4,
            (&topology, weighing),
            0,
        );
        sets.cluster
            .iter()
            .map(|endpoint| endpoint.weight)
            .collect()
    }

    fn sets(&self, topology: &Topology<'_>) -> EndpointSets {
        let port = &self.service.ports[0];
        let slices: Vec<&EndpointSlice> = self.snapshot.slices(&self.service.name).collect();
        let (config, standings) = Default::default();
        let weighing = Weighing::of(&self.service, &config, &standings);
        EndpointSets::of(
            &slices,
            &self.service,
            port,
            Family::V4,
            (topology, weighing),
            0,
        )
    }

    /// Compares the sets with text: the last byte of each address, `:port` unless it is 80, and
    /// `*weight` unless it is 1.
    #[track_caller]
    fn expect(&self, cluster: &str, local: &str) -> &Self {
        let sets = self.sets(&Topology::new("here", &self.snapshot));
        assert_eq!(
            (words(&sets.cluster), words(&sets.local)),
            (cluster.to_owned(), local.to_owned())
        );
        self
    }
}

fn parsed<T>(name: ObjectName, object: T) -> Parsed<T> {
    Parsed {
        name,
        object: Some(object),
        problems: vec![],
        changed: None,
    }
}

fn service() -> Service {
    Service {
        name: ObjectName::new("default", "web"),
        created: None,
        cluster_ips: [[10, 96, 0, 1].into()].into(),
        ports: [ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }]
        .into(),
        affinity_secs: None,
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        external: None,
        health_check_node_port: None,
        annotations: None,
    }
}

/// Parses an endpoint: its last address byte, then any of `unready`, `terminating` (and still
/// serving), `gone` (terminating and not serving), `@node`, `in=zone`, and hints `to-zone=..`,
/// `to-node=..`.
fn endpoint(words: &str) -> Endpoint {
    let mut words = words.split_whitespace();
    let last: u8 = words.next().unwrap().parse().unwrap();
    let mut endpoint = Endpoint {
        address: [10, 0, 0, last].into(),
        is_ready: true,
        is_serving: true,
        is_terminating: false,
        location: Arc::default(),
    };
    let mut location = Location::default();
    for word in words {
        if let Some(node) = word.strip_prefix('@') {
            location.node = Some(node.into());
            continue;
        }
        match word.split_once('=') {
            Some(("in", zone)) => location.zone = Some(zone.into()),
            Some(("to-zone", zone)) => location.hints.zones.push(zone.into()),
            Some(("to-node", node)) => location.hints.nodes.push(node.into()),
            _ => {
                endpoint.is_ready = false;
                endpoint.is_serving = word == "terminating";
                endpoint.is_terminating = word != "unready";
                assert!(["unready", "terminating", "gone"].contains(&word), "{word}");
            }
        }
    }
    endpoint.location = location.into();
    endpoint
}

fn words(selected: &[SelectedEndpoint]) -> String {
    let word = |endpoint: &SelectedEndpoint| {
        let IpAddr::V4(address) = endpoint.address else {
            panic!("{endpoint:?}")
        };
        let mut word = address.octets()[3].to_string();
        if endpoint.port != 80 {
            word += &format!(":{}", endpoint.port);
        }
        if endpoint.weight != 1 {
            word += &format!("*{}", endpoint.weight);
        }
        word
    };
    selected.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn ready_endpoints_serve_and_local_ones_serve_local_traffic() {
    Scene::new(&[]).expect("", "");
    Scene::new(&["1 @here", "2 @there", "3 unready"]).expect("1 2", "1");
    Scene::new(&["1", "2 @there"]).expect("1 2", "");
}

#[test]
fn a_node_without_a_name_has_no_local_endpoints() {
    let scene = Scene::new(&["1", "2 @here to-node=here"]);
    let sets = scene.sets(&Topology::new("", &scene.snapshot));
    assert_eq!(
        (words(&sets.cluster), words(&sets.local)),
        ("1 2".into(), String::new())
    );
}

#[test]
fn terminating_endpoints_serve_only_if_none_is_ready() {
    Scene::new(&["1 @here terminating", "2 @there"]).expect("2", "1");
    Scene::new(&[
        "1 @here terminating",
        "2 @there terminating",
        "3 @here gone",
    ])
    .expect("1 2", "1");
    Scene::new(&["1 @here gone", "2 unready"]).expect("", "");
}

#[test]
fn endpoints_of_all_slices_serve_on_the_port_of_their_slice() {
    Scene::slices(&[(80, &["2", "1"]), (8080, &["3", "1 @here"])])
        .expect("1 1:8080 2 3:8080", "1:8080");
}

#[test]
fn an_endpoint_in_several_slices_has_the_best_of_its_states() {
    for slices in [
        ["1 terminating", "1", "1 gone"],
        ["1 gone", "1 terminating", "1"],
    ] {
        let slices: Vec<_> = slices.iter().map(std::slice::from_ref).collect();
        let slices: Vec<_> = slices.iter().map(|&slice| (80, slice)).collect();
        Scene::slices(&slices).expect("1", "");
    }
    Scene::slices(&[(80, &["1 unready"]), (80, &["1 terminating"])]).expect("1", "");
    Scene::slices(&[(80, &["1 terminating"]), (80, &["1 unready"])]).expect("1", "");
}

#[test]
fn zone_hints_count_only_if_all_endpoints_have_them_and_one_names_this_zone() {
    Scene::new(&["1 to-zone=a", "2 to-zone=b"]).expect("1", "");
    Scene::new(&["1 to-zone=a", "2"]).expect("1 2", "");
    Scene::new(&["1 to-zone=b", "2 to-zone=b"]).expect("1 2", "");
    Scene::new(&["1 to-zone=a", "2 to-zone=b", "3 unready"]).expect("1", "");
    Scene::new(&["1 to-zone=a", "2 to-zone=b"])
        .on_node(None, None)
        .expect("1 2", "");
    Scene::new(&["1 to-zone=a terminating", "2 to-zone=b terminating"]).expect("1 2", "");
}

#[test]
fn node_hints_win_over_zone_hints() {
    let both = ["1 to-node=here to-zone=a", "2 to-node=there to-zone=a"];
    Scene::new(&both).expect("1", "");
    Scene::new(&["1 to-node=there to-zone=a", "2 to-node=there to-zone=b"]).expect("1", "");
    Scene::new(&["1 to-node=here to-zone=a", "2 to-zone=a"]).expect("1 2", "");
}

#[test]
fn hints_do_not_restrict_policy_local() {
    Scene::new(&["1 @here to-zone=b", "2 @there to-zone=a"]).expect("2", "1");
}

#[test]
fn the_first_topology_key_with_a_match_wins() {
    use TopologyKey::{Any, Hostname, Region, Zone};

    let everywhere = [
        "1 @here in=a",
        "2 @mate in=a",
        "3 @near in=b",
        "4 @far in=c",
        "5",
    ];
    let regions = [("mate", "r"), ("near", "r"), ("far", "s")];
    let scene = |endpoints: &[&str], keys: &[TopologyKey]| {
        Scene::new(endpoints).regions(&regions).keys(keys)
    };
    scene(&everywhere, &[Hostname, Any]).expect("1", "1");
    scene(&everywhere, &[Zone, Any]).expect("1 2", "1");
    scene(&everywhere, &[Region]).expect("1 2 3", "1");
    scene(&everywhere, &[Any]).expect("1 2 3 4 5", "1");
    scene(&everywhere[1..], &[Hostname, Zone]).expect("2", "");
    scene(&everywhere[2..], &[Hostname, Zone, Region]).expect("3", "");
    scene(&everywhere[3..], &[Hostname, Region, Any]).expect("4 5", "");
    scene(&everywhere[3..], &[Hostname, Zone, Region]).expect("", "");
    // The annotation gives the order, not the distance.
    scene(&everywhere, &[Zone, Hostname]).expect("1 2", "1");
}

#[test]
fn a_distant_ready_endpoint_wins_over_a_near_terminating_one() {
    use TopologyKey::{Any, Hostname, Zone};

    let endpoints = ["1 @here terminating", "2 in=a unready", "3 in=b"];
    Scene::new(&endpoints)
        .keys(&[Hostname, Zone, Any])
        .expect("3", "1");
    Scene::new(&endpoints)
        .keys(&[Hostname, Zone])
        .expect("1", "1");
    let leaving = ["1 in=a terminating", "2 in=b terminating"];
    Scene::new(&leaving).keys(&[Zone, Any]).expect("1", "");
    Scene::new(&leaving).keys(&[Hostname]).expect("", "");
}

#[test]
fn topology_keys_replace_hints() {
    let hinted = ["1 to-zone=a in=b", "2 to-zone=b in=a"];
    Scene::new(&hinted).expect("1", "");
    Scene::new(&hinted)
        .keys(&[TopologyKey::Zone])
        .expect("2", "");
}

#[test]
fn an_endpoint_without_zone_or_region_matches_only_if_it_is_local() {
    use TopologyKey::{Region, Zone};

    let endpoints = ["1 @here", "2 @there", "3"];
    let elsewhere = [("elsewhere", "s")];
    for key in [Zone, Region] {
        let scene = |endpoints| Scene::new(endpoints).regions(&elsewhere).keys(&[key]);
        scene(&endpoints).expect("1", "1");
        scene(&endpoints).on_node(None, None).expect("1", "1");
        scene(&endpoints[1..]).expect("", "");
        scene(&endpoints[1..]).on_node(None, None).expect("", "");
    }
}

#[test]
fn every_endpoint_matches_before_the_node_objects_arrive() {
    use TopologyKey::{Hostname, Region, Zone};

    let endpoints = ["1 @there in=a", "2 @there in=b"];
    Scene::new(&endpoints).keys(&[Region]).expect("1 2", "");
    let without_node = |keys: &[TopologyKey]| Scene::without_node(&[(80, &endpoints)]).keys(keys);
    without_node(&[Zone]).expect("1 2", "");
    without_node(&[Region])
        .regions(&[("there", "r")])
        .expect("1 2", "");
    without_node(&[Hostname]).expect("", "");
}

#[test]
fn the_most_exact_weight_rule_wins() {
    let weights = || Weights {
        addresses: [("10.0.0.1/32", 10), ("10.0.0.0/30", 20)]
            .map(|(network, weight)| (network.parse().unwrap(), weight))
            .into(),
        nodes: [("here", 30), ("there", 0)]
            .map(|(name, weight)| (name.into(), weight))
            .into(),
        zones: [("a", 40), ("b", 50)]
            .map(|(name, weight)| (name.into(), weight))
            .into(),
        near: [(TopologyKey::Hostname, 55), (TopologyKey::Zone, 56)].into(),
        default: 60,
    };
    let endpoints = [
        "1 @here in=a",
        "2 @here in=a",
        "5 @here in=b",
        "6 @there in=a",
        "7 @other in=b",
        "8 in=c",
        "9",
    ];
    let all = "1*10 2*20 5*30 6*0 7*50 8*60 9*60";
    Scene::new(&endpoints)
        .weights(weights())
        .expect(all, "1*10 2*20 5*30");
    // This node is more exact than its zone, which a local endpoint is in if the slice names none.
    let mut of_zones = weights();
    of_zones.nodes = [].into();
    Scene::new(&["5 @here", "6 @there"])
        .weights(of_zones)
        .expect("5*55 6*60", "5*55");
    let mut of_zones = weights();
    (of_zones.nodes, of_zones.near) = ([].into(), [].into());
    Scene::new(&["5 @here", "6 @there"])
        .weights(of_zones)
        .expect("5*40 6*60", "5*40");
}

#[test]
fn a_ready_endpoint_of_weight_0_wins_over_a_terminating_one() {
    let drained = Weights {
        addresses: [].into(),
        nodes: [].into(),
        zones: [].into(),
        near: [].into(),
        default: 0,
    };
    Scene::new(&["1", "2 terminating"])
        .weights(drained)
        .expect("1*0", "");
}

#[test]
fn a_new_endpoint_has_an_eighth_and_a_silent_one_nothing_unless_no_other_is_left() {
    let three = Scene::new(&["1", "2", "3"]);
    assert_eq!(three.weights_with(&[], &[]), [8, 8, 8]);
    assert_eq!(three.weights_with(&[2], &[]), [8, 1, 8]);
    assert_eq!(three.weights_with(&[2], &[1]), [0, 1, 8]);
    assert_eq!(three.weights_with(&[], &[1, 3]), [0, 8, 0]);
    assert_eq!(three.weights_with(&[], &[1, 2, 3]), [8, 8, 8]);
    let large = |default| Weights {
        addresses: [("10.0.0.1/32".parse().unwrap(), 0)].into(),
        nodes: [].into(),
        zones: [].into(),
        near: [].into(),
        default,
    };
    // Without room for the factor, a weight is divided.
    let scene = Scene::new(&["1", "2", "3"]).weights(large(9_000));
    assert_eq!(scene.weights_with(&[1, 2], &[]), [0, 1_125, 9_000]);
    let scene = Scene::new(&["1", "2", "3"]).weights(large(8_191));
    assert_eq!(scene.weights_with(&[1, 2], &[]), [0, 8_191, 65_528]);
    // The last with a weight.
    assert_eq!(scene.weights_with(&[], &[2, 3]), [0, 65_528, 65_528]);
}
