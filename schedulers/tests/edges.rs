//! The table of edge cases in the crate's documentation.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use schedulers::{
    Balancer, Error, Flavour, Implementation, MhTable, Options, Registry, Request, ServerId,
    Thresholds, WEIGHT_MAX,
};

/// The kernel's names of all schedulers.
const NAMES: [&str; 14] = [
    "dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "rr", "sed", "sh", "twos", "wlc", "wrr",
];

fn request() -> Request {
    Request {
        source: [192, 0, 2, 1].into(),
        source_port: 40_000,
        destination: [192, 0, 2, 2].into(),
        destination_port: 80,
        at: Duration::ZERO,
    }
}

fn address(host: u32) -> SocketAddr {
    (Ipv4Addr::from(0x0a00_0000 + host), 80).into()
}

fn balancer(name: &str, options: &Options) -> Balancer {
    let scheduler = Registry::kernel().build(name, options).unwrap();
    Balancer::new(scheduler, options)
}

/// Runs `check` with every scheduler, in both implementations and both flavours.
fn every_scheduler(check: impl Fn(&str, Balancer)) {
    for implementation in [Implementation::Plain, Implementation::Indexed] {
        for flavour in [Flavour::Total, Flavour::Classic] {
            for name in NAMES {
                let options = Options {
                    flavour,
                    implementation,
                    ..Options::default()
                };
                check(name, balancer(name, &options));
            }
        }
    }
}

#[test]
fn names_are_the_kernels_and_other_names_are_rejected() {
    let registry = Registry::kernel();
    assert!(registry.names().eq(NAMES));
    for wrong in ["", "RR", "rr ", "least", "wlc2"] {
        let refused = registry.build(wrong, &Options::default()).unwrap_err();
        let Error::UnknownScheduler { name, known } = &refused else {
            panic!("{refused}");
        };
        assert_eq!(name, wrong);
        assert_eq!(known, &NAMES);
        assert!(refused.to_string().contains("known: dh, fo, lblc"));
    }
}

#[test]
fn a_name_cannot_be_registered_twice() {
    let mut registry = Registry::kernel();
    let rr = |options: &Options| Registry::kernel().build("rr", options).unwrap();
    assert_eq!(
        registry.register("rr", rr),
        Err(Error::NameTaken("rr".to_owned()))
    );
    assert_eq!(registry.register("mine", rr), Ok(()));
    assert!(registry.build("mine", &Options::default()).is_ok());
}

#[test]
fn without_servers_there_is_no_pick() {
    every_scheduler(|name, mut balancer| {
        assert_eq!(balancer.pick(&request()), None, "{name}");
        let id = balancer.add(address(1), 1).unwrap();
        assert_eq!(balancer.pick(&request()), Some(id), "{name}");
        balancer.remove(id).unwrap();
        assert_eq!(balancer.pick(&request()), None, "{name}");
    });
}

#[test]
fn without_weights_there_is_no_pick() {
    every_scheduler(|name, mut balancer| {
        let ids = [1, 2, 3].map(|host| balancer.add(address(host), 0).unwrap());
        assert_eq!(balancer.pick(&request()), None, "{name}");
        balancer.set_weight(ids[1], 7).unwrap();
        let picked = balancer.pick(&request());
        // The client's slot of sh and dh may belong to a server of weight 0.
        assert!(
            picked == Some(ids[1]) || ["sh", "dh"].contains(&name),
            "{name}"
        );
        balancer.set_weight(ids[1], 0).unwrap();
        assert_eq!(balancer.pick(&request()), None, "{name}");
    });
}

#[test]
fn if_all_servers_are_overloaded_there_is_no_pick() {
    every_scheduler(|name, mut balancer| {
        let ids = [1, 2, 3].map(|host| balancer.add(address(host), 1).unwrap());
        for id in ids {
            balancer.set_overloaded(id, true).unwrap();
        }
        assert_eq!(balancer.pick(&request()), None, "{name}");
        for id in ids {
            balancer.set_overloaded(id, false).unwrap();
        }
        assert!(balancer.pick(&request()).is_some(), "{name}");
    });
}

#[test]
fn weights_that_are_negative_in_the_kernel_are_rejected_and_change_nothing() {
    for weight in [WEIGHT_MAX + 1, u32::MAX] {
        every_scheduler(|name, mut balancer| {
            let refused = Err(Error::Weight(weight));
            assert_eq!(balancer.add(address(1), weight), refused, "{name}");
            assert!(balancer.servers().is_empty());
            let id = balancer.add(address(1), 5).unwrap();
            assert_eq!(balancer.set_weight(id, weight), Err(Error::Weight(weight)));
            assert_eq!(balancer.servers().get(id).unwrap().weight(), 5);
            assert_eq!(balancer.pick(&request()), Some(id), "{name}");
        });
    }
}

