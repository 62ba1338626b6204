//! The network library, on a real kernel.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use lab::net::{self, Answer, Cluster, Host};

#[test]
fn clients_reach_every_pod_with_their_own_address() {
    lab::test(|| {
        let begin = Instant::now();
        let cluster = Cluster::conformance();
        eprintln!("network made in {:?}", begin.elapsed());

        let clients: [(&Host, [&str; 2]); 5] = [
            (&cluster.pod2, ["10.244.1.3", "fd00:244:1::3"]),
            (&cluster.node, ["172.18.0.2", "fd00:172:18::2"]),
            (&cluster.peer, ["172.18.0.3", "fd00:172:18::3"]),
            (&cluster.ext, ["203.0.113.9", "2001:db8:113::9"]),
            (&cluster.ext2, ["192.0.2.9", "2001:db8:2::9"]),
        ];
        let servers = [
            ("pod1", "10.244.1.2"),
            ("pod1", "fd00:244:1::2"),
            ("podB1", "10.244.2.2"),
            ("podB1", "fd00:244:2::2"),
            ("podB2", "10.244.2.3"),
        ];
        for (client, [v4, v6]) in clients {
            for (server, address) in servers {
                let address: IpAddr = address.parse().unwrap();
                let source = if address.is_ipv4() { v4 } else { v6 };
                let tcp = client.ask_tcp((address, 8080));
                let udp = client.ask_udp((address, 5353));
                for answer in [tcp, udp] {
                    let case = format!("{} asks {address}: {answer}", client.name());
                    assert_eq!(answer.backend(), Some(server), "{case}");
                    assert_eq!(answer.source(), source.parse().ok(), "{case}");
                }
            }
        }
        eprintln!("all answers after {:?}", begin.elapsed());
    });
}

#[test]
fn every_port_of_the_conformance_cluster_answers() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        for port in Cluster::TCP_PORTS {
            let answer = cluster.ext.ask_tcp(("10.244.1.4", port));
            assert_eq!(answer.backend(), Some("pod3"), "{port}: {answer}");
        }
        for port in Cluster::UDP_PORTS {
            let answer = cluster.ext.ask_udp(("fd00:244:1::4", port));
            assert_eq!(answer.backend(), Some("pod3"), "{port}: {answer}");
        }
        let asked: [(&Host, &str); 5] = [
            (&cluster.ext, "203.0.113.1"),
            (&cluster.ext, "172.18.0.2"),
            (&cluster.ext, "fd00:172:18::2"),
            (&cluster.pod1, "172.18.0.2"),
            (&cluster.node, "127.0.0.1"),
        ];
        for (client, address) in asked {
            for port in Cluster::HOST_PORTS {
                let answer = client.ask_tcp((address, port));
                assert_eq!(answer.backend(), Some("HOST"), "{address}: {answer}");
            }
        }
    });
}

#[test]
fn the_calling_thread_is_on_the_node() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let mine = std::net::TcpStream::connect("10.244.1.2:8080").unwrap();
        let address: SocketAddr = mine.local_addr().unwrap();
        assert_eq!(address.ip().to_string(), "172.18.0.2");
        let routes = cluster.node.exec(&["ip", "-4", "route"]);
        assert!(
            routes.contains("10.244.2.3 via 172.18.0.3 dev node0"),
            "{routes}"
        );
        assert!(
            cluster
                .pod1
                .run(|| std::net::TcpStream::connect("127.0.0.1:8080"))
                .is_ok()
        );
    });
}

#[test]
fn each_failure_has_its_answer() {
    lab::test(|| {
        let mut node = net::node("node-a");
        let ext = node.link("ext0", "203.0.113.1/24", "ext", "203.0.113.9/24");
        assert_eq!(ext.ask_tcp("203.0.113.1:1"), Answer::Refused);
        assert_eq!(ext.ask_udp("203.0.113.1:1"), Answer::Refused);
        assert_eq!(ext.ask_tcp("[2001:db8::1]:1"), Answer::Unreachable);
        ext.exec(&["ip", "route", "add", "blackhole", "198.51.100.1"]);
        assert!(matches!(ext.ask_udp("198.51.100.1:1"), Answer::Other(_)));
        node.exec(&["ip", "route", "add", "prohibit", "198.51.100.2"]);
        assert_eq!(ext.ask_tcp("198.51.100.2:1"), Answer::Unreachable);
        node.exec(&["ip", "route", "add", "blackhole", "198.51.100.3"]);
        assert_eq!(ext.ask_tcp("198.51.100.3:1"), Answer::Timeout);
        assert_eq!(ext.ask_udp("198.51.100.3:1"), Answer::Timeout);
    });
}

#[test]
fn udp_answers_come_from_the_destination_of_the_question() {
    lab::test(|| {
        let mut node = net::node("node-a");
        let ext = node.link(
            "ext0",
            "203.0.113.1/24 2001:db8::1/64",
            "ext",
            "203.0.113.9/24 2001:db8::9/64",
        );
        node.serve_udp(53);
        // Like a service address: local by a route, without an interface.
        node.exec(&["ip", "route", "add", "local", "10.96.0.10", "dev", "lo"]);
        node.exec(&[
            "ip",
            "-6",
            "route",
            "add",
            "local",
            "fd00:96::a",
            "dev",
            "lo",
        ]);
        for address in [
            "203.0.113.1:53",
            "10.96.0.10:53",
            "[2001:db8::1]:53",
            "[fd00:96::a]:53",
        ] {
            let answer = ext.ask_udp(address);
            assert_eq!(answer.backend(), Some("node-a"), "{address}: {answer}");
        }
    });
}

#[test]
fn a_connection_lives_until_its_server_stops() {
    lab::test(|| {
        let mut node = net::node("node-a");
        let ext = node.link("ext0", "203.0.113.1/24", "ext", "203.0.113.9/24");
        let pod = node.pod("pod1", "10.244.1.2");
        pod.serve_tcp(80);
        let mut connection = ext.connect("10.244.1.2:80").unwrap();
        let greeting = connection.greeting().clone();
        assert_eq!(greeting.backend(), Some("pod1"));
        assert_eq!(connection.ask(), greeting);
        assert_eq!(connection.ask(), greeting);
        drop(pod);
        assert!(!matches!(connection.ask(), Answer::Reply { .. }));
        assert!(!matches!(
            ext.ask_tcp("10.244.1.2:80"),
            Answer::Reply { .. }
        ));
    });
}
