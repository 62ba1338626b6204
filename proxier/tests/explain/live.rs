//! `explain --watch` and `--connection`: what packets did, beside real clients.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::net::Answer;
use serde_json::Value;

use super::page;
use super::scene::Scene;

const TABLE: &str = "ipvs-proxier-trace";
/// Its only endpoint is pod1.
const ONE: &str = "10.96.1.12:80";
const NODE_PORT: &str = "172.18.0.2:30080";

impl Scene {
    fn chains(&self) -> String {
        self.on_node("/usr/sbin/nft list chains")
    }

    /// Starts `explain --watch`.
    fn begin_watch(&self, (from, to): (&str, &str), seconds: &str) -> Child {
        let mut command = self.command("explain");
        command.args([from, to, "--output", "json", "--watch", seconds]);
        self.trace(command.stdout(Stdio::piped()))
    }

    /// Starts a watch, and waits until it traces.
    fn trace(&self, command: &mut Command) -> Child {
        let child = command.spawn().unwrap();
        let begin = Instant::now();
        while !self.chains().contains("chain prerouting-requests") {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    /// Watches while a client asks. Returns what `explain` says, and what the client got.
    fn watch(&self, client: &str, to: &str, seconds: &str) -> (Value, Answer) {
        let (host, from) = self.host(client);
        let child = self.begin_watch((from, to), seconds);
        let answer = host.ask_tcp(to);
        let output = child.wait_with_output().unwrap();
        assert!(!self.chains().contains(TABLE), "{}", self.chains());
        let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
        let explained = explained[0].clone();
        let codes = [("answered", 0), ("refused", 3), ("dropped", 4)];
        let code = codes
            .iter()
            .find(|(word, _)| explained["verdict"]["outcome"] == *word);
        assert_eq!(
            output.status.code(),
            code.map(|(_, code)| *code),
            "{explained:#}"
        );
        (explained, answer)
    }

    /// Returns the verdict about the present connection of `client`.
    fn connection(&self, client: &str) -> (Value, Option<i32>) {
        let mut command = self.command("explain");
        command.args(["--connection", client, "--output", "json"]);
        let output = command.output().unwrap();
        let explained: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        (explained[0].clone(), output.status.code())
    }
}

#[track_caller]
fn assert_has(explained: &Value, words: &[&str]) {
    let text = explained.to_string();
    for words in words {
        assert!(text.contains(words), "{words}: {explained:#}");
    }
}

#[track_caller]
fn assert_first(explained: &Value, words: &str) {
    let text = explained["verdict"]["text"].as_str().unwrap();
    assert!(text.contains(words), "{words}: {explained:#}");
}

#[test]
fn packets_are_watched_through_ipvs() {
    lab::test(|| {
        let scene = Scene::new("ipvs");
        page_shows_it(&scene);
        let (explained, answer) = scene.watch("ext", ONE_NODE_PORT, "1");
        assert!(answer.backend().is_some(), "{answer}");
        assert_eq!(explained["verdict"]["outcome"], "answered");
        assert!(
            !explained["verdict"]["text"].as_str().unwrap().contains('['),
            "{explained:#}"
        );
        assert_has(
            &explained,
            &[
                "203.0.113.9 to 172.18.0.2:30081: prerouting by ext0, input, output to 10.244.1.2:8080, postrouting by \
                 veth-pod1",
                "forward",
                "IPVS has 2 connections of the client",
                "connection tracking has 2 connections of the client",
            ],
        );
        nobody_asks(&scene);
        // 1, 11: a rule that cannot be evaluated beforehand.
        scene.nft("table inet fw { chain c { type filter hook input priority 0; policy drop; meta length > 60000 accept; }\n}");
        let (explained, answer) = scene.watch("ext", NODE_PORT, "1");
        assert_eq!(answer.backend(), None);
        assert_first(
            &explained,
            "the policy of chain c of table inet fw drops the client's packets [X061]",
        );
        scene.nft("delete table inet fw");
        // 15: which device do packets arrive by?
        std::fs::write("/proc/sys/net/ipv4/conf/ext0/rp_filter", "1").unwrap();
        scene.on_node("ip route add 203.0.113.9/32 dev ext1");
        let (explained, _) = scene.watch("ext", NODE_PORT, "1");
        assert_first(
            &explained,
            "the client's packets end after the hook prerouting",
        );
        scene.on_node("ip route del 203.0.113.9/32 dev ext1");
        std::fs::write("/proc/sys/net/ipv4/conf/ext0/rp_filter", "0").unwrap();
        // A dead endpoint: one that is silent, one without its program.
        let silent = [
            "/usr/sbin/iptables",
            "-A",
            "INPUT",
            "-p",
            "tcp",
            "--dport",
            "8080",
            "-j",
            "DROP",
        ];
        scene.cluster.pod1.exec(&silent);
        let (explained, answer) = scene.watch("pod3", ONE, "2");
        assert_eq!(answer.backend(), None);
        assert_first(&explained, "no answer of 10.244.1.2:8080 came back [X063]");
        scene
            .cluster
            .pod1
            .exec(&["/usr/sbin/iptables", "-F", "INPUT"]);
        let mut reset = [&silent[..8], &["REJECT", "--reject-with", "tcp-reset"]].concat();
        scene.cluster.pod1.exec(&reset);
        let (explained, answer) = scene.watch("pod3", ONE, "1");
        assert_eq!(answer, Answer::Refused);
        assert_first(
            &explained,
            "10.244.1.2:8080 answers with a reset: no process listens there [X064]",
        );
        reset[1] = "-D";
        scene.cluster.pod1.exec(&reset);
        // 6: which endpoint has the connections?
        let held = scene.cluster.pod3.connect(ONE).unwrap();
        let (explained, _) = scene.watch("pod3", ONE, "1");
        assert_has(
            &explained,
            &[
                "at 10.244.1.2:8080, ESTABLISHED",
                " active and ",
                "since it was added",
            ],
        );
        drop(held);
        left_behind(&scene);
        nothing_is_left(&scene);
    });
}

/// A watch needs CAP_NET_ADMIN only, and changes nothing.
fn nobody_asks(scene: &Scene) {
    let state = || {
        let rules = scene.on_node("/usr/sbin/nft --stateless list ruleset");
        rules
            + &scene.on_node("ip route show table all")
            + &scene.on_node("ipvsadm --save --numeric")
    };
    let before = state();
    let mut command = scene.command("explain");
    command.args(["203.0.113.9", NODE_PORT, "--watch", "1"]);
    let mut bare = Command::new("setpriv");
    bare.args(["--bounding-set", "-all,+net_admin"]);
    bare.arg(command.get_program()).args(command.get_args());
    let output = bare.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("answered by 2 endpoints") && text.contains("[X060]"),
        "{text}{failed}"
    );
    assert_eq!(state(), before);
}

/// The page shows a watch as it is; only numbers differ from one to the next.
fn page_shows_it(scene: &Scene) {
    let [(command, shown)] = page::examples("# ipvs-proxier explain --watch")[..] else {
        panic!("the page has one example of a watch");
    };
    let mut words = command.strip_suffix(" ..").unwrap().split(' ').skip(2);
    let (from, to) = (words.next().unwrap(), words.next().unwrap());
    let mut watch = scene.command("explain");
    watch
        .args([from, to, "--watch", "1"])
        .stdout(Stdio::piped());
    let child = scene.trace(&mut watch);
    let mut connection = scene.cluster.ext.connect(to).unwrap();
    assert!(connection.ask().backend().is_some());
    let printed = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let without_numbers = |text: &str| -> Vec<String> {
        let number = |it: char| it.is_ascii_digit();
        let lines = text
            .lines()
            .map(|line| line.split(number).collect::<Vec<_>>().concat());
        lines.collect()
    };
    assert_eq!(
        without_numbers(&printed),
        without_numbers(shown),
        "{printed}"
    );
}

/// 8: a DNS client keeps its flow to an endpoint that another program removed.
fn left_behind(scene: &Scene) {
    const DNS: &str = "10.96.1.3:53";
    let set = |value| std::fs::write("/proc/sys/net/ipv4/vs/expire_nodest_conn", value).unwrap();
    set("0");
    let mut client = scene.cluster.pod3.udp_client(DNS);
    let endpoint = match client.ask().backend() {
        Some("pod2") => "10.244.1.3:5353",
        Some("podB2") => "10.244.2.3:5353",
        other => panic!("{other:?}"),
    };
    let mut ipvs = ipvs_netlink::Client::open().unwrap();
    let key = ipvs_netlink::ServiceKey::Address {
        protocol: ipvs_netlink::Protocol::Udp,
        address: [10, 96, 1, 3].into(),
        port: 53,
    };
    let removed: std::net::SocketAddr = endpoint.parse().unwrap();
    ipvs.delete_destination(&key, &removed.into()).unwrap();
    assert_eq!(
        client.ask_within(Duration::from_millis(300)).backend(),
        None
    );
    let mut command = scene.command("explain");
    command.args(["10.244.1.4", DNS, "--protocol", "udp", "--watch", "1"]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let first = text.lines().next().unwrap();
    let words = format!("leads to {endpoint}, which is no endpoint any more [X071]");
    assert!(first.contains(&words), "{text}");
    set("1");
    scene.run();
}

/// The node port of a Service whose only endpoint is pod1.
const ONE_NODE_PORT: &str = "172.18.0.2:30081";

/// After a crash, neither the kernel nor the next process leaves anything.
fn nothing_is_left(scene: &Scene) {
    let mut child = scene.begin_watch(("203.0.113.9", NODE_PORT), "600");
    // Only one traces at a time, and no cleanup takes its table away.
    let mut second = scene.command("explain");
    second.args(["203.0.113.9", NODE_PORT, "--watch", "1"]);
    let output = second.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("another `explain --watch` traces on this node"),
        "{text}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!scene.chains().contains(TABLE), "{}", scene.chains());
    // As kernels before 5.12 leave it.
    let leave = || {
        scene.nft(&format!(
            "table inet {TABLE} {{ chain left {{ type filter hook output priority -350; meta nftrace set 1; }}\n}}"
        ));
    };
    leave();
    let (explained, _) = scene.watch("ext", NODE_PORT, "1");
    assert_has(&explained, &["packets of the client came"]);
    leave();
    scene.run();
    assert!(!scene.chains().contains(TABLE), "{}", scene.chains());
    leave();
    let mut cleanup = scene.cleanup();
    let output = cleanup.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        !scene.chains().contains("ipvs-proxier"),
        "{}",
        scene.chains()
    );
}

#[test]
fn packets_are_watched_through_maps_and_connections_are_explained() {
    lab::test(|| {
        let mut scene = Scene::new("nftables");
        let (explained, answer) = scene.watch("ext", NODE_PORT, "1");
        assert!(answer.backend().is_some(), "{answer}");
        let text = explained["verdict"]["text"].as_str().unwrap();
        assert!(!text.contains('['), "{explained:#}");
        let way = "203.0.113.9 to 172.18.0.2:30080: prerouting by ext0, forward to 10.244.";
        assert_has(&explained, &[way]);
        connections(&scene);
        scene.change_to("ipvs");
        connections(&scene);
    });
}

/// Explains a connection, also after its endpoint was replaced.
fn connections(scene: &Scene) {
    let mut connection = scene.cluster.pod3.connect(ONE).unwrap();
    let answer = connection.ask();
    let Answer::Reply { source, .. } = answer else {
        panic!("{answer}");
    };
    let client = source.to_string();
    let (explained, code) = scene.connection(&client);
    assert_first(
        &explained,
        "connected to 10.244.1.2:8080; idle, it is forgotten in ",
    );
    assert_has(
        &explained,
        &["10.96.1.12:80", "established", "is an endpoint of the plan"],
    );
    assert_eq!(code, Some(0), "{explained:#}");
    // 5: the Pod was replaced.
    scene.edit("  - 10.244.1.2\n", "  - 10.244.1.3\n");
    let (explained, code) = scene.connection(&client);
    assert_first(&explained, "connected to 10.244.1.2:8080, which drains; ");
    assert_eq!(code, Some(0), "{explained:#}");
    assert!(connection.ask().backend().is_some());
    let (explained, code) = scene.connection("10.244.1.4:1");
    assert_first(
        &explained,
        "this node has no TCP, UDP, SCTP connection of 10.244.1.4:1 [X070]",
    );
    assert_eq!(code, Some(5));
}
