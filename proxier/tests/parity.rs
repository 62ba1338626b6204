//! The same connections through the kernel's IPVS and through the relay reach the same endpoints, with every
//! scheduler.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "parity/contestants.rs"]
mod contestants;
#[path = "parity/world.rs"]
mod world;

use ipvs_netlink as ipvs;
use proxier::testing::dataplane::ipvs::Kernel as _;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::plan::ServiceAddresses;

use contestants::Relayed;
use world::{Balancer, Protocol, World};

/// Every scheduler of the kernel but `twos`, with its number of frontends. A scheduler that hashes the
/// destination picks one endpoint per frontend, so it has several frontends.
const SCHEDULERS: [(&str, u8); 13] = [
    ("dh", 4),
    ("fo", 1),
    ("lblc", 4),
    ("lblcr", 4),
    ("lc", 1),
    ("mh", 1),
    ("nq", 1),
    ("ovf", 1),
    ("rr", 1),
    ("sed", 1),
    ("sh", 1),
    ("wlc", 1),
    ("wrr", 1),
];

const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// Runs `script` in a network of its own with IPVS, in another one with the relay, and returns what both
/// recorded.
fn both<T: Send>(script: impl Fn(&mut dyn Balancer) -> T + Sync) -> [T; 2] {
    let kernel = lab::in_fresh_network(|| {
        let mut linux = Linux::open(ServiceAddresses::default()).unwrap();
        script(&mut linux)
    });
    let relay = lab::in_fresh_network(|| {
        let mut relay = Relayed::start();
        let recorded = script(&mut relay);
        relay.stop();
        recorded
    });
    [kernel.unwrap(), relay.unwrap()]
}

/// Fails with the lines that differ.
#[track_caller]
fn assert_equal(kernel: &[String], relay: &[String]) {
    let pairs = kernel.iter().zip(relay);
    let differing = pairs.filter(|(kernel, relay)| kernel != relay);
    let lines: Vec<String> = differing
        .map(|(kernel, relay)| format!("IPVS  {kernel}\nrelay {relay}\n"))
        .collect();
    assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    assert_eq!(kernel.len(), relay.len());
}

/// Each line of a record names a frontend, the endpoint of each connection, and then the connection counts
/// of all endpoints.
#[test]
fn the_relay_picks_what_the_kernel_picks() {
    lab::test(|| {
        let [kernel, relay] = both(|balancer| {
            let mut world = World::new(balancer);
            for (scheduler, frontends) in SCHEDULERS {
                for protocol in PROTOCOLS {
                    world.add(scheduler, protocol, frontends);
                }
            }
            world.connect(12);
            world.set_weight('a', 5);
            world.set_weight('e', 0);
            world.connect(8);
            world.limit('b', 4);
            world.connect(6);
            world.reset_every(2);
            world.connect(6);
            world.remove('c');
            world.introduce('f', 2);
            world.connect(8);
            // A client's end makes its connection inactive.
            world.end_writing(3);
            world.connect(4);
            world.set_scheduler("wlc", None);
            world.connect(6);
            world.set_scheduler("rr", Some(300));
            world.connect_from_few(9);
            world.record
        });
        assert_equal(&kernel, &relay);
        let picks: usize = kernel.iter().map(|line| world::picks(line).count()).sum();
        assert!(picks > 2_000, "{picks}");
        let frontends = kernel.iter().filter(|line| line.contains("mh"));
        assert!(frontends.count() > 0);
    });
}

/// `twos` draws random numbers, so the frequencies are compared.
#[test]
fn twos_has_the_frequencies_of_the_kernel() {
    const CONNECTIONS: usize = 500;
    lab::test(|| {
        let [kernel, relay] = both(|balancer| {
            let mut world = World::new(balancer);
            world.add("twos", Protocol::Udp, 1);
            world.connect(CONNECTIONS);
            let picks = world::picks(&world.record[0]);
            let mut counts = [0_usize; 5];
            picks.for_each(|name| counts[name as usize - 'a' as usize] += 1);
            counts
        });
        eprintln!("IPVS {kernel:?}, relay {relay:?}");
        for (kernel, relay) in kernel.into_iter().zip(relay) {
            // 76 is six standard deviations of independent picks, each with a chance of one in five.
            assert!(kernel.abs_diff(relay) < 76, "{kernel} {relay}");
        }
    });
}

/// Without this test, a scheduler that the kernel lacks would drop out of the comparison unnoticed.
#[test]
fn the_kernel_has_every_scheduler() {
    lab::test(|| {
        let mut linux = Linux::open(ServiceAddresses::default()).unwrap();
        for (scheduler, _) in SCHEDULERS.into_iter().chain([("twos", 1)]) {
            let name = ipvs::SchedulerName::new(scheduler).unwrap();
            assert_ne!(
                linux.has_scheduler(name).unwrap(),
                Some(false),
                "{scheduler}"
            );
        }
    });
}
