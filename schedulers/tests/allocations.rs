//! Memory use: picks allocate nothing, and servers take no more than documented.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "this program prints what it measures, and fails by panicking"
)]

use std::alloc::System;
use std::time::Duration;

use schedulers::{Balancer, Implementation, Options, Registry, Request, ServerId};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

/// The test runs without libtest, whose threads would allocate, too.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SERVERS: usize = 16_384;

/// Limits of the bytes per server that a scheduler adds to the set of servers.
const PER_SERVER: &[(&str, f64)] = &[
    ("dh", 0.0),
    ("fo", 0.0),
    ("lblc", 0.0),
    ("lblcr", 0.0),
    ("lc", 40.0),
    ("mh", 0.0),
    ("nq", 40.0),
    ("ovf", 0.0),
    ("rr", 0.0),
    ("sed", 40.0),
    ("sh", 0.0),
    ("twos", 0.0),
    ("wlc", 40.0),
    ("wrr", 40.0),
];

fn main() {
    picks_and_counts_allocate_nothing();
    memory_per_server_is_as_documented();
}

fn picks_and_counts_allocate_nothing() {
    for implementation in [Implementation::Plain, Implementation::Indexed] {
        let options = Options {
            implementation,
            ..Options::default()
        };
        for name in Registry::kernel().names() {
            let (mut balancer, ids) = filled(name, &options, 1_000);
            // lblc and lblcr allocate when they remember an address for the first time.
            let clients: Vec<Request> = (0..100).map(request).collect();
            for client in &clients {
                balancer.pick(client).unwrap();
            }
            let region = Region::new(ALLOCATOR);
            for (client, &id) in clients.iter().cycle().zip(&ids) {
                let picked = balancer.pick(client).unwrap();
                balancer.connected(picked).unwrap();
                balancer.deactivated(picked).unwrap();
                balancer.closed(picked).unwrap();
                balancer.set_overloaded(id, true).unwrap();
                balancer.set_overloaded(id, false).unwrap();
            }
            let change: Stats = region.change();
            assert_eq!(change.allocations, 0, "{name} {implementation:?}");
            assert_eq!(change.reallocations, 0, "{name} {implementation:?}");
        }
    }
}

fn memory_per_server_is_as_documented() {
    let options = Options::default();
    let region = Region::new(ALLOCATOR);
    let (set, _) = filled("fo", &options, SERVERS);
    let of_set = per_server(&region.change());
    println!("{of_set:>6.1} bytes per server: the set");
    assert!(of_set <= 120.0, "{of_set}");
    drop(set);
    let registry = Registry::kernel();
    for name in registry.names() {
        // mh supports fewer servers, and its memory does not depend on their number.
        let (mut balancer, _) = filled("fo", &options, if name == "mh" { 4_000 } else { SERVERS });
        let region = Region::new(ALLOCATOR);
        let scheduler = registry.build(name, &options).unwrap();
        let alone = region.change();
        balancer.reschedule(scheduler, Duration::ZERO).unwrap();
        let all = region.change();
        let fixed = in_use(&alone);
        let each = per_server(&all) - fixed / SERVERS as f64;
        println!("{each:>6.1} bytes per server plus {fixed:>7} bytes: {name}");
        let (_, limit) = PER_SERVER.iter().find(|(it, _)| *it == name).unwrap();
        assert!(each <= limit + 0.5, "{name} takes {each} bytes per server");
    }
}

fn in_use(stats: &Stats) -> f64 {
    stats.bytes_allocated as f64 - stats.bytes_deallocated as f64
}

fn per_server(stats: &Stats) -> f64 {
    in_use(stats) / SERVERS as f64
}

fn filled(scheduler: &str, options: &Options, servers: usize) -> (Balancer, Vec<ServerId>) {
    let scheduler = Registry::kernel().build(scheduler, options).unwrap();
    let mut balancer = Balancer::new(scheduler, options);
    let ids = (0..u32::try_from(servers).unwrap())
        .map(|host| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + host);
            let weight = 1 + host.wrapping_mul(0x9e37_79b9) % 100;
            balancer.add((address, 80).into(), weight).unwrap()
        })
        .collect();
    (balancer, ids)
}

fn request(client: u32) -> Request {
    Request {
        source: std::net::Ipv4Addr::from(0x6440_0000 + client).into(),
        source_port: 40_000,
        destination: std::net::Ipv4Addr::from(0x0a60_0000 + client % 10).into(),
        destination_port: 80,
        at: Duration::ZERO,
    }
}
