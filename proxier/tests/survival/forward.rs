//! Another program drops forwarded packets while the daemon runs.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::net::{Answer, Cluster};

use super::dataplanes::Kernel;
use super::{AT_ONCE, daemon::Daemon, serving};

/// The nft command that adds a chain with policy drop to an existing table.
const DROP: &str =
    "add chain inet others forward { type filter hook forward priority 0 ; policy drop ; }";

/// The table as nft lists it.
const LISTED: &str = "table inet others {\n\tchain forward {\n\t\t\
                      type filter hook forward priority filter; policy drop;\n\t}\n}\n";

/// Runs `command` on the node.
fn on_node(cluster: &Cluster, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let program = format!("/usr/sbin/{}", words[0]);
    cluster.node.exec(&[&[&*program][..], &words[1..]].concat())
}

/// The handle of our first rule. The kernel counts handles up for each object added to the table.
fn handle(cluster: &Cluster) -> u64 {
    let listed = on_node(cluster, "nft -a list chain inet others forward");
    let rule = listed.lines().find(|line| line.contains("ipvs-proxier"));
    let number = rule.unwrap().rsplit(' ').next().unwrap();
    number.parse().unwrap()
}

/// Asserts that the log has `words` once. Each minute since `first`, which is before that line, permits two
/// more times: in a summary, and in the line of the next event.
#[track_caller]
fn assert_is_rare(daemon: &Daemon, words: &str, first: Instant) {
    let log = daemon.log();
    let most = 1 + 2 * usize::try_from(first.elapsed().as_secs() / 60).unwrap();
    let times = log.matches(words).count();
    assert!((1..=most).contains(&times), "{times} of {most}: {log}");
}

#[test]
fn our_rule_returns_after_flushes_restarts_and_new_tables() {
    lab::test(|| our_rules_return(Kernel::Ipvs));
}

#[test]
fn our_rules_return_after_flushes_restarts_and_new_tables_with_nftables() {
    lab::test(|| our_rules_return(Kernel::Nftables));
}

fn our_rules_return(kernel: Kernel) {
    // With nftables, requests pass the forward hook too.
    let rules = match kernel {
        Kernel::Ipvs => 1,
        Kernel::Nftables => 2,
    };
    // No resync happens during the test.
    let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1h"]].concat();
    let (cluster, mut daemon, mut connections) = kernel.serving(&flags);
    let nft = |command: &str| on_node(&cluster, &format!("nft {command}"));
    let list = || nft("list chain inet others forward");
    let has_rule = |daemon: &Daemon| {
        daemon.eventually("the chain has our rule", || {
            list().contains("ipvs-proxier: answers")
                && (rules == 1 || list().contains("ipvs-proxier: packets"))
        });
    };
    nft("add table inet others");
    let first = Instant::now();
    nft(DROP);
    has_rule(&daemon);
    connections.assert_alive("a policy of drop");
    assert!(cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some());
    assert_eq!(cluster.ext.ask_tcp("10.244.1.2:8080"), Answer::Timeout);
    for command in ["flush chain inet others forward", "flush table inet others"] {
        nft(command);
        has_rule(&daemon);
        connections.assert_alive(command);
    }
    nft("delete table inet others");
    nft("add table inet others");
    nft(DROP);
    has_rule(&daemon);
    connections.assert_alive("a new table");

    if kernel == Kernel::Nftables {
        // Our rule for requests stays behind rules of others, which may be network policies.
        nft("add rule inet others forward ip saddr 192.0.2.9 drop");
        daemon.eventually("our rule is the last one", || {
            let listed = list();
            listed.rfind("192.0.2.9") < listed.rfind("ipvs-proxier: packets")
        });
        connections.assert_alive("a rule behind ours");
    }

    // If another program keeps flushing the chain, repairs stay rare and are logged once.
    let (before, start) = (handle(&cluster), Instant::now());
    while start.elapsed() < Duration::from_secs(3) {
        nft("flush chain inet others forward");
        std::thread::sleep(Duration::from_millis(50));
    }
    has_rule(&daemon);
    let most = start.elapsed().as_secs() + 2;
    let repairs = (handle(&cluster) - before) / rules;
    assert!((1..=most).contains(&repairs), "{repairs} of {most}");
    assert_is_rare(&daemon, "inserted our rule", first);

    // The rule exists once, stays when the daemon is killed, and `cleanup` removes it.
    daemon.kill();
    connections.assert_alive("the daemon is killed");
    daemon.start();
    nft("flush chain inet others forward");
    has_rule(&daemon);
    connections.assert_alive("the daemon starts again");
    let listed = list();
    let comments = u64::try_from(listed.matches("ipvs-proxier").count());
    assert_eq!(comments, Ok(rules), "{listed}");
    daemon.terminate();
    let output = daemon.command("cleanup").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(list(), LISTED);
}

