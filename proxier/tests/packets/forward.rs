//! Somebody else drops what is forwarded (Docker's `iptables -P FORWARD DROP`).
//!
//! No table can overrule another's drop. But of a Service's packets only the answers of endpoints
//! are ever forwarded: IPVS takes requests from the input hook and sends them on by the output hook.
//! So the one rule that everybody has who drops, `ct state established,related accept`, is enough;
//! and where nobody has it, the chain gets one of ours.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use lab::net::Host;
use proxier::nftables::{Forwarding, Seen, Treatment};

use super::scene::{Scene, nft};
use crate::{DUAL, at, check};

/// A foreign policy of drop, with `rules` before it, and a count of requests that pass by.
fn policy_drop(rules: &str) -> String {
    format!(
        "table inet others {{
            chain forward {{
                type filter hook forward priority filter; policy drop
                ct direction original counter
                {rules}
            }}
        }}"
    )
}

/// As `iptables -P FORWARD DROP` leaves it, with a rule of somebody's.
fn drop_by_iptables(node: &Host) {
    for program in ["/usr/sbin/iptables-nft", "/usr/sbin/ip6tables-nft"] {
        node.exec(&[program, "-P", "FORWARD", "DROP"]);
        let words = "-A FORWARD -p tcp --dport 22 -m comment --comment ssh -j ACCEPT";
        let words: Vec<&str> = words.split(' ').collect();
        node.exec(&[&[program][..], &words].concat());
    }
}

/// Clients of every kind reach every kind of Service.
fn everybody_hears_answers(scene: &mut Scene) {
    let both = ["pod1/client", "podB1/client"];
    let masqueraded = ["pod1/node", "podB1/node"];
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    check(scene, "pod3", &cluster_ip, &both);
    check(scene, "pod1", &cluster_ip, &["pod1/node", "podB1/client"]);
    for external in [
        cluster_ip,
        at("198.51.100.2", "2001:db8:51::2", 80, 53),
        at("172.18.0.2", "fd00:172:18::2", 30080, 30053),
    ] {
        for client in ["ext", "peer", "node"] {
            check(scene, client, &external, &masqueraded);
        }
    }
    for local in [
        at("198.51.100.4", "2001:db8:51::4", 80, 53),
        at("172.18.0.2", "fd00:172:18::2", 30081, 30054),
    ] {
        check(scene, "ext", &local, &["pod2/client"]);
        check(scene, "pod3", &local, &["pod2/client", "podB1/client"]);
    }
    // Refusals are the node's own words, which nobody forwards.
    let empty = at("198.51.100.6", "2001:db8:51::6", 80, 53);
    check(scene, "ext", &empty, &["refused"]);

    // The same Services, with SCTP in the place of UDP.
    for pod in ["pod1", "pod2", "pod3", "podB1"] {
        scene.client(pod).serve_sctp(5353);
    }
    scene.program(&DUAL.replace("protocol: UDP", "protocol: SCTP"));
    let sctp = |v4: &str, v6: &str| [format!("sctp {v4}:53"), format!("sctp [{v6}]:53")];
    let cluster_ip = sctp("10.96.1.1", "fd00:10:96::1");
    check(scene, "pod3", &cluster_ip, &both);
    for client in ["ext", "node"] {
        check(scene, client, &cluster_ip, &masqueraded);
    }
    let local = sctp("198.51.100.4", "2001:db8:51::4");
    check(scene, "ext", &local, &["pod2/client"]);
}

/// Nobody but processes of the node does.
fn only_the_node_hears_answers(scene: &Scene) {
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    check(scene, "node", &cluster_ip, &["pod1/node", "podB1/node"]);
    let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
    check(scene, "node", &local, &["pod2/node", "podB1/node"]);
    for (client, frontends) in [
        ("pod3", &cluster_ip),
        ("pod1", &cluster_ip),
        ("ext", &cluster_ip),
        ("ext", &local),
    ] {
        // One of each family is enough of silence.
        let [tcp, _, _, udp6] = frontends.clone();
        check(scene, client, &[tcp, udp6], &["timeout"]);
    }
}

#[test]
fn one_rule_for_established_connections_is_enough_for_everybody() {
    lab::test(|| {
        let mut scene = Scene::conformance(DUAL);
        scene.nft(&policy_drop("ct state established,related accept"));
        everybody_hears_answers(&mut scene);
        let list = ["/usr/sbin/nft", "list", "table", "inet", "others"];
        let requests = scene.client("node").exec(&list);
        assert!(
            requests.contains("original counter packets 0 "),
            "{requests}"
        );
        let mut forwarding = Forwarding::open(Treatment::Accept).unwrap();
        assert_eq!(forwarding.see_to().unwrap(), Seen::default());
    });
}

