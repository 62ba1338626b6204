//! The userspace dataplane with the annotation `source-address`: the client addresses that
//! endpoints see.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use lab::net::{Answer, Cluster, Connection, Host};

use super::manifests::{REMOTE, WEB, remote_slice, sticky};
use super::{Daemon, Over, PAUSE, Proxier, addresses, ask, names};

const CLIENT: &str = "metadata:\n  annotations: {ipvs-proxier.io/source-address: client}\n";

/// A relay on node-a.
struct Relay {
    daemon: Daemon,
    log: Arc<Mutex<String>>,
}

impl Relay {
    fn start(proxier: &Proxier) -> Self {
        Self::with_sync_period(proxier, "1s")
    }

    fn with_sync_period(proxier: &Proxier, period: &str) -> Self {
        let mut command = proxier.command("run");
        command.args(["--dataplane=userspace", "--ipvs-sync-period", period]);
        command.args(["--ipvs-min-sync-period=0s", "--cluster-cidr=10.244.0.0/16"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let collected = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *collected.lock().unwrap() += &(line + "\n");
            }
        });
        let daemon = Daemon(child);
        Self { daemon, log }
    }

    /// Stops the process in order.
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.daemon.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.daemon.0.wait().unwrap().success(), "{}", self.log());
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until `condition` holds.
    #[track_caller]
    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let holds = lab::await_true(PAUSE, condition);
        assert!(holds, "{what}: {}", self.log());
    }
}

/// Returns the manifests of all Services. `web` and `remote` ask for clients' addresses, if `annotated`.
fn services(annotated: &str) -> [String; 4] {
    let annotate = |text: &str, name: &str| {
        let plain = format!("metadata:\n  name: {name}\nspec");
        assert!(text.contains(&plain));
        text.replace(&plain, &plain.replace("metadata:\n", annotated))
    };
    [
        annotate(WEB, "web"),
        annotate(REMOTE, "remote"),
        sticky("sticky", "10.96.1.4"),
        remote_slice("10.244.2.2"),
    ]
}

fn write(proxier: &Proxier, annotated: &str) {
    let services = services(annotated);
    proxier.write(&services.each_ref().map(String::as_str));
}

const NOTHING: [&str; 0] = [];

/// The routing rule and the route of each family, and the table.
const COMPLETE: usize = 5;

/// Returns the parts of the path of answers that the node has, one a line.
fn traces(node: &Host) -> Vec<String> {
    let list = |argv: &[&str], part: &str| -> Vec<String> {
        let text = node.exec(argv);
        let lines = text.lines().filter(|line| line.contains(part));
        lines.map(str::to_owned).collect()
    };
    let of = |family: &str| {
        let rules = list(&["ip", family, "rule"], "lookup 73");
        // iproute2 fails if a table does not exist.
        let routes = ["ip", family, "route", "show", "table", "all"];
        [rules, list(&routes, "table 73")].concat()
    };
    let tables = list(&["nft", "list", "tables"], "ipvs-proxier");
    [of("-4"), of("-6"), tables].concat()
}

fn cleanup(proxier: &Proxier, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
    command.arg("cleanup").arg("--state-file");
    command.arg(proxier.directory.path().join("state.json"));
    command.args(arguments).output().unwrap()
}

fn sees(client: &Host, frontend: &str, source: &str) -> bool {
    client.ask_tcp(frontend).source() == Some(source.parse().unwrap())
}

fn open(client: &Host) -> Connection {
    client.connect("203.0.113.1:30080").unwrap()
}

#[test]
fn endpoints_see_the_client_if_their_service_asks_for_it_and_they_are_on_this_node() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let proxier = Proxier::new(&[]);
        write(&proxier, CLIENT);
        let relay = Relay::start(&proxier);
        relay.until("no client is seen", || {
            sees(&cluster.ext, "10.96.1.1:80", "203.0.113.9")
        });
        let pods = names(&["pod1", "pod2"]);
        for (client, v4, v6) in [
            (&*cluster.ext, "203.0.113.9", "2001:db8:113::9"),
            (&*cluster.peer, "172.18.0.3", "fd00:172:18::3"),
            (&cluster.pod3, "10.244.1.4", "fd00:244:1::4"),
            (&cluster.pod_b1, "10.244.2.2", "fd00:244:2::2"),
            // Its own address is the node's.
            (&*cluster.node, "172.18.0.2", "fd00:172:18::2"),
        ] {
            for (over, port) in [(Over::Tcp, 80), (Over::Udp, 53)] {
                for (address, source) in [("10.96.1.1", v4), ("[fd00:10:96::1]", v6)] {
                    let frontend = format!("{address}:{port}");
                    let (backends, sources) = ask(client, over, &frontend);
                    if client.name() == "node-a" {
                        // From the address that the route to the endpoint chooses.
                        assert_eq!(sources.len(), 1, "{sources:?}");
                        continue;
                    }
                    let expected = (pods.clone(), addresses(&[source]));
                    assert_eq!((backends, sources), expected, "{} {over:?}", client.name());
                }
            }
        }
        let (backends, sources) = ask(&cluster.ext, Over::Tcp, "172.18.0.2:30080");
        assert_eq!(
            (backends, sources),
            (pods.clone(), addresses(&["203.0.113.9"]))
        );
        // A Pod that reaches itself would answer itself.
        assert_eq!(ask(&cluster.pod1, Over::Tcp, "10.96.1.1:80").0, pods);
        // Another node's endpoint, and a Service without the annotation.
        assert_eq!(
            ask(&cluster.ext, Over::Tcp, "10.96.1.5:80"),
            (names(&["podB1"]), addresses(&["172.18.0.2"]))
        );
        assert!(!sees(&cluster.ext, "10.96.1.4:80", "203.0.113.9"));
        let log = relay.log();
        let is_problem =
            |line: &str| line.contains("Service default/remote") && line.contains("source-address");
        assert!(log.lines().any(is_problem), "{log}");
        assert!(!log.contains("Service default/web"), "{log}");
    });
}

