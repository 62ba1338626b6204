//! The number of log lines in large clusters in which something fails.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ipvs_netlink as ipvs;
use lab::net::Cluster;
use serde_json::{Value, json};

use super::daemon::Daemon;
use super::metrics::await_value;

const SERVICES: usize = 10_000;

const ENDPOINTS: usize = 10;

/// The maximum number of log lines per scenario, at level `info` and above.
const MAX_LINES: usize = 50;

/// The period of resyncs. One takes up to 3 s, so that [`WATCHED`] has more of them than a minute with
/// the default period.
const PERIOD: &str = "1s";

/// How long lines are counted after the kernel has its state.
const WATCHED: Duration = Duration::from_secs(5);

/// Writes the manifests of all objects. An API server in the test would need 200 MB of memory.
///
/// Every tenth Service is of IPv6 only. Half of the others request the scheduler `nosuch`.
fn write_manifests(path: &Path) {
    let mut text = String::new();
    for number in 0..SERVICES {
        let (high, low) = (number / 250, number % 250 + 1);
        let is_v6 = number % 10 == 0;
        let (family, kind, address) = match is_v6 {
            true => ("IPv6", "IPv6", format!("fd00:10:96::{high:x}:{low:x}")),
            false => ("IPv4", "IPv4", format!("10.96.{high}.{low}")),
        };
        let scheduler = match number % 2 {
            0 => "rr",
            _ => "nosuch",
        };
        let name = format!("s{number}");
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "namespace": "default", "name": name,
                "annotations": {"ipvs-proxier.io/scheduler": scheduler},
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
                "ipFamilies": [family],
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
            },
        });
        let endpoint = |pod: usize| {
            let address = match is_v6 {
                true => format!("fd00:244:1::{high:x}:{:x}", low * ENDPOINTS + pod),
                false => format!("10.{}.{high}.{low}", 100 + pod),
            };
            json!({"addresses": [address]})
        };
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": name,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": kind,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<Value>>(),
        });
        text += &format!("{service}\n---\n{slice}\n---\n");
    }
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "172.18.0.2"},
            {"type": "InternalIP", "address": "fd00:172:18::2"},
        ]},
    });
    std::fs::write(path, text + &node.to_string()).unwrap();
}

/// Returns the number of destinations in the kernel.
fn destinations() -> usize {
    let table = ipvs::Client::open().unwrap().table().unwrap();
    table.iter().map(|(_, servers)| servers.len()).sum()
}

/// The log of a daemon, from one scenario to the next.
struct Log<'a> {
    daemon: &'a Daemon,
    /// The lines of earlier scenarios.
    before: usize,
}

impl Log<'_> {
    /// Returns whether the scenario wrote a line with `words`.
    fn has(&self, words: &str) -> bool {
        let log = self.daemon.log();
        log.lines()
            .skip(self.before)
            .any(|line| line.contains(words))
    }

    /// Asserts that the scenario wrote at most [`MAX_LINES`] lines, and ends it.
    fn assert_short(&mut self, scenario: &str) {
        let log = self.daemon.log();
        let lines: Vec<&str> = log.lines().skip(self.before).collect();
        self.before += lines.len();
        eprintln!("{scenario}: {} lines", lines.len());
        let sample = lines[..lines.len().min(60)].join("\n");
        assert!(lines.len() <= MAX_LINES, "{scenario}: {sample}");
    }
}

#[test]
fn failures_in_large_clusters_write_at_most_50_lines_each() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let sh = |command: &str| {
            let command = format!("PATH=/usr/sbin:/usr/bin:/sbin:/bin; {command}");
            cluster.node.exec(&["/bin/sh", "-c", &command])
        };
        let mut daemon = Daemon::bare(&["--ipvs-sync-period", PERIOD]);
        let state = tempfile::tempdir().unwrap();
        let on_state = |arguments: &[&str]| {
            let status = Command::new("/bin/mount")
                .args(arguments)
                .arg(state.path())
                .status();
            assert!(status.unwrap().success());
        };
        on_state(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
        daemon.move_ledger(state.path());
        let files = tempfile::tempdir().unwrap();
        let manifests = files.path().join("cluster.yaml");
        write_manifests(&manifests);
        daemon.follow_manifests(&manifests);
        // IPv6 is disabled, and half of the Services request a scheduler that no kernel has.
        sh("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; \
            echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6");
        daemon.start();
        let await_all = || {
            // A dump of 100,000 destinations takes the daemon's processor for a moment.
            let pause = Duration::from_secs(1);
            let has_all = || destinations() == SERVICES * ENDPOINTS;
            assert!(lab::await_true(pause, has_all), "{}", destinations());
        };
        let start = Instant::now();
        await_all();
        println!("{SERVICES} Services programmed after {:?}", start.elapsed());
        let mut log = Log {
            daemon: &daemon,
            before: 0,
        };
        // A round writes its lines at its end, after the kernel has the destinations.
        for words in [
            "Permission denied (os error 13) (IPv6 is disabled on nexthop device)",
            "is a scheduler that this node's dataplane lacks",
        ] {
            daemon.eventually(words, || log.has(words));
        }
        std::thread::sleep(WATCHED);
        log.assert_short("a missing scheduler, IPv6 disabled");

        // The first resync learns the order in which a flush removes the virtual servers. Without it, the
        // repair searches the kernel's trash for minutes.
        let rounds = "ipvs_proxier_rounds_total{extent=\"all\",result=\"failure\"}";
        await_value(&daemon, rounds, 2.0);
        sh("ipvsadm -C");
        let start = Instant::now();
        await_all();
        println!("repaired after {:?}", start.elapsed());
        daemon.eventually("the log names the repair", || log.has("repaired drift"));
        std::thread::sleep(WATCHED);
        log.assert_short("ipvsadm -C");

        // The file cannot be written anew. Again and again, because the daemon may write it between the two
        // commands.
        let directory = state.path().display();
        let fill = format!(
            "rm -f {directory}/state; \
             dd if=/dev/zero of={directory}/rest bs=64k oflag=append conv=notrunc 2>&1 || true"
        );
        daemon.eventually("the full disk is logged", || {
            sh(&fill);
            log.has("cannot write the ledger")
        });
        std::thread::sleep(WATCHED);
        log.assert_short("a full disk under the state file");
        sh(&format!("rm {directory}/rest"));
        daemon.eventually("the end is logged once", || {
            daemon.log().contains("over after")
        });
    });
}
