//! Rules and frontends that change together: nobody gets in between.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use proxier::dataplane::linux::Linux;
use proxier::sync::Proxier;
use proxier::{clock, manifests};

use super::load::{Tally, intruder, meanwhile};
use super::scene::{Scene, program, without_service};
use crate::{DUAL, at, check};

/// How often a Service goes and comes.
const TIMES: usize = 100;

/// Lets Service ranged go and come.
fn go_and_come(proxier: &mut Proxier<Linux>) {
    let gone = without_service("ranged");
    for _ in 0..TIMES {
        for manifests in [&*gone, DUAL] {
            program(proxier, manifests);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Connects to a port where only a process of the node listens, again and again.
fn visitor(to: SocketAddr, is_over: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    while !is_over.load(Ordering::Relaxed) {
        tally.asked += 1;
        let is_let_in = TcpStream::connect_timeout(&to, Duration::from_millis(50)).is_ok();
        tally.let_through += usize::from(is_let_in);
    }
    tally
}

#[test]
fn source_ranges_and_service_addresses_hold_while_their_service_goes_and_comes() {
    lab::test(|| {
        let mut scene = Scene::conformance(DUAL);
        // It is there to be reached, but not at the addresses of services.
        let own = ["tcp 172.18.0.2:9999".to_owned()];
        check(&scene, "ext2", &own, &["HOST/client"]);
        let Scene {
            cluster, proxier, ..
        } = &mut scene;
        let outsider = &*cluster.ext2;
        let tried = [
            "198.51.100.5:53",
            "[2001:db8:51::5]:53",
            "198.51.100.5:9999",
            "[2001:db8:51::5]:9999",
        ];
        let tried = tried.map(|to| (outsider, to));
        let way = |to: SocketAddr, is_over: &_| match to.port() {
            53 => intruder(to, is_over, Duration::ZERO),
            _ => visitor(to, is_over),
        };
        let tallies = meanwhile(&tried, way, || go_and_come(proxier));
        for ((_, to), tally) in tried.iter().zip(&tallies) {
            assert!(tally.asked > TIMES, "{to}: {tally:?}");
        }
        let is_kept_out = tallies.iter().all(|tally| tally.let_through == 0);
        assert!(is_kept_out, "{tallies:?}");
        let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        check(&scene, "ext", &ranged, &["pod1/node"]);
    });
}

/// A document of `manifests` that has `word` cannot be read.
fn without(manifests: &str, word: &str) -> String {
    let documents = manifests.split("---\n");
    let others: Vec<&str> = documents.filter(|it| !it.contains(word)).collect();
    let others = others.join("---\n");
    assert_ne!(others, manifests);
    others
}

#[test]
fn clients_notice_nothing_while_part_of_the_input_cannot_be_read() {
    lab::test(|| {
        let mut scene = Scene::conformance(DUAL);
        let options = manifests::Options {
            service_cidr: Vec::new(),
            node_name: "node-a".into(),
        };
        let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        let own = ["tcp 198.51.100.5:9999", "tcp [2001:db8:51::5]:9999"].map(String::from);
        let web = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        for unread in ["metadata: {name: ranged}", "name: ranged-4", "name: web-4"] {
            // The process that knew better, and the next one.
            for is_new in [false, true] {
                if is_new {
                    scene.restart();
                }
                let readable = without(DUAL, unread) + "\n---\n{not YAML\n";
                let part = manifests::parse(&readable, "test.yaml", &options);
                assert!(!part.is_whole);
                scene.proxier.receive(part.events);
                assert_eq!(scene.proxier.may_start().unwrap(), !is_new);
                if !is_new {
                    let applied = scene.proxier.sync(clock::since_boot()).unwrap();
                    assert_eq!(applied.ops, []);
                }
                check(&scene, "ext", &ranged, &["pod1/node"]);
                check(&scene, "ext2", &ranged[..2], &["timeout"]);
                check(&scene, "ext", &own, &["refused"]);
                check(&scene, "pod3", &web, &["pod1/client", "podB1/client"]);
            }
            scene.program(DUAL);
        }
    });
}
