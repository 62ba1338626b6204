//! Service addresses and their device while other programs change or own them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::SetOnDrop;
use lab::net::{Answer, Cluster, Host};
use serde_json::json;

use super::daemon::Daemon;
use super::dataplanes::Kernel;
use super::{AT_ONCE, Connections, POD1, POD2};

/// The frontends of Service `dual`, over TCP and over UDP.
pub(crate) const TCP: [&str; 2] = ["10.96.2.1:80", "[fd00:10:96::2:1]:80"];
pub(crate) const UDP: [&str; 2] = ["10.96.2.1:53", "[fd00:10:96::2:1]:53"];

/// Flags without resyncs and without rounds for changes: only a notification causes a round.
pub(crate) const ONLY_REPAIRS: [&str; 4] =
    ["--ipvs-sync-period", "1h", "--ipvs-min-sync-period", "1h"];

/// Returns the network, and a daemon with Services `web` and `dual` that does not run yet.
pub(crate) fn scene(flags: &[&str]) -> (Cluster, Daemon) {
    scene_with(Kernel::Ipvs, flags)
}

/// As [`scene`], with a dataplane.
pub(crate) fn scene_with(kernel: Kernel, flags: &[&str]) -> (Cluster, Daemon) {
    let cluster = Cluster::conformance();
    kernel.prepare(&cluster);
    let daemon = Daemon::new(&kernel.flags(flags));
    daemon.endpoints(&[POD1, POD2]);
    daemon.api.apply(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": "dual"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.2.1", "clusterIPs": ["10.96.2.1", "fd00:10:96::2:1"],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            "ports": [
                {"name": "http", "port": 80, "nodePort": 30080, "targetPort": 8080, "protocol": "TCP"},
                {"name": "dns", "port": 53, "nodePort": 30053, "targetPort": 5353, "protocol": "UDP"},
            ],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}, {"ip": "2001:db8:51::7"}]}},
    }));
    for (family, address) in [("IPv4", "10.244.1.2"), ("IPv6", "fd00:244:1::2")] {
        daemon.api.apply(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": format!("dual-{}", family.to_lowercase()),
                "labels": {"kubernetes.io/service-name": "dual"},
            },
            "addressType": family,
            "ports": [
                {"name": "http", "port": 8080, "protocol": "TCP"},
                {"name": "dns", "port": 5353, "protocol": "UDP"},
            ],
            "endpoints": [{"addresses": [address], "nodeName": "node-a", "conditions": {"ready": true}}],
        }));
    }
    (cluster, daemon)
}

/// Returns whether Service `dual` answers `client` over TCP and UDP in both families.
pub(crate) fn answers(client: &Host) -> bool {
    failures(client).is_empty()
}

/// Asks Service `dual` over TCP and UDP in both families. Returns what did not reach its endpoint.
fn failures(client: &Host) -> Vec<String> {
    let tcp = TCP
        .iter()
        .map(|frontend| ("TCP", frontend, client.ask_tcp(*frontend)));
    let udp = UDP
        .iter()
        .map(|frontend| ("UDP", frontend, client.ask_udp(*frontend)));
    tcp.chain(udp)
        .filter(|(_, _, answer)| answer.backend() != Some("pod1"))
        .map(|(protocol, frontend, answer)| {
            format!("{}: {protocol} {frontend}: {answer:?}", client.name())
        })
        .collect()
}

pub(crate) fn sh(cluster: &Cluster, command: &str) -> String {
    let command = format!("PATH=/usr/sbin:/usr/bin:/sbin:/bin; {command}");
    cluster.node.exec(&["/bin/sh", "-c", &command])
}

/// Returns our local routes, of both families.
pub(crate) fn routes(cluster: &Cluster) -> String {
    let show = "route show table local proto 73";
    sh(cluster, &format!("ip {show}; ip -6 {show}"))
}

/// Returns the addresses of the carrier; fails if it does not exist.
pub(crate) fn carrier_addresses(cluster: &Cluster) -> String {
    sh(cluster, "ip -oneline address show dev kube-ipvs0")
}

fn start(daemon: &mut Daemon, cluster: &Cluster) {
    daemon.start();
    daemon.eventually("the Service answers", || answers(&cluster.pod3));
}

