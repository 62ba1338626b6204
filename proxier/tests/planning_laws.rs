//! Laws that hold for the plan of every cluster after every history.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proxier::testing::frontend::Frontend;
use proxier::testing::manifests::{self, Options};
use proxier::testing::model::{
    Endpoint, EndpointSlice, Node, Service, ServicePortName, TrafficPolicy,
};
use proxier::testing::plan::{
    Capabilities, FrontendKind, FrontendPlan, Machine, PlanConfig, Planner, SelectedEndpoint,
    desired,
};
use proxier::testing::store::{Event, Parsed, Snapshot, Touched, Update};

#[path = "kube_proxy_cases/scene.rs"]
mod scene;

#[path = "planning_laws/commands.rs"]
mod commands;

use commands::{final_commands, past_command};
use scene::{HERE, Scene};

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// [`Scene::plan`] also compares the incremental plan with one from scratch, and the reported
    /// changes with the actual ones.
    #[test]
    fn the_plan_depends_only_on_the_final_objects(
        past in vec((past_command(), any::<bool>()), 0..30),
        (commands, shuffled) in final_commands()
            .prop_flat_map(|commands| (Just(commands.clone()), Just(commands).prop_shuffle())),
        plans in vec(any::<bool>(), 13),
    ) {
        let mut old = Scene::default();
        let shuffled = shuffled.into_iter().zip(plans);
        for (command, is_planned) in past.into_iter().chain(shuffled) {
            old.command(&command);
            if is_planned {
                old.plan();
            }
        }
        let mut new = Scene::default();
        commands.iter().for_each(|command| new.command(command));
        prop_assert_eq!(old.plan(), new.plan());
    }

    #[test]
    fn destinations_are_endpoints_that_policy_and_state_permit(commands in final_commands()) {
        let mut scene = Scene::default();
        commands.iter().for_each(|command| scene.command(command));
        scene.plan();
        let desired = scene.planner.as_ref().unwrap().desired();
        for (frontend, plan) in &desired.frontends {
            let service = scene.snapshot.service(&plan.owner.service).unwrap();
            let policy = match plan.profile.kind {
                FrontendKind::ClusterIp => service.internal_policy,
                _ => service.external_policy,
            };
            assert_endpoints(frontend, plan, &plan.endpoints, policy, &scene.snapshot);
            if let Some(inside) = &plan.inside {
                let all = TrafficPolicy::Cluster;
                assert_endpoints(frontend, plan, &inside.endpoints, all, &scene.snapshot);
            }
        }
    }
}

/// A change of the object at an index, modulo the number of objects.
#[derive(Clone, Debug)]
enum Change {
    DeleteService(usize),
    /// The Service keeps only its first port and takes the addresses of the next Service.
    AlterService(usize),
    RestoreService(usize),
    DeleteSlice(usize),
    /// The last endpoint is removed, the others become unready.
    AlterSlice(usize),
    /// The slice changes to the Service of the next slice.
    MoveSlice(usize),
    RestoreSlice(usize),
    /// A relist has no Services.
    RelistWithoutServices,
    /// A relist has only this many readable Services, from the index on.
    MergeServices(usize, usize),
    /// A relist has only this many readable slices, from the index on.
    MergeSlices(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    use Change::*;
    let index = || 0..1_000_usize;
    prop_oneof![
        2 => index().prop_map(DeleteService),
        2 => index().prop_map(AlterService),
        2 => index().prop_map(RestoreService),
        2 => index().prop_map(DeleteSlice),
        2 => index().prop_map(AlterSlice),
        2 => index().prop_map(MoveSlice),
        2 => index().prop_map(RestoreSlice),
        1 => Just(RelistWithoutServices),
        1 => (index(), 0..40_usize).prop_map(|(at, count)| MergeServices(at, count)),
        1 => (index(), 0..40_usize).prop_map(|(at, count)| MergeSlices(at, count)),
    ]
}

/// The conformance cluster. `tests/plan.rs` compares its plan with kube-proxy's table.
struct Conformance {
    services: Vec<Parsed<Service>>,
    slices: Vec<Parsed<EndpointSlice>>,
    node: Node,
}

static CONFORMANCE: LazyLock<Conformance> = LazyLock::new(Conformance::load);

impl Conformance {
    fn load() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/cluster.yaml");
        let options = Options {
            service_cidr: Vec::new(),
            node_name: "node-a".into(),
            permits_loopback: false,
        };
        let loaded = manifests::load(&path, &options).unwrap();
        assert_eq!(loaded.problems, []);
        let (mut services, mut slices, mut node) = (Vec::new(), Vec::new(), None);
        for event in loaded.events {
            match event {
                Event::Services(Update::Reset(all)) => services = all,
                Event::EndpointSlices(Update::Reset(all)) => slices = all,
                Event::Node(own) => node = Some(own),
                other => panic!("{other:?}"),
            }
        }
        assert!(services.len() >= 43 && slices.len() >= 46);
        let node = node.unwrap();
        Self {
            services,
            slices,
            node,
        }
    }

