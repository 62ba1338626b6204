//! Events.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use api_server::ApiServer;
use lab::net::unused_port;
use proxier::testing::events::{EventTimes, Notice};
use proxier::testing::problem::Problem;
use serde_json::json;

use crate::follower::{Follower, config, until};
use crate::objects::{node, response, service};
use crate::program::Program;

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/a/events";
const SERVICES: &str = "/api/v1/namespaces/a/services";

/// Times that are short enough for a test.
pub(crate) const TIMES: EventTimes = EventTimes {
    spread: Duration::ZERO,
    period: Duration::from_millis(200),
    other_period: Duration::from_secs(3_600),
    interval: Duration::from_millis(10),
    pause: Duration::from_secs(3_600),
};

/// Returns the notice of a Problem of the Service `a/web`.
pub(crate) fn notice() -> Notice {
    let message = "is not an IP address; ignored";
    Notice::problem(&Problem::new(
        "Service a/web",
        "spec.externalIPs[0]",
        "bogus",
        message,
    ))
}

fn respond(server: &ApiServer, path: &str, status: u16, body: &str) {
    server.respond_next(path, response(status, body));
}

/// A server that has the Service `a/web`, and a follower that writes Events.
fn scene() -> (ApiServer, Follower) {
    let server = ApiServer::start();
    for _ in 0..100 {
        let list = json!({"items": [{"metadata": {"uid": "1-2"}}]});
        respond(&server, SERVICES, 200, &list.to_string());
    }
    let mut config = config(&server);
    config.events = Some(TIMES);
    (server, Follower::with(config))
}

/// Returns the writes of Events so far: `POST`, or `PATCH` with the Event's name.
fn writes(server: &ApiServer) -> Vec<String> {
    let mut requests = requests(server);
    requests.retain(|request| !request.starts_with("GET"));
    requests
}

/// Returns the requests for Events so far: as [`writes`], and `GET` with the Event's name.
fn requests(server: &ApiServer) -> Vec<String> {
    let requests = server.requests().into_iter();
    let of_events = requests.filter(|request| request.path.starts_with(EVENTS));
    of_events
        .map(|request| {
            let name = request.path.trim_start_matches(EVENTS);
            format!("{} {}", request.method, name.trim_start_matches('/'))
        })
        .collect()
}

#[test]
fn a_problem_that_lasts_is_one_event_with_a_growing_count() {
    let (server, follower) = scene();
    let (_, name) = notice().event_name("us");
    // The look finds no Event.
    respond(&server, &format!("{EVENTS}/{name}"), 404, "{}");
    respond(&server, EVENTS, 201, "{}");
    for _ in 0..3 {
        respond(&server, &format!("{EVENTS}/{name}"), 200, "{}");
    }
    follower.watch.report(std::iter::once(notice()));
    let patch = format!("PATCH {name}");
    let expected = ["POST ", &patch, &patch, &patch];
    let enough = || (writes(&server).len() >= 4).then(|| writes(&server));
    assert_eq!(until("counted", enough, || writes(&server))[..4], expected);
    // The fourth count finds no Event any more (404), so the Event is created again.
    respond(&server, EVENTS, 201, "{}");
    let enough = || (writes(&server).len() >= 6).then(|| writes(&server));
    assert_eq!(
        until("created", enough, || writes(&server))[4..6],
        [&patch, "POST "]
    );
    // Without the Problem no Event is written.
    follower.watch.report(std::iter::empty());
    let before = writes(&server).len();
    std::thread::sleep(3 * TIMES.period);
    assert!(writes(&server).len() <= before + 1, "{:?}", writes(&server));
}

#[test]
fn the_event_of_another_node_is_left_alone() {
    let (server, follower) = scene();
    respond(&server, EVENTS, 409, "{}");
    follower.watch.report(std::iter::once(notice()));
    until(
        "asked",
        || (!writes(&server).is_empty()).then_some(()),
        || (),
    );
    std::thread::sleep(3 * TIMES.period);
    assert_eq!(writes(&server), ["POST "]);
}

#[test]
fn the_event_of_another_node_is_found_without_a_write() {
    let (server, follower) = scene();
    let (_, name) = notice().event_name("us");
    respond(&server, &format!("{EVENTS}/{name}"), 200, "{}");
    follower.watch.report(std::iter::once(notice()));
    let looked = || (!requests(&server).is_empty()).then_some(());
    until("looked", looked, || ());
    std::thread::sleep(3 * TIMES.period);
    assert_eq!(requests(&server), [format!("GET {name}")]);
}

#[test]
fn without_permission_to_look_events_are_created() {
    let (server, follower) = scene();
    let (_, name) = notice().event_name("us");
    respond(&server, &format!("{EVENTS}/{name}"), 403, "{}");
    respond(&server, EVENTS, 409, "{}");
    follower.watch.report(std::iter::once(notice()));
    let enough = || (!writes(&server).is_empty()).then_some(());
    until("asked", enough, || requests(&server));
    let other = Problem::new("Service a/web", "spec", "x", "is wrong");
    follower
        .watch
        .report(std::iter::once(Notice::problem(&other)));
    let enough = || (writes(&server).len() == 2).then_some(());
    until("asked", enough, || requests(&server));
    assert_eq!(requests(&server).len(), 3, "one look, two creations");
}

