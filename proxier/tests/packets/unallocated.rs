//! Addresses of the service ranges that no Service has.

use lab::net::Answer;
use proxier::testing::clock;
use proxier::testing::model::{Cidr, ObjectName, ServiceCidr};
use proxier::testing::store::{Event, Parsed, Update};

use super::scene::{Scene, Subject, with_each_dataplane};
use super::services::{Endpoint, Service, Services};
use crate::{at, check};

with_each_dataplane!(connections_to_unallocated_addresses_end_at_the_node);

impl<D: Subject> Scene<D> {
    /// Gives the proxy a ServiceCIDR of these ranges and no other.
    fn set_service_ranges(&mut self, ranges: &[&str]) {
        let range = |text: &&str| Cidr::parse(text).unwrap();
        let object = ServiceCidr {
            name: "kubernetes".into(),
            ranges: ranges.iter().map(range).collect(),
        };
        let parsed = Parsed {
            name: ObjectName::new("", "kubernetes"),
            object: Some(object),
            problems: Vec::new(),
            changed: None,
        };
        let list = Update::Reset(vec![parsed]);
        self.proxier.receive([Event::ServiceCidrs(list)]);
        let applied = self.proxier.sync(clock::since_boot()).unwrap();
        assert_eq!(applied.failures().count(), 0);
        assert!(self.proxier.dataplane().has_written_rules());
    }
}

/// A host outside has the addresses, so that its answer shows that a packet left the cluster.
fn connections_to_unallocated_addresses_end_at_the_node<D: Subject>() {
    let mut scene = Scene::<D>::serving(Services::dual());
    let ext = scene.client("ext");
    for (address, via, version) in [
        ("10.96.9.9/32", "203.0.113.9", "-4"),
        ("10.96.9.8/32", "203.0.113.9", "-4"),
        ("fd00:10:96::9:9/128", "2001:db8:113::9", "-6"),
    ] {
        ext.exec(&["ip", "address", "add", address, "dev", "lo"]);
        let route = ["ip", version, "route", "replace", address, "via", via];
        scene.client("node").exec(&route);
    }
    ext.serve_tcp(80);
    ext.serve_udp(53);
    let unallocated = at("10.96.9.9", "fd00:10:96::9:9", 80, 53);
    let web = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    let leaves = |scene: &Scene<D>| {
        for (client, to) in [("pod3", &unallocated[0]), ("node", &unallocated[2])] {
            let answers = scene.ask(client, to, 1);
            let is_left = answers.iter().all(|it| it.starts_with("ext/"));
            assert!(is_left, "{client} to {to}: {answers:?}");
        }
    };

    // Without ranges nothing is known of the address. A range that contains the node's own addresses is not believed.
    leaves(&scene);
    scene.set_service_ranges(&["10.96.0.0/12", "fd00:10:96::/48", "172.16.0.0/12"]);
    let problems = scene.proxier.problems();
    let doubtful: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(
        matches!(&doubtful[..], [one] if one.contains("172.18.0.2, an address of this node")),
        "{doubtful:?}"
    );
    for client in ["pod3", "podB1"] {
        check(&scene, client, &unallocated, &["refused"]);
    }
    // send(2) itself fails on the node.
    for (to, answer) in unallocated
        .iter()
        .zip(["refused", "unreachable"].iter().cycle())
    {
        check(&scene, "node", std::slice::from_ref(to), &[answer]);
    }
    check(&scene, "pod3", &web, &["pod1/client", "podB1/client"]);
    check(&scene, "node", &web, &["pod1/node", "podB1/node"]);
    check(
        &scene,
        "pod3",
        &at("10.244.2.2", "fd00:244:2::2", 8080, 5353),
        &["podB1/client"],
    );

    // An endpoint of a network outside that the range overlaps, and a process of the node with an address of the range.
    let company = Endpoint::new("10.96.9.9", "fd00:10:96::9:9", "node-b");
    let service = Service::new("company", ["10.96.60.1", "fd00:10:96::60:1"]);
    let service = service.endpoints(&[company]).node_ports([30060, 30061]);
    scene.program(Services::dual().with(service));
    scene.client("ext").serve_tcp(8080);
    let node = scene.client("node");
    node.exec(&["ip", "route", "add", "local", "10.96.9.7", "dev", "lo"]);
    node.serve_tcp(8099);
    for (client, to, server) in [
        ("pod3", "tcp 10.96.60.1:80", "ext/"),
        ("node", "tcp 10.96.60.1:80", "ext/"),
        ("pod3", "tcp [fd00:10:96::60:1]:80", "ext/"),
        ("pod3", "tcp 172.18.0.2:30060", "ext/"),
        ("podB1", "tcp 172.18.0.2:30060", "ext/"),
        ("node", "tcp 10.96.9.7:8099", "node-a/"),
    ] {
        let answers = scene.ask(client, to, 1);
        let is_served = answers.iter().all(|it| it.starts_with(server));
        assert!(is_served, "{client} to {to}: {answers:?}");
    }
    check(&scene, "pod3", &unallocated, &["refused"]);

    // What another proxy translates has a destination.
    scene.nft(
        "table ip other {
            chain pre { type nat hook prerouting priority dstnat; ip daddr 10.96.9.8 tcp dport 80 dnat to 10.244.1.2:8080; }
            chain out { type nat hook output priority -100; ip daddr 10.96.9.8 tcp dport 80 dnat to 10.244.1.2:8080; }
        }",
    );
    for client in ["pod3", "podB1", "node"] {
        let answers = scene.ask(client, "tcp 10.96.9.8:80", 1);
        let is_translated = answers.iter().all(|it| it.starts_with("pod1/"));
        assert!(is_translated, "{client}: {answers:?}");
    }

    // Open connections stay: one to an address that becomes unallocated, and one that began before the range.
    let mut to_service = scene.client("pod3").connect("10.96.1.1:80").unwrap();
    scene.program(Services::dual().edit("web", |web| {
        web.cluster_ips = ["10.96.1.7", "fd00:10:96::1:7"];
    }));
    assert!(to_service.ask().backend().is_some());
    check(&scene, "pod3", &web, &["refused"]);
    scene.set_service_ranges(&[]);
    leaves(&scene);
    let mut outside = scene.client("pod3").connect("10.96.9.9:80").unwrap();
    scene.set_service_ranges(&["10.96.0.0/12"]);
    assert!(matches!(outside.ask(), Answer::Reply { .. }));
    check(&scene, "pod3", &unallocated[..1], &["refused"]);
}