#[test]
fn without_it_only_the_node_itself_hears_the_answers() {
    lab::test(|| {
        let scene = Scene::conformance(DUAL);
        scene.nft(&policy_drop(""));
        let mut forwarding = Forwarding::open(Treatment::Warn).unwrap();
        assert_eq!(forwarding.see_to().unwrap().obstacles.len(), 1);
        only_the_node_hears_answers(&scene);
    });
}

#[test]
fn a_chain_of_nft_that_drops_gets_a_rule_for_the_answers() {
    lab::test(|| {
        let mut scene = Scene::conformance(DUAL);
        scene.nft(&policy_drop(""));
        let mut forwarding = Forwarding::open(Treatment::Accept).unwrap();
        assert_eq!(opened(&forwarding.see_to().unwrap()), ["inet others"]);
        everybody_hears_answers(&mut scene);
        let outside = "tcp 10.244.1.2:8080".to_owned();
        check(&scene, "ext", &[outside], &["timeout"]);

        let list = ["/usr/sbin/nft", "list", "table", "inet", "others"];
        let listed = scene.client("node").exec(&list);
        let rule =
            "ct direction reply ct state established,related accept comment \"ipvs-proxier: ";
        assert_eq!(listed.matches(rule).count(), 1, "{listed}");
    });
}

#[test]
fn a_chain_of_iptables_that_drops_gets_a_rule_that_iptables_reads() {
    lab::test(|| {
        let mut scene = Scene::conformance(DUAL);
        let mut forwarding = Forwarding::open(Treatment::Accept).unwrap();
        if !Path::new("/proc/net/ip_tables_names").exists() {
            // A kernel without iptables' extensions, so without iptables: nft's words do.
            scene.nft(
                &policy_drop("")
                    .replace("inet others", "ip filter")
                    .replace("forward {", "FORWARD {"),
            );
            assert_eq!(opened(&forwarding.see_to().unwrap()), ["ip filter"]);
            return everybody_hears_answers(&mut scene);
        }
        drop_by_iptables(scene.client("node"));
        let before = saved(scene.client("node"));
        let seen = forwarding.see_to().unwrap();
        assert_eq!(opened(&seen), ["ip filter", "ip6 filter"]);
        everybody_hears_answers(&mut scene);

        let node = scene.client("node");
        for program in ["/usr/sbin/iptables-nft", "/usr/sbin/ip6tables-nft"] {
            let listed = node.exec(&[program, "-S", "FORWARD"]);
            let lines: Vec<&str> = listed.lines().collect();
            let ours = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY \
                        -m comment --comment \"ipvs-proxier: answers of endpoints\" -j ACCEPT";
            assert_eq!(lines[..2], ["-P FORWARD DROP", ours]);
            // It can change and check its table with the rule in it.
            let more: Vec<&str> = "-A FORWARD -p udp --dport 123 -j ACCEPT"
                .split(' ')
                .collect();
            node.exec(&[&[program][..], &more].concat());
            let delete: Vec<&str> = "-D FORWARD 3".split(' ').collect();
            node.exec(&[&[program][..], &delete].concat());
        }
        // iptables saves it and brings it back; it is known again.
        let save = "/usr/sbin/iptables-nft-save > $0; /usr/sbin/iptables-nft-restore < $0";
        let file = tempfile::NamedTempFile::new().unwrap();
        node.exec(&["/bin/sh", "-c", save, file.path().to_str().unwrap()]);
        assert_eq!(forwarding.see_to().unwrap(), Seen::default());
        assert_eq!(forwarding.clear().unwrap().len(), 2);
        assert_eq!(saved(node), before);
    });
}

/// What iptables has, without the times of day that it writes.
fn saved(node: &Host) -> Vec<String> {
    let programs = [
        "/usr/sbin/iptables-nft-save",
        "/usr/sbin/ip6tables-nft-save",
    ];
    let texts = programs.map(|program| node.exec(&[program]));
    let lines = texts.iter().flat_map(|text| text.lines());
    let lines = lines.filter(|line| !line.starts_with('#'));
    lines.map(ToOwned::to_owned).collect()
}

/// The tables in which a chain got a rule: `inet others`.
fn opened(seen: &Seen) -> Vec<String> {
    assert!(seen.obstacles.is_empty(), "{seen:?}");
    let tables = seen.opened.iter().map(|chain| {
        let words = chain.to_string();
        words.split_once(" of table ").unwrap().1.to_owned()
    });
    tables.collect()
}

