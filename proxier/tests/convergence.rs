//! The laws of [`diff`] and of applying its Ops, on the in-memory kernel.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::fake::{FakeKernel, Fault};
use proxier::testing::definition::ServerDefinition;
use proxier::testing::diff::{self, DeletionRules};
use proxier::testing::ledger::{Drains, Retired};
use proxier::testing::model::{ObjectName, ServicePortName};
use proxier::testing::observed::Observed;
use proxier::testing::op::Op;
use proxier::testing::plan::{Desired, FrontendKind, Profile, RelayOptions, VirtualServer};

/// Returns keys with few addresses and ports, so that random states overlap.
fn key() -> impl Strategy<Value = ipvs::ServiceKey> {
    let protocol = prop_oneof![Just(ipvs::Protocol::Tcp), Just(ipvs::Protocol::Udp)];
    let address = prop_oneof!["10\\.96\\.0\\.[1-3]", Just("fd00::1".to_owned())];
    (protocol, address, 80..82_u16).prop_map(|(protocol, address, port)| {
        ipvs::ServiceKey::Address {
            protocol,
            address: address.parse().unwrap(),
            port,
        }
    })
}

fn virtual_server(
    key: ipvs::ServiceKey,
    scheduler: &str,
    timeout_secs: u32,
    weights: impl IntoIterator<Item = (u8, u32)>,
) -> VirtualServer {
    let mut service = ipvs::Service::new(key, scheduler.parse().unwrap());
    service.timeout_secs = timeout_secs;
    service.flags = ipvs::ServiceFlags::from_bits(timeout_secs);
    let destination = |(last, weight): (u8, u32)| {
        let address: IpAddr = match key.family() {
            ipvs::Family::V4 => [10, 244, 0, last].into(),
            ipvs::Family::V6 => [0xfd00, 0x244, 0, 0, 0, 0, 0, last.into()].into(),
        };
        ipvs::Destination::new(
            ipvs::DestinationKey {
                address,
                port: 8080,
            },
            weight,
        )
    };
    let owner = ServicePortName {
        service: ObjectName::new("default", "web"),
        port: "".into(),
    };
    VirtualServer {
        profile: Arc::new(Profile {
            definition: Arc::new(ServerDefinition::of(&service)),
            kind: FrontendKind::ClusterIp,
            drain: Duration::ZERO,
            admission: None,
            relay: RelayOptions::default(),
        }),
        destinations: weights.into_iter().map(destination).collect(),
        owner,
    }
}

fn desired() -> impl Strategy<Value = Desired> {
    let scheduler = prop_oneof![Just("rr"), Just("wlc")];
    let server = (scheduler, 0..2_u32, btree_map(1..5_u8, 0..3_u32, 0..4));
    btree_map(key(), server, 0..8).prop_map(|servers| {
        let mut desired = Desired::default();
        for (key, (scheduler, timeout_secs, weights)) in servers {
            let server = virtual_server(key, scheduler, timeout_secs, weights);
            desired.virtual_servers.insert(key, server);
            desired.addresses.insert(address(&key), None);
            desired.needs_carrier = true;
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
    desired.virtual_servers.keys().collect()
}

/// Returns the ordered Ops that lead to `desired`. The virtual servers in `owned` are ours, and no
/// destination drains.
fn diff(desired: &Desired, observed: &Observed, owned: &BTreeSet<ipvs::ServiceKey>) -> Vec<Op> {
    let rules = DeletionRules {
        is_ours: &|key| owned.contains(key),
        drains: &Drains::default(),
        retired: &Retired::default(),
    };
    let mut ops = diff::diff(desired, observed, &rules);
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
    desired.addresses == state.addresses
        && desired.virtual_servers.iter().all(|(key, wanted)| {
            state.virtual_servers.get(&key).is_some_and(|found| {
                wanted.profile.definition == found.definition
                    && wanted.destinations == found.destinations
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
        foreign in btree_set(key(), 0..4),
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
