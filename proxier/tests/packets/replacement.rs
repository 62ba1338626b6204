//! Endpoints that are replaced while UDP clients keep asking.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::SetOnDrop;
use lab::net::{poll_within, receive_within};
use proxier::testing::model::Protocol;
use rustix::event::{PollFd, PollFlags};

use super::load::{meanwhile, socket};
use super::scene::{Scene, flows, program};
use super::services::{Endpoint, POD_B1, POD1, Services};

/// How often the only endpoint is replaced. Two Pods take turns.
const REPLACEMENTS: usize = 30;

/// The time that each Pod is the endpoint, scaled by [`lab::patience`] like [`PAUSE`]. A stale flow that
/// is not deleted blocks its client for 30 s.
const WHILE: Duration = Duration::from_millis(400);

/// The time between two questions of a resolver that is answered.
const PAUSE: Duration = Duration::from_millis(4);

/// The first questions after a change that may be lost. The first one makes IPVS notice that its connection
/// is stale. IPVS removes the connection at the next tick and drops questions until then.
const UNTIL_NOTICED: usize = 5;

/// The maximum number of changes after which a client's first question is lost: a question that arrives
/// between the removal of the server and the deletion of its flows can make IPVS drop later ones. Usually
/// there is no such change. Without the deletion there are 9 to 15 on Linux 6.1, and 28 to 30 on 7.2.
const MOST_BLOCKED: usize = 5;

/// The port of the test's own servers.
const PORT: u16 = 5400;

/// How long a question may take to arrive: less than the 30 s for which a stale flow would block it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A question of a resolver. Its number is its position.
#[derive(Debug)]
struct Question {
    asked: Instant,
    /// When the answer arrived, and the address of the Pod that sent it.
    answer: Option<(Instant, String)>,
}

/// A replacement of the endpoint.
struct Change {
    /// The new endpoint.
    pod: Endpoint,
    starts: Instant,
    ends: Instant,
}

/// Asks numbered questions from one port, without waiting for answers.
///
/// It asks less often the longer it gets no answer: questions that a busy machine cannot handle would fill
/// queues, which drop some.
fn resolver(to: SocketAddr, is_over: &AtomicBool) -> Vec<Question> {
    let socket = socket(to);
    let (mut questions, mut silence) = (Vec::<Question>::new(), 0);
    socket.set_nonblocking(true).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let number = questions.len().to_string();
        questions.push(Question {
            asked: Instant::now(),
            answer: None,
        });
        silence += 1;
        // The first send(2) after an ICMP error returns that error. If a rule drops the datagram, send(2)
        // fails on the node, and the question counts as lost.
        let _ = (0..2).find(|_| socket.send(number.as_bytes()).is_ok());
        thread::sleep(lab::patience(PAUSE) * silence);
        while listen(&socket, &mut questions) {
            silence = 0;
        }
    }
    // Once the last question is answered, no other is on its way.
    while questions.last().is_some_and(|it| it.answer.is_none())
        && poll_within(&mut [PollFd::new(&socket, PollFlags::IN)], PATIENCE).unwrap()
    {
        while listen(&socket, &mut questions) {}
    }
    questions
}

/// Receives an answer. Returns whether there was one.
fn listen(socket: &UdpSocket, questions: &mut [Question]) -> bool {
    let mut line = [0; 128];
    let Ok(length) = socket.recv(&mut line) else {
        return false;
    };
    let line = str::from_utf8(&line[..length]).unwrap();
    let (pod, number) = line.split_once(' ').unwrap();
    let question = &mut questions[number.parse::<usize>().unwrap()];
    question.answer = Some((Instant::now(), pod.to_owned()));
    true
}

/// Answers questions with the server's own address and the question.
fn echo(server: &UdpSocket, is_over: &AtomicBool) {
    let own = server.local_addr().unwrap();
    let pause = Duration::from_millis(100);
    server.set_read_timeout(Some(pause)).unwrap();
    let mut question = [0; 32];
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((length, client)) = server.recv_from(&mut question) {
            let number = str::from_utf8(&question[..length]).unwrap();
            let answer = format!("{} {number}", own.ip());
            // A client that has ended needs no answer.
            let _ = server.send_to(answer.as_bytes(), client);
        }
    }
}

