//! The program with manifests on a real kernel: `run --once`, `run`, `plan`, `status`, and clients' traffic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "traffic/manifests.rs"]
mod manifests;
#[path = "traffic/sources.rs"]
mod sources;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ipvs_netlink as ipvs;
use lab::net::{Answer, Cluster, Host};
use tempfile::TempDir;

use manifests::{DAMAGED_REMOTE, REMOTE, WEB, remote_slice, sticky};

/// The program on node-a, with its own manifests and ledger.
struct Proxier {
    directory: TempDir,
    flags: Vec<String>,
}

impl Proxier {
    /// Returns the program with the manifests of all Services.
    fn new(flags: &[&str]) -> Self {
        let proxier = Self {
            directory: tempfile::tempdir().unwrap(),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        };
        std::fs::create_dir(proxier.manifests()).unwrap();
        let sticky = sticky("sticky", "10.96.1.4");
        proxier.write(&[WEB, &sticky, REMOTE, &remote_slice("10.244.2.2")]);
        proxier
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        command
            .arg(name)
            .arg("--state-file")
            .arg(self.directory.path().join("state.json"));
        if name != "status" {
            command
                .args(["--node-name", "node-a", "--manifests"])
                .arg(self.manifests());
        }
        command.args(&self.flags);
        command
    }

    fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    /// Replaces the manifests.
    fn write(&self, documents: &[&str]) {
        let file = self.manifests().join("services.yaml");
        std::fs::write(file, documents.join("---\n")).unwrap();
    }

    fn output(&self, name: &str, arguments: &[&str]) -> Output {
        self.command(name).args(arguments).output().unwrap()
    }

    /// Runs `run --once`, which programs the kernel.
    fn program(&self) {
        let output = self.output("run", &["--once"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl Proxier {
    /// Asserts that `run --once` fails with this `reason`.
    fn refuses_to_program(&self, reason: &str) {
        let output = self.output("run", &["--once"]);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words}");
        assert!(words.contains(reason), "{words}");
    }

    /// Starts the daemon.
    fn start(&self) -> Daemon {
        let log = std::fs::File::create(self.log()).unwrap();
        Daemon(self.command("run").stderr(log).spawn().unwrap())
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("daemon.log")
    }

    /// Waits until the daemon has logged `words`.
    #[track_caller]
    fn await_line(&self, words: &str) {
        let log = || std::fs::read_to_string(self.log()).unwrap();
        let is_logged = lab::await_true(PAUSE, || log().contains(words));
        assert!(is_logged, "no line {words:?}:\n{}", log());
    }
}

/// The pause between two looks at a daemon.
const PAUSE: Duration = Duration::from_millis(200);

/// A daemon that is killed when it is dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug)]
enum Over {
    Tcp,
    Udp,
}

/// Asks ten times. Returns the Pods that answer and the source addresses that they saw.
fn ask(client: &Host, over: Over, frontend: &str) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
    let frontend: SocketAddr = frontend.parse().unwrap();
    let (mut backends, mut sources) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..10 {
        let answer = match over {
            Over::Tcp => client.ask_tcp(frontend),
            Over::Udp => client.ask_udp(frontend),
        };
        match answer {
            Answer::Reply { backend, source } => {
                backends.insert(backend);
                sources.insert(source.ip());
            }
            other => panic!("{} to {frontend} over {over:?}: {other:?}", client.name()),
        }
    }
    (backends, sources)
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn addresses(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses
        .iter()
        .map(|address| address.parse().unwrap())
        .collect()
}

#[test]
fn pods_the_node_and_other_hosts_reach_pods_through_cluster_ips() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        Proxier::new(&[]).program();
        let clients: [(&Host, &str, &str); 4] = [
            (&cluster.pod3, "10.244.1.4", "fd00:244:1::4"),
            (&cluster.node, "172.18.0.2", "fd00:172:18::2"),
            (&cluster.peer, "172.18.0.3", "fd00:172:18::3"),
            (&cluster.ext, "203.0.113.9", "2001:db8:113::9"),
        ];
        for (client, v4, v6) in clients {
            for (over, port) in [(Over::Tcp, 80), (Over::Udp, 53)] {
                let expected = (names(&["pod1", "pod2"]), addresses(&[v4]));
                assert_eq!(ask(client, over, &format!("10.96.1.1:{port}")), expected);
                let expected = (names(&["pod1", "pod2"]), addresses(&[v6]));
                assert_eq!(
                    ask(client, over, &format!("[fd00:10:96::1]:{port}")),
                    expected
                );
            }
        }
    });
}

