//! Our tables in a real kernel, compared with nft's.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::process::{self, Stdio};

use std::time::Duration;

use proptest::prelude::*;
use proxier::testing::filter::{FilterConfig, LocalMode, Ruleset, TABLE};
use proxier::testing::frontend::Frontend;
use proxier::testing::model::{Family, Networks, Node, TrafficPolicy};
use proxier::testing::nftables::{Client, Command, Element, Key, Table, Tampering, Value, Watch};
use proxier::testing::plan::{Admission, Availability, Scope};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

mod nftables {
    pub(super) mod dump;
    mod restore;
}

/// Runs nft and returns its output.
fn nft(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = process::Command::new("nft")
        .args(arguments)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

fn frontend(text: &str) -> Frontend {
    let (protocol, address) = text.split_once(' ').unwrap();
    let address: std::net::SocketAddr = address.parse().unwrap();
    Frontend {
        protocol: match protocol {
            "tcp" => proxier::testing::model::Protocol::Tcp,
            "udp" => proxier::testing::model::Protocol::Udp,
            _ => proxier::testing::model::Protocol::Sctp,
        },
        address: address.ip(),
        port: address.port(),
    }
}

fn admission(scope: Scope, policy: TrafficPolicy) -> Admission {
    Admission {
        scope,
        policy,
        endpoints: Availability::Usable,
        source_ranges: None,
        inside_mark: None,
    }
}

fn ranges(family: Family, list: &[&str]) -> Option<Networks> {
    let networks = list.iter().map(|text| text.parse().unwrap());
    Some(Networks::new(family, networks))
}

/// A table in which everything occurs that can.
fn everything(local_mode: LocalMode) -> Table {
    use TrafficPolicy::{Cluster, Local};
    let config = FilterConfig {
        local_mode,
        answer_ping: true,
        ..FilterConfig::default()
    };
    let cluster_ip = admission(Scope::Internal, Cluster);
    let external = admission(Scope::External, Cluster);
    let local = Admission {
        endpoints: Availability::RemoteOnly,
        inside_mark: Some(0x8000_0001),
        ..admission(Scope::External, Local)
    };
    let frontends = [
        (frontend("tcp 10.96.0.1:443"), cluster_ip.clone()),
        (frontend("udp 10.96.0.10:53"), cluster_ip.clone()),
        (frontend("sctp [fd00:10:96::1]:7777"), cluster_ip.clone()),
        (
            frontend("tcp 10.96.0.9:80"),
            Admission {
                endpoints: Availability::None,
                ..cluster_ip
            },
        ),
        (frontend("tcp 172.18.0.2:30080"), external.clone()),
        (
            frontend("tcp 198.51.100.12:80"),
            Admission {
                source_ranges: ranges(
                    Family::V4,
                    &["203.0.113.0/24", "172.18.0.0/15", "0.0.0.0/31"],
                ),
                ..external.clone()
            },
        ),
        (
            frontend("tcp [2001:db8::12]:80"),
            Admission {
                source_ranges: ranges(Family::V6, &["2001:db8:113::/48", "ffff::/17"]),
                ..external.clone()
            },
        ),
        (
            frontend("tcp 198.51.100.13:80"),
            Admission {
                source_ranges: ranges(Family::V4, &["10.0.0.0/9"]),
                endpoints: Availability::None,
                ..external
            },
        ),
        (frontend("tcp 198.51.100.19:80"), local.clone()),
        (frontend("udp [fd00:172:18::2]:30054"), local),
    ];
    let addresses = |list: &[&str]| {
        let parsed = list.iter().map(|text| text.parse().unwrap());
        parsed.collect::<Vec<std::net::IpAddr>>()
    };
    let mut rules = Ruleset::new(&config, Some(&node()));
    for (frontend, admission) in frontends {
        rules.set_frontend(frontend, Some(admission));
    }
    for address in addresses(&["10.96.0.1", "198.51.100.12", "fd00:10:96::1"]) {
        rules.add_service_address(address);
    }
    for address in addresses(&["10.244.1.2", "fd00:244:1::2"]) {
        rules.add_local_endpoint(address);
    }
    rules.add_health_check_port(31_999);
    rules.table().clone()
}

fn node() -> Node {
    Node {
        name: "node-a".into(),
        addresses: vec!["172.18.0.2".parse().unwrap()],
        zone: None,
        region: None,
        pod_cidrs: Vec::new(),
    }
}

/// Returns the lines of a table, with one element in a line. Elements are sorted, because the kernel
/// lists them in no particular order.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut elements: Option<Vec<String>> = None;
    for line in text.lines() {
        let line = line.trim();
        let part = line.strip_prefix("elements = { ");
        if part.is_some() {
            elements = Some(Vec::new());
        }
        let Some(found) = &mut elements else {
            lines.push(line.to_owned());
            continue;
        };
        let part = part.unwrap_or(line);
        let (part, is_last) = match part.strip_suffix(" }") {
            Some(part) => (part, true),
            None => (part.trim_end_matches(','), false),
        };
        found.extend(part.split(", ").map(str::to_owned));
        if is_last {
            found.sort();
            lines.append(found);
            elements = None;
        }
    }
    lines
}

