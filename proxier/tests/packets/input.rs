//! Another program drops incoming packets: a host firewall.
//!
//! IPVS takes requests from the input hook, after the firewall's chain. With nftables, only requests for endpoints at
//! addresses of this node reach that hook. With `--input-drop=accept`, our table
//! marks packets for frontends first, and one rule of ours in the firewall's chain accepts this mark.

use super::host_ports::has_iptables;
use super::scene::{Scene, Subject, nft, with_each_dataplane};
use super::services::{Endpoint, Service, Services};
use crate::{at, check};
use lab::net::Host;
use proxier::testing::dataplane::ipvs::Ipvs;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::filter::MarkBit;
use proxier::testing::host::{ChainReport, ForeignChains, Treatment, Treatments};

const BIT: MarkBit = MarkBit::INPUT_ACCEPT;

fn open<D: Subject>(input: Treatment) -> ForeignChains {
    ForeignChains::open(Treatments {
        forward: Treatment::Accept,
        input,
        mark: BIT.mark(),
        are_translated: D::TRANSLATES,
    })
    .unwrap()
}

/// Returns a scene whose table marks packets for frontends at the input hook.
fn marking<D: Subject>() -> Scene<D> {
    let services = Services::dual().with(on_the_node());
    let scene = Scene::configured(services, D::FORM, |config| {
        config.input_accept_bit = Some(BIT);
        config.forward_accept_bit = D::TRANSLATES.then_some(BIT);
        config.answer_ping = true;
    });
    scene.cluster.node.serve_tcp(8080);
    scene.cluster.node.serve_udp(5353);
    scene
}

/// Returns a Service whose endpoint is a process of this node with hostNetwork.
fn on_the_node() -> Service {
    const NODE: Endpoint = Endpoint::new("172.18.0.2", "fd00:172:18::2", "node-a");
    Service::new("host", ["10.96.5.1", "fd00:10:96::5:1"])
        .load_balancer(["198.51.100.7", "2001:db8:51::7"])
        .node_ports([30085, 30056])
        .endpoints(&[NODE])
}

/// Asserts that each client reaches what it would reach without the firewall, and no daemon of the node.
fn only_frontends_are_open<D: Subject>(scene: &Scene<D>) {
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
    let cluster_ip = at("10.96.5.1", "fd00:10:96::5:1", 80, 53);
    check(scene, "pod3", &cluster_ip, &["node-a/client"]);
    for external in [
        at("198.51.100.7", "2001:db8:51::7", 80, 53),
        at("172.18.0.2", "fd00:172:18::2", 30085, 30056),
    ] {
        check(scene, "ext", &external, &["node-a/client"]);
    }

    // Source ranges still hold.
    let [tcp, udp, tcp6, udp6] = at("198.51.100.5", "2001:db8:51::5", 80, 53);
    check(scene, "ext", &[tcp.clone(), udp6.clone()], &["pod1/node"]);
    check(scene, "ext2", &[udp, tcp6], &["timeout"]);
    all_else_is_closed(scene);
}