#[test]
fn a_server_that_permits_no_events_is_asked_once() {
    let (server, follower) = scene();
    respond(&server, EVENTS, 403, "{}");
    follower.watch.report(std::iter::once(notice()));
    until(
        "asked",
        || (!writes(&server).is_empty()).then_some(()),
        || (),
    );
    let more = (0..100).map(|n| Notice::node("A", "B", &n.to_string()));
    follower.watch.report(more);
    std::thread::sleep(3 * TIMES.period);
    let requests = server.requests().into_iter();
    let writes = requests.filter(|it| it.path.contains("/events") && it.method != "GET");
    assert_eq!(writes.count(), 1);
}

#[test]
fn a_server_that_does_not_answer_stops_no_follower() {
    let (server, follower) = scene();
    follower.drain();
    server.freeze();
    follower.watch.report(std::iter::once(notice()));
    for n in 0..1_000 {
        let more = std::iter::once(Notice::node("A", "B", &n.to_string()));
        follower.watch.report(more);
    }
    server.resume();
    server.apply(service("web", 80));
    assert_eq!(follower.services(), "apply a/web");
}

#[test]
fn without_the_option_no_event_is_written() {
    let server = ApiServer::start();
    let follower = Follower::start(&server);
    follower.watch.report(std::iter::once(notice()));
    follower.drain();
    assert_eq!(writes(&server), [] as [&str; 0]);
}

/// Returns the program, on a node `us` of this server, with its files in `directory`.
fn command(server: &ApiServer, directory: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
    program
        .args(["run", "--dataplane=userspace", "--node-name=us", "--master"])
        .arg(server.url())
        .args(["--ipvs-min-sync-period=0s", "--logging-format=json"])
        .arg(format!(
            "--metrics-bind-address=127.0.0.1:{}",
            unused_port()
        ))
        .arg("--state-file")
        .arg(directory.join("state"));
    program
}

#[test]
fn the_last_event_of_a_process_is_tried_again() {
    // If a thread stands still for seconds, the process ends without the Event, and says so.
    let is_in_time = |(log, _): &(String, usize)| !log.contains("did not take the last Events");
    let ended = (0..5).map(|_| end_at_an_address_in_use()).find(is_in_time);
    let (log, posts) = ended.expect("a server that takes the last Events in time");
    // Two fail: those of the start and of the address, or the same one twice.
    assert_eq!(posts, 4, "{log}");
}

/// Runs the program, which ends because another process has an address. The server fails to write the first Events.
/// Returns the log and the number of requests for Events.
fn end_at_an_address_in_use() -> (String, usize) {
    let server = ApiServer::start();
    server.apply(node("us", "127.0.0.1"));
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    // For the Event of the start, and for that of the address in use.
    for status in [500, 500, 201, 201] {
        respond(&server, path, status, "{}");
    }
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut program = command(&server, directory.path());
    program
        .arg(format!(
            "--healthz-bind-address={}",
            taken.local_addr().unwrap()
        ))
        .arg("--bind-address-hard-fail");
    let output = program.output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{log}");
    let posts = server.requests();
    let posts = posts.iter().filter(|request| request.path == path).count();
    (log, posts)
}

#[test]
fn the_program_says_once_that_events_are_not_permitted() {
    let server = ApiServer::start();
    server.apply(node("us", "127.0.0.1"));
    // The role of the program has no rule for Events. The first is the one of the start.
    let refused = r#"{"kind": "Status", "code": 403, "message": "events is forbidden"}"#;
    let of_nodes = "/apis/events.k8s.io/v1/namespaces/default/events";
    respond(&server, of_nodes, 403, refused);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let mut program = command(&server, directory.path());
    program.arg(format!(
        "--healthz-bind-address=127.0.0.1:{}",
        unused_port()
    ));
    program.stderr(std::fs::File::create(&log).unwrap());
    let program = Program(program.spawn().unwrap());
    let refusals = || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.matches("does not permit Events").count()
    };
    until(
        "logged",
        || (refusals() > 0).then_some(()),
        || std::fs::read_to_string(&log),
    );
    let mut wrong = service("web", 80);
    wrong["spec"]["externalIPs"] = json!(["bogus"]);
    server.apply(wrong);
    let has_problem = || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.contains("bogus").then_some(())
    };
    until("logged", has_problem, || std::fs::read_to_string(&log));
    std::thread::sleep(Duration::from_millis(500));
    drop(program);
    let posts = server
        .requests()
        .into_iter()
        .filter(|it| it.method == "POST");
    assert_eq!((refusals(), posts.count()), (1, 1));
    let text = std::fs::read_to_string(&log).unwrap();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["ts"].is_f64() && line["msg"].is_string(), "{line}");
    }
}