#[track_caller]
fn assert_same(left: &[String], right: &[String]) {
    let differing = left.iter().zip(right).find(|(left, right)| left != right);
    assert_eq!(differing, None);
    assert_eq!(left.len(), right.len());
}

fn modes() -> [LocalMode; 4] {
    let networks = ["10.244.0.0/16", "fd00:244::/31"];
    [
        LocalMode::ClusterCidr(networks.map(|text| text.parse().unwrap()).into()),
        LocalMode::ClusterCidr(Vec::new()),
        LocalMode::BridgeInterface("cni0".into()),
        LocalMode::InterfaceNamePrefix("veth".into()),
    ]
}

#[test]
fn nft_lists_our_table_as_we_print_it() {
    lab::test(|| {
        let mut client = Client::open(TABLE).unwrap();
        for mode in modes() {
            let table = everything(mode);
            client.replace(&table).unwrap();
            let listed = nft(&["list", "table", "inet", TABLE], "").unwrap();
            assert_same(&lines(&listed), &lines(&table.named(TABLE).to_string()));
        }
    });
}

#[test]
fn nft_sends_the_same_bytes_for_our_text() {
    lab::test(|| {
        for mode in modes() {
            let table = everything(mode);
            Client::open(TABLE).unwrap().replace(&table).unwrap();
            let ours = nftables::dump::table(TABLE);
            let text = table.named(TABLE).to_string();
            nft(&["-f", "-"], &format!("delete table inet {TABLE}\n{text}")).unwrap();
            let nfts = nftables::dump::table(TABLE);
            assert!(ours.len() > 40, "{}", ours.len());
            assert_same(&ours, &nfts);
        }
    });
}

/// Foreign tables of several families.
const FOREIGN: &str = "
    table ip filter {
        chain FORWARD { type filter hook forward priority filter; policy accept; }
    }
    table inet kube-proxy {
        set x {
            type ipv4_addr
            elements = { 10.0.0.1 }
        }
    }
    table ip6 nat {
        chain c {
            type nat hook postrouting priority srcnat
            oifname \"eth9\" masquerade
        }
    }
    table ip6 n {
        chain c {
            counter
        }
    }
    table ip ipvs-proxier {
        chain c {
            accept
        }
    }
";

/// Returns the foreign tables as nft lists them.
fn foreign() -> String {
    nft(&["-s", "list", "table", "ip", "filter"], "").unwrap()
        + &nft(&["-s", "list", "table", "inet", "kube-proxy"], "").unwrap()
        + &nft(&["-s", "list", "table", "ip6", "nat"], "").unwrap()
        + &nft(&["-s", "list", "table", "ip6", "n"], "").unwrap()
        + &nft(&["-s", "list", "table", "ip", TABLE], "").unwrap()
}

#[test]
fn foreign_tables_stay_unchanged() {
    lab::test(|| {
        nft(&["-f", "-"], FOREIGN).unwrap();
        let all = || nft(&["-s", "-a", "list", "ruleset"], "").unwrap();
        let (before, everything_before) = (foreign(), all());
        let mut client = Client::open(TABLE).unwrap();
        client.replace(&everything(modes()[0].clone())).unwrap();
        assert_eq!(foreign(), before);
        client.delete().unwrap();
        assert_eq!(all(), everything_before);
        // Deleting a missing table succeeds.
        client.delete().unwrap();
        assert!(!client.exists().unwrap());
        assert_eq!(all(), everything_before);
    });
}