#[test]
fn the_greatest_weight_works() {
    every_scheduler(|name, mut balancer| {
        let light = balancer.add(address(1), 1).unwrap();
        let heavy = balancer.add(address(2), WEIGHT_MAX).unwrap();
        for _ in 0..10 {
            let picked = balancer.pick(&request()).unwrap();
            assert!([light, heavy].contains(&picked), "{name}");
            balancer.connected(picked).unwrap();
        }
    });
}

/// The plain wrr, like the kernel, would try two billion levels one by one.
#[test]
fn levels_without_servers_are_skipped() {
    let mut balancer = balancer("wrr", &Options::default());
    let light = balancer.add(address(1), 1).unwrap();
    let heavy = balancer.add(address(2), WEIGHT_MAX).unwrap();
    balancer.set_overloaded(heavy, true).unwrap();
    for _ in 0..1_000 {
        assert_eq!(balancer.pick(&request()), Some(light));
    }
}

#[test]
fn sixty_five_thousand_servers_one_by_one() {
    for name in NAMES {
        let options = Options::default();
        let mut balancer = balancer(name, &options);
        let ids: Vec<ServerId> = (0..65_535)
            .map(|host| balancer.add(address(host), 1 + host % 7).unwrap())
            .collect();
        for _ in 0..3 {
            let picked = balancer.pick(&request()).unwrap();
            assert!(balancer.servers().listed(picked).is_some(), "{name}");
            balancer.connected(picked).unwrap();
        }
        // Newest first, the order in which the list returns them.
        for id in ids.into_iter().rev().take(65_000) {
            balancer.remove(id).unwrap();
        }
        let picked = balancer.pick(&request()).unwrap();
        assert!(balancer.servers().listed(picked).is_some(), "{name}");
    }
}

#[test]
fn sixty_five_thousand_servers_at_once() {
    for implementation in [Implementation::Plain, Implementation::Indexed] {
        let options = Options {
            implementation,
            mh_table: MhTable::from_index(17).unwrap(),
            ..Options::default()
        };
        let mut balancer = balancer("rr", &options);
        for host in 0..65_535 {
            balancer.add(address(host), 1 + host % 7).unwrap();
        }
        for name in NAMES {
            let scheduler = Registry::kernel().build(name, &options).unwrap();
            balancer.reschedule(scheduler, Duration::ZERO).unwrap();
            assert!(balancer.pick(&request()).is_some(), "{name}");
        }
    }
}

#[test]
fn mh_supports_as_many_servers_as_slots() {
    let options = Options::default();
    let mut balancer = balancer("rr", &options);
    for host in 0..4_094 {
        balancer.add(address(host), 1).unwrap();
    }
    let mh = || Registry::kernel().build("mh", &options).unwrap();
    let refused = balancer.reschedule(mh(), Duration::ZERO);
    assert_eq!(refused, Err(Error::TooManyServers { limit: 4_093 }));
    // The old scheduler stays.
    assert!(balancer.pick(&request()).is_some());
    let last = balancer.servers().first().unwrap();
    balancer.remove(last).unwrap();
    assert_eq!(balancer.reschedule(mh(), Duration::ZERO), Ok(()));
}

#[test]
fn forgotten_servers_are_not_found() {
    let mut balancer = balancer("wlc", &Options::default());
    let id = balancer.add(address(1), 1).unwrap();
    assert_eq!(balancer.add(address(1), 2), Err(Error::Exists(address(1))));
    balancer.remove(id).unwrap();
    let not_found = Err(Error::NotFound);
    assert_eq!(balancer.remove(id), not_found);
    assert_eq!(balancer.set_weight(id, 1), not_found);
    assert_eq!(
        balancer.set_thresholds(id, Thresholds::default()),
        not_found
    );
    assert_eq!(balancer.set_overloaded(id, true), not_found);
    assert_eq!(balancer.set_connections(id, 1, 1), not_found);
    assert_eq!(balancer.connected(id), not_found);
    assert_eq!(balancer.disconnected(id), not_found);
    // The new server reuses the slot, but not the id.
    let other = balancer.add(address(2), 1).unwrap();
    assert_eq!(other.index(), id.index());
    assert_eq!(balancer.connected(id), not_found);
    assert_eq!(balancer.pick(&request()), Some(other));
}

#[test]
fn a_removed_server_exists_as_long_as_its_connections() {
    every_scheduler(|name, mut balancer| {
        let id = balancer.add(address(1), 1).unwrap();
        balancer.connected(id).unwrap();
        balancer.remove(id).unwrap();
        assert_eq!(balancer.pick(&request()), None, "{name}");
        assert_eq!(balancer.servers().get(id).unwrap().active(), 1);
        assert_eq!(balancer.servers().find(address(1)), None);
        let again = balancer.add(address(1), 3).unwrap();
        assert_eq!(again, id);
        assert_eq!(balancer.servers().get(id).unwrap().active(), 1);
        assert_eq!(balancer.pick(&request()), Some(id), "{name}");
        balancer.remove(id).unwrap();
        balancer.disconnected(id).unwrap();
        assert!(balancer.servers().get(id).is_none());
    });
}
