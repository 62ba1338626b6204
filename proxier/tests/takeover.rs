//! The real kube-proxy serves a node, this program takes over, and kube-proxy takes it back.
//!
//! `kube-proxy` must be in `KUBEBUILDER_ASSETS`. Both programs follow the API server of the tests, and
//! program the same lab kernel. All the time, clients keep connections and open new ones.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "takeover/audit.rs"]
mod audit;
#[path = "takeover/clients.rs"]
mod clients;
#[path = "takeover/leftovers.rs"]
mod leftovers;
#[path = "takeover/programs.rs"]
mod programs;
#[path = "takeover/scene.rs"]
mod scene;
#[path = "takeover/services.rs"]
mod services;
#[path = "takeover/tally.rs"]
mod tally;

use std::time::Duration;

use clients::Traffic;
use programs::{Iptables, Ours};
use scene::Scene;

/// The number of connections that stay open.
const CONNECTIONS: usize = 200;

/// The number of connections that are opened while ours serves.
const CONNECTIONS_OF_OURS: usize = 64;

/// The number of times that our process is killed.
const KILLS: usize = 10;

fn kube_proxy_serves_then_ours_then_kube_proxy_again(iptables: Iptables) {
    lab::test(|| {
        let Some(scene) = Scene::start(iptables) else {
            return;
        };
        let mut theirs = scene.kube_proxy("ipvs");
        scene.await_service("kube-proxy serves");
        scene.add_rules_of_the_kubelet();
        let mut traffic = Traffic::open(&scene, CONNECTIONS);
        let conns = scene.connection_counts();

        let mut ours = traffic.during("takeover", &scene, || {
            theirs.terminate();
            let ours = Ours::start(&scene);
            if iptables == Iptables::Legacy {
                let command = ours.await_command("iptables-legacy-save");
                scene.sh(&command);
                scene.sh(&ours.await_command("ip6tables-legacy-save"));
            }
            ours.eventually("nothing of kube-proxy is left", || {
                scene.leftovers().is_empty()
            });
            ours
        });
        scene.assert_rules_of_the_kubelet();
        // A virtual server that is deleted and added again counts from 0.
        let counts = scene.connection_counts();
        for (frontend, count) in conns {
            let now = counts.get(&frontend).copied();
            assert!(now >= Some(count), "{frontend}: {now:?}, before {count}");
        }
        traffic.during("kills", &scene, || {
            for _ in 0..KILLS {
                ours.kill();
                ours = Ours::start(&scene);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        assert_eq!(scene.leftovers(), Vec::<String>::new());
        // Those of the Pod and of the node at the policy Local use virtual servers of firewall marks.
        traffic.open_more(&scene, CONNECTIONS_OF_OURS);

        let (mut theirs, mut cleanup) = traffic.during("the way back", &scene, || {
            ours.terminate();
            let theirs = scene.kube_proxy("ipvs");
            // While kube-proxy starts, `cleanup` removes nothing.
            theirs.eventually("cleanup may hand over", || {
                scene.try_cleanup(&["--dry-run"]).is_some()
            });
            let preview = scene.cleanup(&["--dry-run"]);
            assert!(
                preview.contains("delete table inet ipvs-proxier"),
                "{preview}"
            );
            assert!(!preview.contains("delete service TCP"), "{preview}");
            assert_ne!(scene.ours(), Vec::<String>::new());
            let cleanup = scene.start_cleanup();
            cleanup.eventually("all but the marks is removed", || {
                let left = scene.ours();
                let is_mark = |line: &String| line.starts_with("FWM");
                let may_stay = |line: &String| is_mark(line) || line.ends_with("/state");
                left.iter().any(is_mark) && left.iter().all(may_stay)
            });
            (theirs, cleanup)
        });
        traffic.during("the end", &scene, || scene.await_new_service());
        assert!(cleanup.is_running());
        traffic.keep(CONNECTIONS);
        cleanup.await_success("the connections through the marks have ended");
        assert_eq!(scene.ours(), Vec::<String>::new());
        theirs.terminate();
        traffic.assert_nothing_was_lost();
    });
}

#[test]
fn a_kube_proxy_with_iptables_nft_is_replaced_and_comes_back() {
    kube_proxy_serves_then_ours_then_kube_proxy_again(Iptables::Nft);
}

#[test]
fn a_kube_proxy_with_iptables_legacy_is_replaced_and_comes_back() {
    kube_proxy_serves_then_ours_then_kube_proxy_again(Iptables::Legacy);
}

/// The table of ours with nftables.
const OUR_TABLE: &str = "table inet ipvs-proxier-maps";

fn has_table(scene: &Scene, table: &str) -> bool {
    scene
        .sh("nft list tables")
        .lines()
        .any(|line| line == table)
}

/// kube-proxy serves in a mode, then ours with nftables, then kube-proxy again.
///
/// The connections that one of the programs translated continue with the other: the kernel translates them as long as
/// any table has a NAT chain. Those of IPVS continue with its virtual servers, which drain.
fn ours_with_nftables_replaces(mode: &str) {
    lab::test(|| {
        let Some(scene) = Scene::start(Iptables::Nft) else {
            return;
        };
        scene.add_default_routes();
        let mut theirs = scene.kube_proxy(mode);
        scene.await_service("kube-proxy serves");
        let mut traffic = Traffic::open(&scene, CONNECTIONS);

        let mut ours = traffic.during("takeover", &scene, || {
            theirs.terminate();
            let ours = Ours::with(&scene, "nftables");
            ours.eventually("nothing of kube-proxy is left", || {
                scene.leftovers().is_empty() && has_table(&scene, OUR_TABLE)
            });
            ours
        });
        traffic.during("kills", &scene, || {
            for _ in 0..KILLS {
                ours.kill();
                ours = Ours::with(&scene, "nftables");
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        traffic.open_more(&scene, CONNECTIONS_OF_OURS);
        let mut theirs = traffic.during("the way back", &scene, || {
            ours.terminate();
            let syncs = |log: &str| log.matches("SyncProxyRules complete").count();
            let before = syncs(&theirs.log());
            let theirs = scene.kube_proxy(mode);
            theirs.eventually("kube-proxy has its rules", || match mode {
                "ipvs" => {
                    scene.has_addresses_of_kube_proxy()
                        && scene.try_cleanup(&["--dry-run"]).is_some()
                }
                // One for each family.
                _ => syncs(&theirs.log()) >= before + 2,
            });
            scene.cleanup(&[]);
            assert_eq!(scene.ours(), Vec::<String>::new());
            theirs
        });
        traffic.during("the end", &scene, || scene.await_new_service());
        theirs.terminate();
        traffic.assert_nothing_was_lost();
    });
}

#[test]
fn a_kube_proxy_in_nftables_mode_is_replaced_and_comes_back() {
    ours_with_nftables_replaces("nftables");
}

#[test]
fn a_kube_proxy_in_iptables_mode_is_replaced_by_nftables_and_comes_back() {
    ours_with_nftables_replaces("iptables");
}

#[test]
fn a_kube_proxy_in_ipvs_mode_is_replaced_by_nftables_and_comes_back() {
    ours_with_nftables_replaces("ipvs");
}

/// The number of times that the node moves from one dataplane of ours to the other.
const MOVES: usize = 10;

#[test]
fn a_node_moves_between_ipvs_and_nftables() {
    lab::test(|| {
        let Some(scene) = Scene::start(Iptables::Nft) else {
            return;
        };
        scene.add_default_routes();
        let mut ours = Ours::with(&scene, "ipvs");
        scene.await_service("IPVS serves");
        let mut traffic = Traffic::open(&scene, CONNECTIONS);
        for number in 1..=MOVES {
            let (dataplane, has_maps) = [("ipvs", false), ("nftables", true)][number % 2];
            let phase = format!("move {number}, to {dataplane}");
            traffic.during(&phase, &scene, || {
                ours.terminate();
                ours = Ours::with(&scene, dataplane);
                ours.eventually("the maps of nftables serve, or are gone", || {
                    has_table(&scene, OUR_TABLE) == has_maps
                });
                std::thread::sleep(Duration::from_millis(500));
            });
            traffic.open_more(&scene, 16);
        }
        ours.terminate();
        traffic.assert_nothing_was_lost();
    });
}
