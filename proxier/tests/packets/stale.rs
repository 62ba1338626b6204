//! Stale UDP flows, whose endpoint or frontend no longer exists, are deleted. All other flows stay.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use lab::net::{Connection, receive_within};
use proxier::testing::conntrack::{self, Flow};
use proxier::testing::model::{Family, Protocol, TrafficPolicy};

use super::load::socket;
use super::scene::{Scene, flows};
use super::services::{POD_B1, POD_B2, POD2, POD3, Port, Service, Services};

/// A question is answered at once, but a busy machine may leave the lab without a processor.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns nodes with these Services, on which an answered flow stays for the whole test: by default it stays for
/// 30 s, and a busy machine can stand still for as long.
fn scene(services: impl Display) -> Scene {
    let scene = Scene::new(services);
    let timeout = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
    let write = || std::fs::write(timeout, "3600").unwrap();
    scene.client("node").run(write);
    scene
}

/// A client that asks from one port, and so in one flow.
#[derive(Debug)]
struct Resolver(UdpSocket);

impl Resolver {
    fn new(scene: &Scene, client: &str, to: &str) -> Self {
        let to: SocketAddr = to.parse().unwrap();
        Self(scene.client(client).run(|| socket(to)))
    }

    /// Asks once. Returns the Pod that answers, if one does.
    fn ask(&self) -> Option<String> {
        self.0.send(b"?\n").ok()?;
        let mut line = [0; 128];
        let (length, _) = receive_within(&self.0, &mut line, PATIENCE).ok()?;
        let line = String::from_utf8_lossy(&line[..length]).into_owned();
        Some(line.split(' ').next().unwrap().to_owned())
    }
}