/// Runs each of `commands`, and asserts that the service addresses become local again by a notification of
/// the kernel, with at most one log line.
///
/// Only a notification can cause the repair, because neither a resync nor a round happens for an hour.
///
/// `list` prints the device if it is up, and each of the five service addresses.
fn deletions_are_repaired(cluster: &Cluster, daemon: &Daemon, list: &str, commands: &[&str]) {
    let lines = || {
        let log = daemon.log();
        log.lines()
            .filter(|line| line.contains("repaired drift"))
            .count()
    };
    let first = Instant::now();
    // `ip` fails while the device is missing.
    let list = format!("ip -brief link show dev kube-ipvs0 up; {list} || true");
    let is_whole = || sh(cluster, &list).lines().count() == 6;
    for (number, command) in commands.iter().enumerate() {
        assert!(is_whole(), "{command}: {}", sh(cluster, &list));
        let start = Instant::now();
        sh(cluster, command);
        eprintln!("{command}: done after {:?}", start.elapsed());
        let start = Instant::now();
        // Requests would measure less exactly, because each may wait 1.5 s for an answer.
        daemon.eventually("the addresses are local again", is_whole);
        eprintln!("{command}: repaired after {:?}", start.elapsed());
        let failures = [&cluster.node, &cluster.pod3].map(failures).concat();
        assert!(failures.is_empty(), "{command}: {failures:?}");
        // Equal repairs within a minute share a line. A second notification may follow the first round,
        // but it finds nothing to repair.
        daemon.eventually("the log names the repair", || lines() > 0);
        std::thread::sleep(Duration::from_millis(500));
        let found = lines();
        // Each minute permits a summary of equal repairs.
        let minutes = usize::try_from(first.elapsed().as_secs() / 60).unwrap();
        assert!(found <= number + 1 + minutes, "{command}: {}", daemon.log());
    }
}

#[test]
fn flushed_routes_and_a_deleted_device_are_repaired_at_once() {
    lab::test(|| {
        let (cluster, mut daemon) = scene(&ONLY_REPAIRS);
        start(&mut daemon, &cluster);
        assert_eq!(carrier_addresses(&cluster), "");
        assert!(!routes(&cluster).contains("dev lo"), "{}", routes(&cluster));
        let mut connection = cluster.pod3.connect("10.96.1.1:80").unwrap();
        let list = "ip route show table local proto 73; ip -6 route show table local proto 73";
        let deletions = [
            "ip route flush table local proto 73",
            "ip -6 route flush table local proto 73",
            // The last IPv4 address of a device takes all IPv4 routes of the device with it.
            "printf 'address add 192.0.2.99/32 dev kube-ipvs0\naddress del 192.0.2.99/32 dev kube-ipvs0\n' \
             | ip -batch -",
            "ip link del kube-ipvs0",
            "ip link set kube-ipvs0 down; ip link set kube-ipvs0 up",
            "ip link set kube-ipvs0 down",
        ];
        deletions_are_repaired(&cluster, &daemon, list, &deletions);
        assert_eq!(carrier_addresses(&cluster), "");
        assert!(matches!(connection.ask(), Answer::Reply { .. }));

        // The device is a service proxy's: addresses of other programs do not stay on it.
        sh(&cluster, "ip address add 192.0.2.99/32 dev kube-ipvs0");
        daemon.eventually("the device has no address", || {
            carrier_addresses(&cluster).is_empty()
        });
        assert!(answers(&cluster.pod3));

        // Scripts that reset a node do the same after the process has ended.
        daemon.terminate();
        assert!(answers(&cluster.pod3));
        sh(&cluster, "ip link del kube-ipvs0");
        assert_eq!(routes(&cluster), "");

        start(&mut daemon, &cluster);
        daemon.terminate();
        let cleanup = daemon.command("cleanup").output().unwrap();
        assert!(cleanup.status.success(), "{cleanup:?}");
        assert_eq!(routes(&cluster), "");
        assert!(!sh(&cluster, "ip -oneline link").contains("kube-ipvs0"));
    });
}

