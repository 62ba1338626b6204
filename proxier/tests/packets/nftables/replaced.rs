//! New connections while all endpoints of a Service are replaced, again and again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lab::net::{ask_tcp_within, ask_udp_within};
use proxier::testing::clock;

use super::super::load::{PATIENCE, meanwhile};
use super::super::scene::receive;
use super::super::services::{Endpoint, POD_B1, POD1, POD2, Services};
use super::Maps;

/// How many new connections and flows are judged.
const CONNECTIONS: usize = 100_000;

/// The pause between two changes.
const PAUSE: Duration = Duration::from_millis(20);

/// The lists of endpoints that follow each other. Two neighbours have no common endpoint.
const LISTS: [(&[Endpoint], &[&str]); 6] = [
    (&[POD1], &["pod1"]),
    (&[POD2, POD_B1], &["pod2", "podB1"]),
    (&[POD1], &["pod1"]),
    (&[POD_B1], &["podB1"]),
    (&[POD1, POD2], &["pod1", "pod2"]),
    (&[POD_B1], &["podB1"]),
];

/// The timeouts of connection tracking that let a client use a port again after a second. The lab's kernels track 8,192
/// flows.
const TIMEOUTS: [&str; 6] = [
    "udp_timeout",
    "tcp_timeout_time_wait",
    "tcp_timeout_fin_wait",
    "tcp_timeout_last_ack",
    "tcp_timeout_close_wait",
    "tcp_timeout_close",
];

/// The lists so far: how many began to be programmed, and how many the kernel has.
#[derive(Default)]
struct Lists {
    begun: AtomicUsize,
    programmed: AtomicUsize,
}

/// What clients saw.
#[derive(Debug, Default)]
struct Seen {
    /// The connections that lay between two changes, so that only one list is right.
    certain: usize,
    /// The connections that reached no endpoint, or one that was gone or not there yet.
    wrong: Vec<String>,
}

impl Lists {
    /// Asks by `ask`, and judges the endpoint that answers.
    fn judge(&self, ask: impl FnOnce() -> Option<String>, seen: &mut Seen) {
        let first = self.programmed.load(Ordering::SeqCst);
        let backend = ask();
        let last = self.begun.load(Ordering::SeqCst);
        seen.certain += usize::from(first == last);
        let has = |number: usize, pod: &str| LISTS[number % LISTS.len()].1.contains(&pod);
        let is_right = |pod: &str| (first..=last).any(|number| has(number, pod));
        if !backend.as_deref().is_some_and(is_right) {
            seen.wrong.push(format!("{backend:?} in {first}..={last}"));
        }
    }
}

#[test]
fn of_100000_new_connections_none_reaches_an_endpoint_that_is_gone() {
    lab::test(|| {
        let web = |list: usize| {
            let endpoints = LISTS[list % LISTS.len()].0;
            Services::dual().edit("web", |web| *web = web.clone().endpoints(endpoints))
        };
        let mut maps = Maps::serving(web(0));
        let (cluster, proxier) = (&maps.cluster, &mut maps.proxier);
        for timeout in TIMEOUTS {
            let setting = format!("net.netfilter.nf_conntrack_{timeout}=1");
            cluster.node.exec(&["/usr/sbin/sysctl", "-q", &setting]);
        }
        let clients = [
            (&cluster.pod3, "10.96.1.1:53"),
            (&*cluster.ext, "198.51.100.2:53"),
            (&*cluster.ext2, "[2001:db8:51::1]:53"),
            (&*cluster.peer, "172.18.0.2:30053"),
            (&*cluster.node, "10.96.1.1:53"),
            (&cluster.pod3, "[fd00:10:96::1]:80"),
            (&*cluster.ext, "198.51.100.2:80"),
        ];
        let (lists, asked) = (Lists::default(), AtomicUsize::new(0));
        let ask = |to: SocketAddr, is_over: &AtomicBool| {
            let mut seen = Seen::default();
            while !is_over.load(Ordering::Relaxed) {
                let ask = || {
                    let answer = match to.port() {
                        80 => ask_tcp_within(to, PATIENCE),
                        _ => ask_udp_within(to, PATIENCE),
                    };
                    answer.backend().map(str::to_owned)
                };
                lists.judge(ask, &mut seen);
                asked.fetch_add(1, Ordering::Relaxed);
            }
            seen
        };
        let seen = meanwhile(&clients, ask, || {
            while asked.load(Ordering::Relaxed) < CONNECTIONS {
                let number = lists.begun.load(Ordering::SeqCst) + 1;
                receive(proxier, web(number));
                lists.begun.store(number, Ordering::SeqCst);
                let applied = proxier.sync(clock::since_boot()).unwrap();
                lists.programmed.store(number, Ordering::SeqCst);
                assert!(matches!(applied.rules, Some(Ok(()))), "{applied:?}");
                thread::sleep(PAUSE);
            }
        });
        let (changes, asked) = (lists.begun.into_inner(), asked.into_inner());
        let certain: usize = seen.iter().map(|it| it.certain).sum();
        println!("{asked} connections, {certain} between two of {changes} changes");
        for ((_, to), seen) in clients.iter().zip(&seen) {
            let first = seen.wrong.first();
            assert!(
                seen.wrong.is_empty(),
                "{to}: {} wrong, {first:?}",
                seen.wrong.len()
            );
        }
        assert!(changes > 100, "{changes} changes");
        assert!(certain > CONNECTIONS / 10, "{certain} between two changes");
    });
}
