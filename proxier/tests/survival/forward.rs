//! Somebody else drops what is forwarded while the program runs.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::net::{Answer, Cluster};

use super::{AT_ONCE, daemon::Daemon, serving};

/// To nft: a chain that only drops, in a table that is there.
const DROP: &str =
    "add chain inet others forward { type filter hook forward priority 0 ; policy drop ; }";

/// As nft lists it.
const LISTED: &str = "table inet others {\n\tchain forward {\n\t\t\
                      type filter hook forward priority filter; policy drop;\n\t}\n}\n";

/// Carries out `command` on the node.
fn on_node(cluster: &Cluster, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let program = format!("/usr/sbin/{}", words[0]);
    cluster.node.exec(&[&[&*program][..], &words[1..]].concat())
}

/// The number of our rule in the chain; the table counts its rules as they come.
fn handle(cluster: &Cluster) -> u64 {
    let listed = on_node(cluster, "nft -a list chain inet others forward");
    let rule = listed.lines().find(|line| line.contains("ipvs-proxier"));
    let number = rule.unwrap().rsplit(' ').next().unwrap();
    number.parse().unwrap()
}

#[test]
fn answers_pass_whatever_becomes_of_the_firewall() {
    lab::test(|| {
        // Too long for a resync to find anything.
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1h"]].concat();
        let (cluster, mut daemon, mut connections) = serving(&flags);
        let nft = |command: &str| on_node(&cluster, &format!("nft {command}"));
        let list = || nft("list chain inet others forward");
        let has_rule = |daemon: &Daemon| {
            daemon.eventually("the chain has our rule", || list().contains("ipvs-proxier"));
        };
        nft("add table inet others");
        nft(DROP);
        has_rule(&daemon);
        connections.live("a policy of drop");
        assert!(cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some());
        assert_eq!(cluster.ext.ask_tcp("10.244.1.2:8080"), Answer::Timeout);
        for command in ["flush chain inet others forward", "flush table inet others"] {
            nft(command);
            has_rule(&daemon);
            connections.live(command);
        }
        nft("delete table inet others");
        nft("add table inet others");
        nft(DROP);
        has_rule(&daemon);
        connections.live("a new table");

        // Whoever fights for the chain does not keep the program busy, and does not fill its log.
        let (before, start) = (handle(&cluster), Instant::now());
        while start.elapsed() < Duration::from_secs(3) {
            nft("flush chain inet others forward");
            std::thread::sleep(Duration::from_millis(50));
        }
        has_rule(&daemon);
        let most = start.elapsed().as_secs() + 2;
        let repairs = handle(&cluster) - before;
        assert!((1..=most).contains(&repairs), "{repairs} of {most}");
        let times = daemon.log().matches("it has got a rule").count();
        assert_eq!(times, 1, "{}", daemon.log());

        // It is there once, outlives the program, and goes with everything else.
        daemon.kill();
        connections.live("the program's death");
        daemon.start();
        nft("flush chain inet others forward");
        has_rule(&daemon);
        connections.live("its return");
        assert_eq!(list().matches("ipvs-proxier").count(), 1);
        daemon.terminate();
        let output = daemon.command("cleanup").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(list(), LISTED);
    });
}

#[test]
fn what_fails_at_one_chain_is_told_once_tried_again_and_left_out() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1h"]].concat();
        let (cluster, daemon, mut connections) = serving(&flags);
        let nft = |command: &str| on_node(&cluster, &format!("nft {command}"));
        // Somebody's table, which nobody else may change, has a rule of ours that is not needed.
        let mut owner = cluster.node.run(|| {
            Command::new("/usr/sbin/nft")
                .arg("-i")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let mut commands = owner.stdin.take().unwrap();
        let table = "add table inet firewalld { flags owner; }\n\
                     add chain inet firewalld forward { type filter hook forward priority 0; }\n\
                     add rule inet firewalld forward accept \
                     comment \"ipvs-proxier: answers of endpoints\"\n";
        commands.write_all(table.as_bytes()).unwrap();
        commands.flush().unwrap();
        daemon.eventually("the owner has its table", || {
            nft("list tables").contains("firewalld")
        });

        let words = "chain forward of table inet firewalld: removing our rule: \
                     Operation not permitted";
        let list = || nft("list chain inet others forward");
        nft("add table inet others");
        nft(&format!(
            "{DROP}; add rule inet others forward ct state established accept"
        ));
        daemon.eventually("the log says so", || daemon.log().contains(words));
        assert!(!list().contains("ipvs-proxier"), "{}", list());
        connections.live("somebody's rule");

        // That somebody's rule goes is not heard: it is the next try that finds it.
        let number = nft("-a list chain inet others forward");
        let rule = number.lines().find(|line| line.contains("established"));
        let number = rule.unwrap().rsplit(' ').next().unwrap();
        nft(&format!("delete rule inet others forward handle {number}"));
        daemon.eventually("the other chain has our rule", || {
            list().contains("ipvs-proxier")
        });
        connections.live("our rule");
        std::thread::sleep(Duration::from_secs(11));
        assert_eq!(daemon.log().matches(words).count(), 1, "{}", daemon.log());
        drop(commands);
        owner.wait().unwrap();
    });
}

#[test]
fn a_chain_that_drops_answers_is_told_of_once() {
    lab::test(|| {
        let only_told = ["--ipvs-sync-period", "1s", "--forward-drop", "warn"];
        let flags = [&AT_ONCE[..], &only_told].concat();
        let (cluster, daemon, _) = serving(&flags);
        let nft = |command: &str| on_node(&cluster, &format!("nft {command}"));
        nft("add table inet others");
        nft(DROP);
        let words = "chain forward of table inet others drops";
        let times = || daemon.log().matches(words).count();
        daemon.eventually("the log names the chain", || times() == 1);
        assert_eq!(cluster.pod3.ask_tcp("10.96.1.1:80"), Answer::Timeout);
        nft("insert rule inet others forward ct state established,related accept");
        assert!(cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some());

        // Whoever takes the rule away again is told again, once the program has seen it.
        std::thread::sleep(lab::patience(Duration::from_secs(6)));
        assert_eq!(times(), 1, "{}", daemon.log());
        nft("flush chain inet others forward");
        daemon.eventually("the log names it again", || times() == 2);
    });
}

#[test]
fn tables_that_cannot_be_read_are_told_of_once() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1s"]].concat();
        let (cluster, daemon, mut connections) = serving(&flags);
        let words = "the table filter of iptables-legacy is in use";
        let times = || daemon.log().matches(words).count();
        assert_eq!(times(), 0, "{}", daemon.log());
        if !Path::new("/proc/net/ip_tables_names").exists() {
            // A kernel without iptables-legacy has no such tables.
            return;
        }
        on_node(&cluster, "iptables-legacy -P FORWARD DROP");
        daemon.eventually("the log says so", || times() == 1);
        let log = daemon.log();
        let command = log.split(words).nth(1).unwrap().split('`').nth(1).unwrap();
        on_node(&cluster, command);
        connections.live("the command that the log names");
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(times(), 1, "{}", daemon.log());
    });
}