#[test]
fn endpoints_on_other_nodes_are_reached() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        Proxier::new(&[]).program();
        let b1 = names(&["podB1"]);
        assert_eq!(ask(&cluster.pod3, Over::Tcp, "10.96.1.5:80").0, b1);
        // A process of the node connects from the node's address, to which the other node has a route.
        let (backends, sources) = ask(&cluster.node, Over::Tcp, "10.96.1.5:80");
        assert_eq!((backends, sources), (b1, addresses(&["172.18.0.2"])));
    });
}

#[test]
fn node_ports_and_external_addresses_reach_pods() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        Proxier::new(&[]).program();
        let both = names(&["pod1", "pod2"]);
        for frontend in ["172.18.0.2:30080", "203.0.113.1:30080", "198.51.100.20:80"] {
            assert_eq!(ask(&cluster.ext, Over::Tcp, frontend).0, both, "{frontend}");
        }
        assert_eq!(
            ask(&cluster.ext, Over::Tcp, "[fd00:172:18::2]:30080").0,
            both
        );
    });
}

/// A node port at a loopback address.
const LOCALHOST: &str = "127.0.0.1:30080";

/// IPVS cannot serve them: the kernel drops packets from a loopback address to an endpoint.
#[test]
fn a_relay_beside_ipvs_serves_node_ports_at_localhost() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let proxier = Proxier::new(&[]);
        proxier.program();
        let without = cluster.node.ask_tcp(LOCALHOST);
        assert!(!matches!(without, Answer::Reply { .. }), "{without:?}");
        let mut command = proxier.command("run");
        command.arg("--localhost-nodeports").stderr(Stdio::null());
        let _daemon = Daemon(command.spawn().unwrap());
        let answers = || matches!(cluster.node.ask_tcp(LOCALHOST), Answer::Reply { .. });
        assert!(lab::await_true(PAUSE, answers), "localhost is not served");
        let both = names(&["pod1", "pod2"]);
        assert_eq!(ask(&cluster.node, Over::Tcp, LOCALHOST).0, both);
        // IPVS serves all other frontends, and has none at 127.0.0.1.
        assert_eq!(ask(&cluster.ext, Over::Tcp, "172.18.0.2:30080").0, both);
        let services = ipvs::Client::open().unwrap().services().unwrap();
        let mut addresses = services.iter().filter_map(|it| it.service.key.address());
        assert!(addresses.all(|address| !address.is_loopback()));
        let rules = proxier.output("plan", &["--output", "nft"]).stdout;
        assert!(!String::from_utf8(rules).unwrap().contains("127.0.0.1"));
    });
}

#[test]
fn a_relay_beside_nftables_serves_node_ports_at_localhost() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let proxier = Proxier::new(&["--dataplane=nftables", "--localhost-nodeports"]);
        let mut command = proxier.command("run");
        let _daemon = Daemon(command.stderr(Stdio::null()).spawn().unwrap());
        let answers = || matches!(cluster.node.ask_tcp(LOCALHOST), Answer::Reply { .. });
        assert!(lab::await_true(PAUSE, answers), "localhost is not served");
        let both = names(&["pod1", "pod2"]);
        assert_eq!(ask(&cluster.node, Over::Tcp, LOCALHOST).0, both);
        // The kernel serves all other frontends, and has none at 127.0.0.1.
        assert_eq!(ask(&cluster.ext, Over::Tcp, "172.18.0.2:30080").0, both);
        let rules = cluster.node.exec(&["nft", "list", "ruleset"]);
        assert!(!rules.contains("127.0.0.1"), "{rules}");
    });
}

