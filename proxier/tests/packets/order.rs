//! Rules and frontends that change together: nobody gets in between.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use proxier::dataplane::linux::Linux;
use proxier::sync::{Input, Proxier};
use proxier::{clock, manifests};

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

/// What became of the tries of somebody who is not to be let in.
#[derive(Debug, Default)]
struct Tries {
    made: usize,
    succeeded: usize,
}

/// Asks with a new flow each time, and does not wait for answers.
fn intruder(to: SocketAddr, is_over: &AtomicBool) -> Tries {
    let (mut tries, mut open) = (Tries::default(), VecDeque::new());
    let is_answered = |socket: &UdpSocket| socket.recv(&mut [0; 128]).is_ok();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    while !is_over.load(Ordering::Relaxed) {
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(to).unwrap();
        socket.set_nonblocking(true).unwrap();
        if socket.send(b"?\n").is_ok() {
            tries.made += 1;
            open.push_back(socket);
        }
        if open.len() > 200 {
            let oldest = open.pop_front();
            tries.succeeded += usize::from(oldest.is_some_and(|it| is_answered(&it)));
        }
    }
    thread::sleep(Duration::from_millis(300));
    tries.succeeded += open.iter().filter(|it| is_answered(it)).count();
    tries
}

/// Connects to a port where only a process of the node listens, again and again.
fn visitor(to: SocketAddr, is_over: &AtomicBool) -> Tries {
    let mut tries = Tries::default();
    while !is_over.load(Ordering::Relaxed) {
        tries.made += 1;
        let is_let_in = TcpStream::connect_timeout(&to, Duration::from_millis(50)).is_ok();
        tries.succeeded += usize::from(is_let_in);
    }
    tries
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
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let is_over = &is_over;
            type Way = fn(SocketAddr, &AtomicBool) -> Tries;
            let tried = [
                ("198.51.100.5:53", intruder as Way),
                ("[2001:db8:51::5]:53", intruder),
                ("198.51.100.5:9999", visitor),
                ("[2001:db8:51::5]:9999", visitor),
            ];
            let tried = tried.map(|(to, way)| {
                let address = to.parse().unwrap();
                let thread = scope.spawn(move || outsider.run(|| way(address, is_over)));
                (to, thread)
            });
            let over = Over(is_over);
            go_and_come(proxier);
            drop(over);
            let tries = tried.map(|(to, thread)| (to, thread.join().unwrap()));
            for (to, tries) in &tries {
                assert!(tries.made > TIMES, "{to}: {tries:?}");
            }
            let is_kept_out = tries.iter().all(|(_, tries)| tries.succeeded == 0);
            assert!(is_kept_out, "{tries:?}");
        });
        let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        check(&scene, "ext", &ranged, &["pod1/node"]);
    });
}

/// Says so when it is over, be it by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
                let rest = manifests::parse(&without(DUAL, unread), "test.yaml", &options);
                scene.proxier.take(rest.events, Input::Partial);
                let applied = scene.proxier.sync(clock::since_boot()).unwrap();
                assert_eq!(applied.ops, []);
                check(&scene, "ext", &ranged, &["pod1/node"]);
                check(&scene, "ext2", &ranged[..2], &["timeout"]);
                check(&scene, "ext", &own, &["refused"]);
                check(&scene, "pod3", &web, &["pod1/client", "podB1/client"]);
            }
            scene.program(DUAL);
        }
    });
}
