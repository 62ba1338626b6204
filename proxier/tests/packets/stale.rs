//! Connections that lead to an endpoint or by an address that is gone are forgotten; all others are
//! not.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use lab::net::Connection;
use proxier::testing::conntrack::{self, Flow};
use proxier::testing::model::{Family, Protocol};

use super::scene::{Scene, flows};
use crate::{DUAL, at};

/// A client that keeps asking from one port, as resolvers do.
#[derive(Debug)]
struct Resolver(UdpSocket);

impl Resolver {
    fn of(scene: &Scene, client: &str, to: &str) -> Self {
        let to: SocketAddr = to.parse().unwrap();
        Self(scene.client(client).run(|| {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            // Nobody here is to hear nothing.
            let patience = Some(lab::patience(Duration::from_secs(10)));
            socket.set_read_timeout(patience).unwrap();
            socket.connect(to).unwrap();
            socket
        }))
    }

    /// Who answers, if anybody does.
    fn ask(&self) -> Option<String> {
        self.0.send(b"?\n").ok()?;
        let mut line = [0; 128];
        let length = self.0.recv(&mut line).ok()?;
        let line = String::from_utf8_lossy(&line[..length]).into_owned();
        Some(line.split(' ').next().unwrap().to_owned())
    }
}

#[test]
fn stale_flows_go_and_no_others() {
    lab::test(|| {
        let mut scene = Scene::conformance(DUAL);
        let web = Resolver::of(&scene, "pod3", "10.96.1.1:53");
        let web6 = Resolver::of(&scene, "pod3", "[fd00:10:96::1]:53");
        let local = Resolver::of(&scene, "ext", "198.51.100.4:53");
        let direct = Resolver::of(&scene, "ext", "10.244.1.2:5353");
        for resolver in [&web, &web6, &local, &direct] {
            assert!(resolver.ask().is_some());
        }
        let flows = || flows(Protocol::Udp);
        let before = flows();
        assert_eq!(before.len(), 4, "{before:?}");

        // Both endpoints of `web` are replaced by pod3, in IPv4.
        let moved = DUAL.replacen(
            "- {addresses: [10.244.1.2], nodeName: node-a}\n\
             - {addresses: [10.244.2.2], nodeName: node-b}",
            "- {addresses: [10.244.1.4], nodeName: node-a}",
            1,
        );
        assert_ne!(moved, DUAL);
        scene.program(&moved);
        let left = flows();
        assert!(
            !left.iter().any(|flow| flow.starts_with("10.96.1.1:53 ")),
            "{left:?}"
        );
        let others = |flows: &BTreeSet<String>| -> Vec<String> {
            let kept = flows.iter().filter(|it| !it.starts_with("10.96.1.1:53 "));
            kept.cloned().collect()
        };
        assert_eq!(others(&left), others(&before));
        assert_eq!(web.ask().as_deref(), Some("pod3"));
        assert!(flows().len() > others(&left).len(), "the new flow stays");

        // The Service goes, and its flows with it.
        let gone = moved.replacen(
            "metadata: {name: web}",
            "metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: x}}",
            1,
        );
        scene.program(&gone);
        let left = flows();
        let of_web = ["10.96.1.1:53 ", "[fd00:10:96::1]:53 "];
        assert!(
            !left
                .iter()
                .any(|it| of_web.iter().any(|web| it.starts_with(web))),
            "{left:?}"
        );
        assert!(left.iter().any(|it| it.starts_with("198.51.100.4:53 ")));
        assert!(left.iter().any(|it| it.starts_with("10.244.1.2:5353 ")));
    });
}

/// Clients, each of which asks each of [`frontends`].
const CLIENTS: [&str; 3] = ["pod3", "ext", "node"];

/// The UDP frontends of Services web (policy Cluster) and local (policy Local, which clients inside
/// are served by firewall mark).
fn frontends() -> Vec<String> {
    let of = [
        ("10.96.1.1", "fd00:10:96::1", 53),
        ("198.51.100.1", "2001:db8:51::1", 53),
        ("198.51.100.2", "2001:db8:51::2", 53),
        ("172.18.0.2", "fd00:172:18::2", 30053),
        ("10.96.2.1", "fd00:10:96::2:1", 53),
        ("198.51.100.3", "2001:db8:51::3", 53),
        ("198.51.100.4", "2001:db8:51::4", 53),
        ("172.18.0.2", "fd00:172:18::2", 30054),
    ];
    let udp = of.map(|(v4, v6, port)| {
        let [_, udp, _, udp6] = at(v4, v6, 80, port);
        [udp, udp6]
    });
    let addresses = udp.as_flattened().iter();
    let addresses = addresses.filter_map(|it| it.strip_prefix("udp "));
    addresses.map(ToOwned::to_owned).collect()
}