#[test]
fn deleted_addresses_on_the_device_are_repaired_at_once() {
    lab::test(|| {
        let dummy = ["--service-addresses", "dummy"];
        let (cluster, mut daemon) = scene(&[&ONLY_REPAIRS[..], &dummy].concat());
        start(&mut daemon, &cluster);
        let deletions = [
            "ip address del 10.96.2.1/32 dev kube-ipvs0",
            "ip address del fd00:10:96::2:1/128 dev kube-ipvs0",
            "ip address flush dev kube-ipvs0",
            "ip link del kube-ipvs0",
            "ip link set kube-ipvs0 down",
        ];
        // Not the addresses: the kernel lists an IPv6 address before a work queue makes its local route
        // (`addrconf_dad_start`), and packets to it are not local until then.
        let local = "route show table local type local dev kube-ipvs0";
        let list = format!("ip {local}; ip -6 {local}");
        deletions_are_repaired(&cluster, &daemon, &list, &deletions);
    });
}

/// Runs `work` while `client` asks Service `dual`; returns how many requests were answered, and the
/// failed ones.
fn while_asking(client: &Host, work: impl FnOnce()) -> (usize, Vec<String>) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = SetOnDrop(&is_over);
        let asking = scope.spawn(|| {
            let (mut answered, mut failed) = (0, Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                for (tcp, udp) in TCP.iter().zip(UDP) {
                    for (frontend, answer) in
                        [(tcp, client.ask_tcp(*tcp)), (&udp, client.ask_udp(udp))]
                    {
                        match answer.backend() {
                            Some(_) => answered += 1,
                            None => failed.push(format!("{frontend}: {answer}, {answered}")),
                        }
                    }
                }
            }
            (answered, failed)
        });
        work();
        drop(end);
        asking.join().unwrap()
    })
}

/// Starts with kube-proxy's own device and addresses, then changes from each form to each other one.
#[test]
fn each_form_of_addresses_replaces_the_others_without_a_lost_connection() {
    lab::test(|| {
        let (cluster, mut daemon) = scene(&AT_ONCE);
        // kube-proxy leaves the device down. 10.96.77.77 belonged to a Service that is deleted.
        sh(&cluster, "ip link add kube-ipvs0 type dummy");
        for address in ["10.96.1.1", "10.96.2.1", "fd00:10:96::2:1", "10.96.77.77"] {
            sh(
                &cluster,
                &format!("ip address add {address} dev kube-ipvs0"),
            );
        }
        daemon.set_flags(&[&AT_ONCE[..], &["--service-addresses", "dummy"]].concat());
        start(&mut daemon, &cluster);
        let mut connections = Connections::open(&cluster);
        let (answered, failed) = while_asking(&cluster.pod3, || {
            for form in [
                "routes", "loopback", "routes", "dummy", "loopback", "dummy", "routes",
            ] {
                daemon.terminate();
                daemon.set_flags(&[&AT_ONCE[..], &["--service-addresses", form]].concat());
                daemon.start();
                daemon.eventually(&format!("only the form {form} is left"), || {
                    let routes = routes(&cluster);
                    let count = |on: &str| routes.lines().filter(|line| line.contains(on)).count();
                    let addresses = carrier_addresses(&cluster);
                    let found = (
                        count("dev kube-ipvs0"),
                        count("dev lo"),
                        addresses.lines().count(),
                    );
                    found
                        == match form {
                            "routes" => (5, 0, 0),
                            "loopback" => (0, 5, 0),
                            _ => (0, 0, 5),
                        }
                });
                connections.assert_alive(form);
            }
        });
        println!("{answered} requests were answered");
        assert!(answered > 20 && failed.is_empty(), "{answered} {failed:?}");
        let log = daemon.log();
        // Its own moves of routes are no drift.
        for word in ["ERROR", "File exists", "repaired drift"] {
            assert!(!log.contains(word), "{word}: {log}");
        }
        let plan = daemon.command("plan").output().unwrap();
        assert!(plan.status.success(), "{plan:?}");

        // The device does not have our alias, so it stays.
        daemon.terminate();
        let cleanup = daemon.command("cleanup").output().unwrap();
        assert!(cleanup.status.success(), "{cleanup:?}");
        assert_eq!(
            (routes(&cluster), carrier_addresses(&cluster)),
            Default::default()
        );
    });
}

/// The load-balancer addresses of Service `dual`.
const LOAD_BALANCERS: [&str; 2] = ["198.51.100.7", "2001:db8:51::7"];