#[test]
fn a_replacement_loses_only_questions_in_flight() {
    lab::test(|| {
        let pods = [POD1, POD_B1];
        let mut scene = Scene::new(served_by(pods[0]));
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
        let servers = [
            (&cluster.pod1, "10.244.1.2:5400"),
            (&cluster.pod1, "[fd00:244:1::2]:5400"),
            (&cluster.pod_b1, "10.244.2.2:5400"),
            (&cluster.pod_b1, "[fd00:244:2::2]:5400"),
        ];
        let servers = servers.map(|(host, own)| host.run(|| UdpSocket::bind(own).unwrap()));
        // The change of round 0 has happened. The clients start during it, perhaps before this thread goes on.
        let mut starts = Instant::now();
        let mut changes = Vec::new();
        let change = || {
            for round in 0..=REPLACEMENTS {
                let pod = pods[round % 2];
                if round == 0 {
                    thread::sleep(lab::patience(WHILE));
                } else {
                    starts = Instant::now();
                    program(proxier, served_by(pod));
                }
                changes.push(Change {
                    pod,
                    starts,
                    ends: Instant::now(),
                });
                thread::sleep(lab::patience(WHILE));
            }
        };
        let is_over = AtomicBool::new(false);
        let dialogues = thread::scope(|scope| {
            for server in &servers {
                scope.spawn(|| echo(server, &is_over));
            }
            let _end = SetOnDrop(&is_over);
            meanwhile(&clients, resolver, change)
        });
        for ((_, to), questions) in clients.iter().zip(&dialogues) {
            println!("{to}: {}", summary(questions, &changes));
        }
        for ((_, to), questions) in clients.iter().zip(&dialogues) {
            let blocked = blocked(questions, &changes);
            assert!(blocked <= MOST_BLOCKED, "{to}: {blocked}");
            assert_answers_are_timely(to, questions, &changes);
            assert_lost_ones_were_in_flight(to, questions, &changes);
        }
    });
}

/// Returns how many questions were lost, and when.
fn summary(questions: &[Question], changes: &[Change]) -> String {
    let lost = questions.iter().filter(|it| it.answer.is_none());
    let times: Vec<_> = lost.map(|it| since_start(it.asked, changes)).collect();
    let (lost, asked, blocked) = (times.len(), questions.len(), blocked(questions, changes));
    format!("{lost} of {asked} lost, {blocked} after changes: {times:?}")
}

/// Returns the milliseconds from the start of the first change to `time`.
fn since_start(time: Instant, changes: &[Change]) -> u128 {
    (time - changes[0].starts).as_millis()
}

/// Returns what happened from the change before question `number` to the end of the change after it, by time.
fn surroundings(number: usize, questions: &[Question], changes: &[Change]) -> String {
    let asked = questions[number].asked;
    // The change of round 0 starts before all questions.
    let next = changes.partition_point(|it| it.starts <= asked);
    let (from, until) = (changes[next - 1].starts, changes.get(next));
    let mut events = Vec::new();
    for (number, question) in questions.iter().enumerate() {
        events.push((question.asked, format!("question {number}")));
        if let Some((arrived, pod)) = &question.answer {
            events.push((*arrived, format!("answer {number} by {pod}")));
        }
    }
    for Change { pod, starts, ends } in changes {
        events.push((*starts, format!("change to {} starts", pod.v4)));
        events.push((*ends, format!("change to {} ends", pod.v4)));
    }
    events.retain(|(time, _)| from <= *time && until.is_none_or(|it| *time <= it.ends));
    events.sort();
    let line = |(time, what): &(Instant, String)| format!("{} {what}", since_start(*time, changes));
    let lines: Vec<_> = events.iter().map(line).collect();
    lines.join("\n")
}

/// Returns the number of changes after which the first question was lost.
fn blocked(questions: &[Question], changes: &[Change]) -> usize {
    let is_blocked = |change: &&Change| {
        let first = questions.iter().find(|it| it.asked > change.ends);
        first.is_some_and(|it| it.answer.is_none())
    };
    changes.iter().filter(is_blocked).count()
}