#[test]
fn only_stale_flows_are_deleted() {
    lab::test(|| {
        let mut scene = scene(Services::dual());
        let web = Resolver::new(&scene, "pod3", "10.96.1.1:53");
        let web6 = Resolver::new(&scene, "pod3", "[fd00:10:96::1]:53");
        let local = Resolver::new(&scene, "ext", "198.51.100.4:53");
        let direct = Resolver::new(&scene, "ext", "10.244.1.2:5353");
        for resolver in [&web, &web6, &local, &direct] {
            assert!(resolver.ask().is_some());
        }
        let flows = || flows(Protocol::Udp);
        let before = flows();
        assert_eq!(before.len(), 4, "{before:?}");

        // Both endpoints of `web` are replaced by pod3, in IPv4.
        let moved = Services::dual().edit("web", |web| {
            web.slice_v4().endpoints = vec![POD3];
        });
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

        scene.program(moved.without("web"));
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

/// The clients of [`ask_from_all_clients`].
const CLIENTS: [&str; 3] = ["pod3", "ext", "node"];

/// Addresses and UDP ports of Service web, which has policy Cluster.
const WEB: [(&str, &str, u16); 4] = [
    ("10.96.1.1", "fd00:10:96::1", 53),
    ("198.51.100.1", "2001:db8:51::1", 53),
    ("198.51.100.2", "2001:db8:51::2", 53),
    ("172.18.0.2", "fd00:172:18::2", 30053),
];

/// Addresses and UDP ports of Service local, which has policy Local. Its virtual servers for clients inside
/// have firewall marks.
const LOCAL: [(&str, &str, u16); 4] = [
    ("10.96.2.1", "fd00:10:96::2:1", 53),
    ("198.51.100.3", "2001:db8:51::3", 53),
    ("198.51.100.4", "2001:db8:51::4", 53),
    ("172.18.0.2", "fd00:172:18::2", 30054),
];

/// Returns the frontends of a Service in both families.
fn frontends(of: [(&str, &str, u16); 4]) -> Vec<String> {
    let both = of.map(|(v4, v6, port)| [format!("{v4}:{port}"), format!("[{v6}]:{port}")]);
    both.into_iter().flatten().collect()
}

/// A flow that the node tracks.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tracked {
    client: SocketAddr,
    frontend: String,
    endpoint: String,
}

impl From<Flow> for Tracked {
    fn from(flow: Flow) -> Self {
        Self {
            client: flow.original.source,
            frontend: flow.original.destination.to_string(),
            endpoint: flow.reply.source.to_string(),
        }
    }
}

/// Returns the flows of `protocol` that the node tracks.
fn tracked(protocol: Protocol) -> BTreeSet<Tracked> {
    let mut table = conntrack::ConntrackClient::open().unwrap();
    let families = [Family::V4, Family::V6];
    let flows = families.map(|family| table.flows(family, protocol).unwrap());
    flows.into_iter().flatten().map(Tracked::from).collect()
}

/// Longer than the kernel takes to delete the IPVS connections of a deleted destination and their flows
/// (`expire_nodest_conn`).
const SETTLED: Duration = Duration::from_millis(200);

/// Opens two flows from each client to each frontend, so that both endpoints get one, and one flow to an
/// endpoint's own address.
fn ask_from_all_clients(scene: &Scene) -> Vec<Resolver> {
    let mut resolvers = vec![Resolver::new(scene, "ext", "10.244.1.2:5353")];
    for frontend in frontends(WEB).into_iter().chain(frontends(LOCAL)) {
        for client in CLIENTS {
            resolvers.extend([(); 2].map(|()| Resolver::new(scene, client, &frontend)));
        }
    }
    for resolver in &resolvers {
        assert!(resolver.ask().is_some());
    }
    resolvers
}

/// Asserts that exactly the stale flows are deleted when `edit` changes the Service `name`.
fn edit_deletes_only(
    name: &str,
    edit: impl Fn(&mut Service) + Sync,
    is_stale: impl Fn(&Tracked) -> bool + Sync,
) {
    edit_of_these_deletes_only(&Services::dual(), name, edit, is_stale);
}

/// As [`edit_deletes_only`], with these Services before the edit.
fn edit_of_these_deletes_only(
    services: &Services,
    name: &str,
    edit: impl Fn(&mut Service) + Sync,
    is_stale: impl Fn(&Tracked) -> bool + Sync,
) {
    lab::test(|| {
        let mut scene = scene(services);
        let resolvers = ask_from_all_clients(&scene);
        let connect = |to| scene.client("ext").connect(to).unwrap();
        let over_tcp = ["10.96.1.1:80", "[fd00:10:96::1]:80"];
        let _connections: Vec<Connection> = over_tcp.into_iter().map(connect).collect();
        let (before, tcp) = (tracked(Protocol::Udp), tracked(Protocol::Tcp));
        assert_eq!((before.len(), tcp.len()), (resolvers.len(), 2));
        let (stale, expected): (BTreeSet<_>, BTreeSet<_>) = before.into_iter().partition(&is_stale);
        assert!(!stale.is_empty() && !expected.is_empty());

        scene.program(services.clone().edit(name, &edit));
        let left = tracked(Protocol::Udp);
        let kept: Vec<_> = left.intersection(&stale).collect();
        assert!(kept.is_empty(), "{kept:#?}");
        std::thread::sleep(lab::patience(SETTLED));
        assert_eq!(tracked(Protocol::Udp), expected);
        assert_eq!(tracked(Protocol::Tcp), tcp);
        // The other flows still lead to an endpoint.
        for resolver in &resolvers {
            let address = resolver.0.local_addr().unwrap();
            if expected.iter().any(|flow| flow.client == address) {
                assert!(resolver.ask().is_some(), "{address}");
            }
        }
    });
}

/// Returns whether it is an IPv4 flow of Service local.
fn is_of_local_4(flow: &Tracked) -> bool {
    let is_frontend = |(v4, _, port)| flow.frontend == format!("{v4}:{port}");
    LOCAL.into_iter().any(is_frontend)
}

/// Returns whether it is a flow of Service web.
fn is_of_web(flow: &Tracked) -> bool {
    frontends(WEB).contains(&flow.frontend)
}

#[test]
fn scaling_to_zero_deletes_the_flows_of_all_endpoints() {
    let edit = |local: &mut Service| local.slice_v4().endpoints.clear();
    edit_deletes_only("local", edit, is_of_local_4);
}

/// pod2 is the only endpoint for clients outside.
#[test]
fn removing_the_last_local_endpoint_deletes_its_flows() {
    let edit = |local: &mut Service| local.slice_v4().remove(POD2);
    edit_deletes_only("local", edit, |flow| {
        is_of_local_4(flow) && flow.endpoint == "10.244.1.3:5353"
    });
}

/// podB1 and podB2 are endpoints for clients inside only.
#[test]
fn removing_an_endpoint_behind_a_firewall_mark_deletes_its_flows() {
    let three = Services::dual().edit("local", |local| {
        local.slice_v4().endpoints.push(POD_B2);
    });
    let edit = |local: &mut Service| local.slice_v4().remove(POD_B1);
    edit_of_these_deletes_only(&three, "local", edit, |flow| {
        is_of_local_4(flow) && flow.endpoint == "10.244.2.2:5353"
    });
}

#[test]
fn removing_a_port_deletes_its_flows() {
    let edit = |web: &mut Service| web.ports.retain(|port| port.name != "dns");
    edit_deletes_only("web", edit, is_of_web);
}

#[test]
fn changing_a_node_port_deletes_the_flows_of_the_old_one() {
    let edit = |web: &mut Service| {
        let is_dns = |port: &&mut Port| port.name == "dns";
        let dns = web.ports.iter_mut().find(is_dns);
        dns.unwrap().node_port = Some(30153);
    };
    edit_deletes_only("web", edit, |flow| flow.frontend.ends_with(":30053"));
}

#[test]
fn changing_a_target_port_deletes_the_flows_to_the_old_one() {
    let edit = |web: &mut Service| web.slice_v4().set_dns_target(9053);
    edit_deletes_only("web", edit, |flow| is_of_web(flow) && flow.client.is_ipv4());
}

#[test]
fn removing_a_load_balancer_address_deletes_its_flows() {
    let edit = |web: &mut Service| web.load_balancer_ips.retain(|ip| *ip != "198.51.100.2");
    edit_deletes_only("web", edit, |flow| flow.frontend == "198.51.100.2:53");
}

#[test]
fn removing_an_external_address_deletes_its_flows() {
    let edit = |web: &mut Service| web.external_ips.retain(|ip| *ip != "2001:db8:51::1");
    edit_deletes_only("web", edit, |flow| flow.frontend == "[2001:db8:51::1]:53");
}

#[test]
fn removing_an_address_behind_a_firewall_mark_deletes_its_flows() {
    let edit = |local: &mut Service| local.load_balancer_ips.retain(|ip| *ip != "198.51.100.4");
    edit_deletes_only("local", edit, |flow| flow.frontend == "198.51.100.4:53");
}

#[test]
fn all_clients_are_answered_after_a_change_to_policy_cluster() {
    firewall_mark_is_removed(|local| local.external_policy = TrafficPolicy::Cluster);
}

#[test]
fn all_clients_are_answered_after_the_removal_of_the_last_remote_endpoint() {
    firewall_mark_is_removed(|local| local.slice_v4().remove(POD_B1));
}

/// Asserts that all clients are answered after an `edit` of Service local that removes its firewall mark.
///
/// When the virtual server of the mark is deleted, the kernel deletes its IPVS connections and their flows.
/// All other flows stay.
fn firewall_mark_is_removed(edit: impl Fn(&mut Service) + Sync) {
    lab::test(|| {
        let mut scene = scene(Services::dual());
        let resolvers = ask_from_all_clients(&scene);
        let before = tracked(Protocol::Udp);
        scene.program(Services::dual().edit("local", &edit));
        std::thread::sleep(lab::patience(SETTLED));
        let left = tracked(Protocol::Udp);
        let of_local = frontends(LOCAL);
        let is_outside = |flow: &Tracked| {
            let ip = flow.client.ip().to_string();
            ["203.0.113.9", "2001:db8:113::9"].contains(&&*ip)
        };
        let may_stay = |flow: &Tracked| is_outside(flow) && flow.endpoint != "10.244.2.2:5353";
        let others: BTreeSet<_> = before
            .iter()
            .filter(|flow| may_stay(flow) || !of_local.contains(&flow.frontend))
            .collect();
        assert!(others.len() < before.len());
        assert!(others.iter().all(|flow| left.contains(flow)), "{left:#?}");
        for resolver in &resolvers {
            // A question that is earlier than the kernel's deletion causes it, and is lost.
            let is_answered = (0..2).any(|_| resolver.ask().is_some());
            assert!(is_answered, "{resolver:?}");
        }
    });
}
