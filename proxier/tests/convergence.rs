//! Laws of diff and apply, on the in-memory kernel.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::fake::{FakeKernel, Fault};
use proxier::testing::diff::{self, DeletionRules};
use proxier::testing::ledger::Drains;
use proxier::testing::model::{ObjectName, ServicePortName};
use proxier::testing::observed::Observed;
use proxier::testing::op::Op;
use proxier::testing::plan::{Desired, FrontendKind, VirtualServer};

/// A small world, so that random states overlap.
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
        service,
        destinations: weights.into_iter().map(destination).collect(),
        owner,
        kind: FrontendKind::ClusterIp,
        drain: Duration::ZERO,
        admission: None,
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
    desired.virtual_servers.keys().copied().collect()
}

/// The ordered changes that lead to `desired`, where `owned` is ours and nothing drains.
fn diff(desired: &Desired, observed: &Observed, owned: &BTreeSet<ipvs::ServiceKey>) -> Vec<Op> {
    let rules = DeletionRules {
        is_ours: &|key| owned.contains(key),
        drains: &Drains::default(),
    };
    let mut ops = diff::diff(desired, observed, &rules);
    diff::sort(&mut ops, &BTreeSet::new());
    ops
}

/// A kernel that has been made what `desired` says.
fn programmed(desired: &Desired) -> FakeKernel {
    let mut kernel = FakeKernel::default();
    let ops = diff(desired, &Observed::default(), &BTreeSet::new());
    assert!(kernel.apply(&ops).iter().all(Result::is_ok));
    kernel
}

/// Whether the kernel's state is `desired` as far as our objects go.
fn matches(desired: &Desired, state: &Observed) -> bool {
    desired.addresses == state.addresses
        && desired.virtual_servers.iter().all(|(key, wanted)| {
            state.virtual_servers.get(key).is_some_and(|found| {
                wanted.service == found.service && *wanted.destinations == *found.destinations
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
    fn nothing_changes_when_nothing_differs(desired in desired()) {
        let kernel = programmed(&desired);
        prop_assert_eq!(diff(&desired, &kernel.state, &keys(&desired)), vec![]);
    }

    #[test]
    fn any_state_becomes_the_desired_one(
        before in desired(),
        foreign in btree_set(key(), 0..4),
        after in desired(),
    ) {
        let mut kernel = programmed(&before);
        let owned = &keys(&before) - &foreign;
        let ops = diff(&after, &kernel.state, &owned);
        prop_assert!(kernel.apply(&ops).iter().all(Result::is_ok));
        prop_assert!(matches(&after, &kernel.state));
        // Nothing foreign went, nothing of ours that is unwanted stayed.
        let left: BTreeSet<_> = kernel.state.virtual_servers.keys().copied().collect();
        prop_assert_eq!(left, &keys(&after) | &(&keys(&before) & &foreign));
    }

    #[test]
    fn kept_frontends_stay_reachable_after_every_prefix(before in desired(), after in desired()) {
        let answers = |state: &Observed, key: &ipvs::ServiceKey| {
            let server = state.virtual_servers.get(key);
            let mut destinations = server.into_iter().flat_map(|server| server.destinations.iter());
            destinations.any(|destination| destination.weight > 0)
                && state.addresses.contains_key(&address(key))
        };
        let mut kernel = programmed(&before);
        let end = programmed(&after).state;
        let kept: Vec<_> = (&keys(&before) & &keys(&after))
            .into_iter()
            .filter(|key| answers(&kernel.state, key) && answers(&end, key))
            .collect();
        for op in diff(&after, &kernel.state, &keys(&before)) {
            kernel.apply(&[op]);
            for key in &kept {
                prop_assert!(answers(&kernel.state, key), "{key} after {op}");
            }
            // Nor does a local address reach the node's own daemons for want of a virtual server.
            for local in kernel.state.addresses.keys() {
                let served = kernel.state.virtual_servers.keys().any(|key| address(key) == *local);
                prop_assert!(served, "{local} after {op}");
            }
        }
    }

    #[test]
    fn failures_of_any_ops_are_made_good_by_the_next_rounds(
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
