//! Leftovers of kube-proxy's other modes, and the flag `--cleanup`.

use super::programs::{Iptables, Ours};
use super::scene::Scene;
use super::services::Client;

/// The clients that all modes of kube-proxy serve. Only in IPVS mode does the node have routes to
/// the external addresses.
const AWAY: [Client; 2] = [Client::Pod, Client::Outside];

#[test]
fn leftovers_of_the_other_modes_are_removed_and_those_of_a_running_kube_proxy_stay() {
    lab::test(|| {
        let Some(scene) = Scene::start(Iptables::Nft) else {
            return;
        };
        for mode in ["iptables", "nftables"] {
            let mut theirs = scene.kube_proxy(mode);
            scene.await_service_for(&AWAY, mode);
            scene.sh("iptables -t mangle -N KUBE-KUBELET-CANARY || true");
            // Beside a running kube-proxy nothing is removed.
            let mut ours = Ours::start(&scene);
            ours.eventually("the conflict is noticed", || {
                ours.log().contains("kube-proxy seems to run")
            });
            assert!(scene.leftovers().len() >= 2, "{:?}", scene.leftovers());
            theirs.terminate();
            ours.eventually(mode, || scene.leftovers().is_empty());
            let saved = scene.sh("iptables-save -t mangle");
            assert!(saved.contains("KUBE-KUBELET-CANARY"), "{saved}");
            scene.await_service("ours serves");
            ours.terminate();
            std::fs::remove_file(scene.file("ours.log")).unwrap();
            scene.cleanup(&[]);
            assert_eq!(scene.ours(), Vec::<String>::new());
        }
    });
}

#[test]
fn the_command_for_iptables_legacy_is_logged_without_ipsets_too() {
    lab::test(|| {
        let Some(scene) = Scene::start(Iptables::Legacy) else {
            return;
        };
        let mut theirs = scene.kube_proxy("iptables");
        scene.await_service_for(&AWAY, "kube-proxy serves");
        theirs.terminate();
        assert!(scene.leftovers().len() >= 2, "{:?}", scene.leftovers());
        scene.sh("iptables -w -t nat -N PLUGIN; iptables -w -t nat -A PLUGIN -j RETURN");
        let mut ours = Ours::start(&scene);
        for begin in ["iptables-legacy-save", "ip6tables-legacy-save"] {
            scene.sh(&ours.await_command(begin));
        }
        assert_eq!(scene.leftovers(), Vec::<String>::new());
        let saved = scene.sh("iptables-save -t nat");
        assert!(saved.contains("-A PLUGIN -j RETURN"), "{saved}");
        scene.await_service("ours serves");
        ours.terminate();
    });
}

/// Reads until two results in a row are equal.
///
/// Linux 6.1 has one table of IPVS for all network namespaces, and a listing continues at a position in it.
/// While another test of the same machine adds or removes virtual servers, a listing may have one of ours twice,
/// or not at all.
fn settled(read: impl Fn() -> String) -> String {
    let mut last = read();
    for _ in 0..20 {
        let next = read();
        if next == last {
            return next;
        }
        last = next;
    }
    panic!("no two results in a row are equal: {last}");
}

#[test]
fn the_flag_cleanup_removes_what_kube_proxys_does_and_says_so_before() {
    lab::test(|| {
        let Some(scene) = Scene::start(Iptables::Nft) else {
            return;
        };
        let mut theirs = scene.kube_proxy("ipvs");
        scene.await_service("kube-proxy serves");
        scene.add_rules_of_the_kubelet();
        theirs.terminate();
        let all =
            || settled(|| scene.sh("nft -s list ruleset; ipset list; ipvsadm -Sn; ip address"));
        let before = all();
        let lines = scene.cleanup_of_kube_proxy(&["--dry-run"]);
        assert_eq!(all(), before);
        for part in [
            "delete service TCP 10.96.2.1:80\n",
            "delete device kube-ipvs0\n",
            "delete chain KUBE-SERVICES of table ip nat\n",
            "delete chain KUBE-IPVS-FILTER of table ip6 filter\n",
            "delete ipset KUBE-6-CLUSTER-IP\n",
        ] {
            assert!(lines.contains(part), "{part} is missing\n{lines}");
        }
        assert!(!lines.contains("KUBE-FIREWALL"), "{lines}");
        scene.cleanup_of_kube_proxy(&[]);
        let left = scene.sh(
            "(iptables-save; ip6tables-save) | grep KUBE | grep -v KUBE-FIREWALL | \
             grep -v KUBE-KUBELET-CANARY; ipset list -n; ipvsadm -Sn; \
             ip -brief link | grep kube-ipvs0; true",
        );
        assert_eq!(left, "");
        scene.assert_rules_of_the_kubelet();
    });
}