#[test]
fn a_refused_command_is_named_and_the_transaction_has_no_effect() {
    lab::test(|| {
        let mut client = Client::open(TABLE).unwrap();
        client.replace(&everything(modes()[0].clone())).unwrap();
        let before = nftables::dump::table(TABLE);
        let port = |port| Element {
            key: Key::new([Value::Port(port)]),
            verdict: None,
        };
        let set = std::sync::Arc::<str>::from("health-check-ports");
        let missing = Command::DeleteElement(set.clone(), port(3).key);
        let mut changes: Vec<Command> = [1, 2]
            .map(|it| Command::AddElement(set.clone(), port(it)))
            .into();
        changes.push(Command::DeleteElement(set.clone(), port(1).key));
        changes.push(missing);
        let error = client.apply(&changes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "delete element inet ipvs-proxier health-check-ports { 3 }: \
             No such file or directory (os error 2)"
        );
        assert!(error.is_out_of_step());
        assert_same(&nftables::dump::table(TABLE), &before);
        // Adding existing elements succeeds.
        client.apply(&changes[..2]).unwrap();
        client.apply(&changes[..2]).unwrap();

        let unknown = Command::DeleteChain("missing".into());
        let error = client.apply(&[unknown]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("delete chain inet ipvs-proxier missing: No such file"),
            "{error}"
        );
        // Every command is out of step if the table is missing.
        client.delete().unwrap();
        assert!(client.apply(&changes[..1]).unwrap_err().is_out_of_step());
    });
}

#[test]
fn transactions_succeed_while_another_program_changes_its_table() {
    lab::test(|| {
        let mut client = Client::open(TABLE).unwrap();
        client.replace(&everything(modes()[0].clone())).unwrap();
        let mut other = Client::open("another").unwrap();
        let namespace = lab::net::node("here");
        let set = std::sync::Arc::<str>::from("health-check-ports");
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                namespace.run(|| {
                    for _ in 0..300 {
                        other.replace(&Table::default()).unwrap();
                        other.delete().unwrap();
                    }
                });
            });
            for port in 1..300 {
                let key = Key::new([Value::Port(port)]);
                let element = Element { key, verdict: None };
                let change = Command::AddElement(set.clone(), element);
                client.apply(&[change]).unwrap();
            }
            busy.join().unwrap();
        });
        let ports = nft(&["list", "set", "inet", TABLE, &set], "").unwrap();
        assert!(ports.contains("299"), "{ports}");
    });
}

/// Waits until the file descriptor is readable, as the daemon does. Returns whether it is.
fn wait(watch: &Watch, patience: Duration) -> bool {
    let mut fds = [PollFd::new(watch, PollFlags::IN)];
    let patience = Timespec::try_from(lab::patience(patience)).unwrap();
    poll(&mut fds, Some(&patience)).unwrap() > 0
}