/// A connection that the node knows.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    client: SocketAddr,
    frontend: String,
    endpoint: String,
}

impl From<Flow> for Known {
    fn from(flow: Flow) -> Self {
        Self {
            client: flow.original.source,
            frontend: flow.original.destination.to_string(),
            endpoint: flow.reply.source.to_string(),
        }
    }
}

fn known(protocol: Protocol) -> BTreeSet<Known> {
    let mut table = conntrack::Client::open().unwrap();
    let families = [Family::V4, Family::V6];
    let flows = families.map(|family| table.flows(family, protocol).unwrap());
    flows.into_iter().flatten().map(Known::from).collect()
}

/// Longer than the kernel takes to notice that a destination is gone, and to forget the connections
/// of IPVS to it with their flows (`expire_nodest_conn`).
const SETTLED: Duration = Duration::from_millis(200);

/// Everybody asks everything, twice, since endpoints take turns; and an endpoint itself.
fn everybody_asks(scene: &Scene) -> Vec<Resolver> {
    let mut resolvers = vec![Resolver::of(scene, "ext", "10.244.1.2:5353")];
    for frontend in frontends() {
        for client in CLIENTS {
            resolvers.extend([(); 2].map(|()| Resolver::of(scene, client, &frontend)));
        }
    }
    for resolver in &resolvers {
        assert!(resolver.ask().is_some());
    }
    resolvers
}

/// When `changed` is what is served instead of [`DUAL`], the flows are gone of which `is_stale` says
/// so.
fn go_exactly(changed: &str, is_stale: impl Fn(&Known) -> bool + Sync) {
    go_from_to_exactly(DUAL, changed, is_stale);
}

fn go_from_to_exactly(manifests: &str, changed: &str, is_stale: impl Fn(&Known) -> bool + Sync) {
    lab::test(|| {
        let mut scene = Scene::conformance(manifests);
        let resolvers = everybody_asks(&scene);
        let connect = |to| scene.client("ext").connect(to).unwrap();
        let over_tcp = ["10.96.1.1:80", "[fd00:10:96::1]:80"];
        let _connections: Vec<Connection> = over_tcp.into_iter().map(connect).collect();
        let (before, tcp) = (known(Protocol::Udp), known(Protocol::Tcp));
        assert_eq!((before.len(), tcp.len()), (resolvers.len(), 2));
        let (stale, expected): (BTreeSet<_>, BTreeSet<_>) = before.into_iter().partition(&is_stale);
        assert!(!stale.is_empty() && !expected.is_empty());

        scene.program(changed);
        let left = known(Protocol::Udp);
        let kept: Vec<_> = left.intersection(&stale).collect();
        assert!(kept.is_empty(), "{kept:#?}");
        std::thread::sleep(lab::patience(SETTLED));
        assert_eq!(known(Protocol::Udp), expected);
        assert_eq!(known(Protocol::Tcp), tcp);
        // What stays is of use.
        for resolver in &resolvers {
            let address = resolver.0.local_addr().unwrap();
            if expected.iter().any(|flow| flow.client == address) {
                assert!(resolver.ask().is_some(), "{address}");
            }
        }
    });
}

/// `DUAL` with the first `from` after `place` replaced.
#[track_caller]
fn edited(place: &str, from: &str, to: &str) -> String {
    let (before, after) = DUAL.split_once(place).unwrap();
    assert!(after.contains(from), "{from}");
    format!("{before}{place}{}", after.replacen(from, to, 1))
}

const WEB: &str = "metadata: {name: web}";
const LOCAL: &str = "metadata: {name: local}";

/// The endpoints of Service local in IPv4.
const LOCAL_4: &str = "metadata: {name: local-4,";
const POD2: &str = "- {addresses: [10.244.1.3], nodeName: node-a}\n";
const POD_B1: &str = "- {addresses: [10.244.2.2], nodeName: node-b}\n";

/// Whether it is a flow of Service local in IPv4.
fn is_of_local_4(flow: &Known) -> bool {
    let frontends = [
        "10.96.2.1:53",
        "198.51.100.3:53",
        "198.51.100.4:53",
        "172.18.0.2:30054",
    ];
    frontends.contains(&&*flow.frontend)
}

#[test]
fn flows_of_what_is_scaled_to_zero_go() {
    let endpoints = format!("endpoints:\n{POD2}{POD_B1}");
    let zero = edited(LOCAL_4, &endpoints, "endpoints: []\n");
    go_exactly(&zero, is_of_local_4);
}

