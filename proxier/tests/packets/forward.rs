//! Another program drops forwarded packets, for example Docker with `iptables -P FORWARD DROP`.
//!
//! An accept in one table does not overrule a drop in another. So each chain with policy drop gets rules of ours. With
//! IPVS, only the answers of endpoints pass the forward hook: IPVS takes requests from the input hook and sends them through
//! the output hook. With nftables, requests pass it too.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use lab::net::Host;
use proxier::testing::dataplane::ipvs::Ipvs;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::filter::MarkBit;
use proxier::testing::host::{ChainReport, ForeignChains, Treatment, Treatments};

use super::scene::{Scene, Subject, nft, with_each_dataplane};
use super::services::Services;
use crate::{at, check};

const BIT: MarkBit = MarkBit::INPUT_ACCEPT;

/// Returns a client with this treatment of forward chains beside a dataplane, and warnings about input chains.
fn open<D: Subject>(forward: Treatment) -> ForeignChains {
    ForeignChains::open(Treatments {
        forward,
        input: Treatment::Warn,
        mark: BIT.mark(),
        are_translated: D::TRANSLATES,
    })
    .unwrap()
}

/// Returns a scene whose table marks packets for our rules, if they need it.
fn marking<D: Subject>() -> Scene<D> {
    Scene::configured(Services::dual(), D::FORM, |config| {
        config.forward_accept_bit = D::TRANSLATES.then_some(BIT);
    })
}

/// Returns the beginnings of our rules in a chain of nft.
fn rules<D: Subject>() -> Vec<&'static str> {
    let answers = "ct direction reply ct state established,related accept";
    let marked = "meta mark & 0x00001000 == 0x00001000 accept";
    match D::TRANSLATES {
        true => vec![marked, answers],
        false => vec![answers],
    }
}

/// Returns a foreign chain with policy drop and `rules`. It counts requests.
fn policy_drop(table: &str, chain: &str, rules: &str) -> String {
    format!(
        "table {table} {{
            chain {chain} {{
                type filter hook forward priority filter; policy drop
                ct direction original counter
                {rules}
            }}
        }}"
    )
}

/// Sets iptables' policy to drop, and adds a foreign rule.
fn drop_by_iptables(node: &Host) {
    for program in ["/usr/sbin/iptables-nft", "/usr/sbin/ip6tables-nft"] {
        node.exec(&[program, "-P", "FORWARD", "DROP"]);
        let words = "-A FORWARD -p tcp --dport 22 -m comment --comment ssh -j ACCEPT";
        let words: Vec<&str> = words.split(' ').collect();
        node.exec(&[&[program][..], &words].concat());
    }
}

/// Asserts that clients of every kind reach every kind of Service.
fn all_clients_receive_answers<D: Subject>(scene: &mut Scene<D>) {
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
    // The node itself sends rejections, so the forward hook does not see them.
    let empty = at("198.51.100.6", "2001:db8:51::6", 80, 53);
    check(scene, "ext", &empty, &["refused"]);

    // The same Services with SCTP instead of UDP.
    for pod in ["pod1", "pod2", "pod3", "podB1"] {
        scene.client(pod).serve_sctp(5353);
    }
    scene.program(Services::dual().instead_of_udp("SCTP"));
    let sctp = |v4: &str, v6: &str| [format!("sctp {v4}:53"), format!("sctp [{v6}]:53")];
    let cluster_ip = sctp("10.96.1.1", "fd00:10:96::1");
    check(scene, "pod3", &cluster_ip, &both);
    for client in ["ext", "node"] {
        check(scene, client, &cluster_ip, &masqueraded);
    }
    let local = sctp("198.51.100.4", "2001:db8:51::4");
    check(scene, "ext", &local, &["pod2/client"]);
}

/// Asserts that only processes of the node reach Services.
fn only_the_node_receives_answers<D: Subject>(scene: &Scene<D>) {
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
        // Each timeout takes long, so one frontend of each family is enough.
        let [tcp, _, _, udp6] = frontends.clone();
        check(scene, client, &[tcp, udp6], &["timeout"]);
    }
}

#[test]
fn one_rule_for_established_connections_is_enough_for_all_clients() {
    lab::test(|| {
        let mut scene = Scene::new(Services::dual());
        let accept = "ct state established,related accept";
        scene.nft(&policy_drop("inet others", "forward", accept));
        all_clients_receive_answers(&mut scene);
        let list = ["/usr/sbin/nft", "list", "table", "inet", "others"];
        let requests = scene.client("node").exec(&list);
        assert!(
            requests.contains("original counter packets 0 "),
            "{requests}"
        );
    });
}