/// Asserts that each answer came from a Pod that was the endpoint while question and answer were on their
/// way.
fn assert_answers_are_timely(to: &str, questions: &[Question], changes: &[Change]) {
    for (number, question) in questions.iter().enumerate() {
        let Some((arrived, by)) = &question.answer else {
            continue;
        };
        // A Pod may answer from the start of its change to the end of the next one.
        let may_answer = |(nth, change): (usize, &Change)| {
            [change.pod.v4, change.pod.v6].contains(&by.as_str())
                && change.starts <= *arrived
                && changes
                    .get(nth + 1)
                    .is_none_or(|next| question.asked <= next.ends)
        };
        let is_timely = changes.iter().enumerate().any(may_answer);
        assert!(
            is_timely,
            "{to}: {by} answered question {number}, but was not the endpoint"
        );
    }
}

/// Asserts that each lost question was on its way during a change.
///
/// A question is on its way no longer when a later one has been answered: both pass the same queues. The
/// first [`UNTIL_NOTICED`] questions after a change may be lost, too.
fn assert_lost_ones_were_in_flight(to: &str, questions: &[Question], changes: &[Change]) {
    for (number, question) in questions.iter().enumerate() {
        if question.answer.is_some() {
            continue;
        }
        let earlier = &questions[number.saturating_sub(UNTIL_NOTICED)];
        let overtaken = questions[number..]
            .iter()
            .filter_map(|it| it.answer.as_ref());
        let overtaken = overtaken.map(|(arrived, _)| *arrived).min();
        let is_in_flight = changes.iter().any(|change| {
            earlier.asked <= change.ends && overtaken.is_none_or(|it| change.starts <= it)
        });
        assert!(
            is_in_flight,
            "{to}: question {number} was lost outside the changes; by milliseconds:\n{}",
            surroundings(number, questions, changes)
        );
    }
}

/// A late answer makes a flow from the endpoint to the client. That flow must not block the client's
/// questions when the endpoint, or the Service, is added again.
#[test]
fn late_answers_do_not_block_later_questions() {
    lab::test(|| {
        let before = served_by(POD1);
        let replaced = served_by(POD_B1);
        let removed = Services::dual().without("web");
        let mut scene = Scene::new(&before);
        for away in [replaced, removed] {
            for (server, to) in [
                ("10.244.1.2:5400", "10.96.1.1:53"),
                ("[fd00:244:1::2]:5400", "[fd00:10:96::1]:53"),
            ] {
                let bind = || UdpSocket::bind(server).unwrap();
                let server = scene.client("pod1").run(bind);
                let receive =
                    || receive_within(&server, &mut [0; 8], PATIENCE).map(|(_, from)| from);
                let to = to.parse().unwrap();
                let client = scene.client("pod3").run(|| socket(to));
                // If a question causes an ICMP error, the send(2) of the next question returns it.
                let ask = || while client.send(b"?\n").is_err() {};
                ask();
                let from = receive().unwrap();
                scene.program(&away);
                // This question makes IPVS notice that its connection to the endpoint is stale.
                ask();
                thread::sleep(lab::patience(WHILE));
                server.send_to(b"late\n", from).unwrap();
                await_flow(&format!("{from} at {from}"));
                scene.program(&before);
                ask();
                assert_eq!(receive().unwrap(), from, "{to}: the port is taken");
            }
        }
    });
}

/// Waits until the node tracks `flow`, in the words of [`flows`].
///
/// send(2) may return before: on a busy machine the kernel leaves packets to a thread of its own (`ksoftirqd`).
fn await_flow(flow: &str) {
    let is_tracked = lab::await_true(Duration::from_millis(1), || {
        flows(Protocol::Udp).contains(flow)
    });
    assert!(is_tracked, "{flow}: {:?}", flows(Protocol::Udp));
}

/// Returns the Services with `endpoint` as the only endpoint of Service web. It is asked at [`PORT`].
fn served_by(endpoint: Endpoint) -> Services {
    Services::dual().edit("web", |web| {
        for slice in &mut web.slices {
            slice.endpoints = vec![endpoint];
            slice.set_dns_target(PORT);
        }
    })
}
