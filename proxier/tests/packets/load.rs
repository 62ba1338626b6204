//! Clients that keep asking while source ranges and rules change.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lab::SetOnDrop;
use lab::net::{Answer, Host, UdpClient, ask_tcp_within, ask_udp_within};
use proxier::testing::clock;
use proxier::testing::dataplane::Applied;

use super::scene::{Scene, Subject, nft, program, with_each_dataplane};
use super::services::Services;

/// How often source ranges change.
const CHANGES: usize = 200;

/// The maximum number of flows of a client. The lab's kernels track 8,192 and drop packets of further flows.
const MOST_FLOWS: usize = 1_000;

/// How long a client waits for an answer before it counts the question as lost. A busy machine may leave
/// the lab without a processor for seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);

/// How many questions a client asked, and which were answered.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) asked: usize,
    /// The positions of the questions that were not answered.
    pub(super) lost: Vec<usize>,
    /// How many questions of a forbidden client were answered.
    pub(super) let_through: usize,
}

impl Tally {
    fn count(&mut self, is_answered: bool) {
        if !is_answered {
            self.lost.push(self.asked);
        }
        self.asked += 1;
    }
}

/// Runs `ask` on each client, with the frontend of that client, while `change` runs. Returns the results of
/// `ask`.
pub(super) fn meanwhile<T: Send>(
    clients: &[(&Host, &str)],
    ask: impl Fn(SocketAddr, &AtomicBool) -> T + Sync,
    change: impl FnOnce(),
) -> Vec<T> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (ask, is_over) = (&ask, &is_over);
        let asking = clients.iter().map(|(host, to)| {
            let to = to.parse().unwrap();
            scope.spawn(move || host.run(|| ask(to, is_over)))
        });
        let asking: Vec<_> = asking.collect();
        let end = SetOnDrop(is_over);
        change();
        drop(end);
        let tallies = asking.into_iter().map(|thread| thread.join().unwrap());
        tallies.collect()
    })
}

/// Returns a socket that is connected to `to` from a new port, and so has a flow of its own.
pub(super) fn socket(to: SocketAddr) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(to).unwrap();
    socket
}

/// Returns whether a server answered. Waits first if the question was dropped on its way out.
fn is_reply(answer: &Answer) -> bool {
    if *answer == Answer::Unreachable {
        // send(2) fails on the node at once if a rule drops the datagram. Clients elsewhere wait.
        thread::sleep(lab::patience(PATIENCE));
    }
    answer.backend().is_some()
}

/// Asks all questions in one flow.
fn resolver(to: SocketAddr, is_over: &AtomicBool) -> Tally {
    let (mut client, mut tally) = (UdpClient::open(to).unwrap(), Tally::default());
    while !is_over.load(Ordering::Relaxed) {
        tally.count(is_reply(&client.ask_within(PATIENCE)));
    }
    tally
}

/// Asks each question in a new flow.
pub(super) fn newcomer(to: SocketAddr, is_over: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    while !is_over.load(Ordering::Relaxed) && tally.asked < MOST_FLOWS {
        tally.count(is_reply(&ask_udp_within(to, PATIENCE)));
        thread::sleep(Duration::from_millis(15));
    }
    tally
}

/// Asks each question over a new connection.
pub(super) fn newcomer_over_tcp(to: SocketAddr, is_over: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    while !is_over.load(Ordering::Relaxed) && tally.asked < MOST_FLOWS {
        tally.count(is_reply(&ask_tcp_within(to, PATIENCE)));
        thread::sleep(Duration::from_millis(15));
    }
    tally
}

/// Asks each question in a new flow, after `prepare`, as a forbidden client.
///
/// It does not wait for answers, so it asks often.
pub(super) fn intruder(to: SocketAddr, is_over: &AtomicBool, prepare: impl Fn()) -> Tally {
    let (mut tally, mut open) = (Tally::default(), VecDeque::new());
    let is_let_through = |socket: &UdpSocket| socket.recv(&mut [0; 128]).is_ok();
    while !is_over.load(Ordering::Relaxed) {
        let socket = socket(to);
        socket.set_nonblocking(true).unwrap();
        prepare();
        // send(2) fails if this host itself drops the datagram.
        if socket.send(b"?\n").is_ok() {
            tally.asked += 1;
            open.push_back(socket);
        }
        if open.len() > 200 {
            let oldest = open.pop_front();
            tally.let_through += usize::from(oldest.is_some_and(|it| is_let_through(&it)));
        }
    }
    thread::sleep(lab::patience(Duration::from_millis(300)));
    tally.let_through += open.iter().filter(|it| is_let_through(it)).count();
    tally
}

with_each_dataplane!(
    source_ranges_hold_while_they_change,
    clients_notice_no_repair_of_rules
);

