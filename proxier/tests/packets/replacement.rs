//! Endpoints that are replaced while resolvers send questions without end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::load::{meanwhile, socket};
use super::scene::{Scene, program};
use crate::DUAL;

/// How often the only endpoint is replaced by another, which has been it before.
const REPLACEMENTS: usize = 30;

/// How long each is the endpoint. Where something is in the way of its flows, it is for as long.
const WHILE: Duration = Duration::from_millis(400);

/// Between two questions of a resolver.
const PAUSE: Duration = Duration::from_millis(4);

/// How many questions in a row may be lost where an endpoint goes: those of 100 ms, for a machine that
/// is busy; a tenth of it is usual.
const IN_FLIGHT: usize = 25;

/// What a resolver heard.
#[derive(Debug, Default)]
struct Heard {
    /// How many questions it asked, all from one port.
    asked: usize,
    /// The most that it asked from one answer to the next.
    longest_silence: usize,
    /// Who answered, and when.
    answers: Vec<(Instant, String)>,
}

/// Asks on and on, whether there are answers or not.
fn resolver(to: SocketAddr, is_over: &AtomicBool) -> Heard {
    let socket = socket(to);
    socket.set_nonblocking(true).unwrap();
    let (mut heard, mut silence) = (Heard::default(), 0);
    while !is_over.load(Ordering::Relaxed) {
        // A process of the node is told when its datagram is dropped; that is one more that is lost.
        let _ = socket.send(b"?\n");
        heard.asked += 1;
        silence += 1;
        thread::sleep(PAUSE);
        let mut line = [0; 128];
        while let Ok(length) = socket.recv(&mut line) {
            let line = String::from_utf8_lossy(&line[..length]);
            let who = line.split(' ').next().unwrap().to_owned();
            heard.answers.push((Instant::now(), who));
            heard.longest_silence = heard.longest_silence.max(silence);
            silence = 0;
        }
    }
    heard.longest_silence = heard.longest_silence.max(silence);
    heard
}

#[test]
fn a_rolling_replacement_loses_no_more_than_what_is_in_flight() {
    lab::test(|| {
        let mut scene = Scene::conformance(DUAL);
        let Scene {
            cluster, proxier, ..
        } = &mut scene;
        let clients = [
            (&cluster.pod3, "10.96.1.1:53"),
            (&cluster.pod3, "[fd00:10:96::1]:53"),
            (&*cluster.ext, "198.51.100.2:53"),
            (&*cluster.ext, "[2001:db8:51::2]:53"),
            (&*cluster.node, "10.96.1.1:53"),
        ];
        let pods = [("pod1", "1::2", "node-a"), ("podB1", "2::2", "node-b")];
        let mut replaced = Vec::new();
        let change = || {
            for round in 0..REPLACEMENTS {
                let (name, pod, node) = pods[round % 2];
                program(proxier, &served_by(&[(pod, node)]));
                let since = Instant::now() + WHILE / 2;
                thread::sleep(WHILE);
                replaced.push((since..Instant::now(), name));
            }
        };
        let heard = meanwhile(&clients, resolver, change);
        for ((_, to), heard) in clients.iter().zip(&heard) {
            let summary = (heard.asked, heard.answers.len(), heard.longest_silence);
            println!("{to}: {summary:?} asked, answered, longest silence");
            assert!(heard.longest_silence <= IN_FLIGHT, "{to}: {summary:?}");
            let lost = heard.asked.saturating_sub(heard.answers.len());
            assert!(lost <= REPLACEMENTS * IN_FLIGHT / 5, "{to}: {summary:?}");
            // Nobody hears an endpoint that is gone, but for what was under way.
            for (while_there, name) in &replaced {
                let heard = heard.answers.iter();
                let strangers = heard.filter(|(at, who)| while_there.contains(at) && who != name);
                assert_eq!(strangers.count(), 0, "{to}: others than {name}");
            }
        }
    });
}

/// [`DUAL`] with these endpoints of Service web: `1::3` is 10.244.1.3 and fd00:244:1::3.
fn served_by(pods: &[(&str, &str)]) -> String {
    let list = |address: fn(&str) -> String| -> String {
        let endpoint = |(pod, node): &(&str, &str)| {
            format!(
                "- {{addresses: [\"{}\"], nodeName: {node}}}\n",
                address(pod)
            )
        };
        pods.iter().map(endpoint).collect()
    };
    let mut manifests = DUAL.to_owned();
    for (address, before) in [
        (
            (|pod| format!("10.244.{}", pod.replace("::", "."))) as fn(&str) -> String,
            "- {addresses: [10.244.1.2], nodeName: node-a}\n\
             - {addresses: [10.244.2.2], nodeName: node-b}\n",
        ),
        (
            |pod| format!("fd00:244:{pod}"),
            "- {addresses: [\"fd00:244:1::2\"], nodeName: node-a}\n\
             - {addresses: [\"fd00:244:2::2\"], nodeName: node-b}\n",
        ),
    ] {
        let changed = manifests.replacen(before, &list(address), 1);
        assert_ne!(changed, manifests);
        manifests = changed;
    }
    manifests
}
