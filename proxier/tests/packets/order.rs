//! Rules and frontends change together, and no forbidden client is answered between the two writes.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use proxier::testing::dataplane::ipvs::Ipvs;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::sync::Proxier;
use proxier::testing::{clock, manifests};

use super::load::{Tally, intruder, meanwhile};
use super::scene::{Scene, program};
use super::services::Services;
use crate::{at, check};

/// How often the Service is removed and added again.
const TIMES: usize = 100;

/// Removes and adds Service ranged again and again.
fn remove_and_add(proxier: &mut Proxier<Ipvs<Linux>>) {
    let (with, without) = (Services::dual(), Services::dual().without("ranged"));
    for _ in 0..TIMES {
        for services in [&without, &with] {
            program(proxier, services);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Connects over TCP again and again, as a forbidden client.
///
/// It connects to a port at which only a daemon of the node listens.
fn tcp_intruder(to: SocketAddr, is_over: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    while !is_over.load(Ordering::Relaxed) {
        tally.asked += 1;
        let is_connected = TcpStream::connect_timeout(&to, Duration::from_millis(50)).is_ok();
        tally.let_through += usize::from(is_connected);
    }
    tally
}

#[test]
fn source_ranges_hold_and_daemons_stay_unreachable_while_a_service_is_removed_and_added() {
    lab::test(|| {
        let mut scene = Scene::new(Services::dual());
        // A daemon of the node listens, but must not be reached at service addresses.
        let own = ["tcp 172.18.0.2:9999".to_owned()];
        check(&scene, "ext2", &own, &["HOST/client"]);
        let Scene {
            cluster, proxier, ..
        } = &mut scene;
        let outsider = &*cluster.ext2;
        let closed = [
            "198.51.100.5:53",
            "[2001:db8:51::5]:53",
            "198.51.100.5:9999",
            "[2001:db8:51::5]:9999",
        ];
        let closed = closed.map(|to| (outsider, to));
        let ask = |to: SocketAddr, is_over: &_| match to.port() {
            53 => intruder(to, is_over, || {}),
            _ => tcp_intruder(to, is_over),
        };
        let tallies = meanwhile(&closed, ask, || remove_and_add(proxier));
        for ((_, to), tally) in closed.iter().zip(&tallies) {
            assert!(tally.asked > TIMES, "{to}: {tally:?}");
        }
        let is_kept_out = tallies.iter().all(|tally| tally.let_through == 0);
        assert!(is_kept_out, "{tallies:?}");
        let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        check(&scene, "ext", &ranged, &["pod1/node"]);
    });
}

/// The process that must keep the Services whose manifests were damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// The process that read the manifests before they were damaged.
    Running,
    Restarted,
}

#[test]
fn clients_notice_nothing_while_part_of_the_manifests_cannot_be_read() {
    lab::test(|| {
        let services = Services::dual();
        let mut scene = Scene::new(&services);
        let options = manifests::Options {
            service_cidr: Vec::new(),
            node_name: "node-a".into(),
            permits_loopback: false,
        };
        let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        let own = ["tcp 198.51.100.5:9999", "tcp [2001:db8:51::5]:9999"].map(String::from);
        let web = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        for (kind, name) in [
            ("Service", "ranged"),
            ("EndpointSlice", "ranged-4"),
            ("EndpointSlice", "web-4"),
        ] {
            let damaged = services.manifests_without(kind, name) + "---\n{not YAML\n";
            for reader in [Reader::Running, Reader::Restarted] {
                if reader == Reader::Restarted {
                    scene.restart();
                }
                let loaded = manifests::parse(&damaged, "test.yaml", &options);
                assert!(!loaded.is_whole);
                scene.proxier.receive(loaded.events);
                let may_start = scene.proxier.may_start().unwrap();
                assert_eq!(may_start, reader == Reader::Running);
                if may_start {
                    let applied = scene.proxier.sync(clock::since_boot()).unwrap();
                    assert_eq!(applied.changes.ops, []);
                }
                check(&scene, "ext", &ranged, &["pod1/node"]);
                check(&scene, "ext2", &ranged[..2], &["timeout"]);
                check(&scene, "ext", &own, &["refused"]);
                check(&scene, "pod3", &web, &["pod1/client", "podB1/client"]);
            }
            scene.program(&services);
        }
    });
}
