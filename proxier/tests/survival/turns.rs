//! Open connections through restarts, kills and changes of the endpoints, with both dataplanes of the kernel.

use std::time::Duration;

use serde_json::json;

use super::daemon::web;
use super::dice::Dice;
use super::{AT_ONCE, AT_ONCE_BY_NFTABLES, POD_B1, POD_B2, POD1, POD2, POD3, serving};

#[test]
fn connections_survive_restarts() {
    lab::test(|| restarts(&AT_ONCE));
}

#[test]
fn connections_by_nftables_survive_restarts() {
    lab::test(|| restarts(&AT_ONCE_BY_NFTABLES));
}

fn restarts(flags: &[&str]) {
    let (_cluster, mut daemon, mut connections) = serving(flags);
    daemon.terminate();
    connections.assert_alive("the end of the daemon");
    daemon.start();
    let starts = || {
        let starts = ["programming IPVS", "programming nftables"];
        starts
            .map(|start| daemon.log().matches(start).count())
            .iter()
            .sum::<usize>()
    };
    daemon.eventually("the second start", || starts() == 2);
    daemon.endpoints(&[POD1, POD2, POD3]);
    daemon.await_endpoints(&[POD1, POD2, POD3]);
    connections.assert_alive("a restart");

    // An endpoint that is removed while no daemon runs drains as well.
    daemon.kill();
    daemon.endpoints(&[POD2, POD3]);
    daemon.start();
    daemon.await_endpoints(&[POD2, POD3]);
    connections.assert_alive("the removal of an endpoint while the daemon was dead");

    // It still drains after another restart.
    daemon.kill();
    daemon.start();
    daemon.endpoints(&[POD2]);
    daemon.await_endpoints(&[POD2]);
    connections.assert_alive("the next daemon's start");
}

#[test]
fn connections_survive_flapping_scaling_and_edits() {
    lab::test(|| flapping(&AT_ONCE));
}

#[test]
fn connections_by_nftables_survive_flapping_scaling_and_edits() {
    lab::test(|| flapping(&AT_ONCE_BY_NFTABLES));
}

fn flapping(flags: &[&str]) {
    let (_cluster, daemon, mut connections) = serving(flags);
    for _ in 0..20 {
        daemon.endpoints(&[POD2]);
        daemon.await_endpoints(&[POD2]);
        daemon.endpoints(&[POD1, POD2]);
        daemon.await_endpoints(&[POD1, POD2]);
    }
    connections.assert_alive("flapping 20 times");
    daemon.endpoints(&[POD1, POD2, POD3, POD_B1, POD_B2]);
    daemon.await_endpoints(&[POD1, POD2, POD3, POD_B1, POD_B2]);
    connections.assert_alive("scaling out");
    for number in 0..5 {
        daemon
            .api
            .apply(web(&json!({"edited": number.to_string()})));
    }
    daemon.endpoints(&[POD1, POD2]);
    daemon.await_endpoints(&[POD1, POD2]);
    connections.assert_alive("edits of labels");
}

#[test]
fn two_hundred_kills_end_in_the_planned_table() {
    lab::test(|| kills(&AT_ONCE));
}

#[test]
fn two_hundred_kills_end_in_the_planned_table_of_nftables() {
    lab::test(|| kills(&AT_ONCE_BY_NFTABLES));
}

fn kills(flags: &[&str]) {
    let (_cluster, mut daemon, mut connections) = serving(flags);
    let mut dice = Dice::new(20_261_121);
    for kill in 0..200 {
        let mut endpoints = Vec::new();
        for pod in [POD1, POD2, POD3, POD_B1, POD_B2] {
            if dice.one_in(2) {
                endpoints.push(pod);
            }
        }
        daemon.endpoints(&endpoints);
        std::thread::sleep(Duration::from_millis(dice.below(40).try_into().unwrap()));
        daemon.kill();
        if kill % 2 == 0 {
            endpoints.push((1, 100 + u8::try_from(kill / 2).unwrap()));
            daemon.endpoints(&endpoints);
        }
        daemon.start();
        daemon.await_endpoints(&endpoints);
        if kill % 10 == 0 {
            connections.assert_alive(&format!("kill {kill}"));
        }
    }
    connections.assert_alive("two hundred kills");
}
