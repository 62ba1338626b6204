//! Plugins that name the chain KUBE-MARK-MASQ.

use lab::net::Host;
use proxier::testing::host::{MarkChains, MarkReport, Removal};

use super::host_ports::has_iptables;
use super::plugin::{Iptables, Plugin};
use super::scene::{Scene, Subject, with_each_dataplane};
use super::services::Services;
use crate::{at, check};

const MARK: u32 = 0x4000;
const PROGRAMS: [&str; 2] = ["/usr/sbin/iptables-nft", "/usr/sbin/ip6tables-nft"];

/// Returns the rules of the chain in both families, as iptables-nft lists them.
fn listed(node: &Host) -> Vec<String> {
    let list = |program| node.exec(&[program, "-t", "nat", "-S", "KUBE-MARK-MASQ"]);
    let texts = PROGRAMS.map(list);
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.map(ToOwned::to_owned).collect()
}

/// Asserts that pod3 reaches itself through its host ports. Without masquerade it would answer itself
/// directly.
fn hairpin_works<D: Subject>(scene: &Scene<D>) {
    let host_ports = at("172.18.0.2", "fd00:172:18::2", 80, 53);
    check(scene, "pod3", &host_ports, &["pod3/node"]);
    check(scene, "ext", &host_ports, &["pod3/client"]);
    let loopback = ["tcp 127.0.0.1:80".to_owned()];
    check(scene, "node", &loopback, &["pod3/node"]);
}

with_each_dataplane!(
    portmap_with_an_external_mark_chain_succeeds_and_a_pod_reaches_its_own_host_port,
    the_reported_command_adds_the_mark_chain_to_iptables_legacy,
);

fn portmap_with_an_external_mark_chain_succeeds_and_a_pod_reaches_its_own_host_port<D: Subject>() {
    if !has_iptables() {
        return;
    }
    let scene = Scene::<D>::serving(Services::dual());
    let node = scene.client("node");
    let plugin = Plugin::new(Iptables::Nft, "KUBE-MARK-MASQ");
    let error = plugin.add(node).unwrap_err();
    assert!(error.contains("KUBE-MARK-MASQ"), "{error}");

    let mut chains = MarkChains::open(MARK).unwrap();
    let report = chains.apply();
    let words: Vec<String> = report.written.iter().map(ToString::to_string).collect();
    let expected = ["ip", "ip6"].map(|it| format!("chain KUBE-MARK-MASQ of table {it} nat"));
    assert_eq!(words, expected, "{report:?}");
    let rule = "-A KUBE-MARK-MASQ -m comment --comment \"ipvs-proxier sets mark 0x4000\" \
                    -j MARK --set-xmark 0x4000/0x4000";
    let lines = ["-N KUBE-MARK-MASQ", rule, "-N KUBE-MARK-MASQ", rule];
    assert_eq!(listed(node), lines);
    plugin.add(node).unwrap();
    hairpin_works(&scene);

    // The chain is written once, also after iptables saved and restored it.
    assert_eq!(chains.apply(), MarkReport::default());
    let save = "/usr/sbin/iptables-nft-save > $0; /usr/sbin/iptables-nft-restore < $0";
    let file = tempfile::NamedTempFile::new().unwrap();
    node.exec(&["/bin/sh", "-c", save, file.path().to_str().unwrap()]);
    assert_eq!(chains.apply(), MarkReport::default());
    hairpin_works(&scene);

    // Another bit replaces the rule; a missing rule returns.
    // The number of one begins with that of the other.
    for other in [0x10000, 0x4] {
        let mut others = MarkChains::open(other).unwrap();
        assert_eq!(others.apply().written.len(), 2, "{other:#x}");
        let replaced = rule.replace("0x4000", &format!("{other:#x}"));
        assert_eq!(listed(node)[1], replaced);
        assert_eq!(chains.apply().written.len(), 2, "{other:#x}");
        assert_eq!(listed(node), lines);
    }
    for program in PROGRAMS {
        node.exec(&[program, "-t", "nat", "-F", "KUBE-MARK-MASQ"]);
    }
    assert_eq!(chains.apply().written.len(), 2);
    hairpin_works(&scene);

    // A chain to which the plugin's rules jump stays.
    let removals = |chains: &mut MarkChains| {
        let removals = chains.remove().unwrap();
        removals.into_iter().map(|(_, it)| it).collect::<Vec<_>>()
    };
    assert_eq!(removals(&mut chains), [Removal::InUse; 2]);
    assert_eq!(listed(node), lines);
    plugin.delete(node).unwrap();
    assert_eq!(removals(&mut chains), [Removal::Removed; 2]);
    assert_eq!(removals(&mut chains), [Removal::NotOurs; 2]);
    let ruleset = node.exec(&["/usr/sbin/nft", "list", "ruleset"]);
    assert!(!ruleset.contains("KUBE-MARK-MASQ"), "{ruleset}");
}

#[test]
fn the_mark_chain_of_another_program_stays() {
    lab::test(|| {
        if !has_iptables() {
            return;
        }
        let node = lab::net::node("node-a");
        for program in PROGRAMS {
            // As a kubelet before 1.28 writes it.
            for words in [
                "-N KUBE-MARK-MASQ",
                "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
            ] {
                let words: Vec<&str> = words.split(' ').collect();
                node.exec(&[&[program, "-t", "nat"][..], &words].concat());
            }
        }
        let before = listed(&node);
        let mut chains = MarkChains::open(MARK).unwrap();
        assert_eq!(chains.apply(), MarkReport::default());
        let removed = chains.remove().unwrap();
        assert!(removed.iter().all(|(_, it)| *it == Removal::NotOurs));
        assert_eq!(listed(&node), before);
    });
}

fn the_reported_command_adds_the_mark_chain_to_iptables_legacy<D: Subject>() {
    if !has_iptables() {
        return;
    }
    let scene = Scene::<D>::serving(Services::dual());
    let node = scene.client("node");
    let mut chains = MarkChains::open(MARK).unwrap();
    assert!(chains.apply().legacy_commands.is_empty());
    let plugin = Plugin::new(Iptables::Legacy, "KUBE-MARK-MASQ");
    let error = plugin.add(node).unwrap_err();
    assert!(error.contains("KUBE-MARK-MASQ"), "{error}");
    // The plugin's failed attempt has created the tables.
    let commands = chains.apply().legacy_commands;
    assert!(!commands.is_empty());
    for command in &commands {
        node.exec(&["/bin/sh", "-c", &format!("PATH=/usr/sbin; {command}")]);
    }
    // The plugin stopped at the first family, so the other table may be new.
    let _other_family = plugin.add(node);
    for command in chains.apply().legacy_commands.difference(&commands) {
        node.exec(&["/bin/sh", "-c", &format!("PATH=/usr/sbin; {command}")]);
    }
    plugin.add(node).unwrap();
    hairpin_works(&scene);
}