#[test]
fn changes_of_our_table_by_other_programs_are_noticed() {
    lab::test(|| {
        let table = everything(modes()[0].clone());
        let mut client = Client::open(TABLE).unwrap();
        let mut watch = Watch::open(TABLE, client.port()).unwrap();
        client.replace(&table).unwrap();
        client
            .apply(&[Command::FlushChain("refuse".into())])
            .unwrap();
        nft(&["-f", "-"], FOREIGN).unwrap();
        nft(&["delete", "table", "ip", TABLE], "").unwrap();
        assert_eq!(watch.read().unwrap(), [], "own changes, foreign tables");

        for (command, what) in [
            (&["flush", "ruleset"][..], "table deleted"),
            (&["delete", "table", "inet", TABLE], "table deleted"),
            (&["flush", "table", "inet", TABLE], "rule deleted"),
            (
                &[
                    "add",
                    "element",
                    "inet",
                    TABLE,
                    "pingable-4",
                    "{ 10.0.0.9 }",
                ],
                "element added",
            ),
            (
                &["insert", "rule", "inet", TABLE, "input", "drop"],
                "rule added",
            ),
        ] {
            client.replace(&table).unwrap();
            assert_eq!(watch.read().unwrap(), []);
            nft(command, "").unwrap();
            assert!(wait(&watch, Duration::from_secs(20)), "{command:?}");
            let news = watch.read().unwrap();
            let [news] = &news[..] else {
                panic!("{news:?}");
            };
            let news = news.to_string();
            assert!(
                news.starts_with(&format!("{what} by nft (")),
                "{command:?}: {news}"
            );
        }
        // An overflow of the socket's buffer is reported, and later changes are noticed again.
        let mut stranger = Client::open(TABLE).unwrap();
        let set = std::sync::Arc::<str>::from("pingable-4");
        let address = |it: u32| Value::V4((0x0b00_0000 + it).into());
        let keys: Vec<Key> = (0..30_000).map(|it| Key::new([address(it)])).collect();
        let add = |key: &Key| {
            let element = Element {
                key: key.clone(),
                verdict: None,
            };
            Command::AddElement(set.clone(), element)
        };
        let delete = |key: &Key| Command::DeleteElement(set.clone(), key.clone());
        for _ in 0..2 {
            let changes: Vec<Command> = keys.iter().map(add).collect();
            stranger.apply(&changes).unwrap();
            let changes: Vec<Command> = keys.iter().map(delete).collect();
            stranger.apply(&changes).unwrap();
        }
        assert!(wait(&watch, Duration::from_secs(20)));
        assert!(watch.read().unwrap().contains(&Tampering::Unknown));
        client.replace(&table).unwrap();
        let _own = watch.read().unwrap();
        nft(&["flush", "ruleset"], "").unwrap();
        assert_eq!(watch.read().unwrap().len(), 1);
    });
}

#[test]
fn the_table_of_a_node_in_nft_syntax() {
    let table = everything(modes()[0].clone());
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false,
        snapshot_path => "nftables" }, {
        insta::assert_snapshot!("everything", table.named(TABLE).to_string());
    });
}

#[test]
fn changes_in_nft_words() {
    let mut rules = Ruleset::new(&FilterConfig::default(), None);
    rules.take_commands();
    let web = frontend("tcp 198.51.100.12:80");
    let mut text = String::new();
    let mut write_changes = |rules: &mut Ruleset, what: &str| {
        text += &format!("# {what}\n");
        for change in rules.take_commands() {
            text += &format!("{}\n", change.in_table(TABLE));
        }
    };
    let open = admission(Scope::External, TrafficPolicy::Cluster);
    let ranged = |list: &[&str]| Admission {
        source_ranges: ranges(Family::V4, list),
        ..open.clone()
    };
    let local = Admission {
        policy: TrafficPolicy::Local,
        endpoints: Availability::RemoteOnly,
        inside_mark: Some(7),
        ..open.clone()
    };
    rules.set_frontend(web, Some(open.clone()));
    write_changes(&mut rules, "a load-balancer address is added");
    rules.set_frontend(web, Some(ranged(&["10.0.0.0/8"])));
    write_changes(&mut rules, "it gets source ranges");
    rules.set_frontend(web, Some(ranged(&["10.0.0.0/8", "192.0.2.0/24"])));
    write_changes(&mut rules, "the source ranges change");
    rules.set_frontend(web, Some(ranged(&["10.0.0.0/8", "192.0.2.0/24"])));
    write_changes(&mut rules, "the source ranges stay the same");
    rules.set_frontend(web, Some(local));
    write_changes(
        &mut rules,
        "its policy becomes Local, without an endpoint on this node",
    );
    rules.set_frontend(web, None);
    write_changes(&mut rules, "it is removed");
    rules.release(|_, _| true, |_| true);
    write_changes(&mut rules, "its guard is released");
    rules.add_service_address("10.96.0.1".parse().unwrap());
    rules.add_local_endpoint("fd00::1".parse().unwrap());
    rules.add_health_check_port(31_999);
    write_changes(
        &mut rules,
        "addresses, endpoints and a health-check port are added",
    );
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false,
        snapshot_path => "nftables" }, {
        insta::assert_snapshot!("changes", text);
    });
}