with_each_dataplane!(
    without_a_rule_for_established_connections_only_the_node_receives_answers,
    a_dropping_chain_of_nft_gets_a_rule_for_answers,
    a_dropping_chain_of_iptables_gets_a_rule_that_iptables_reads,
    a_policy_of_docker_opens_for_services_only,
    a_last_rule_that_rejects_is_named_where_requests_pass,
);

fn without_a_rule_for_established_connections_only_the_node_receives_answers<D: Subject>() {
    let scene = marking::<D>();
    scene.nft(&policy_drop("inet others", "forward", ""));
    let mut forwarding = open::<D>(Treatment::Warn);
    assert_eq!(forwarding.apply().unwrap().dropping.len(), 1);
    only_the_node_receives_answers(&scene);
}

fn a_dropping_chain_of_nft_gets_a_rule_for_answers<D: Subject>() {
    let mut scene = marking::<D>();
    scene.nft(&policy_drop("inet others", "forward", ""));
    let mut forwarding = open::<D>(Treatment::Accept);
    assert_eq!(
        tables_with_new_rule(&forwarding.apply().unwrap()),
        ["inet others"]
    );
    all_clients_receive_answers(&mut scene);
    let outside = "tcp 10.244.1.2:8080".to_owned();
    check(&scene, "ext", &[outside], &["timeout"]);

    let list = ["/usr/sbin/nft", "list", "table", "inet", "others"];
    let listed = scene.client("node").exec(&list);
    for rule in rules::<D>() {
        let rule = format!("{rule} comment \"ipvs-proxier: ");
        assert_eq!(listed.matches(&rule).count(), 1, "{listed}");
    }
}

fn a_dropping_chain_of_iptables_gets_a_rule_that_iptables_reads<D: Subject>() {
    let mut scene = marking::<D>();
    let mut forwarding = open::<D>(Treatment::Accept);
    if !Path::new("/proc/net/ip_tables_names").exists() {
        // iptables does not work on this kernel, so the rule is in nft's syntax.
        scene.nft(&policy_drop("ip filter", "FORWARD", ""));
        assert_eq!(
            tables_with_new_rule(&forwarding.apply().unwrap()),
            ["ip filter"]
        );
        return all_clients_receive_answers(&mut scene);
    }
    drop_by_iptables(scene.client("node"));
    let before = saved(scene.client("node"));
    let report = forwarding.apply().unwrap();
    assert_eq!(tables_with_new_rule(&report), ["ip filter", "ip6 filter"]);
    all_clients_receive_answers(&mut scene);

    let node = scene.client("node");
    for program in ["/usr/sbin/iptables-nft", "/usr/sbin/ip6tables-nft"] {
        let listed = node.exec(&[program, "-S", "FORWARD"]);
        let lines: Vec<&str> = listed.lines().collect();
        let answers = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY \
                           -m comment --comment \"ipvs-proxier: answers of endpoints\" -j ACCEPT";
        let marked = "-A FORWARD -m mark --mark 0x1000/0x1000 -m comment \
                          --comment \"ipvs-proxier: packets for frontends, mark 0x1000\" -j ACCEPT";
        assert_eq!(lines[..2], ["-P FORWARD DROP", answers]);
        // Ours for requests is behind all others.
        assert_eq!(lines.last() == Some(&marked), D::TRANSLATES, "{lines:?}");
        // iptables can still change the table.
        let more: Vec<&str> = "-A FORWARD -p udp --dport 123 -j ACCEPT"
            .split(' ')
            .collect();
        node.exec(&[&[program][..], &more].concat());
        let last = format!("-D FORWARD {}", lines.len());
        let delete: Vec<&str> = last.split(' ').collect();
        node.exec(&[&[program][..], &delete].concat());
    }
    // The rule is recognised after iptables saved and restored it.
    let save = "/usr/sbin/iptables-nft-save > $0; /usr/sbin/iptables-nft-restore < $0";
    let file = tempfile::NamedTempFile::new().unwrap();
    node.exec(&["/bin/sh", "-c", save, file.path().to_str().unwrap()]);
    assert_eq!(forwarding.apply().unwrap(), ChainReport::default());
    assert_eq!(forwarding.remove_rules().unwrap().len(), 2);
    assert_eq!(saved(node), before);
}

