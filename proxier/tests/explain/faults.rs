//! Faults as users make them, on a real kernel: `explain` names the cause in its first line, and real clients get what it
//! says.

use super::page;
use super::scene::{Case, Scene, case};

/// A cluster IP with endpoints on both nodes, its node port, and that of a Service with policy Local.
const CLUSTER_IP: &str = "10.96.1.6:80";
const NODE_PORT: &str = "172.18.0.2:30080";
const LOCAL_REMOTE: &str = "172.18.0.2:30082";
const RANGES: &str = "198.51.100.12:80";

/// Where nothing is wrong.
const SOUND: [Case; 5] = [
    case("a Pod", ("pod3", CLUSTER_IP), "answered", ""),
    case(
        "a process of the node",
        ("node", CLUSTER_IP),
        "answered",
        "",
    ),
    case("a client outside", ("ext", NODE_PORT), "answered", ""),
    case("the other node", ("peer", NODE_PORT), "answered", ""),
    case("a permitted range", ("ext", RANGES), "answered", ""),
];

/// Where objects decide.
const OBJECTS: [Case; 6] = [
    case(
        "13: no range",
        ("ext2", RANGES),
        "dropped",
        "192.0.2.9 is not in loadBalancerSourceRanges [X022]",
    ),
    case(
        "4: policy Local, outside",
        ("ext", LOCAL_REMOTE),
        "dropped",
        "no endpoint of Service default/np-local-remote is on node-a [X021]",
    ),
    case(
        "4: policy Local, inside",
        ("pod3", LOCAL_REMOTE),
        "answered",
        "",
    ),
    case(
        "no endpoint",
        ("pod3", "10.96.1.5:80"),
        "refused",
        "no endpoint that accepts connections: no EndpointSlice lists one",
    ),
    case(
        "an unlisted port",
        ("pod3", "10.96.1.1:22"),
        "refused",
        "no Service has port 22 at 10.96.1.1 [X011]",
    ),
    case(
        "10: a Pod and itself",
        ("pod1", "10.96.1.28:80"),
        "answered",
        "",
    ),
];

/// Returns the file of a setting, which the path of the process's network namespace has.
fn set(name: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
}

#[test]
fn ipvs_without_a_fault_and_with_decisions_of_objects() {
    lab::test(|| {
        let scene = Scene::new("ipvs");
        SOUND
            .iter()
            .chain(&OBJECTS)
            .for_each(|case| scene.check(case));
        // 3: who is the client that the Pod sees?
        let explained = scene.explain("203.0.113.9", NODE_PORT, &[]);
        let endpoints = explained["endpoints"].as_array().unwrap();
        assert!(
            endpoints.iter().all(|it| it["masqueraded"] == true),
            "{explained:#}"
        );
        let text = explained.to_string();
        assert!(
            text.contains("spec.externalTrafficPolicy is Cluster"),
            "{text}"
        );
        // 7: when does the kernel forget an idle connection?
        assert!(
            text.contains("idle for 900 s") && text.contains("--ipvs-tcp-timeout"),
            "{text}"
        );
        // 6: why does one endpoint get all connections?
        let text = scene
            .explain("10.244.1.4", "service/default/hints", &[])
            .to_string();
        assert!(
            text.contains("10.244.2.2:8080 on node-b, left out: hints.forZones is zone-b"),
            "{text}"
        );
    });
}

#[test]
fn maps_without_a_fault_and_with_decisions_of_objects() {
    lab::test(|| {
        let scene = Scene::new("nftables");
        SOUND
            .iter()
            .chain(&OBJECTS)
            .for_each(|case| scene.check(case));
        scene.nft("delete table inet ipvs-proxier-maps");
        let lost = ("ext", NODE_PORT);
        let explained = scene.explain("203.0.113.9", lost.1, &[]);
        let text = explained["verdict"]["text"].as_str().unwrap();
        assert!(
            text.contains("the kernel's maps have no endpoint") && text.contains("[X031]"),
            "{text}"
        );
    });
}