/// A small world, so that random frontends meet.
fn any_admission() -> impl Strategy<Value = Option<Admission>> {
    let scope = prop_oneof![Just(Scope::Internal), Just(Scope::External)];
    let policy = prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)];
    let endpoints = prop_oneof![
        Just(Availability::Usable),
        Just(Availability::RemoteOnly),
        Just(Availability::None)
    ];
    let source_ranges = proptest::option::of(prop_oneof![
        Just(vec!["10.0.0.0/8"]),
        Just(vec!["10.0.0.0/8", "172.18.0.0/16"]),
        Just(vec![]),
    ]);
    let frontend = (
        scope,
        policy,
        endpoints,
        source_ranges,
        proptest::option::of(1..3_u32),
    );
    proptest::option::of(
        frontend.prop_map(|(scope, policy, endpoints, list, inside_mark)| Admission {
            scope,
            policy,
            endpoints,
            source_ranges: list.and_then(|list| ranges(Family::V4, &list)),
            inside_mark,
        }),
    )
}

fn config() -> FilterConfig {
    FilterConfig {
        answer_ping: true,
        ..FilterConfig::default()
    }
}

/// Steps: which of four places gets which frontend.
fn steps() -> impl Strategy<Value = Vec<Vec<(u8, Option<Admission>)>>> {
    let step = proptest::collection::vec((0..4_u8, any_admission()), 1..4);
    proptest::collection::vec(step, 1..8)
}

fn nth_frontend(nth: u8) -> Frontend {
    frontend(
        [
            "tcp 10.0.0.1:80",
            "tcp 10.0.0.1:81",
            "udp 10.0.0.1:80",
            "tcp 10.0.0.2:80",
        ][usize::from(nth)],
    )
}

fn from_scratch(frontends: &std::collections::BTreeMap<Frontend, Admission>) -> Table {
    let mut rules = Ruleset::new(&config(), Some(&node()));
    for (&frontend, admission) in frontends {
        rules.set_frontend(frontend, Some(admission.clone()));
    }
    rules.table().clone()
}

proptest! {
    /// The table depends only on the present frontends, not on past ones, and the commands lead to it.
    #[test]
    fn changes_add_up(steps in steps()) {
        let mut rules = Ruleset::new(&config(), Some(&node()));
        let mut applied = rules.table().clone();
        let mut frontends = std::collections::BTreeMap::new();
        for step in steps {
            for (nth, admission) in step {
                let frontend = nth_frontend(nth);
                rules.set_frontend(frontend, admission.clone());
                match admission {
                    Some(admission) => frontends.insert(frontend, admission),
                    None => frontends.remove(&frontend),
                };
            }
            rules.release(|_, _| true, |_| true);
            prop_assert_eq!(rules.table(), &from_scratch(&frontends));
            for change in rules.take_commands() {
                applied.apply(&change);
            }
            prop_assert_eq!(rules.table(), &applied);
            prop_assert_eq!(rules.take_commands(), []);
        }
    }
}

/// The kernel accepts all commands, and its table is the one that a replacement would give.
#[test]
fn the_kernel_accepts_incremental_changes() {
    lab::test(|| {
        use proptest::strategy::ValueTree as _;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let mut client = Client::open(TABLE).unwrap();
        for _ in 0..20 {
            let mut rules = Ruleset::new(&config(), Some(&node()));
            client.replace(rules.table()).unwrap();
            for step in steps().new_tree(&mut runner).unwrap().current() {
                for (nth, admission) in step {
                    rules.set_frontend(nth_frontend(nth), admission);
                }
                rules.release(|_, _| true, |_| true);
                client.apply(&rules.take_commands()).unwrap();
            }
            let listed = nft(&["list", "table", "inet", TABLE], "").unwrap();
            assert_same(
                &blocks(&listed),
                &blocks(&rules.table().named(TABLE).to_string()),
            );
        }
    });
}

/// Returns the sets and chains of a table, sorted, because the kernel lists chains by age.
fn blocks(text: &str) -> Vec<String> {
    let inner = text.trim_end().trim_end_matches('}');
    let (_, inner) = inner.split_once('\n').unwrap();
    let mut blocks: Vec<String> = inner
        .trim_end()
        .split("\n\n")
        .map(|it| lines(it).join("\n"))
        .collect();
    blocks.sort();
    blocks
}
