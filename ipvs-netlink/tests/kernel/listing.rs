//! What `/proc/net/ip_vs` shows of the virtual servers.

use std::fs::File;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink::listing::{self, ListedDestination, ListedService};
use ipvs_netlink::{
    Change, ClientMask, Destination, Family, Forwarding, Protocol, Service, ServiceFlags,
    ServiceKey,
};

use crate::{client, mark, server, service, tcp};

fn listed() -> Vec<(ListedService, Vec<ListedDestination>)> {
    let mut all = Vec::new();
    let file = File::open(listing::PATH).unwrap();
    let is_whole = listing::walk(file, |service, destinations| {
        all.push((*service, destinations.clone()));
        true
    });
    assert!(is_whole.unwrap());
    all
}

/// Reads the file until it lists `length` virtual servers, each once.
///
/// On Linux 6.1 it may omit some while another test in another network namespace has some. Linux 7.2 may
/// list some twice and omit as many others while it moves them to a larger table.
fn whole_listing(length: usize) -> Vec<(ListedService, Vec<ListedDestination>)> {
    let whole = lab::await_some(Duration::from_millis(10), || {
        let listed = listed();
        let is_first = |(n, it)| !listed[..n].contains(it);
        let is_whole = listed.len() == length && listed.iter().enumerate().all(is_first);
        is_whole.then_some(listed)
    });
    whole.unwrap_or_else(|| panic!("not {length}, each once: {:?}", listed()))
}

fn persistent(service: Service, timeout_secs: u32, client_mask: ClientMask) -> Service {
    Service {
        flags: service.flags | ServiceFlags::PERSISTENT,
        timeout_secs,
        client_mask,
        ..service
    }
}

/// One virtual server of each form that the file has, and its destinations.
fn table() -> Vec<(Service, Vec<Destination>)> {
    let other = |protocol, address: &str| ServiceKey::Address {
        protocol,
        address: address.parse::<IpAddr>().unwrap(),
        port: 53,
    };
    let (v4, v6) = (tcp("10.9.0.1:80"), tcp("[fd00::1]:80"));
    let one_packet = |service: Service| Service {
        flags: service.flags | ServiceFlags::ONE_PACKET,
        ..service
    };
    let local = Destination {
        forwarding: Forwarding::Local,
        ..server("[fd00::2]:8080", 2)
    };
    let route = Destination {
        forwarding: Forwarding::Route,
        ..server("10.9.1.3:80", 0)
    };
    let many = (1..=300).map(|port| server(&format!("10.9.2.1:{port}"), port));
    let mask = ClientMask::V4(0xffff_ff00);
    vec![
        (
            persistent(service(v4, "wlc"), 10_800, mask),
            vec![server("10.9.1.2:8080", 70_000), route],
        ),
        (
            persistent(service(v6, "rr"), 360, ClientMask::V6(64)),
            vec![local],
        ),
        (
            one_packet(service(other(Protocol::Udp, "10.9.0.1"), "rr")),
            vec![],
        ),
        (
            one_packet(service(other(Protocol::Udp, "fd00::1"), "rr")),
            vec![],
        ),
        (
            service(other(Protocol::Sctp, "10.9.0.1"), "rr"),
            many.collect(),
        ),
        (
            service(other(Protocol::Other(253), "10.9.0.1"), "rr"),
            vec![],
        ),
        (
            one_packet(persistent(service(mark(Family::V4, 7), "sh"), 5, mask)),
            vec![],
        ),
        (
            service(mark(Family::V6, 7), "rr"),
            vec![server("[fd00::3]:1", 1)],
        ),
    ]
}

#[test]
fn a_listing_shows_the_programmed_virtual_servers() {
    lab::test(|| {
        assert_eq!(listed(), []);
        let table = table();
        let mut changes = Vec::new();
        for (service, destinations) in &table {
            changes.push(Change::AddService(*service));
            let destinations = destinations.iter();
            changes.extend(destinations.map(|it| Change::AddDestination(service.key, *it)));
        }
        let outcomes = client().apply(&changes).unwrap();
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        let listed = whole_listing(table.len());
        let ticks = listing::ticks_per_second();
        for (service, destinations) in &table {
            let shown: Vec<_> = listed
                .iter()
                .filter(|(it, _)| it.shows(service, ticks))
                .collect();
            assert_eq!(shown.len(), 1, "{service:?} is not in {listed:?}");
            let newest_first = destinations.iter().rev();
            assert_eq!(shown[0].1.len(), destinations.len());
            assert!(
                newest_first
                    .zip(&shown[0].1)
                    .all(|(it, shown)| shown.shows(it))
            );
        }
    });
}

#[test]
fn virtual_servers_of_another_network_namespace_hide_own_ones_on_linux_6() {
    lab::test(|| {
        let add = |count: u16| {
            let keys = (1..=count).map(|port| tcp(&format!("10.9.0.1:{port}")));
            let changes: Vec<_> = keys
                .map(|key| Change::AddService(service(key, "rr")))
                .collect();
            let outcomes = client().apply(&changes).unwrap();
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        };
        add(500);
        let shown = lab::in_fresh_network(|| {
            add(400);
            listed().len()
        });
        let shown = shown.unwrap();
        // The text of 400 virtual servers is longer than a page, so there is a second read.
        match lab::kernel_release().starts_with("6.") {
            true => assert!((1..400).contains(&shown), "{shown} of 400"),
            // Each network namespace has a table of its own.
            false => assert_eq!(shown, 400),
        }
    });
}