/// Firewalls: the hook, what the chain has, the question, and what drops. `""`: nothing.
const FIREWALLS: [(&str, &str, (&str, &str), &str); 9] = [
    (
        "input",
        "policy drop; ct state established,related accept;",
        ("ext", NODE_PORT),
        "the policy of chain c of table inet fw drops the client's packets at the hook input",
    ),
    (
        "forward",
        "policy drop; tcp dport 22 accept;",
        ("ext", NODE_PORT),
        "the policy of chain c of table inet fw drops the answers of endpoints at the hook forward",
    ),
    (
        "output",
        "policy drop; oifname \"lo\" accept;",
        ("pod3", CLUSTER_IP),
        "the policy of chain c of table inet fw drops packets to endpoints at the hook output",
    ),
    (
        "input",
        "policy drop; ct state established accept; tcp dport { 22, 30000-30100 } accept;",
        ("ext", NODE_PORT),
        "",
    ),
    (
        "forward",
        "policy drop; ct state vmap { established : accept, invalid : drop };",
        ("ext", NODE_PORT),
        "",
    ),
    (
        "input",
        "policy accept; ip saddr 203.0.113.0/24 tcp dport 30080 counter drop;",
        ("ext", NODE_PORT),
        "of chain c of table inet fw drops the client's packets",
    ),
    (
        "input",
        "policy accept; iifname \"ext0\" jump other;",
        ("ext", NODE_PORT),
        "of chain other of table inet fw drops the client's packets",
    ),
    (
        "input",
        "policy accept; iifname != \"ext0\" jump other;",
        ("ext", NODE_PORT),
        "",
    ),
    (
        "input",
        "policy drop; limit rate 100/second accept;",
        ("ext", NODE_PORT),
        "the policy of chain c of table inet fw may drop the client's packets",
    ),
];

#[test]
fn firewalls_are_named() {
    lab::test(|| {
        let scene = Scene::new("ipvs");
        for (index, (hook, content, question, words)) in FIREWALLS.into_iter().enumerate() {
            scene.nft(&format!(
                "table inet fw {{ chain other {{ tcp flags syn drop; }}\n\
                 chain c {{ type filter hook {hook} priority 0; {content}\n}}\n}}"
            ));
            let outcome = match words {
                "" => "answered",
                _ if words.contains("may drop") => "unknown",
                _ => "dropped",
            };
            scene.check(&case(content, question, outcome, words));
            if index == 0 {
                let output = scene
                    .command("explain")
                    .args(["203.0.113.9", NODE_PORT])
                    .output();
                let printed = String::from_utf8(output.unwrap().stdout).unwrap();
                let [(_, shown)] = page::examples("# ipvs-proxier explain 2")[..] else {
                    panic!("the page has one example of a node");
                };
                assert_eq!(printed, shown, "{printed}");
            }
            // Answers to a process of this node pass the hook input.
            if hook == "forward" || content.contains("established") {
                scene.check(&case(content, ("node", "10.96.1.12:80"), "answered", ""));
            }
            scene.nft("delete table inet fw");
        }
        // 9: a hostPort takes the node port, and no cluster IP with the same port.
        let host_port = "fib daddr type local tcp dport 30080 dnat to 10.244.1.4:8080";
        scene.nft(&format!(
            "table ip fw {{ chain c {{ type nat hook prerouting priority -100; {host_port}\n}}\n}}"
        ));
        let words =
            "of chain c of table ip fw sends the client's packets to another destination [X051]";
        scene.check(&case("9", ("ext", NODE_PORT), "unknown", words));
        assert_eq!(scene.cluster.ext.ask_tcp(NODE_PORT).backend(), Some("pod3"));
        scene.check(&case(
            "9: shielded",
            ("ext", "10.96.1.38:30080"),
            "answered",
            "",
        ));
        scene.check(&case(
            "9: another port",
            ("ext", "172.18.0.2:30090"),
            "answered",
            "",
        ));
        scene.nft("delete table ip fw");
        // The same in iptables' form.
        let rule = "INPUT -s 203.0.113.9 -p tcp --dport 30080 -m comment --comment x -j DROP";
        scene.on_node(&format!("/usr/sbin/iptables -A {rule}"));
        let words = "of chain INPUT of table ip filter drops the client's packets";
        scene.check(&case("iptables", ("ext", NODE_PORT), "dropped", words));
        scene.check(&case("iptables", ("ext2", NODE_PORT), "answered", ""));
        scene.on_node(&format!("/usr/sbin/iptables -D {rule}"));
        scene.on_node("/usr/sbin/iptables -P FORWARD DROP");
        let accept = "FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        let words = "the policy of chain FORWARD of table ip filter drops the answers";
        scene.check(&case("Docker", ("ext", NODE_PORT), "dropped", words));
        scene.on_node(&format!("/usr/sbin/iptables -A {accept}"));
        scene.check(&case("Docker", ("ext", NODE_PORT), "answered", ""));
    });
}