#[test]
fn affinity_keeps_a_client_at_its_pod() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        Proxier::new(&[]).program();
        for client in [&cluster.pod3, &*cluster.ext, &*cluster.ext2] {
            assert_eq!(ask(client, Over::Tcp, "10.96.1.4:80").0.len(), 1);
        }
    });
}

#[test]
fn service_addresses_on_a_dummy_device_reach_pods() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        Proxier::new(&["--service-addresses", "dummy"]).program();
        let shown = cluster
            .node
            .exec(&["ip", "-brief", "address", "show", "kube-ipvs0"]);
        assert!(
            shown.contains("10.96.1.1/32") && shown.contains("fd00:10:96::1/128"),
            "{shown}"
        );
        for client in [&cluster.pod3, &*cluster.node, &*cluster.ext] {
            for frontend in ["10.96.1.1:80", "[fd00:10:96::1]:80"] {
                assert_eq!(ask(client, Over::Tcp, frontend).0, names(&["pod1", "pod2"]));
            }
        }
    });
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_replaced() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let output = Proxier::new(&["--ipvs-scheduler", "nosuch"]).output("run", &["--once"]);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words}");
        assert!(words.contains("nosuch"), "{words}");
        let both = names(&["pod1", "pod2"]);
        assert_eq!(ask(&cluster.pod3, Over::Tcp, "10.96.1.1:80").0, both);
    });
}

#[test]
fn nothing_is_written_where_nothing_differs() {
    lab::test(|| {
        let _cluster = Cluster::conformance();
        let proxier = Proxier::new(&[]);
        let before = proxier.output("plan", &["--output", "ops"]);
        assert_eq!(before.status.code(), Some(2));
        let text = String::from_utf8(before.stdout).unwrap();
        assert!(
            text.contains("add service TCP 10.96.1.1:80 rr (default/web:http)\n"),
            "{text}"
        );
        assert!(
            text.starts_with("set packet rules: table inet ipvs-proxier\n"),
            "{text}"
        );
        assert!(
            text.contains("add address 10.96.1.1 source 172.18.0.2\n"),
            "{text}"
        );
        proxier.program();
        let after = proxier.output("plan", &["--output", "ops"]);
        assert_eq!((after.status.code(), after.stdout.len()), (Some(0), 0));
        let status = String::from_utf8(proxier.output("status", &[]).stdout).unwrap();
        assert!(status.contains("default/web:dns"), "{status}");
        let planned = proxier.output("plan", &["--output", "json"]).stdout;
        let observed = proxier.output("status", &["--output", "json"]).stdout;
        let json = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        let mut observed = json(&observed);
        // Only `status` names neighbours, and only `plan` has differences.
        for field in ["neighbours", "timeouts"] {
            observed.as_object_mut().unwrap().remove(field);
        }
        let mut planned = json(&planned);
        assert_eq!(planned["changes"], serde_json::json!([]));
        for field in ["changes", "summary"] {
            planned.as_object_mut().unwrap().remove(field);
        }
        assert_eq!(planned, observed);
    });
}