#[test]
fn a_failure_at_one_chain_is_logged_once_retried_and_does_not_affect_others() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1h"]].concat();
        let (cluster, daemon, mut connections) = serving(&flags);
        let nft = |command: &str| on_node(&cluster, &format!("nft {command}"));
        // Only its owner may change this table, so our needless rule in it cannot be removed.
        let mut owner = cluster.node.run(|| {
            Command::new("/usr/sbin/nft")
                .arg("-i")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let mut commands = owner.stdin.take().unwrap();
        let first = Instant::now();
        let table = "add table inet firewalld { flags owner; }\n\
                     add chain inet firewalld forward { type filter hook forward priority 0; }\n\
                     add rule inet firewalld forward accept \
                     comment \"ipvs-proxier: answers of endpoints\"\n";
        commands.write_all(table.as_bytes()).unwrap();
        commands.flush().unwrap();
        daemon.eventually("the owner has its rule", || {
            let list = "list table inet firewalld";
            nft("list tables").contains("firewalld") && nft(list).contains("answers of endpoints")
        });

        let words = "chain forward of table inet firewalld: removing our rule: \
                     Operation not permitted";
        let list = || nft("list chain inet others forward");
        nft("add table inet others");
        nft(DROP);
        daemon.eventually("the log names the failure", || daemon.log().contains(words));
        daemon.eventually("the other chain has our rule", || {
            list().contains("ipvs-proxier")
        });
        connections.assert_alive("our rule");

        // The kernel notifies of no change that matters here, so a retry removes the needless rule.
        nft("add chain inet others open { type filter hook forward priority 1 ; }");
        nft("add rule inet others open accept comment \"ipvs-proxier: answers of endpoints\"");
        daemon.eventually("a retry removed the needless rule", || {
            !nft("list chain inet others open").contains("ipvs-proxier")
        });
        std::thread::sleep(Duration::from_secs(11));
        assert_is_rare(&daemon, words, first);
        drop(commands);
        owner.wait().unwrap();
    });
}

#[test]
fn with_forward_drop_warn_the_log_names_a_dropping_chain_once() {
    lab::test(|| {
        let only_warn = ["--ipvs-sync-period", "1s", "--forward-drop", "warn"];
        let flags = [&AT_ONCE[..], &only_warn].concat();
        let (cluster, daemon, _) = serving(&flags);
        let nft = |command: &str| on_node(&cluster, &format!("nft {command}"));
        nft("add table inet others");
        nft(DROP);
        let words = "chain forward of table inet others drops";
        let times = || {
            let log = daemon.log();
            let warnings = log.lines().filter(|line| line.contains(" WARN "));
            warnings.filter(|line| line.contains(words)).count()
        };
        daemon.eventually("the log names the chain", || times() == 1);
        assert_eq!(cluster.pod3.ask_tcp("10.96.1.1:80"), Answer::Timeout);
        let log = daemon.log();
        let command = log.split(words).nth(1).unwrap().split('`').nth(1).unwrap();
        on_node(&cluster, command);
        assert!(cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some());

        // When the rule is removed after a check has seen it, the log names the chain again.
        daemon.eventually("a check has seen the rule of the command", || {
            let log = daemon.log();
            log.lines()
                .any(|line| line.contains("over after") && line.contains(words))
        });
        assert_eq!(times(), 1, "{}", daemon.log());
        nft("flush chain inet others forward");
        daemon.eventually("the log names it again", || times() == 2);
    });
}

#[test]
fn tables_of_iptables_legacy_are_reported_once() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1s"]].concat();
        let (cluster, daemon, mut connections) = serving(&flags);
        let words = "the table filter of iptables-legacy is in use";
        let times = || daemon.log().matches(words).count();
        assert_eq!(times(), 0, "{}", daemon.log());
        if !Path::new("/proc/net/ip_tables_names").exists() {
            // This kernel lacks iptables-legacy.
            return;
        }
        on_node(&cluster, "iptables-legacy -P FORWARD DROP");
        daemon.eventually("the log names the table", || times() == 1);
        let log = daemon.log();
        let command = log.split(words).nth(1).unwrap().split('`').nth(1).unwrap();
        on_node(&cluster, command);
        connections.assert_alive("the command that the log names");
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(times(), 1, "{}", daemon.log());
    });
}