/// Chains of policy drop, each with whether it accepts established connections in general.
const CHAINS: [(&str, bool); 9] = [
    ("", false),
    ("tcp dport 22 accept", false),
    ("ct state established,related accept", true),
    ("ct state { established, related } counter accept", true),
    (
        "ct state vmap { established : accept, invalid : drop }",
        true,
    ),
    ("ct state new accept", false),
    ("oifname docker0 ct state established accept", false),
    ("ip saddr 192.0.2.1 jump one; jump two", true),
    ("iifname eth7 jump two; ct state established drop", false),
];

/// Calls `each` with each of [`CHAINS`] in each family: its table, and whether it lets answers pass.
fn with_each_chain(node: &Host, mut each: impl FnMut(&str, bool)) {
    for (rules, accepts) in CHAINS {
        for family in ["ip", "ip6", "inet"] {
            if family == "ip6" && rules.contains("ip saddr") {
                continue;
            }
            let table = format!(
                "flush ruleset
                table {family} others {{
                    chain one {{ accept; }}
                    chain two {{ jump three; }}
                    chain three {{ ct state established accept; jump one; }}
                    chain harmless {{ type filter hook forward priority 1; policy accept; }}
                    chain input {{ type filter hook input priority 0; policy drop; }}
                    chain forward {{ type filter hook forward priority 0; policy drop; {rules}; }}
                }}"
            );
            nft(node, &table);
            each(&format!("{family} others"), accepts);
        }
    }
}

/// Rules before a policy of drop, in the words of nft or as conditions of iptables' ACCEPT, each with
/// whether all established connections pass. The chain `none` accepts nobody.
const PROVEN: [(&str, &str, bool); 38] = [
    ("iptables", "-m conntrack --ctstate ESTABLISHED", true),
    ("iptables", "-m conntrack --ctstate DNAT,ESTABLISHED", true),
    (
        "iptables",
        "-m comment --comment x -m state --state RELATED,ESTABLISHED",
        true,
    ),
    ("iptables", "-m state --state ESTABLISHED", true),
    ("iptables", "-m conntrack --ctstate NEW", false),
    ("iptables", "-m conntrack --ctstate DNAT", false),
    ("iptables", "-m conntrack --ctstate RELATED", false),
    (
        "iptables",
        "-m conntrack ! --ctstate ESTABLISHED,RELATED",
        false,
    ),
    (
        "iptables",
        "-m conntrack --ctstate ESTABLISHED --ctproto 6",
        false,
    ),
    (
        "iptables",
        "-m conntrack --ctstate ESTABLISHED --ctdir ORIGINAL",
        false,
    ),
    ("iptables", "-m conntrack --ctproto 17", false),
    ("iptables", "-m state --state NEW", false),
    ("iptables", "-m state ! --state ESTABLISHED", false),
    (
        "iptables",
        "-i eth7 -m conntrack --ctstate ESTABLISHED",
        false,
    ),
    ("nft", "counter accept", true),
    ("nft", "ct state != new accept", true),
    ("nft", "ct state & (new | invalid) == 0 accept", true),
    ("nft", "ct state { new, established } accept", true),
    ("nft", "ct state != { new, invalid } accept", true),
    ("nft", "ct state @good accept", true),
    ("nft", "ct state vmap @fates", true),
    ("nft", "ct state vmap { established : jump one }", true),
    ("nft", "ct state vmap { established : goto one }", true),
    (
        "nft",
        "ct state new drop; ct state established return; accept",
        false,
    ),
    ("nft", "ct state { new, untracked } accept", false),
    ("nft", "ct state != established accept", false),
    ("nft", "ct state != { established, related } accept", false),
    ("nft", "ct state related accept", false),
    ("nft", "ct state > related accept", false),
    ("nft", "ct state established reject; accept", false),
    ("nft", "ct state established,related drop; accept", false),
    (
        "nft",
        "ct state . meta l4proto { established . tcp } accept",
        false,
    ),
    ("nft", "ct direction original accept", false),
    ("nft", "ct state vmap { invalid : drop }", false),
    (
        "nft",
        "ct state vmap { new : accept, invalid : drop }",
        false,
    ),
    ("nft", "ct state vmap { established : jump none }", false),
    (
        "nft",
        "ct state vmap { established : goto none }; accept",
        false,
    ),
    (
        "nft",
        "jump none; meta mark 5 ct state established accept",
        false,
    ),
];

