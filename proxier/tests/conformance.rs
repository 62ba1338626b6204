//! One suite of Ops, applied to the in-memory kernel and to a real one.
//!
//! Other tests trust the in-memory kernel, so both must return the same errors and the same state.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;

use ipvs_netlink as ipvs;
use proxier::testing::dataplane::Outcome;
use proxier::testing::dataplane::fake::FakeKernel;
use proxier::testing::dataplane::ipvs::{Kernel, Wanted};
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::observed::{Carrier, LocalAddresses, Observed};
use proxier::testing::op::Op;
use proxier::testing::plan::ServiceAddresses;
use rustix::io::Errno;

#[test]
fn the_in_memory_kernel_conforms() {
    suite(&mut FakeKernel::default());
}

#[test]
fn a_real_kernel_with_routes_conforms() {
    lab::test(|| suite(&mut Linux::open(ServiceAddresses::Routes).unwrap()));
}

#[test]
fn a_real_kernel_with_a_dummy_device_conforms() {
    lab::test(|| suite(&mut Linux::open(ServiceAddresses::Dummy).unwrap()));
}

#[test]
fn a_real_kernel_with_routes_on_the_loopback_device_conforms() {
    lab::test(|| cases(&mut Linux::open(ServiceAddresses::Loopback).unwrap()));
}

fn suite(kernel: &mut dyn Kernel) {
    the_carrier_exists_once_and_holds_the_addresses(kernel);
    cases(kernel);
}

fn cases(kernel: &mut dyn Kernel) {
    for case in [
        services_exist_once_until_they_are_deleted,
        destinations_exist_once_until_they_are_deleted,
        weights_and_families_are_checked,
        addresses_exist_once_until_they_are_deleted,
        a_failing_op_does_not_stop_the_others,
        observed_destinations_are_sorted,
        an_unknown_scheduler_is_rejected,
    ] {
        case(kernel);
        clear(kernel);
    }
}

/// Leaves the carrier, which the next cases need.
fn the_carrier_exists_once_and_holds_the_addresses(kernel: &mut dyn Kernel) {
    let v4: IpAddr = "10.96.0.1".parse().unwrap();
    let v6: IpAddr = "fd00::1".parse().unwrap();
    let carrier = Some(Carrier {
        is_ours: true,
        is_ready: true,
    });
    let missing = Some(Errno::NODEV);
    check(
        kernel,
        &[
            (Op::DeleteCarrier, missing),
            (Op::SetCarrier, missing),
            (Op::AddAddress(v4, None), missing),
            (Op::SetAddress(v4, None), missing),
            (Op::AddCarrier, None),
            (Op::AddCarrier, Some(Errno::EXIST)),
            (Op::SetCarrier, None),
            (Op::AddAddress(v4, None), None),
            (Op::AddAddress(v6, None), None),
        ],
    );
    assert_eq!(kernel.addresses().unwrap().carrier, carrier);
    check(kernel, &[(Op::DeleteCarrier, None)]);
    assert_eq!(kernel.addresses().unwrap(), LocalAddresses::default());
    check(kernel, &[(Op::AddCarrier, None)]);
}

fn observe(kernel: &mut dyn Kernel) -> Observed {
    let (desired, marks) = Default::default();
    let nothing = Wanted::new(&desired, &marks);
    kernel.observe(nothing, &mut std::iter::empty()).unwrap()
}

/// Deletes everything but the carrier, for the next case.
fn clear(kernel: &mut dyn Kernel) {
    let observed = observe(kernel);
    let mut ops: Vec<Op> = observed.addresses.keys().map(Op::DeleteAddress).collect();
    ops.extend(observed.virtual_servers.keys().map(Op::DeleteService));
    assert_eq!(errnos(&kernel.apply(&ops)), vec![None; ops.len()]);
    let left = observe(kernel);
    assert!(left.virtual_servers.is_empty() && left.addresses.is_empty());
}

fn key(frontend: &str) -> ipvs::ServiceKey {
    let frontend: std::net::SocketAddr = frontend.parse().unwrap();
    ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Tcp,
        address: frontend.ip(),
        port: frontend.port(),
    }
}

fn service(frontend: &str, scheduler: &str) -> ipvs::Service {
    ipvs::Service::new(key(frontend), scheduler.parse().unwrap())
}

fn destination(address: &str, weight: u32) -> ipvs::Destination {
    let address: std::net::SocketAddr = address.parse().unwrap();
    ipvs::Destination::new(address.into(), weight)
}

fn errnos(outcomes: &[Outcome]) -> Vec<Option<Errno>> {
    let errno = |outcome: &Outcome| outcome.as_ref().err().map(|failure| failure.errno.unwrap());
    outcomes.iter().map(errno).collect()
}

/// Applies the Ops one by one and compares the error numbers.
fn check(kernel: &mut dyn Kernel, steps: &[(Op, Option<Errno>)]) {
    for (op, expected) in steps {
        assert_eq!(errnos(&kernel.apply(&[*op])), [*expected], "{op}");
    }
}