/// A local route as Google's guest agent makes it for each forwarded address.
#[test]
fn a_local_route_of_another_program_satisfies_a_service() {
    lab::test(|| {
        // Only a notification can bring our routes back.
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1h"]].concat();
        let (cluster, mut daemon) = scene(&flags);
        let change = |verb: &str| {
            for address in LOAD_BALANCERS {
                let route = format!("local {address} dev node0 table local proto 66");
                sh(&cluster, &format!("ip route {verb} {route}"));
            }
        };
        let theirs = || {
            let show = "route show table local proto 66";
            sh(&cluster, &format!("ip {show}; ip -6 {show}"))
        };
        let load_balancer = || {
            LOAD_BALANCERS.iter().all(|address| {
                let address: IpAddr = address.parse().unwrap();
                let ext = &cluster.ext;
                ext.ask_tcp((address, 80)).backend() == Some("pod1")
                    && ext.ask_udp((address, 53)).backend() == Some("pod1")
            })
        };
        let is_planned = |daemon: &Daemon| {
            let plan = daemon.command("plan").args(["-o", "ops"]).output().unwrap();
            assert_eq!(
                (plan.status.code(), plan.stdout.len()),
                (Some(0), 0),
                "{plan:?}"
            );
        };
        let warnings = |daemon: &Daemon| {
            let problem = "another program has a local route of protocol 66";
            let log = daemon.log();
            let warnings = log.lines().filter(|line| line.contains("WARN"));
            // One line may have several Problems.
            warnings
                .map(|line| line.matches(problem).count())
                .sum::<usize>()
        };
        for (expected, is_first) in [(2, true), (4, false)] {
            if is_first {
                change("add");
            }
            let once = daemon.command("run").arg("--once").output().unwrap();
            assert!(once.status.success(), "{once:?}");
            daemon.start();
            daemon.eventually("the Service answers", load_balancer);
            if !is_first {
                change("add");
            }
            daemon.eventually("the Problem is logged", || warnings(&daemon) == expected);
            assert!(load_balancer());
            assert!(
                LOAD_BALANCERS
                    .iter()
                    .all(|address| theirs().contains(address))
            );
            is_planned(&daemon);
            change("del");
            let start = Instant::now();
            daemon.eventually("our route serves", load_balancer);
            println!("after {:?}", start.elapsed());
            is_planned(&daemon);
            daemon.terminate();
        }
        let log = daemon.log();
        assert!(!log.contains("ERROR"), "{log}");
    });
}

/// A node with many Pods creates and deletes many devices, addresses and routes.
#[test]
fn devices_of_pods_do_not_wake_up_the_daemon() {
    lab::test(|| {
        let (cluster, mut daemon) = scene(&ONLY_REPAIRS);
        start(&mut daemon, &cluster);
        let pid = daemon.pid();
        // By thread.
        let wakes = || -> BTreeMap<OsString, u64> {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let tasks = tasks.map(Result::unwrap);
            let count = |task: DirEntry| {
                // A thread may end at any time.
                let status = std::fs::read_to_string(task.path().join("status")).ok()?;
                let mut lines = status.lines();
                let found = lines.find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"))?;
                Some((task.file_name(), found.trim().parse().unwrap()))
            };
            tasks.filter_map(count).collect()
        };
        let between = |before: &BTreeMap<OsString, u64>, after: &BTreeMap<OsString, u64>| {
            let woken = after
                .iter()
                .filter_map(|(thread, count)| Some(count - before.get(thread)?));
            woken.sum::<u64>()
        };
        // The Pods of the network are new too.
        std::thread::sleep(Duration::from_secs(2));
        let (before, start) = (wakes(), Instant::now());
        let script = "for i in $(seq 100); do
            echo link add churn$i type veth peer name peer$i
            echo link set peer$i up
            echo link set churn$i up
            echo route add 10.244.7.$i/32 dev churn$i proto 80
            done | ip -batch - ; sleep 2; for i in $(seq 100); do
            echo route del 10.244.7.$i/32 dev churn$i proto 80
            echo link del churn$i
            done | ip -batch -";
        sh(&cluster, script);
        std::thread::sleep(Duration::from_millis(500));
        let (after, took) = (wakes(), start.elapsed());
        // Timers wake up other threads, more often on a slow machine, where all this takes longer. Without the
        // filter of notifications, there are 25 to 230 wake-ups.
        std::thread::sleep(took);
        let meanwhile = between(&before, &after);
        let otherwise = between(&after, &wakes());
        println!("woken up {meanwhile} times, otherwise {otherwise} times");
        assert!(
            meanwhile < otherwise + 15,
            "{meanwhile}, otherwise {otherwise}"
        );
    });
}
