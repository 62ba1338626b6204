//! Routing rules of other programs, and addresses that the kernel accepts as no source.

use std::time::Duration;

use proxier::testing::clock;
use proxier::testing::plan::ServiceAddresses;

use super::scene::Scene;
use super::services::Services;
use crate::{at, check};

/// A rule for each address of the link to the other node, and a table that has this link only: as on hosts that
/// answer by the link on which a request came.
const RULES: &str = "\
    ip rule add from 172.18.0.2 table 100 pref 1000
    ip route add 172.18.0.0/24 dev node0 table 100
    ip route add default via 172.18.0.3 table 100
    ip -6 rule add from fd00:172:18::2 table 100 pref 1000
    ip -6 route add fd00:172:18::/64 dev node0 table 100
    ip -6 route add default via fd00:172:18::3 table 100";

fn rules_do_not_cut_the_node_off(form: ServiceAddresses) {
    lab::test(move || {
        let mut scene = Scene::with(Services::dual(), form, |_| {});
        let frontends = [
            at("10.96.1.1", "fd00:10:96::1", 80, 53),
            at("198.51.100.2", "2001:db8:51::2", 80, 53),
        ];
        scene.client("node").exec(&["/bin/sh", "-c", RULES]);
        scene.proxier.resync(clock::since_boot()).unwrap();
        for frontends in &frontends {
            for client in ["node", "ext"] {
                check(&scene, client, frontends, &["pod1/node", "podB1/node"]);
            }
        }
        // Without the rules, the node's address is the source again.
        let undo = "ip rule del pref 1000; ip -6 rule del pref 1000";
        scene.client("node").exec(&["/bin/sh", "-c", undo]);
        scene.proxier.resync(clock::since_boot()).unwrap();
        let show = "ip route show table local proto 73; ip -6 route show table local proto 73";
        let listed = scene.client("node").exec(&["/bin/sh", "-c", show]);
        let has_source =
            |line: &str| line.contains("src 172.18.0.2 ") || line.contains("src fd00:172:18::2 ");
        assert!(listed.lines().all(has_source), "{listed}");
    });
}

#[test]
fn a_rule_for_the_nodes_address_does_not_cut_it_off_with_routes() {
    rules_do_not_cut_the_node_off(ServiceAddresses::Routes);
}

#[test]
fn a_rule_for_the_nodes_address_does_not_cut_it_off_with_routes_on_the_loopback_device() {
    rules_do_not_cut_the_node_off(ServiceAddresses::Loopback);
}

#[test]
fn a_duplicate_address_is_no_source() {
    lab::test(|| {
        let mut scene = Scene::new(Services::dual());
        let address = "fd00:172:18::2";
        // The lab switches the detection off.
        let detect = "echo 1 | tee /proc/sys/net/ipv6/conf/node0/accept_dad";
        scene.client("node").exec(&["/bin/sh", "-c", detect]);
        let own = format!("ip -6 address del {address}/64 dev node0");
        let others = format!("ip -6 address add {address}/64 dev eth0 nodad");
        let again = format!("ip -6 address add {address}/64 dev node0");
        scene.client("node").exec(&["/bin/sh", "-c", &own]);
        scene.client("peer").exec(&["/bin/sh", "-c", &others]);
        scene.client("node").exec(&["/bin/sh", "-c", &again]);
        // The detection takes some seconds. Meanwhile the address is tentative.
        for state in ["tentative", "dadfailed"] {
            let list = format!("ip -6 address show {state}");
            let list = ["/bin/sh", "-c", &list];
            let holds = || scene.client("node").exec(&list).contains(address);
            assert!(lab::await_true(Duration::from_millis(50), holds), "{state}");
            let applied = scene.proxier.resync(clock::since_boot()).unwrap();
            let failures: Vec<_> = applied.failures().collect();
            assert!(failures.is_empty(), "{state}: {failures:?}");
            let show = ["ip", "-6", "route", "show", "table", "local", "proto", "73"];
            let listed = scene.client("node").exec(&show);
            assert!(listed.contains(" src "), "{state}: {listed}");
            assert!(
                !listed.contains(&format!("src {address} ")),
                "{state}: {listed}"
            );
            let problems = scene.proxier.problems();
            let names = |it: &&_| ToString::to_string(it).contains("is tentative or a duplicate");
            assert_eq!(
                problems.iter().filter(names).count(),
                1,
                "{state}: {problems:?}"
            );
        }
    });
}
