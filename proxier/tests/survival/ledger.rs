//! The ledger's file is lost, or a second process tries to lock it.

use std::path::Path;
use std::process::Output;

use ipvs_netlink as ipvs;
use lab::net::Cluster;
use serde_json::{Value, json};

use super::carrier::sh;
use super::daemon::{Daemon, web, web_key};
use super::{AT_ONCE, serving};

/// Service web with a node port, which lies outside the ranges of cluster IPs.
fn with_node_port() -> Value {
    let mut web = web(&json!({}));
    web["spec"]["type"] = json!("NodePort");
    web["spec"]["ports"][0]["nodePort"] = json!(30_080);
    web
}

fn virtual_servers() -> Vec<String> {
    let services = ipvs::Client::open().unwrap().services().unwrap();
    let keys = services.iter().map(|entry| entry.service.key.to_string());
    keys.collect()
}

fn has_node_port() -> bool {
    virtual_servers().contains(&"TCP 172.18.0.2:30080".to_owned())
}

fn status(daemon: &Daemon) -> String {
    let output = daemon.command("status").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn records_node_port(file: &Path) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.contains("30080")
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_lost_ledger_costs_no_ownership() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1s"]].concat();
        let (_cluster, mut daemon, _) = serving(&flags);
        daemon.api.apply(with_node_port());
        daemon.eventually("the node port", has_node_port);

        daemon.kill();
        let file = daemon.ledger();
        std::fs::remove_file(&file).unwrap();
        daemon.start();
        daemon.eventually("the next process records the node port", || {
            records_node_port(&file)
        });
        assert!(
            !status(&daemon).contains("(foreign)"),
            "{}",
            status(&daemon)
        );

        // Another program deletes the file while the process runs.
        std::fs::remove_file(&file).unwrap();
        daemon.eventually("the file is written anew", || records_node_port(&file));
        daemon.kill();
        daemon.api.delete(&web_key());
        daemon.start();
        daemon.eventually("the kernel has nothing", || virtual_servers().is_empty());

        daemon.api.apply(with_node_port());
        daemon.eventually("the node port again", has_node_port);
        daemon.terminate();
        let cleanup = daemon.command("cleanup").output().unwrap();
        assert!(cleanup.status.success(), "{cleanup:?}");
        assert_eq!(virtual_servers(), [] as [&str; 0]);
    });
}

#[test]
fn a_service_that_was_deleted_while_the_ledger_was_lost_leaves_no_open_node_port() {
    lab::test(|| {
        let (_cluster, mut daemon, _) = serving(&AT_ONCE);
        daemon.api.apply(with_node_port());
        daemon.eventually("the node port", has_node_port);
        daemon.kill();
        std::fs::remove_file(daemon.ledger()).unwrap();
        daemon.api.delete(&web_key());
        daemon.start();
        daemon.eventually("the kernel has nothing", || virtual_servers().is_empty());
        let log = daemon.log();
        assert!(
            log.contains("virtual servers that no Service asks for"),
            "{log}"
        );
    });
}

/// A page for the file of the lock and a page for the ledger: the records of further virtual servers find no room.
#[test]
fn records_that_found_no_room_are_missed_at_the_next_start() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let small = tempfile::tempdir().unwrap();
        let mount = format!("mount -t tmpfs -o size=8k none {}", small.path().display());
        sh(&cluster, &mount);
        let mut daemon = Daemon::new(&AT_ONCE);
        daemon.move_ledger(small.path());
        daemon.start();
        daemon.eventually("the cluster IP", || !virtual_servers().is_empty());
        let mut many = with_node_port();
        let ports = (0..40).map(|number| {
            let name = format!("p{number}");
            json!({"name": name, "port": 81 + number, "nodePort": 30_081 + number})
        });
        many["spec"]["ports"] = ports.collect();
        daemon.api.apply(many);
        let last = "TCP 172.18.0.2:30120".to_owned();
        daemon.eventually("the node ports", || virtual_servers().contains(&last));
        daemon.eventually("the failure in the log", || {
            daemon.log().contains("No space left on device")
        });
        daemon.kill();
        daemon.api.delete(&web_key());
        daemon.start();
        daemon.eventually("the kernel has nothing", || virtual_servers().is_empty());
        let log = daemon.log();
        for words in [
            "the last process could not write all records",
            "virtual servers that no Service asks for",
        ] {
            assert!(log.contains(words), "{words}: {log}");
        }
        drop(daemon);
        sh(&cluster, &format!("umount -l {}", small.path().display()));
    });
}

#[test]
fn a_second_process_exits_and_names_the_first() {
    lab::test(|| {
        let (_cluster, mut daemon, mut connections) = serving(&AT_ONCE);
        let first = format!("process {}", daemon.pid());
        for flags in [&["run", "--once"][..], &["cleanup"]] {
            let mut second = daemon.command(flags[0]);
            let second = second.args(&flags[1..]).output().unwrap();
            assert_eq!(second.status.code(), Some(1), "{second:?}");
            let words = words(&second);
            let last = words.lines().last().unwrap_or_default();
            assert!(last.contains(&first), "{words}");
        }
        for command in ["plan", "status"] {
            let reader = daemon.command(command).output().unwrap();
            assert!(reader.status.success(), "{reader:?}");
        }
        connections.assert_alive("the attempts");
        // A killed process no longer has the lock.
        daemon.kill();
        let cleanup = daemon.command("cleanup").output().unwrap();
        assert!(cleanup.status.success(), "{cleanup:?}");
        let left: Vec<_> = std::fs::read_dir(daemon.ledger().parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_string_lossy().contains("state"))
            .collect();
        assert_eq!(left, [] as [&str; 0]);
    });
}

/// Without the ledger, `cleanup` cannot know the owners of virtual servers.
#[test]
fn cleanup_without_the_ledger_names_what_it_left() {
    cleanup_names_what_it_left(|ledger| std::fs::remove_file(ledger).unwrap());
}

/// A full file system has cut the ledger off within a line.
#[test]
fn cleanup_with_a_part_of_the_ledger_names_what_it_left() {
    cleanup_names_what_it_left(|ledger| {
        let text = std::fs::read_to_string(ledger).unwrap();
        let cut = text.find(":30080").unwrap();
        std::fs::write(ledger, &text[..cut]).unwrap();
    });
}

fn cleanup_names_what_it_left(damage: impl Fn(&Path) + Send + Sync) {
    lab::test(|| {
        let (_cluster, mut daemon, _) = serving(&AT_ONCE);
        daemon.api.apply(with_node_port());
        daemon.eventually("the node port", has_node_port);
        daemon.terminate();
        damage(&daemon.ledger());
        let cleanup = daemon.command("cleanup").output().unwrap();
        assert_eq!(cleanup.status.code(), Some(1), "{cleanup:?}");
        let words = words(&cleanup);
        assert!(words.contains("TCP 172.18.0.2:30080"), "{words}");
        // The first `cleanup` removed the packet rules too. So the second takes these virtual servers for
        // foreign and succeeds.
        let again = daemon.command("cleanup").output().unwrap();
        assert!(again.status.success(), "{again:?}");
        let words = self::words(&again);
        assert!(words.contains("of other programs remain"), "{words}");
    });
}