/// Asserts that no client reaches a daemon of the node, at any address.
fn all_else_is_closed<D: Subject>(scene: &Scene<D>) {
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

/// Asserts that clients outside the node reach no Service, or with nftables none of an endpoint on the node.
fn all_is_closed<D: Subject>(scene: &Scene<D>) {
    let mut questions = vec![
        ("pod3", "tcp 10.96.5.1:80"),
        ("ext", "udp [2001:db8:51::7]:53"),
        ("ext", "tcp 172.18.0.2:30085"),
    ];
    if !D::TRANSLATES {
        questions.extend([
            ("pod3", "tcp 10.96.1.1:80"),
            ("ext", "udp [2001:db8:51::2]:53"),
            ("ext", "tcp 172.18.0.2:30080"),
        ]);
    }
    for ((client, frontend), answers) in questions.iter().zip(scene.ask_at_once(&questions)) {
        let has_backend = answers.iter().any(|answer| answer.contains('/'));
        assert!(!has_backend, "{client} to {frontend}: {answers:?}");
    }
}

/// Returns the foreign rules as nft and iptables list them.
fn ruleset<D: Subject>(scene: &Scene<D>) -> String {
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
fn opens_frontends_only<D: Subject>(scene: &Scene<D>, chains: &[&str], start: impl FnOnce(&Host)) {
    start(scene.client("node"));
    let before = ruleset(scene);
    // firewalld accepts what any program translated.
    if !(D::TRANSLATES && before.contains("ct status dnat accept")) {
        all_is_closed(scene);
    }

    let report = open::<D>(Treatment::Warn).apply().unwrap();
    let lines: Vec<String> = report.dropping.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), chains.len(), "{lines:?}");
    for (line, chain) in lines.iter().zip(chains) {
        assert!(line.starts_with(chain), "{line}");
        assert!(line.ends_with("with `--input-drop=accept`"), "{line}");
    }

    let mut foreign = open::<D>(Treatment::Accept);
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

with_each_dataplane!(
    an_nft_chain_opens_for_frontends_only,
    a_mark_of_another_program_opens_no_port,
    ufw_opens_for_frontends_only,
    firewalld_opens_for_frontends_only,
);

fn an_nft_chain_opens_for_frontends_only<D: Subject>() {
    let scene = marking::<D>();
    let names = ["chain in of table inet others"];
    let table = input_chain(-300, "drop", "");
    opens_frontends_only(&scene, &names, |node| nft(node, &table));
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
            let mut foreign = open::<Ipvs<Linux>>(Treatment::Accept);
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

fn a_mark_of_another_program_opens_no_port<D: Subject>() {
    let scene = marking::<D>();
    let others = "table inet others {
            chain marks { type filter hook prerouting priority 0; meta mark set 0xffffffff; }
            chain in { type filter hook input priority 0; policy drop; ip6 nexthdr icmpv6 accept; }
        }";
    scene.nft(others);
    assert_eq!(
        open::<D>(Treatment::Accept).apply().unwrap().inserted.len(),
        1
    );
    all_else_is_closed(&scene);
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    check(&scene, "ext", &cluster_ip, &["pod1/node", "podB1/node"]);
}

#[test]
fn a_rule_with_another_bit_is_replaced() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        nft(
            &node,
            "table inet others { chain in { type filter hook input priority 0; policy drop; }; }",
        );
        assert_eq!(
            open::<Ipvs<Linux>>(Treatment::Accept)
                .apply()
                .unwrap()
                .inserted
                .len(),
            1
        );
        let mut other = ForeignChains::open(Treatments {
            forward: Treatment::Accept,
            input: Treatment::Accept,
            mark: 1,
            are_translated: false,
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
fn ufw_opens_for_frontends_only<D: Subject>() {
    if !has_iptables() {
        // ufw depends on iptables.
        return;
    }
    let scene = marking::<D>();
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
    open::<D>(Treatment::Accept).apply().unwrap();
    let listed = node.exec(&["/usr/sbin/iptables-nft", "-S", "INPUT"]);
    let ours = "-A INPUT -m mark --mark 0x1000/0x1000 -m comment --comment \"ipvs-proxier: packets \
                    for frontends, mark 0x1000\" -j ACCEPT";
    assert_eq!(listed.lines().nth(1), Some(ours), "{listed}");
}

/// The code of Debian's firewalld, with its zone `drop`. `firewalld.py` says how it runs without D-Bus.
fn firewalld_opens_for_frontends_only<D: Subject>() {
    let scene = marking::<D>();
    let directory = tempfile::tempdir().unwrap();
    let chains = ["chain filter_INPUT of table inet firewalld"];
    opens_frontends_only(&scene, &chains, |node| {
        let script = include_str!("firewalld.py");
        let path = directory.path().to_str().unwrap();
        node.exec(&["/usr/bin/python3", "-c", script, path]);
    });
}