/// Docker's chain, which accepts what reaches its published ports, and drops what a user's chain names.
const DOCKER: &str = "
    table ip docker {
        chain prerouting {
            type nat hook prerouting priority dstnat
            tcp dport 8088 ip daddr 172.18.0.2 dnat to 10.244.1.4:8080
        }
        chain forward {
            type filter hook forward priority filter; policy drop;
            ip saddr 192.0.2.9 drop
        }
    }";

/// Connections that another program translated stay subject to its chain.
fn a_policy_of_docker_opens_for_services_only<D: Subject>() {
    let scene = marking::<D>();
    scene.nft(DOCKER);
    assert_eq!(
        open::<D>(Treatment::Accept).apply().unwrap().inserted.len(),
        1
    );
    let published = ["tcp 172.18.0.2:8088".to_owned()];
    check(&scene, "ext", &published, &["timeout"]);
    // Nor does the mark of another program open anything.
    scene.nft(
        "table inet others { chain marks {
            type filter hook prerouting priority 0; meta mark set 0xffffffff;
        }; }",
    );
    let pod = ["tcp 10.244.1.2:8080".to_owned()];
    check(&scene, "ext", &published, &["timeout"]);
    check(&scene, "ext", &pod, &["timeout"]);
    let load_balancer = ["tcp 198.51.100.2:80".to_owned()];
    let masqueraded = ["pod1/node", "podB1/node"];
    check(&scene, "ext", &load_balancer, &masqueraded);
    // The chain's own rules decide first, also one that is added later. With IPVS they do not see requests.
    let denied: &[&str] = if D::TRANSLATES {
        &["timeout"]
    } else {
        &masqueraded
    };
    check(&scene, "ext2", &load_balancer, denied);
    let mut chains = open::<D>(Treatment::Accept);
    let mut waits = false;
    // Each further move comes later, so that another program that wants to be the last is no endless contest.
    for place in 0..5 {
        scene.nft("add rule ip docker forward ip saddr 203.0.113.9 drop");
        let report = chains.apply().unwrap();
        waits = report.waits;
        assert!(!waits || place > 0);
        let moved = usize::from(D::TRANSLATES && !waits);
        assert_eq!(
            (report.removed.len(), report.inserted.len()),
            (moved, moved)
        );
        if waits {
            break;
        }
    }
    assert_eq!(waits, D::TRANSLATES);
    check(&scene, "ext", &load_balancer, denied);
    // Our rule is there once, whether it waits or has moved.
    let list = ["/usr/sbin/nft", "list", "table", "ip", "docker"];
    let listed = scene.client("node").exec(&list);
    assert_eq!(
        listed.matches("packets for frontends").count(),
        usize::from(D::TRANSLATES)
    );
}

/// As distributions wrote it. Our rule would be behind the last one; before it, it would overrule it.
fn a_last_rule_that_rejects_is_named_where_requests_pass<D: Subject>() {
    let scene = marking::<D>();
    scene.nft(
        "table inet others { chain forward {
            type filter hook forward priority filter; policy accept;
            ct state established,related accept
            reject with icmpx admin-prohibited
        }; }",
    );
    let report = open::<D>(Treatment::Accept).apply().unwrap();
    let lines: Vec<String> = report.dropping.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), usize::from(D::TRANSLATES), "{lines:?}");
    let cluster_ip = ["tcp 10.96.1.1:80".to_owned()];
    if let [line] = &lines[..] {
        let (beginning, end) = (
            "chain forward of table inet others drops forwarded packets by its last rule",
            "accept the networks of Pods, nodes and Services in it",
        );
        assert!(line.starts_with(beginning) && line.ends_with(end), "{line}");
        let answers = scene.ask("pod3", &cluster_ip[0], 1);
        assert!(!answers.iter().any(|it| it.contains("pod")), "{answers:?}");
        scene.nft("insert rule inet others forward ip daddr 10.244.0.0/16 accept");
    }
    check(
        &scene,
        "pod3",
        &cluster_ip,
        &["pod1/client", "podB1/client"],
    );
}

/// The rules that iptables saves, without its comments, which contain the time.
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

/// Returns the tables in which a chain got our rule: `inet others`.
fn tables_with_new_rule(report: &ChainReport) -> Vec<String> {
    assert!(report.dropping.is_empty(), "{report:?}");
    let tables = report.inserted.iter().map(|chain| {
        let words = chain.to_string();
        words.split_once(" of table ").unwrap().1.to_owned()
    });
    tables.collect()
}