/// Returns whether a process of this node reaches a client outside from this port.
fn connects_from(port: u16) -> bool {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let to_socket = |text: String| text.parse::<std::net::SocketAddr>().unwrap();
    socket
        .bind(&to_socket(format!("172.18.0.2:{port}")).into())
        .unwrap();
    let to = to_socket("203.0.113.9:9000".into());
    socket
        .connect_timeout(&to.into(), std::time::Duration::from_secs(2))
        .is_ok()
}

#[test]
fn settings_and_routes_are_named() {
    lab::test(|| {
        let scene = Scene::new("ipvs");
        // 1: the node port answers on the node, not from outside.
        set("ipv4/ip_forward", "0");
        scene.check(&case(
            "1",
            ("ext", NODE_PORT),
            "dropped",
            "net.ipv4.ip_forward is 0",
        ));
        scene.check(&case("1: here", ("node", NODE_PORT), "answered", ""));
        set("ipv4/ip_forward", "1");
        // 2, 11: no way to the endpoints of the other node.
        scene.on_node("ip route replace unreachable 10.244.2.2/32");
        let only_remote = "10.96.1.17:80";
        scene.check(&case(
            "2",
            ("ext", only_remote),
            "dropped",
            "no route to endpoint 10.244.2.2 [X042]",
        ));
        let explained = scene.explain("203.0.113.9", NODE_PORT, &[]);
        let text = explained["verdict"]["text"].as_str().unwrap();
        assert!(
            text.starts_with("answered") && text.contains("[X042]"),
            "{text}"
        );
        scene.on_node("ip route replace 10.244.2.2/32 via 172.18.0.3");
        // 15: the way back is by another link than the one by which the packets arrive.
        set("ipv4/conf/ext0/rp_filter", "1");
        scene.check(&case("15: sound", ("ext", NODE_PORT), "answered", ""));
        scene.on_node("ip route add 203.0.113.9/32 dev ext1");
        let asymmetric = Case {
            flags: &["--device", "ext0"],
            ..case(
                "15",
                ("ext", NODE_PORT),
                "dropped",
                "ext0 drops packets from 203.0.113.9: the route to it is by ext1 [X041]",
            )
        };
        scene.check(&asymmetric);
        scene.on_node("ip route del 203.0.113.9/32 dev ext1");
        set("ipv4/conf/ext0/rp_filter", "0");
        // 12: more than one node answers ARP requests for the load balancer's address.
        scene.on_node("ip route add 198.51.100.0/24 dev ext0");
        let ext = &scene.cluster.ext;
        ext.exec(&["ip", "route", "add", "198.51.100.0/24", "dev", "eth0"]);
        let words = "this node answers ARP requests for 198.51.100.12 on ext0";
        scene.check(&case("12", ("ext", RANGES), "answered", words));
        set("ipv4/conf/ext0/arp_ignore", "1");
        scene.check(&case("12: hidden", ("ext", RANGES), "answered", ""));
        set("ipv4/conf/ext0/arp_ignore", "0");
        scene.on_node("ip route del 198.51.100.0/24 dev ext0");
        ext.exec(&["ip", "route", "del", "198.51.100.0/24", "dev", "eth0"]);
        // 14: a connection of a process of this node has the node port as its source, and stays in SYN_SENT.
        set("ipv4/ip_local_port_range", "1024 65535");
        let words = "the kernel may give port 30080 to a connection of a process of this node";
        scene.check(&case("14", ("ext", NODE_PORT), "answered", words));
        ext.serve_tcp(9_000);
        assert!(connects_from(30_100), "any other port");
        assert!(!connects_from(30_080));
        set("ipv4/ip_local_reserved_ports", "22,30000-32767");
        scene.check(&case("14: reserved", ("ext", NODE_PORT), "answered", ""));
        set("ipv4/ip_local_reserved_ports", "");
        set("ipv4/ip_local_port_range", "32768 60999");
        // 8: flows to a removed endpoint stay.
        set("ipv4/vs/expire_nodest_conn", "0");
        let words = "net.ipv4.vs.expire_nodest_conn is 0";
        scene.check(&case("8", ("ext", NODE_PORT), "answered", words));
        set("ipv4/vs/expire_nodest_conn", "1");
        // 3, 11: without tracking, nothing is masqueraded.
        set("ipv4/vs/conntrack", "0");
        scene.check(&case(
            "11",
            ("ext", only_remote),
            "unknown",
            "net.ipv4.vs.conntrack is 0",
        ));
        set("ipv4/vs/conntrack", "1");
        scene.check(&case("again", ("ext", only_remote), "answered", ""));
    });
}