    fn event(&self, change: &Change) -> Event {
        let service = |at: usize| &self.services[at % self.services.len()];
        let slice = |at: usize| &self.slices[at % self.slices.len()];
        match *change {
            Change::DeleteService(at) => Event::Services(Update::Delete(service(at).name.clone())),
            Change::RestoreService(at) => Event::Services(Update::Apply(service(at).clone())),
            Change::AlterService(at) => {
                let mut altered = service(at).clone();
                if let (Some(object), Some(next)) = (&mut altered.object, &service(at + 1).object) {
                    object.ports = object.ports.iter().take(1).cloned().collect();
                    object.cluster_ips.clone_from(&next.cluster_ips);
                    object.external.clone_from(&next.external);
                }
                Event::Services(Update::Apply(altered))
            }
            Change::DeleteSlice(at) => {
                Event::EndpointSlices(Update::Delete(slice(at).name.clone()))
            }
            Change::RestoreSlice(at) => Event::EndpointSlices(Update::Apply(slice(at).clone())),
            Change::AlterSlice(at) => {
                let mut altered = slice(at).clone();
                if let Some(object) = &mut altered.object {
                    let mut endpoints = object.endpoints.to_vec();
                    endpoints.pop();
                    for endpoint in &mut endpoints {
                        endpoint.is_ready = false;
                    }
                    object.endpoints = endpoints.into();
                }
                Event::EndpointSlices(Update::Apply(altered))
            }
            Change::MoveSlice(at) => {
                let mut moved = slice(at).clone();
                if let (Some(object), Some(next)) = (&mut moved.object, &slice(at + 1).object) {
                    object.service = next.service.clone();
                }
                Event::EndpointSlices(Update::Apply(moved))
            }
            Change::RelistWithoutServices => Event::Services(Update::Reset(Vec::new())),
            Change::MergeServices(at, count) => {
                Event::Services(Update::Merge(part(&self.services, at, count)))
            }
            Change::MergeSlices(at, count) => {
                Event::EndpointSlices(Update::Merge(part(&self.slices, at, count)))
            }
        }
    }
}

/// Returns `count` of `objects`, from index `at` on, modulo their number.
fn part<T: Clone>(objects: &[T], at: usize, count: usize) -> Vec<T> {
    let from = objects.iter().cycle().skip(at % objects.len());
    from.take(count).cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn after_any_history_the_conformance_cluster_has_the_same_plan(
        changes in vec((change(), any::<bool>()), 0..60),
        is_relisted in any::<bool>(),
    ) {
        let cluster = &*CONFORMANCE;
        let machine = Machine {
            addresses: cluster.node.addresses.iter().copied().collect(),
            ..Machine::default()
        };
        let mut snapshot = Snapshot::default();
        let mut planner = Planner::new(PlanConfig {
            node_name: "node-a".into(),
            ..scene::config()
        });
        let mut touched = Touched::none();
        for (change, is_planned) in &changes {
            snapshot.apply(cluster.event(change), &mut touched);
            if *is_planned {
                planner.update(&snapshot, &machine, &Capabilities::default(), std::mem::replace(&mut touched, Touched::none()));
            }
        }
        snapshot.apply(Event::Node(cluster.node.clone()), &mut touched);
        if is_relisted {
            let all = Update::Reset(cluster.slices.clone());
            snapshot.apply(Event::EndpointSlices(all), &mut touched);
            let all = Update::Reset(cluster.services.clone());
            snapshot.apply(Event::Services(all), &mut touched);
        } else {
            for at in 0..cluster.services.len().max(cluster.slices.len()) {
                snapshot.apply(cluster.event(&Change::RestoreSlice(at)), &mut touched);
                snapshot.apply(cluster.event(&Change::RestoreService(at)), &mut touched);
            }
        }
        planner.update(&snapshot, &machine, &Capabilities::default(), touched);

        let mut fresh = Snapshot::default();
        for event in [
            Event::Node(cluster.node.clone()),
            Event::Services(Update::Reset(cluster.services.clone())),
            Event::EndpointSlices(Update::Reset(cluster.slices.clone())),
        ] {
            fresh.apply(event, &mut Touched::none());
        }
        if is_relisted {
            prop_assert_eq!(content(&snapshot), content(&fresh));
        }
        let from_scratch = desired(&fresh, &machine, &Capabilities::default(), planner.config());
        prop_assert_eq!((planner.desired().clone(), planner.problems(&snapshot)), from_scratch);
    }
}