fn services_exist_once_until_they_are_deleted(kernel: &mut dyn Kernel) {
    let rr = service("10.96.0.1:80", "rr");
    let mut sticky = service("10.96.0.1:80", "wlc");
    sticky.flags = ipvs::ServiceFlags::PERSISTENT;
    sticky.timeout_secs = 600;
    let v6 = service("[fd00::1]:80", "rr");
    check(
        kernel,
        &[
            (Op::SetService(rr), Some(Errno::SRCH)),
            (Op::DeleteService(rr.key), Some(Errno::SRCH)),
            (Op::AddService(rr), None),
            (Op::AddService(rr), Some(Errno::EXIST)),
            (Op::AddService(v6), None),
            (Op::SetService(sticky), None),
        ],
    );
    let observed = observe(kernel);
    for service in [sticky, v6] {
        let found = &observed.virtual_servers[&service.key];
        assert_eq!(found.definition.at(service.key), service);
    }
    check(
        kernel,
        &[
            (Op::DeleteService(rr.key), None),
            (Op::DeleteService(rr.key), Some(Errno::SRCH)),
        ],
    );
}

fn destinations_exist_once_until_they_are_deleted(kernel: &mut dyn Kernel) {
    let key = key("10.96.0.1:80");
    let one = destination("10.244.0.1:8080", 1);
    let heavy = destination("10.244.0.1:8080", 7);
    check(
        kernel,
        &[
            (Op::AddDestination(key, one), Some(Errno::SRCH)),
            (Op::AddService(service("10.96.0.1:80", "rr")), None),
            (Op::SetDestination(key, one), Some(Errno::NOENT)),
            (Op::DeleteDestination(key, one.key), Some(Errno::NOENT)),
            (Op::AddDestination(key, one), None),
            (Op::AddDestination(key, one), Some(Errno::EXIST)),
            (
                Op::AddDestination(key, destination("10.244.0.1:8081", 0)),
                None,
            ),
            (Op::SetDestination(key, heavy), None),
        ],
    );
    let observed = observe(kernel);
    let weights: Vec<u32> = observed.virtual_servers[&key]
        .destinations
        .iter()
        .map(|destination| destination.weight)
        .collect();
    assert_eq!(weights, [7, 0]);
    check(
        kernel,
        &[
            (Op::DeleteDestination(key, one.key), None),
            (Op::DeleteDestination(key, one.key), Some(Errno::NOENT)),
        ],
    );
}

fn weights_and_families_are_checked(kernel: &mut dyn Kernel) {
    let key = key("10.96.0.1:80");
    check(
        kernel,
        &[
            (Op::AddService(service("10.96.0.1:80", "rr")), None),
            (
                Op::AddDestination(key, destination("10.244.0.1:1", u32::MAX)),
                Some(Errno::RANGE),
            ),
            (
                Op::AddDestination(key, destination("10.244.0.1:1", i32::MAX as u32)),
                None,
            ),
            (
                Op::AddDestination(key, destination("[fd00::9]:1", 1)),
                Some(Errno::INVAL),
            ),
        ],
    );
}

fn addresses_exist_once_until_they_are_deleted(kernel: &mut dyn Kernel) {
    let v4: IpAddr = "10.96.0.1".parse().unwrap();
    let v6: IpAddr = "fd00::1".parse().unwrap();
    check(
        kernel,
        &[
            (Op::AddAddress(v4, None), None),
            (Op::AddAddress(v4, None), Some(Errno::EXIST)),
            (Op::AddAddress(v6, None), None),
        ],
    );
    let observed = observe(kernel);
    assert_eq!(
        observed.addresses.iter().collect::<Vec<_>>(),
        [(v4, &None), (v6, &None)]
    );
    check(
        kernel,
        &[(Op::DeleteAddress(v4), None), (Op::DeleteAddress(v6), None)],
    );
    assert!(observe(kernel).addresses.is_empty());
}

fn a_failing_op_does_not_stop_the_others(kernel: &mut dyn Kernel) {
    let key = key("10.96.0.1:80");
    let ops = [
        Op::AddService(service("10.96.0.1:80", "rr")),
        Op::AddService(service("10.96.0.1:80", "rr")),
        Op::AddDestination(key, destination("10.244.0.1:80", 1)),
        Op::DeleteDestination(key, destination("10.244.0.2:80", 1).key),
        Op::AddAddress("10.96.0.1".parse().unwrap(), None),
        Op::AddDestination(key, destination("10.244.0.2:80", 1)),
    ];
    let expected = [
        None,
        Some(Errno::EXIST),
        None,
        Some(Errno::NOENT),
        None,
        None,
    ];
    assert_eq!(errnos(&kernel.apply(&ops)), expected);
}

/// Kernels list destinations in their own order; observed ones are sorted by key.
fn observed_destinations_are_sorted(kernel: &mut dyn Kernel) {
    let key = key("10.96.0.1:80");
    kernel.apply(&[Op::AddService(service("10.96.0.1:80", "rr"))]);
    let ops: Vec<Op> = (1..=250)
        .map(|port| Op::AddDestination(key, destination(&format!("10.244.0.1:{port}"), 1)))
        .collect();
    assert_eq!(errnos(&kernel.apply(&ops)), vec![None; 250]);
    let observed = observe(kernel);
    let ports: Vec<u16> = observed.virtual_servers[&key]
        .destinations
        .iter()
        .map(|destination| destination.key.port)
        .collect();
    assert_eq!(ports, (1..=250).collect::<Vec<u16>>());
}

fn an_unknown_scheduler_is_rejected(kernel: &mut dyn Kernel) {
    let unknown = service("10.96.0.1:80", "nosuch");
    check(kernel, &[(Op::AddService(unknown), Some(Errno::NOENT))]);
    assert_eq!(
        kernel.has_scheduler("nosuch".parse().unwrap()),
        Ok(Some(false))
    );
    assert_eq!(kernel.has_scheduler("wlc".parse().unwrap()), Ok(Some(true)));
}