#[test]
fn a_kernel_unlike_the_plan_is_named() {
    lab::test(|| {
        let scene = Scene::new("ipvs");
        let mut client = ipvs_netlink::Client::open().unwrap();
        let key = ipvs_netlink::ServiceKey::Address {
            protocol: ipvs_netlink::Protocol::Tcp,
            address: [10, 96, 1, 6].into(),
            port: 80,
        };
        let destination = ipvs_netlink::Destination::new(
            "10.244.2.2:8080"
                .parse::<std::net::SocketAddr>()
                .unwrap()
                .into(),
            0,
        );
        client.set_destination(&key, &destination).unwrap();
        let words = "10.244.2.2:8080 has weight 0 instead of 1 [X032]";
        scene.check(&case("a weight", ("pod3", CLUSTER_IP), "answered", words));
        client.delete_service(&key).unwrap();
        let words = "the kernel has no virtual server TCP 10.96.1.6:80 [X031]";
        scene.check(&case(
            "a virtual server",
            ("pod3", CLUSTER_IP),
            "refused",
            words,
        ));
        scene.run();
        scene.check(&case("repaired", ("pod3", CLUSTER_IP), "answered", ""));
        scene.nft("delete table inet ipvs-proxier");
        scene.check(&case(
            "rules",
            ("ext", NODE_PORT),
            "unknown",
            "packet rules are missing",
        ));
        scene.run();
        scene.check(&case("repaired", ("ext", NODE_PORT), "answered", ""));
        // 5: connections after a Pod was replaced.
        let mut connection = scene.cluster.pod3.connect("10.96.1.12:80").unwrap();
        scene.edit("  - 10.244.1.2\n", "  - 10.244.1.3\n");
        let text = scene
            .explain("10.244.1.4", "10.96.1.12:80", &[])
            .to_string();
        assert!(
            text.contains("10.244.1.2:8080 drains: no new connections"),
            "{text}"
        );
        assert!(connection.ask().backend().is_some());
        scene.check(&case("5", ("pod3", "10.96.1.12:80"), "answered", ""));
    });
}
