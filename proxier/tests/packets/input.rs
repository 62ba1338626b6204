//! Another program drops incoming packets: a host firewall.
//!
//! IPVS takes requests from the input hook, after the firewall's chain. With `--input-drop=accept`, our table
//! marks packets for frontends first, and one rule of ours in the firewall's chain accepts this mark.

use lab::net::Host;
use proxier::testing::filter::MarkBit;
use proxier::testing::host::{ChainReport, ForeignChains, Treatment, Treatments};
use proxier::testing::plan::ServiceAddresses;

use super::host_ports::has_iptables;
use super::scene::{Scene, nft};
use super::services::Services;
use crate::{at, check};

const BIT: MarkBit = MarkBit::INPUT_ACCEPT;

fn open(frontends: Treatment) -> ForeignChains {
    ForeignChains::open(Treatments {
        answers: Treatment::Accept,
        frontends,
        frontend_mark: BIT.mark(),
    })
    .unwrap()
}

/// Returns a scene whose table marks packets for frontends at the input hook.
fn marking() -> Scene {
    Scene::with(Services::dual(), ServiceAddresses::Routes, |config| {
        config.input_accept_bit = Some(BIT);
        config.answer_ping = true;
    })
}

/// Asserts that each client reaches what it would reach without the firewall, and no daemon of the node.
fn only_frontends_are_open(scene: &Scene) {
    let both = ["pod1/client", "podB1/client"];
    let masqueraded = ["pod1/node", "podB1/node"];
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    check(scene, "pod3", &cluster_ip, &both);
    for external in [
        at("198.51.100.2", "2001:db8:51::2", 80, 53),
        at("172.18.0.2", "fd00:172:18::2", 30080, 30053),
    ] {
        check(scene, "ext", &external, &masqueraded);
    }
    check(scene, "node", &cluster_ip, &masqueraded);
    let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
    check(scene, "ext", &local, &["pod2/client"]);
    check(scene, "pod3", &local, &["pod2/client", "podB1/client"]);

    // Source ranges still hold.
    let [tcp, udp, tcp6, udp6] = at("198.51.100.5", "2001:db8:51::5", 80, 53);
    check(scene, "ext", &[tcp.clone(), udp6.clone()], &["pod1/node"]);
    check(scene, "ext2", &[udp, tcp6], &["timeout"]);
    all_else_is_closed(scene);
}

/// Asserts that no client reaches a daemon of the node, at any address.
fn all_else_is_closed(scene: &Scene) {
    let questions = [
        ("ext", "tcp 172.18.0.2:22"),
        ("pod3", "tcp [fd00:172:18::2]:22"),
        ("ext", "udp 172.18.0.2:9999"),
        ("ext", "tcp 10.96.1.1:22"),
        ("pod3", "tcp [fd00:10:96::1]:9999"),
        ("ext", "udp 198.51.100.2:9999"),
    ];
    for ((client, closed), answers) in questions.iter().zip(scene.ask_at_once(&questions)) {
        let expected = ["refused", "timeout", "unreachable"];
        let is_closed = answers.iter().all(|answer| expected.contains(&&**answer));
        assert!(is_closed, "{client} to {closed}: {answers:?}");
    }
}

/// Asserts that clients outside the node reach no Service.
fn all_is_closed(scene: &Scene) {
    let questions = [
        ("pod3", "tcp 10.96.1.1:80"),
        ("ext", "udp [2001:db8:51::2]:53"),
        ("ext", "tcp 172.18.0.2:30080"),
    ];
    for ((client, frontend), answers) in questions.iter().zip(scene.ask_at_once(&questions)) {
        let has_backend = answers.iter().any(|answer| answer.contains("pod"));
        assert!(!has_backend, "{client} to {frontend}: {answers:?}");
    }
}

/// Returns the foreign rules as nft and iptables list them.
fn ruleset(scene: &Scene) -> String {
    let node = scene.client("node");
    let tables = node.exec(&["/usr/sbin/nft", "list", "tables"]);
    let foreign = tables
        .lines()
        .filter(|table| !table.contains("ipvs-proxier"));
    let list = |table: &str| {
        let words = [
            &["/usr/sbin/nft", "list"][..],
            &table.split(' ').collect::<Vec<_>>(),
        ];
        without_counts(&node.exec(&words.concat()))
    };
    let mut rules: String = foreign.map(list).collect();
    if has_iptables() {
        for save in [
            "/usr/sbin/iptables-nft-save",
            "/usr/sbin/ip6tables-nft-save",
        ] {
            let saved = node.exec(&[save]);
            // Comments have the time; chains have counters.
            let lines = saved.lines().filter(|line| !line.starts_with('#'));
            let without_counts = |line: &str| line.split(" [").next().unwrap().to_owned() + "\n";
            rules.extend(lines.map(without_counts));
        }
    }
    rules
}

/// Returns a listing without the values of counters, which change with each packet.
fn without_counts(listing: &str) -> String {
    let mut words = Vec::new();
    let mut is_count = false;
    for word in listing.split(' ') {
        words.push(if is_count { "N" } else { word });
        is_count = ["packets", "bytes"].contains(&word);
    }
    words.join(" ")
}