/// pod2 is the only endpoint for clients outside.
#[test]
fn flows_to_the_last_local_endpoint_go() {
    go_exactly(&edited(LOCAL_4, POD2, ""), |flow| {
        is_of_local_4(flow) && flow.endpoint == "10.244.1.3:5353"
    });
}

/// podB1 and podB2 are endpoints for clients inside only.
#[test]
fn flows_to_an_endpoint_behind_a_firewall_mark_go() {
    let pod_b2 = POD_B1.replace("10.244.2.2", "10.244.2.3");
    let three = edited(LOCAL_4, POD_B1, &format!("{POD_B1}{pod_b2}"));
    let two = edited(LOCAL_4, POD_B1, &pod_b2);
    go_from_to_exactly(&three, &two, |flow| {
        is_of_local_4(flow) && flow.endpoint == "10.244.2.2:5353"
    });
}

/// The frontends of Service web.
fn of_web() -> Vec<String> {
    frontends()[..8].to_vec()
}

#[test]
fn flows_of_a_port_that_is_gone_go() {
    let dns = "  - {name: dns, port: 53, targetPort: 5353, protocol: UDP, nodePort: 30053}\n";
    let of_web = of_web();
    go_exactly(&edited(WEB, dns, ""), |flow| {
        of_web.contains(&flow.frontend)
    });
}

#[test]
fn flows_of_a_node_port_that_is_another_now_go() {
    let moved = edited(WEB, "nodePort: 30053", "nodePort: 30153");
    go_exactly(&moved, |flow| flow.frontend.ends_with(":30053"));
}

#[test]
fn flows_to_a_target_port_that_is_another_now_go() {
    let of_web = of_web();
    let target = edited("metadata: {name: web-4,", "port: 5353", "port: 9053");
    go_exactly(&target, |flow| {
        of_web.contains(&flow.frontend) && flow.client.is_ipv4()
    });
}

#[test]
fn flows_of_a_load_balancers_address_that_is_gone_go() {
    let balanced = edited(WEB, "{ip: 198.51.100.2}, ", "");
    go_exactly(&balanced, |flow| flow.frontend == "198.51.100.2:53");
}

#[test]
fn flows_of_an_external_address_that_is_gone_go() {
    let external = edited(WEB, "[198.51.100.1, \"2001:db8:51::1\"]", "[198.51.100.1]");
    go_exactly(&external, |flow| flow.frontend == "[2001:db8:51::1]:53");
}

#[test]
fn flows_of_an_address_behind_a_firewall_mark_that_is_gone_go() {
    let balanced = edited(LOCAL, "{ip: 198.51.100.4}, ", "");
    go_exactly(&balanced, |flow| flow.frontend == "198.51.100.4:53");
}

/// By the same endpoints as before.
#[test]
fn everybody_is_answered_when_a_firewall_mark_goes() {
    let policy = "externalTrafficPolicy: Local";
    a_firewall_mark_goes(&edited(LOCAL, policy, "externalTrafficPolicy: Cluster"));
}

/// The virtual server of the mark stays, and loses its connections to that endpoint.
#[test]
fn everybody_is_answered_when_the_last_remote_endpoint_behind_a_firewall_mark_goes() {
    a_firewall_mark_goes(&edited(LOCAL_4, POD_B1, ""));
}

/// Clients inside are served without a firewall mark when `changed` is. The connections of IPVS go
/// with the mark, and the kernel takes their flows along; no others.
fn a_firewall_mark_goes(changed: &str) {
    lab::test(|| {
        let mut scene = Scene::conformance(DUAL);
        let resolvers = everybody_asks(&scene);
        let before = known(Protocol::Udp);
        scene.program(changed);
        std::thread::sleep(lab::patience(SETTLED));
        let left = known(Protocol::Udp);
        let of_local = &frontends()[8..];
        let is_outside = |flow: &Known| {
            let ip = flow.client.ip().to_string();
            ["203.0.113.9", "2001:db8:113::9"].contains(&&*ip)
        };
        let may_stay = |flow: &Known| is_outside(flow) && flow.endpoint != "10.244.2.2:5353";
        let others: BTreeSet<_> = before
            .iter()
            .filter(|flow| may_stay(flow) || !of_local.contains(&flow.frontend))
            .collect();
        assert!(others.len() < before.len());
        assert!(others.iter().all(|flow| left.contains(flow)), "{left:#?}");
        for resolver in &resolvers {
            assert!(resolver.ask().is_some(), "{resolver:?}");
        }
    });
}
