//! Clients in a Pod, on the node and outside. A takeover must break none of their connections.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lab::SetOnDrop;
use lab::net::{Answer, Connection, UdpClient};

use super::scene::Scene;
use super::services::{self, Client, Frontend};
use super::tally::{Tally, Transport};

/// A TCP connection that stays open.
struct Open {
    connection: Connection,
    client: Client,
    frontend: Frontend,
}

/// A UDP socket that asks for the whole test.
struct Dialogue {
    socket: UdpClient,
    client: Client,
    frontend: Frontend,
    /// The first answer: the endpoint, and the client as the endpoint sees it.
    first: Answer,
}

/// How long a new connection may take. A client does not notice that TCP repeated a packet.
const PATIENCE: Duration = Duration::from_secs(10);

/// A datagram: each client has at most two in flight, one of a new socket and one of a dialogue.
const DATAGRAM: Transport = Transport::Datagram(2 * Client::ALL.len());

/// The bounds of the pause after a question.
const PACE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];

/// All connections, and their answers so far.
pub(crate) struct Traffic {
    open: Vec<Open>,
    dialogues: Vec<Dialogue>,
    tally: Tally,
    /// The questions of the stranger.
    refused: AtomicUsize,
}

impl Traffic {
    /// Opens `count` connections, the same number from each client to each frontend, and a dialogue of each.
    ///
    /// The service proxy must be complete.
    #[track_caller]
    pub(crate) fn open(scene: &Scene, count: usize) -> Self {
        let dialogues = services::served().map(|(client, frontend)| {
            let mut socket = client.host(scene).udp_client(frontend.udp);
            let first = socket.ask();
            assert!(
                frontend.permits(client, &first),
                "{client:?} to {}: {first}",
                frontend.udp
            );
            Dialogue {
                socket,
                client,
                frontend,
                first,
            }
        });
        let mut traffic = Self {
            open: Vec::new(),
            dialogues: dialogues.collect(),
            tally: Tally::default(),
            refused: AtomicUsize::new(0),
        };
        traffic.open_more(scene, count);
        traffic
    }

    /// Opens `count` connections, the same number from each client to each frontend.
    #[track_caller]
    pub(crate) fn open_more(&mut self, scene: &Scene, count: usize) {
        let pairs: Vec<_> = services::served().collect();
        for &(client, frontend) in pairs.iter().cycle().take(count) {
            let connection = client.host(scene).connect_within(frontend.tcp, PATIENCE);
            self.open.push(Open {
                connection: connection
                    .unwrap_or_else(|answer| panic!("{client:?} to {}: {answer}", frontend.tcp)),
                client,
                frontend,
            });
        }
    }

    /// Closes all connections but the first `count`.
    pub(crate) fn keep(&mut self, count: usize) {
        self.open.truncate(count);
    }

    /// Runs `work` while all clients ask: by new connections, new UDP sockets and in their dialogues. Then
    /// asks on each open connection.
    pub(crate) fn during<T>(&mut self, phase: &str, scene: &Scene, work: impl FnOnce() -> T) -> T {
        let is_over = AtomicBool::new(false);
        let goes_on = &|| !is_over.load(Ordering::Relaxed);
        let (tally, refused) = (&self.tally, &self.refused);
        let before = (tally.answered(), Instant::now());
        let result = std::thread::scope(|scope| {
            let _end = SetOnDrop(&is_over);
            for client in Client::ALL {
                scope.spawn(move || {
                    while goes_on() {
                        ask_anew(client, scene, phase, tally);
                    }
                });
            }
            for dialogues in self.dialogues.chunk_by_mut(|a, b| a.client == b.client) {
                scope.spawn(move || {
                    while goes_on() {
                        for dialogue in &mut *dialogues {
                            paced(|| dialogue.go_on(phase, tally));
                        }
                    }
                });
            }
            for frontend in services::restricted() {
                scope.spawn(move || {
                    let mut socket = services::stranger(scene).udp_client(frontend.udp);
                    while goes_on() {
                        paced(|| knock(&mut socket, frontend, phase, tally));
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                });
                scope.spawn(move || {
                    while goes_on() {
                        let ask = || services::stranger(scene).ask_tcp(frontend.tcp);
                        refuse(&paced(ask), frontend, phase, tally);
                    }
                });
            }
            work()
        });
        for open in &mut self.open {
            open.ask(phase, tally);
        }
        tally.end(phase, before);
        result
    }

    /// Asserts that all questions but the stranger's were answered, and none of those.
    #[track_caller]
    pub(crate) fn assert_nothing_was_lost(&self) {
        self.tally.assert_nothing_was_lost();
        assert!(self.tally.answered() > 2 * self.open.len());
        assert!(self.refused.load(Ordering::Relaxed) > 10);
    }
}

/// Asks, then pauses for several times as long as the answer took.
///
/// So clients leave most of the lab's one processor to the programs under test, on a slow machine
/// too.
fn paced<T>(ask: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let answer = ask();
    let [least, most] = PACE;
    std::thread::sleep((4 * begin.elapsed()).clamp(least, most));
    answer
}

/// Asks each frontend from new sockets.
fn ask_anew(client: Client, scene: &Scene, phase: &str, tally: &Tally) {
    let host = client.host(scene);
    for (_, frontend) in services::served().filter(|(asking, _)| *asking == client) {
        let connect = || match host.connect_within(frontend.tcp, PATIENCE) {
            Ok(connection) => connection.greeting().clone(),
            Err(failure) => failure,
        };
        let answer = paced(connect);
        let is_right = frontend.permits(client, &answer);
        tally.count(Transport::Stream, &answer, is_right, || {
            format!("{phase}: new connection of {client:?} to {}", frontend.tcp)
        });
        let answer = paced(|| host.ask_udp(frontend.udp));
        let is_right = frontend.permits(client, &answer);
        tally.count(DATAGRAM, &answer, is_right, || {
            format!("{phase}: new socket of {client:?} to {}", frontend.udp)
        });
    }
}

impl Open {
    fn ask(&mut self, phase: &str, tally: &Tally) {
        let answer = self.connection.ask();
        // The same endpoint, and the same client as the endpoint sees it.
        let is_right = answer == *self.connection.greeting();
        tally.count(Transport::Stream, &answer, is_right, || {
            let (client, frontend) = (self.client, self.frontend.tcp);
            let opened = self.connection.greeting();
            format!("{phase}: open connection of {client:?} to {frontend} ({opened})")
        });
    }
}

impl Dialogue {
    fn go_on(&mut self, phase: &str, tally: &Tally) {
        let answer = self.socket.ask();
        // The same endpoint, and the same client as the endpoint sees it.
        let is_right = answer == self.first;
        tally.count(DATAGRAM, &answer, is_right, || {
            let (client, frontend, first) = (self.client, self.frontend.udp, &self.first);
            format!("{phase}: dialogue of {client:?} with {frontend} ({first})")
        });
    }
}

/// Asks at a frontend that refuses the client.
fn knock(socket: &mut UdpClient, frontend: Frontend, phase: &str, tally: &Tally) {
    let answer = socket.ask_within(PACE[1]);
    refuse(&answer, frontend, phase, tally);
}

fn refuse(answer: &Answer, frontend: Frontend, phase: &str, tally: &Tally) {
    if answer.backend().is_some() {
        let frontend = frontend.tcp.ip();
        tally.fail(format!("{phase}: the stranger at {frontend}: {answer}"));
    }
}