#[test]
fn connections_outlive_a_change_of_the_annotation_and_nothing_is_left_at_the_end() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let ext = &cluster.ext;
        let proxier = Proxier::new(&[]);
        write(&proxier, "metadata:\n");
        let relay = Relay::start(&proxier);
        relay.until("nothing is served", || {
            ext.ask_tcp("203.0.113.1:30080").source().is_some()
        });
        assert_eq!(traces(&cluster.node), NOTHING);
        let mut before = open(ext);

        write(&proxier, CLIENT);
        relay.until("no client is seen", || {
            sees(ext, "10.96.1.1:80", "203.0.113.9")
        });
        let mut between = open(ext);
        for removal in [
            &["nft", "delete", "table", "inet", "ipvs-proxier-relay"][..],
            &["ip", "rule", "delete", "priority", "1"],
            &["ip", "route", "flush", "table", "73"],
        ] {
            cluster.node.exec(removal);
            relay.until("not repaired", || traces(&cluster.node).len() == COMPLETE);
            relay.until("no client is seen", || {
                sees(ext, "10.96.1.1:80", "203.0.113.9")
            });
        }
        write(&proxier, "metadata:\n");
        relay.until("the client is seen", || {
            !sees(ext, "10.96.1.1:80", "203.0.113.9")
        });
        for connection in [&mut before, &mut between] {
            assert!(
                matches!(connection.ask(), Answer::Reply { .. }),
                "{:?}",
                connection.greeting()
            );
        }
        assert_eq!(between.greeting().source(), "203.0.113.9".parse().ok());
        drop((before, between));

        // A killed process leaves the path. The next one uses it.
        write(&proxier, CLIENT);
        relay.until("no client is seen", || {
            sees(ext, "10.96.1.1:80", "203.0.113.9")
        });
        drop(relay);
        assert_eq!(traces(&cluster.node).len(), COMPLETE);
        let relay = Relay::start(&proxier);
        relay.until("no client is seen", || {
            sees(ext, "10.96.1.1:80", "203.0.113.9")
        });
        relay.stop();
        assert_eq!(traces(&cluster.node), NOTHING);

        let relay = Relay::start(&proxier);
        relay.until("no client is seen", || {
            sees(ext, "10.96.1.1:80", "203.0.113.9")
        });
        drop(relay);
        let preview = cleanup(&proxier, &["--dry-run"]);
        let preview = String::from_utf8_lossy(&preview.stdout).into_owned();
        assert!(
            preview.contains("delete table inet ipvs-proxier-relay"),
            "{preview}"
        );
        let removed = cleanup(&proxier, &[]);
        let words = String::from_utf8_lossy(&removed.stderr);
        assert!(removed.status.success(), "{words}");
        assert_eq!(traces(&cluster.node), NOTHING);
    });
}

/// Returns the service addresses that are local.
fn local_addresses(node: &Host) -> Vec<String> {
    let routes = node.exec(&["ip", "route", "show", "table", "local", "dev", "lo"]);
    let words = routes.lines().filter_map(|line| line.split(' ').nth(1));
    let ours = words.filter(|address| address.starts_with("10.96."));
    ours.map(str::to_owned).collect()
}

#[test]
fn a_deleted_address_returns_and_a_new_process_takes_over_those_of_a_killed_one() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let proxier = Proxier::new(&[]);
        write(&proxier, "metadata:\n");
        // Without resyncs: the kernel reports the deletion.
        let relay = Relay::with_sync_period(&proxier, "1h");
        let is_served = || cluster.ext.ask_tcp("10.96.1.1:80").source().is_some();
        relay.until("nothing is served", is_served);
        // The first address is served before the round has added the others.
        relay.until("an address is missing", || {
            local_addresses(&cluster.node).len() == 3
        });
        let before = local_addresses(&cluster.node);
        assert!(before.contains(&"10.96.1.1".to_owned()), "{before:?}");
        let delete = ["ip", "route", "delete", "local", "10.96.1.1", "dev", "lo"];
        cluster.node.exec(&delete);
        relay.until("the address does not return", || {
            local_addresses(&cluster.node) == before && is_served()
        });
        let lines = relay.log();
        assert!(!lines.contains("ERROR"), "{lines}");
        drop(relay);

        // A Service that is gone meanwhile needs no address. What the process cannot read does not keep it from
        // serving the rest, because no other one does.
        let [web, remote, _, slice] = services("metadata:\n");
        proxier.write(&[&web, &remote, &slice, "kind: [Service"]);
        let relay = Relay::start(&proxier);
        relay.until("nothing is served", is_served);
        relay.until("the address stays", || {
            !local_addresses(&cluster.node).contains(&"10.96.1.4".to_owned())
        });
        let log = relay.log();
        assert!(!log.contains("add address"), "an Op failed: {log}");
    });
}