/// A client in the unchanged ranges is always answered. A client outside all ranges never is.
fn source_ranges_hold_while_they_change<D: Subject>() {
    let mut scene = Scene::<D>::serving(Services::dual());
    let Scene {
        cluster, proxier, ..
    } = &mut scene;
    let addresses = ["198.51.100.5:53", "[2001:db8:51::5]:53"];
    let allowed = addresses.map(|to| (&*cluster.ext, to));
    let refused = addresses.map(|to| (&*cluster.ext2, to));
    let mut intruders = Vec::new();
    let asked = addresses.map(|to| (to.parse::<SocketAddr>().unwrap(), AtomicUsize::new(0)));
    // A fast lab makes the changes in less time than forbidden clients need for their questions.
    let have_asked = || {
        let mut counts = asked.iter().map(|(_, count)| count.load(Ordering::Relaxed));
        // The last question of each may not be sent yet.
        counts.all(|count| count > CHANGES + 1)
    };
    let change = || {
        for (number, round) in (0..CHANGES).cycle().take(10 * CHANGES).enumerate() {
            if number >= CHANGES && have_asked() {
                break;
            }
            let services = Services::dual();
            program(proxier, services.with_more_source_ranges(round));
        }
    };
    let newcomers = meanwhile(&allowed, newcomer, || {
        // Without a pause, the queues of the lab's links would be full for all clients.
        let pause = lab::patience(Duration::from_millis(1));
        let intruder = |to, is_over: &_| {
            intruder(to, is_over, || {
                thread::sleep(pause);
                for (_, count) in asked.iter().filter(|(it, _)| *it == to) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        intruders = meanwhile(&refused, intruder, change);
    });
    let asked = |tallies: &[Tally]| tallies.iter().map(|it| it.asked).sum::<usize>();
    let (asked, refused) = (asked(&newcomers), asked(&intruders));
    eprintln!("{asked} questions of permitted clients, {refused} of forbidden ones");
    for tally in &newcomers {
        // A fast lab makes the changes in less time: 123 questions on 7.2 with seccomp(2).
        let is_enough = tally.asked > CHANGES / 4;
        assert!(is_enough && tally.lost.is_empty(), "{tally:?}");
    }
    for tally in &intruders {
        assert!(tally.asked > CHANGES && tally.let_through == 0, "{tally:?}");
    }
}

/// No client loses a question. When a repair replaced the whole table, several clients lost six or more in
/// a row.
fn clients_notice_no_repair_of_rules<D: Subject>()
where
    Applied<D::Changes>: Debug,
{
    let mut scene = Scene::<D>::serving(Services::dual());
    let Scene {
        cluster, proxier, ..
    } = &mut scene;
    // One frontend for each client and family. If a client without masquerade used one source port for
    // two frontends with the same endpoint, the endpoint could not distinguish the flows.
    let all_kinds = [
        (&cluster.pod3, "10.96.1.1:53"),
        (&cluster.pod1, "[fd00:10:96::1]:53"),
        (&cluster.pod2, "198.51.100.4:53"),
        (&*cluster.ext, "198.51.100.2:53"),
        (&*cluster.ext, "[2001:db8:51::5]:53"),
        (&*cluster.peer, "172.18.0.2:30053"),
        (&*cluster.node, "10.96.1.1:53"),
    ];
    let mut known = Vec::new();
    let change = || {
        for round in 0..CHANGES / 2 {
            if round % 4 == 0 {
                let sabotage = "flush chain inet T leaving\n\
                                    add rule inet T leaving counter\n\
                                    add element inet T service-addresses-4 { 192.0.2.99 }";
                nft(
                    &cluster.node,
                    &sabotage.replace(" T ", &format!(" {} ", D::TABLE)),
                );
            }
            proxier.dataplane_mut().distrust_rules();
            let applied = proxier.sync(clock::since_boot()).unwrap();
            // With nftables, nothing is written if nothing differs.
            let is_repaired = match applied.rules {
                Some(Ok(())) => true,
                Some(Err(_)) => false,
                None => D::TRANSLATES && round % 4 != 0,
            };
            assert!(is_repaired, "{applied:?}");
        }
    };
    let new = meanwhile(&all_kinds, newcomer, || {
        known = meanwhile(&all_kinds, resolver, change);
    });
    let asked = new.iter().chain(&known).map(|it| it.asked);
    eprintln!("{} questions", asked.sum::<usize>());
    for (nth, (_, to)) in all_kinds.iter().enumerate() {
        for tally in [&new[nth], &known[nth]] {
            assert!(tally.asked > 50 && tally.lost.is_empty(), "{to}: {tally:?}");
        }
    }
}
