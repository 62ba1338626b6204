//! The laws of [`diff`] and of applying its Ops, on the in-memory kernel.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipvs_netlink as ipvs;
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use proxier::testing::dataplane::fake::{FakeKernel, Fault};
use proxier::testing::dataplane::ipvs::{InsideMarks, Kernel as _, Wanted};
use proxier::testing::diff::{self, DeletionRules};
use proxier::testing::frontend::Frontend;
use proxier::testing::ledger::{Drains, Retired};
use proxier::testing::model::{Family, Protocol};
use proxier::testing::observed::Observed;
use proxier::testing::op::Op;
use proxier::testing::plan::{Desired, FrontendPlan, SelectedEndpoint, example};

/// Returns frontends with few addresses and ports, so that random states overlap.
fn frontend() -> impl Strategy<Value = Frontend> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let address = prop_oneof!["10\\.96\\.0\\.[1-3]", Just("fd00::1".to_owned())];
    (protocol, address, 80..82_u16).prop_map(|(protocol, address, port)| Frontend {
        protocol,
        address: address.parse().unwrap(),
        port,
    })
}

fn plan(
    frontend: Frontend,
    scheduler: &str,
    affinity_secs: u32,
    weights: impl IntoIterator<Item = (u8, u16)>,
) -> FrontendPlan {
    let endpoint = |(last, weight): (u8, u16)| SelectedEndpoint {
        address: match frontend.family() {
            Family::V4 => [10, 244, 0, last].into(),
            Family::V6 => [0xfd00, 0x244, 0, 0, 0, 0, 0, last.into()].into(),
        },
        port: 8080,
        weight,
        most_connections: 0,
    };
    let mut plan = example::cluster_ip(&[]);
    let mut profile = (*plan.profile).clone();
    profile.balancing.scheduler = scheduler.into();
    profile.balancing.affinity_secs = (affinity_secs > 0).then_some(affinity_secs);
    plan.profile = Arc::new(profile);
    plan.endpoints = weights.into_iter().map(endpoint).collect();
    plan
}

fn desired() -> impl Strategy<Value = Desired> {
    let scheduler = prop_oneof![Just("rr"), Just("wlc")];
    let plan_parts = (scheduler, 0..2_u32, btree_map(1..5_u8, 0..3_u16, 0..4));
    btree_map(frontend(), plan_parts, 0..8).prop_map(|plans| {
        let mut desired = Desired::default();
        for (frontend, (scheduler, affinity_secs, weights)) in plans {
            let plan = plan(frontend, scheduler, affinity_secs, weights);
            desired.frontends.insert(frontend, plan);
            desired.addresses.insert(frontend.address, None);
        }
        desired
    })
}

fn address(key: &ipvs::ServiceKey) -> IpAddr {
    match *key {
        ipvs::ServiceKey::Address { address, .. } => address,
        _ => panic!("only addresses here"),
    }
}

fn keys(desired: &Desired) -> BTreeSet<ipvs::ServiceKey> {
    let frontends = desired.frontends.keys();
    frontends.map(|frontend| (*frontend).into()).collect()
}

/// Returns the ordered Ops that lead to `desired`. The virtual servers in `owned` are ours, and no
/// destination drains.
fn diff(desired: &Desired, observed: &Observed, owned: &BTreeSet<ipvs::ServiceKey>) -> Vec<Op> {
    let rules = DeletionRules {
        is_ours: &|key| owned.contains(key),
        drains: &Drains::default(),
        retired: &Retired::default(),
    };
    let needs_carrier = !desired.addresses.is_empty();
    let marks = InsideMarks::default();
    let wanted = Wanted::new(desired, &marks);
    let mut ops = diff::diff(wanted, needs_carrier, observed, &rules);
    diff::sort(&mut ops, &BTreeSet::new());
    ops.iter().collect()
}

/// Returns a kernel that has exactly what `desired` asks for.
fn programmed(desired: &Desired) -> FakeKernel {
    let mut kernel = FakeKernel::default();
    let ops = diff(desired, &Observed::default(), &BTreeSet::new());
    assert!(kernel.apply(&ops).iter().all(Result::is_ok));
    kernel
}

/// Returns whether the kernel has what `desired` asks for. Ignores foreign virtual servers.
fn matches(desired: &Desired, state: &Observed) -> bool {
    let marks = InsideMarks::default();
    let addresses = desired
        .addresses
        .iter()
        .map(|(address, source)| (*address, source));
    addresses.eq(state.addresses.iter())
        && Wanted::new(desired, &marks).iter().all(|(key, wanted)| {
            state.virtual_servers.get(&key).is_some_and(|found| {
                wanted.definition() == found.definition && found.destinations.are(wanted.endpoints)
            })
        })
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Refused),
        Just(Fault::AnswerLost),
        Just(Fault::RequestLost)
    ]
}

proptest! {
    #[test]
    fn equal_states_have_no_diff(desired in desired()) {
        let kernel = programmed(&desired);
        prop_assert_eq!(diff(&desired, &kernel.state, &keys(&desired)), vec![]);
    }

    #[test]
    fn the_diff_leads_from_any_state_to_the_desired_one(
        before in desired(),
        foreign in btree_set(frontend().prop_map(ipvs::ServiceKey::from), 0..4),
        after in desired(),
    ) {
        let mut kernel = programmed(&before);
        let owned = &keys(&before) - &foreign;
        let ops = diff(&after, &kernel.state, &owned);
        prop_assert!(kernel.apply(&ops).iter().all(Result::is_ok));
        prop_assert!(matches(&after, &kernel.state));
        // Foreign virtual servers stay; owned ones that are stale are deleted.
        let left: BTreeSet<_> = kernel.state.virtual_servers.keys().collect();
        prop_assert_eq!(left, &keys(&after) | &(&keys(&before) & &foreign));
    }

    #[test]
    fn kept_frontends_are_served_after_every_op(before in desired(), after in desired()) {
        let is_served = |state: &Observed, key: &ipvs::ServiceKey| {
            let server = state.virtual_servers.get(key);
            let mut destinations = server.into_iter().flat_map(|server| server.destinations.iter());
            destinations.any(|destination| destination.weight > 0)
                && state.addresses.contains_key(&address(key))
        };
        let mut kernel = programmed(&before);
        let end = programmed(&after).state;
        let kept: Vec<_> = (&keys(&before) & &keys(&after))
            .into_iter()
            .filter(|key| is_served(&kernel.state, key) && is_served(&end, key))
            .collect();
        for op in diff(&after, &kernel.state, &keys(&before)) {
            kernel.apply(&[op]);
            for key in &kept {
                prop_assert!(is_served(&kernel.state, key), "{key} after {op}");
            }
            // Without a virtual server, connections to a local address would reach the node's daemons.
            for local in kernel.state.addresses.keys() {
                let has_virtual_server = kernel.state.virtual_servers.keys().any(|key| address(&key) == local);
                prop_assert!(has_virtual_server, "{local} after {op}");
            }
        }
    }

    #[test]
    fn the_next_rounds_repeat_ops_that_failed(
        before in desired(),
        after in desired(),
        faults in btree_map(0..60_usize, fault(), 0..20),
    ) {
        let mut kernel = programmed(&before);
        kernel.writes = 0;
        kernel.faults = faults;
        for _ in 0..22 {
            let ops = diff(&after, &kernel.state, &keys(&before));
            kernel.apply(&ops);
        }
        prop_assert_eq!(diff(&after, &kernel.state, &keys(&before)), vec![]);
        prop_assert!(matches(&after, &kernel.state));
    }
}