/// Asserts the treatment of `chains`, the chains of the firewall that `start` starts.
#[track_caller]
fn opens_frontends_only(scene: &Scene, chains: &[&str], start: impl FnOnce(&Host)) {
    start(scene.client("node"));
    let before = ruleset(scene);
    all_is_closed(scene);

    let report = open(Treatment::Warn).apply().unwrap();
    let lines: Vec<String> = report.dropping.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), chains.len(), "{lines:?}");
    for (line, chain) in lines.iter().zip(chains) {
        assert!(line.starts_with(chain), "{line}");
        assert!(line.ends_with("with `--input-drop=accept`"), "{line}");
    }

    let mut foreign = open(Treatment::Accept);
    let report = foreign.apply().unwrap();
    assert!(report.dropping.is_empty(), "{report:?}");
    let inserted = report.inserted.iter().map(ToString::to_string);
    let inserted: Vec<String> = inserted.filter(|it| chains.contains(&&**it)).collect();
    assert_eq!(inserted, chains);
    assert_eq!(foreign.apply().unwrap(), ChainReport::default());
    only_frontends_are_open(scene);

    foreign.remove_rules().unwrap();
    assert_eq!(ruleset(scene), before);
}

/// Returns a table with an input chain. It accepts what each firewall accepts, and `last` is its last rule.
fn input_chain(priority: i32, policy: &str, last: &str) -> String {
    format!(
        "table inet others {{ chain in {{
            type filter hook input priority {priority}; policy {policy};
            ct state established accept
            iifname lo accept
            icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
            {last}
        }}; }}"
    )
}

#[test]
fn an_nft_chain_opens_for_frontends_only() {
    lab::test(|| {
        let scene = marking();
        let names = ["chain in of table inet others"];
        let table = input_chain(-300, "drop", "");
        opens_frontends_only(&scene, &names, |node| nft(node, &table));
    });
}

#[test]
fn chains_that_drop_by_policy_or_last_rule_get_our_rule_and_lose_it_again() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        let list = || node.exec(&["/usr/sbin/nft", "list", "ruleset"]);
        for (priority, policy, last, is_dropping) in [
            (0, "drop", "", true),
            (0, "drop", "iifname eth7 counter", true),
            (50, "accept", "counter log drop", true),
            (10, "accept", "reject with icmpx admin-prohibited", true),
            (10, "accept", "reject with tcp reset", false),
            (0, "accept", "iifname eth7 drop", false),
            (0, "accept", "tcp dport 22 reject", false),
            (0, "accept", "drop\n accept", false),
            (98, "drop", "", false),
        ] {
            nft(&node, &input_chain(priority, policy, last));
            let before = list();
            let mut foreign = open(Treatment::Accept);
            let report = foreign.apply().unwrap();
            let scenario = format!("{priority}, {policy}, {last}");
            assert_eq!(
                report.inserted.len(),
                usize::from(is_dropping),
                "{scenario}"
            );
            let removed = foreign.remove_rules().unwrap();
            assert_eq!(removed.len(), usize::from(is_dropping), "{scenario}");
            assert_eq!(list(), before, "{scenario}");
            nft(&node, "delete table inet others");
        }
    });
}

#[test]
fn a_mark_of_another_program_opens_no_port() {
    lab::test(|| {
        let scene = marking();
        let others = "table inet others {
            chain marks { type filter hook prerouting priority 0; meta mark set 0xffffffff; }
            chain in { type filter hook input priority 0; policy drop; ip6 nexthdr icmpv6 accept; }
        }";
        scene.nft(others);
        assert_eq!(open(Treatment::Accept).apply().unwrap().inserted.len(), 1);
        all_else_is_closed(&scene);
        let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        check(&scene, "ext", &cluster_ip, &["pod1/node", "podB1/node"]);
    });
}

#[test]
fn a_rule_with_another_bit_is_replaced() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        nft(
            &node,
            "table inet others { chain in { type filter hook input priority 0; policy drop; }; }",
        );
        assert_eq!(open(Treatment::Accept).apply().unwrap().inserted.len(), 1);
        let mut other = ForeignChains::open(Treatments {
            answers: Treatment::Accept,
            frontends: Treatment::Accept,
            frontend_mark: 1,
        })
        .unwrap();
        let report = other.apply().unwrap();
        assert_eq!((report.removed.len(), report.inserted.len()), (1, 1));
        assert_eq!(other.apply().unwrap(), ChainReport::default());
        let listed = node.exec(&["/usr/sbin/nft", "list", "ruleset"]);
        assert_eq!(
            listed
                .matches("ipvs-proxier: packets for frontends")
                .count(),
            1
        );
    });
}

/// Debian's ufw, as `ufw enable` starts it.
#[test]
fn ufw_opens_for_frontends_only() {
    lab::test(|| {
        if !has_iptables() {
            // ufw depends on iptables.
            return;
        }
        let scene = marking();
        let directory = tempfile::tempdir().unwrap();
        let chains = [
            "chain INPUT of table ip filter",
            "chain INPUT of table ip6 filter",
        ];
        opens_frontends_only(&scene, &chains, |node| {
            let script = include_str!("ufw.sh");
            let path = directory.path().to_str().unwrap();
            let shell = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c"];
            node.exec(&[&shell[..], &[script, path]].concat());
        });
        // iptables still reads its table.
        let node = scene.client("node");
        open(Treatment::Accept).apply().unwrap();
        let listed = node.exec(&["/usr/sbin/iptables-nft", "-S", "INPUT"]);
        let ours = "-A INPUT -m mark --mark 0x1000/0x1000 -m comment --comment \"ipvs-proxier: packets \
                    for frontends, mark 0x1000\" -j ACCEPT";
        assert_eq!(listed.lines().nth(1), Some(ours), "{listed}");
    });
}

/// The code of Debian's firewalld, with its zone `drop`. `firewalld.py` says how it runs without D-Bus.
#[test]
fn firewalld_opens_for_frontends_only() {
    lab::test(|| {
        let scene = marking();
        let directory = tempfile::tempdir().unwrap();
        let chains = ["chain filter_INPUT of table inet firewalld"];
        opens_frontends_only(&scene, &chains, |node| {
            let script = include_str!("firewalld.py");
            let path = directory.path().to_str().unwrap();
            node.exec(&["/usr/bin/python3", "-c", script, path]);
        });
    });
}