#[test]
fn a_rule_counts_only_where_it_is_proven_to_accept() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        let mut forwarding = Forwarding::open(Treatment::Warn).unwrap();
        let has_iptables = Path::new("/proc/net/ip_tables_names").exists();
        for (tool, rules, accepts) in PROVEN {
            nft(&node, "flush ruleset");
            match tool {
                "nft" => nft(
                    &node,
                    &format!(
                        "table inet others {{
                            set good {{ type ct_state; elements = {{ established }}; }}
                            map fates {{
                                type ct_state : verdict
                                elements = {{ new : drop, established : accept }}
                            }}
                            chain one {{ accept; }}
                            chain none {{ counter; tcp dport 22 accept; }}
                            chain forward {{
                                type filter hook forward priority 0; policy drop; {rules};
                            }}
                        }}"
                    ),
                ),
                // A kernel without iptables' extensions has no such rules.
                _ if !has_iptables => continue,
                _ => {
                    for program in ["iptables-nft", "ip6tables-nft"] {
                        let commands = format!(
                            "cd /usr/sbin; ./{program} -P FORWARD DROP; \
                             ./{program} -A FORWARD {rules} -j ACCEPT"
                        );
                        node.exec(&["/bin/sh", "-ec", &commands]);
                    }
                }
            }
            let chains = if tool == "nft" { 1 } else { 2 };
            let found = forwarding.see_to().unwrap().obstacles.len();
            let expected = if accepts { 0 } else { chains };
            assert_eq!(found, expected, "{tool} {rules}");
        }
    });
}

#[test]
fn chains_without_the_rule_are_found() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        let mut forwarding = Forwarding::open(Treatment::Warn).unwrap();
        assert_eq!(forwarding.see_to().unwrap(), Seen::default());
        with_each_chain(&node, |table, accepts| {
            let seen = forwarding.see_to().unwrap();
            let words: Vec<String> = seen.obstacles.iter().map(ToString::to_string).collect();
            assert_eq!(words.is_empty(), accepts, "{table}: {words:?}");
            if let Some(words) = words.first() {
                // What it says helps.
                let command = words.split('`').nth(1).unwrap();
                node.exec(&["/bin/sh", "-c", &format!("PATH=/usr/sbin {command}")]);
                assert_eq!(forwarding.see_to().unwrap(), Seen::default(), "{command}");
            }
        });
    });
}

#[test]
fn a_rule_comes_once_and_goes_when_it_is_not_needed() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        let ruleset = || node.exec(&["/usr/sbin/nft", "list", "ruleset"]);
        let mut forwarding = Forwarding::open(Treatment::Accept).unwrap();
        with_each_chain(&node, |table, accepts| {
            let before = ruleset();
            let expected: &[&str] = if accepts { &[] } else { &[table] };
            assert_eq!(opened(&forwarding.see_to().unwrap()), expected);
            assert_eq!(forwarding.see_to().unwrap(), Seen::default());
            assert_eq!(ruleset() == before, accepts, "{}", ruleset());
            assert_eq!(forwarding.clear().unwrap().len(), expected.len());
            assert_eq!(ruleset(), before);

            // Its owner has a change of mind, or ours.
            forwarding.see_to().unwrap();
            let mut warning = Forwarding::open(Treatment::Warn).unwrap();
            let seen = warning.see_to().unwrap();
            assert_eq!(seen.closed.len(), expected.len());
            assert_eq!(seen.obstacles.len(), expected.len());
            assert_eq!(ruleset(), before);
            forwarding.see_to().unwrap();
            nft(
                &node,
                &format!("chain {table} forward {{ policy accept; }}"),
            );
            assert_eq!(forwarding.see_to().unwrap().closed.len(), expected.len());
            let policy = |policy| format!("hook forward priority filter; policy {policy};");
            assert_eq!(
                ruleset(),
                before.replace(&policy("drop"), &policy("accept"))
            );
        });
    });
}

#[test]
fn a_chain_that_nobody_else_may_change_is_told_of() {
    lab::test(|| {
        let _node = lab::net::node("node-a");
        // As firewalld does: the table belongs to whoever made it, as long as that lives.
        let mut owner = Command::new("/usr/sbin/nft")
            .arg("-i")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut commands = owner.stdin.take().unwrap();
        let table = "add table inet firewalld { flags owner; }\n\
                     add chain inet firewalld forward { type filter hook forward priority 0; policy drop; }\n";
        commands.write_all(table.as_bytes()).unwrap();
        commands.flush().unwrap();
        let mut forwarding = Forwarding::open(Treatment::Accept).unwrap();
        let seen = loop {
            let seen = forwarding.see_to().unwrap();
            if seen != Seen::default() {
                break seen;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert_eq!(seen.opened, []);
        let words: Vec<String> = seen.obstacles.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), 1);
        assert!(
            words[0].contains("refused: Operation not permitted"),
            "{words:?}"
        );
        drop(commands);
        owner.wait().unwrap();
    });
}