#[test]
fn foreign_virtual_servers_and_routes_stay() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let mut client = ipvs::Client::open().unwrap();
        let foreign = ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 200, 1].into(),
            port: 443,
        };
        client
            .add_service(&ipvs::Service::new(foreign, "wlc".parse().unwrap()))
            .unwrap();
        let route = "local 192.0.2.77 dev lo table local proto static scope host";
        cluster.node.exec(
            &[
                &["ip", "route", "add"][..],
                &route.split(' ').collect::<Vec<_>>(),
            ]
            .concat(),
        );

        let proxier = Proxier::new(&[]);
        proxier.program();
        let renamed = sticky("other", "10.96.1.9");
        proxier.write(&[WEB, &renamed, REMOTE, &remote_slice("10.244.2.2")]);
        proxier.program();

        let keys: BTreeSet<String> = client
            .services()
            .unwrap()
            .iter()
            .map(|entry| entry.service.key.to_string())
            .collect();
        assert!(keys.contains("TCP 10.96.200.1:443"), "{keys:?}");
        assert!(keys.contains("TCP 10.96.1.9:80"), "{keys:?}");
        assert!(!keys.contains("TCP 10.96.1.4:80"), "{keys:?}");
        let routes = cluster
            .node
            .exec(&["ip", "route", "show", "table", "local"]);
        assert!(routes.contains("192.0.2.77"), "{routes}");
        assert!(
            routes.contains("10.96.1.9") && !routes.contains("10.96.1.4"),
            "{routes}"
        );
        let status = String::from_utf8(proxier.output("status", &[]).stdout).unwrap();
        let line = status
            .lines()
            .find(|line| line.contains("10.96.200.1"))
            .unwrap();
        assert!(line.contains("(foreign)"), "{line}");
    });
}

#[test]
fn the_daemon_follows_changes_of_manifests_and_keeps_services_that_it_cannot_read() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let proxier = Proxier::new(&[]);
        proxier.program();
        let mut open = cluster.pod3.connect("10.96.1.1:80").unwrap();
        let daemon = proxier.start();

        let sticky = sticky("sticky", "10.96.1.4");
        let changed = remote_slice("10.244.2.3");
        proxier.write(&[WEB, &sticky, REMOTE, &changed]);
        let b2 = Some("podB2");
        let is_applied = || cluster.pod3.ask_tcp("10.96.1.5:80").backend() == b2;
        assert!(
            lab::await_true(PAUSE, is_applied),
            "the daemon did not apply the change"
        );
        // The daemon keeps serving a Service whose file is being written, as by `kubectl get ... > FILE`, and one
        // whose manifest became unreadable.
        proxier.write(&[]);
        proxier.await_line("services.yaml: empty, without even a comment; objects read from this file before stay in use");
        proxier.write(&[WEB, &sticky, DAMAGED_REMOTE, &changed]);
        proxier.await_line("cannot be read as YAML: unclosed bracket");
        // A second process refuses to program while the daemon runs, also with a ledger of its own, and a relay adds no
        // address.
        proxier.refuses_to_program("runs on this node already and holds /");
        let second = Proxier::new(&[]);
        second.refuses_to_program("holds the abstract Unix socket \"ipvs-proxier\"");
        let relay = ["--dataplane=userspace", "--localhost-nodeports=false"];
        Proxier::new(&relay).refuses_to_program("holds the abstract Unix socket \"ipvs-proxier\"");
        let cleanup = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
            .args(["cleanup", "--kube-proxy=gone", "--state-file"])
            .arg(second.directory.path().join("state.json"))
            .output()
            .unwrap();
        assert!(!cleanup.status.success(), "{cleanup:?}");
        // Reading is permitted.
        assert!(second.output("status", &[]).status.success());
        let answer = cluster.pod3.ask_tcp("10.96.1.5:80");
        assert_eq!(answer.backend(), b2, "{answer}");
        // A process that starts after the daemon refuses too, because it never read that manifest.
        drop(daemon);
        proxier.refuses_to_program("nothing is programmed until");
        let answer = cluster.pod3.ask_tcp("10.96.1.5:80");
        assert_eq!(answer.backend(), b2, "{answer}");
        let answer = open.ask();
        assert!(
            matches!(answer, Answer::Reply { .. }),
            "an open connection survives: {answer}"
        );
    });
}