/// Returns all Services of a snapshot, each with its slices.
fn content(snapshot: &Snapshot) -> Vec<(Service, Vec<EndpointSlice>)> {
    let slices = |service: &Service| snapshot.slices(&service.name).cloned().collect();
    let services = snapshot.services();
    services
        .map(|service| (service.clone(), slices(service)))
        .collect()
}

/// Asserts that the destinations are the endpoints that the traffic policy, the endpoints' states and
/// the annotations of the Service permit.
fn assert_endpoints(
    frontend: &Frontend,
    plan: &FrontendPlan,
    endpoints: &[SelectedEndpoint],
    policy: TrafficPolicy,
    snapshot: &Snapshot,
) {
    let service = snapshot.service(&plan.owner.service).unwrap();
    let (has_topology_keys, has_weights) = match &service.annotations {
        Some(annotations) => (
            annotations.topology_keys.is_some(),
            annotations.weights.is_some(),
        ),
        None => (false, false),
    };
    let listening = listening(frontend, &plan.owner, snapshot);
    let destinations: BTreeSet<SocketAddr> = endpoints
        .iter()
        .map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port))
        .collect();
    assert_eq!(destinations.len(), endpoints.len(), "{plan:?}");
    assert!(endpoints.is_sorted(), "{plan:?}");
    assert!(has_weights || endpoints.iter().all(|endpoint| endpoint.weight == 1));

    let is_permitted = |endpoint: &Endpoint| match policy {
        TrafficPolicy::Cluster => true,
        TrafficPolicy::Local => endpoint.location.node.as_deref() == Some(HERE),
    };
    let is_ready = |endpoint: &Endpoint| endpoint.is_ready;
    let is_last_resort = |endpoint: &Endpoint| endpoint.is_serving && endpoint.is_terminating;
    let of = |test: &dyn Fn(&Endpoint) -> bool| -> BTreeSet<SocketAddr> {
        let selected = listening
            .iter()
            .filter(|(_, endpoint)| is_permitted(endpoint) && test(endpoint));
        selected.map(|(address, _)| *address).collect()
    };
    let (ready, last_resort) = (of(&is_ready), of(&is_last_resort));
    let candidates = if ready.is_empty() {
        &last_resort
    } else {
        &ready
    };
    match has_topology_keys {
        // If no ready endpoint matches a key, terminating ones that match serve.
        true => assert!(destinations.is_subset(&(&ready | &last_resort)), "{plan:?}"),
        false => {
            assert!(destinations.is_subset(candidates), "{plan:?}");
            assert_eq!(destinations.is_empty(), candidates.is_empty(), "{plan:?}");
        }
    }
    if policy == TrafficPolicy::Local && !has_topology_keys {
        assert_eq!(
            &destinations, candidates,
            "hints do not apply to a local policy"
        );
    }
}

/// Returns the endpoints of the port of `owner`, in any state, with their addresses.
fn listening(
    frontend: &Frontend,
    owner: &ServicePortName,
    snapshot: &Snapshot,
) -> Vec<(SocketAddr, Endpoint)> {
    let service = snapshot.service(&owner.service).unwrap();
    let port = service
        .ports
        .iter()
        .find(|port| port.name == owner.port)
        .unwrap();
    let is_v6 = frontend.address.is_ipv6();
    let mut found = Vec::new();
    for slice in snapshot.slices(&owner.service) {
        let endpoints = || slice.endpoints.iter().cloned();
        for listed in &*slice.ports {
            if listed.name == port.name && listed.protocol == port.protocol {
                let of_family = endpoints().filter(|e| e.address.is_ipv6() == is_v6);
                found.extend(of_family.map(|e| (SocketAddr::new(e.address, listed.port), e)));
            }
        }
    }
    found
}
