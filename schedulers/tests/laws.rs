//! Properties of every scheduler, over long random histories.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use proptest::prelude::*;
use schedulers::{Flavour, Implementation, Server, ServerId};

mod history;

use history::{Event, Side, flavour, history};

/// The schedulers that pick a server whenever one is eligible. The others may refuse, because the
/// client's slot has a server that is not eligible, or because all servers are full.
const NEVER_REFUSING: [&str; 10] = [
    "fo", "lblc", "lblcr", "lc", "nq", "rr", "sed", "twos", "wlc", "wrr",
];

const NAMES: [&str; 14] = [
    "dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "rr", "sed", "sh", "twos", "wlc", "wrr",
];

/// Few levels, because the plain wrr scans the list once per level.
const WEIGHTS: &[u32] = &[0, 0, 1, 1, 2, 3, 4, 6, 9, 10, 24, 200];

fn check(name: &'static str, flavour: Flavour, events: &[Event]) -> Result<(), TestCaseError> {
    for implementation in [Implementation::Plain, Implementation::Indexed] {
        let mut side = Side::new(name, flavour, implementation);
        for event in events {
            let counts = |side: &Side| -> Vec<Option<(u32, u32)>> {
                let servers = side.balancer.servers();
                let server = |&id: &ServerId| servers.get(id);
                let counts = |server: &Server| (server.active(), server.inactive());
                side.servers
                    .iter()
                    .map(|id| server(id).map(counts))
                    .collect()
            };
            let before = counts(&side);
            for picked in side.play(event) {
                check_pick(name, &side, picked)?;
            }
            if matches!(event, Event::Picks(_, false)) {
                prop_assert_eq!(before, counts(&side), "a pick of {} changed a count", name);
            }
        }
    }
    Ok(())
}

fn check_pick(name: &str, side: &Side, picked: Option<ServerId>) -> Result<(), TestCaseError> {
    let servers = side.balancer.servers();
    let Some(id) = picked else {
        let eligible = servers.iter().find(|(_, server)| server.is_eligible());
        let may_refuse = eligible.is_none() || !NEVER_REFUSING.contains(&name);
        prop_assert!(
            may_refuse,
            "{name} refuses although {eligible:?} is eligible"
        );
        return Ok(());
    };
    let server = servers.listed(id);
    prop_assert!(server.is_some(), "{name} picks a server that is not listed");
    let server = server.unwrap();
    // A server that lblc remembers gets connections even if it is overloaded.
    let may_be_overloaded = name == "lblc";
    prop_assert!(
        server.weight() > 0 && (!server.is_overloaded() || may_be_overloaded),
        "{name} picks {server:?}"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn picks_are_listed_and_eligible(flavour in flavour(), events in history(WEIGHTS)) {
        let events: Vec<Event> = events.into_iter().filter_map(simple).collect();
        for name in NAMES {
            check(name, flavour, &events)?;
        }
    }

    #[test]
    fn a_cycle_of_rr_picks_every_server_once(weights in proptest::collection::vec(0..3_u32, 1..40)) {
        let (side, counts) = cycle("rr", &weights, weights.iter().filter(|&&it| it > 0).count());
        for (&id, weight) in side.servers.iter().zip(weights) {
            let count = counts.get(&id).copied().unwrap_or_default();
            prop_assert_eq!(count, u32::from(weight > 0));
        }
    }

    #[test]
    fn a_cycle_of_wrr_picks_by_weight(weights in proptest::collection::vec(0..30_u32, 1..40)) {
        let divisor = weights.iter().copied().fold(0, gcd).max(1);
        let sum: u32 = weights.iter().sum();
        // Every window of this length is a cycle.
        let (side, counts) = cycle("wrr", &weights, (sum / divisor) as usize);
        for (&id, weight) in side.servers.iter().zip(weights) {
            let count = counts.get(&id).copied().unwrap_or_default();
            prop_assert_eq!(count, weight / divisor);
        }
    }
}

/// Removes events that make picks of ineligible servers legal: thresholds, which change the eligible
/// servers between the picks of one event, and loads that overflow, with which weight 0 wins.
fn simple(event: Event) -> Option<Event> {
    match event {
        Event::Thresholds(..) => None,
        Event::Connections(server, active, inactive) => {
            Some(Event::Connections(server, active % 1_000, inactive % 1_000))
        }
        other => Some(other),
    }
}

/// Counts how often each server is picked in `picks` picks.
fn cycle(name: &'static str, weights: &[u32], picks: usize) -> (Side, HashMap<ServerId, u32>) {
    let mut side = Side::new(name, Flavour::Total, Implementation::default());
    for (host, &weight) in (0..).zip(weights) {
        side.play(&Event::Add(host, weight));
    }
    let mut counts = HashMap::new();
    for _ in 0..picks {
        for id in side.play(&Event::Picks(1, false)).into_iter().flatten() {
            *counts.entry(id).or_default() += 1;
        }
    }
    (side, counts)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
