//! Responses of a real kube-apiserver, in JSON and in protobuf, which must mean the same.
//!
//! `recordings/` has those of one server; `real_server/recording.rs` wrote them.

use std::path::{Path, PathBuf};

use api_server::{ApiServer, CannedResponse};
use proxier::testing::store::{Event, Update};
use proxier::testing::watch::WatchMessage;
use serde_json::json;

use crate::follower::{Follower, config};
use crate::objects::response;

pub(crate) const SERVICES: &str = "/api/v1/services";
pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// An encoding: the ending of its files, and its media type.
pub(crate) struct Recorded {
    pub(crate) ending: &'static str,
    pub(crate) media_type: &'static str,
}

pub(crate) const JSON: Recorded = Recorded {
    ending: "json",
    media_type: "application/json",
};
pub(crate) const PROTOBUF: Recorded = Recorded {
    ending: "pb",
    media_type: "application/vnd.kubernetes.protobuf",
};

/// Returns the path of a recording.
pub(crate) fn file(name: &str, encoding: &Recorded) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/watch/recordings");
    folder.join(format!("{name}.{}", encoding.ending))
}

/// Returns an empty server whose versions are later than the recorded ones, so that it lists again instead of resuming a
/// watch.
fn later_server() -> ApiServer {
    let server = ApiServer::start();
    server.restore(1_000_000_000);
    server
}

/// Returns what a follower receives and reports from the responses that `named` returns.
pub(crate) fn replay(named: impl Fn(&str) -> CannedResponse) -> Vec<(&'static str, String)> {
    let mut replayed = Vec::new();
    let server = later_server();
    // The watches were recorded before the streams, so an empty list precedes them.
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": "1", "annotations": annotations});
    let empty = json!({"type": "BOOKMARK", "object": {"metadata": metadata}}).to_string();
    for (path, watch, stream) in [
        (SERVICES, "services-watch", "services-stream"),
        (SLICES, "slices-watch", "slices-stream"),
    ] {
        server.respond_next(path, response(200, &format!("{empty}\n")));
        server.respond_next(path, named(watch));
        server.respond_next(path, response(410, "{}"));
        server.respond_next(path, named(stream));
    }
    server.respond_next(NODES, named("node-stream"));
    server.respond_next(CIDRS, named("cidrs-stream"));
    replayed.push(("streams", messages(&Follower::start(&server), 5)));

    // A server without streaming lists rejects the first request.
    let server = later_server();
    for (path, name) in [(SERVICES, "services-list"), (SLICES, "slices-list")] {
        server.respond_next(path, response(422, "{}"));
        server.respond_next(path, named(name));
    }
    replayed.push(("lists", messages(&Follower::start(&server), 3)));

    let server = later_server();
    let mut without_node = config(&server);
    without_node.node_name.clear();
    server.respond_next(NODES, named("metadata-stream"));
    server.respond_next(NODES, response(410, "{}"));
    server.respond_next(NODES, response(422, "{}"));
    server.respond_next(NODES, named("metadata-list"));
    let follower = Follower::with(without_node);
    follower.watch.set_other_nodes(true);
    replayed.push(("metadata", messages(&follower, 4)));

    for name in ["services-expired", "services-gone"] {
        let server = ApiServer::start();
        server.respond_next(SERVICES, named(name));
        let follower = Follower::start(&server);
        let failed = follower.until("failed", |status| status.services.failed.is_some());
        let (_, why) = failed.services.failed.unwrap();
        replayed.push(("failure", why));
    }
    replayed
}

/// Returns all messages, sorted by kind, until `lists` lists had no objects: the server of the test has none, so its lists
/// follow the last recorded response of each kind.
fn messages(follower: &Follower, lists: usize) -> String {
    let mut received: Vec<(&str, WatchMessage)> = Vec::new();
    let mut ended = 0;
    while ended < lists {
        let (kind, message) = follower.next("message", |message| {
            let kind = match &message {
                WatchMessage::Event(Event::Services(_)) => "1",
                WatchMessage::Event(Event::EndpointSlices(_)) => "2",
                WatchMessage::Event(Event::ServiceCidrs(_)) => "3",
                WatchMessage::Event(_) | WatchMessage::Problems { .. } => "4",
            };
            Some((kind, message))
        });
        let is_end = match &message {
            WatchMessage::Event(Event::Services(Update::Reset(all))) => all.is_empty(),
            WatchMessage::Event(Event::EndpointSlices(Update::Reset(all))) => all.is_empty(),
            WatchMessage::Event(Event::ServiceCidrs(Update::Reset(all))) => all.is_empty(),
            WatchMessage::Event(Event::Nodes(Update::Reset(all))) => all.is_empty(),
            _ => false,
        };
        match is_end {
            true => ended += 1,
            false => received.push((kind, message)),
        }
    }
    received.sort_by_key(|(kind, _)| *kind);
    let messages = received.iter().map(|(_, message)| format!("{message:#?}"));
    messages.collect::<Vec<_>>().join("\n")
}

/// Asserts that two replays are equal.
pub(crate) fn assert_equal(json: &[(&str, String)], protobuf: &[(&str, String)]) {
    for ((what, json), (_, protobuf)) in json.iter().zip(protobuf) {
        let differs = json.lines().zip(protobuf.lines()).find(|(a, b)| a != b);
        assert!(json == protobuf, "{what}: {differs:?}\n{protobuf}");
    }
}

/// Returns a recorded response.
fn read(name: &str, encoding: &Recorded) -> CannedResponse {
    let status = match name {
        "services-gone" => 410,
        _ => 200,
    };
    CannedResponse {
        status,
        headers: vec![("Content-Type".into(), encoding.media_type.into())],
        body: std::fs::read(file(name, encoding)).unwrap(),
        breaks_connection: false,
    }
}

#[test]
fn protobuf_means_what_json_means() {
    let json = replay(|name| read(name, &JSON));
    let protobuf = replay(|name| read(name, &PROTOBUF));
    assert_equal(&json, &protobuf);
    // The snapshot shows that each field is read.
    let text = json.iter().map(|(what, text)| format!("{what}\n{text}"));
    insta::assert_snapshot!(text.collect::<Vec<_>>().join("\n\n"));
}