/// Rules of chains with policy drop. None of them makes a difference, because only the policy counts.
const RULES: [&str; 3] = [
    "",
    "ct state established,related accept",
    "iifname eth7 jump one; ct state established drop",
];

/// Calls `each` with the table of a chain with policy drop, for each of [`RULES`] in each family.
///
/// The table's other chains drop by a rule, or behind IPVS. They must get no rule of ours.
fn with_each_chain(node: &Host, mut each: impl FnMut(&str)) {
    for rules in RULES {
        for family in ["ip", "ip6", "inet"] {
            let table = format!(
                "flush ruleset
                table {family} others {{
                    chain one {{ accept; }}
                    chain other {{ type filter hook forward priority 1; policy accept; drop; }}
                    chain late {{ type filter hook input priority 98; policy drop; }}
                    chain forward {{ type filter hook forward priority 0; policy drop; {rules}; }}
                }}"
            );
            nft(node, &table);
            each(&format!("{family} others"));
        }
    }
}

#[test]
fn the_command_in_the_warning_ends_the_warning() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        let has_iptables = Path::new("/proc/net/ip_tables_names").exists();
        let mut forwarding = open::<Ipvs<Linux>>(Treatment::Warn);
        let mut assert_ended_by_commands = || {
            let report = forwarding.apply().unwrap();
            for chain in &report.dropping {
                let words = chain.to_string();
                let command = words.split('`').nth(1).unwrap();
                node.exec(&["/bin/sh", "-c", &format!("PATH=/usr/sbin {command}")]);
            }
            assert_eq!(forwarding.apply().unwrap(), ChainReport::default());
            let mut accepting = open::<Ipvs<Linux>>(Treatment::Accept);
            assert_eq!(accepting.apply().unwrap(), ChainReport::default());
            report.dropping.len()
        };
        assert_eq!(assert_ended_by_commands(), 0);
        with_each_chain(&node, |table| {
            assert_eq!(assert_ended_by_commands(), 1, "{table}");
        });
        if has_iptables {
            nft(&node, "flush ruleset");
            drop_by_iptables(&node);
            assert_eq!(assert_ended_by_commands(), 2);
        }
    });
}

#[test]
fn the_rule_is_inserted_once_and_removed_when_it_is_not_needed() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        let ruleset = || node.exec(&["/usr/sbin/nft", "list", "ruleset"]);
        let mut forwarding = open::<Ipvs<Linux>>(Treatment::Accept);
        with_each_chain(&node, |table| {
            let before = ruleset();
            let report = forwarding.apply().unwrap();
            assert_eq!(tables_with_new_rule(&report), [table]);
            assert_eq!(forwarding.apply().unwrap(), ChainReport::default());
            assert_ne!(ruleset(), before);
            assert_eq!(forwarding.remove_rules().unwrap().len(), 1);
            assert_eq!(ruleset(), before);

            // The treatment changes to a warning.
            forwarding.apply().unwrap();
            let mut warning = open::<Ipvs<Linux>>(Treatment::Warn);
            let report = warning.apply().unwrap();
            assert_eq!(report.removed.len(), 1);
            assert_eq!(report.dropping.len(), 1);
            assert_eq!(ruleset(), before);

            // The policy changes to accept.
            forwarding.apply().unwrap();
            nft(
                &node,
                &format!("chain {table} forward {{ policy accept; }}"),
            );
            assert_eq!(forwarding.apply().unwrap().removed.len(), 1);
            let policy = |policy| format!("hook forward priority filter; policy {policy};");
            assert_eq!(
                ruleset(),
                before.replace(&policy("drop"), &policy("accept"))
            );
        });
    });
}

#[test]
fn a_chain_that_only_its_owner_may_change_is_reported() {
    lab::test(|| {
        let _node = lab::net::node("node-a");
        // As firewalld does: only the process that made the table may change it.
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
        let mut forwarding = open::<Ipvs<Linux>>(Treatment::Accept);
        let report = loop {
            let report = forwarding.apply().unwrap();
            if report != ChainReport::default() {
                break report;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert_eq!(report.inserted, []);
        let words: Vec<String> = report.dropping.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), 1);
        assert!(
            words[0].contains("refused: Operation not permitted"),
            "{words:?}"
        );
        drop(commands);
        owner.wait().unwrap();
    });
}
