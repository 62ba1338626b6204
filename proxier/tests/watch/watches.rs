//! Watches, and stopping them.

use std::time::{Duration, Instant};

use api_server::{ApiServer, Request};
use proxier::testing::store::Event;
use proxier::testing::watch::{Encoding, FollowState, WatchMessage};

use crate::follower::{Follower, PATIENCE, brief, config, until};
use crate::objects::{key, node, service, slice};

pub(crate) fn watches<'a>(
    requests: &'a [Request],
    plural: &'a str,
) -> impl Iterator<Item = &'a Request> {
    let path = format!("/{plural}");
    requests
        .iter()
        .filter(move |request| request.is_watch() && request.path.ends_with(&path))
}

#[test]
fn every_kind_is_listed_once_and_then_watched() {
    // Protobuf, JSON, and protobuf from a server that has JSON only.
    for (encoding, speaks_protobuf) in [
        (Encoding::Protobuf, true),
        (Encoding::Json, true),
        (Encoding::Protobuf, false),
    ] {
        let server = ApiServer::start();
        server.configure(|behaviour| behaviour.speaks_protobuf = speaks_protobuf);
        lists_once_and_watches(&server, encoding);
        for request in server.requests() {
            let accept = request.accept.unwrap();
            let is_protobuf = accept.starts_with("application/vnd.kubernetes.protobuf");
            assert_eq!(is_protobuf, encoding == Encoding::Protobuf, "{accept}");
        }
    }
}

fn lists_once_and_watches(server: &ApiServer, encoding: Encoding) {
    server.apply(service("web", 80));
    server.apply(slice("web-1"));
    server.apply(node("us", "192.0.2.1"));
    server.apply(node("them", "192.0.2.2"));
    let mut config = config(server);
    config.encoding = encoding;
    let follower = Follower::with(config);
    follower.until("synced", |status| {
        status.is_synced() && status.node.is_synced() && status.service_cidrs.is_synced()
    });
    // Four kinds send one message each, in any order. The channel holds four messages.
    let mut received: Vec<_> = (0..4)
        .map(
            |_| match follower.messages.recv_timeout(PATIENCE).unwrap() {
                WatchMessage::Event(Event::Services(change)) => brief(&change),
                WatchMessage::Event(Event::EndpointSlices(change)) => brief(&change),
                WatchMessage::Event(Event::ServiceCidrs(change)) => brief(&change),
                WatchMessage::Event(Event::Node(node)) => {
                    format!("{} {:?}", node.name, node.addresses)
                }
                other => panic!("{other:?}"),
            },
        )
        .collect();
    received.sort();
    let expected = [
        "reset []",
        "reset [a/web-1]",
        "reset [a/web]",
        "us [192.0.2.1]",
    ];
    assert_eq!(received, expected);

    server.apply(service("web", 81));
    assert_eq!(follower.services(), "apply a/web");
    server.apply(service("new", 80));
    assert_eq!(follower.services(), "apply a/new");
    server.delete(&key("Service", "web"));
    assert_eq!(follower.services(), "delete a/web");
    server.apply(slice("web-1"));
    assert_eq!(follower.slices(), "apply a/web-1");
    server.apply(node("us", "192.0.2.9"));
    let addresses = follower.next("node", |message| match message {
        WatchMessage::Event(Event::Node(node)) => Some(node.addresses),
        _ => None,
    });
    assert_eq!(
        addresses,
        ["192.0.2.9".parse::<std::net::IpAddr>().unwrap()]
    );
    server.apply(node("them", "192.0.2.10"));
    follower.assert_silent();
    let status = follower.status();
    assert_eq!(status.services.state, FollowState::Watching);
    assert_eq!((status.services.lists, status.services.changes), (1, 3));
    assert_eq!(
        (status.nodes.state, status.services.failures),
        (FollowState::Off, 0)
    );
}

/// Waits for another watch of Services after the first `asked` requests, and returns it.
fn watched_again(server: &ApiServer, asked: usize) -> Request {
    let again = || {
        let requests = server.requests();
        watches(&requests[asked..], "services").next().cloned()
    };
    until("watched again", again, || server.requests())
}

#[test]
fn bookmarks_avoid_lists_after_a_compaction() {
    let server = ApiServer::start();
    server.configure(|behaviour| behaviour.bookmark_every = Duration::from_millis(50));
    server.apply(service("web", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    // Other kinds change, so that the last version of a Service gets compacted.
    for index in 0..100 {
        server.apply(slice(&format!("web-{index}")));
    }
    let resumed_at = || {
        let asked = server.requests().len();
        server.break_connections();
        let again = watched_again(&server, asked);
        again.parameter("resourceVersion").to_owned()
    };
    let newest = server.revision().to_string();
    let knows_newest = || {
        // Bookmarks of this revision arrive meanwhile, unless a thread stands still.
        std::thread::sleep(Duration::from_millis(200));
        (resumed_at() == newest).then_some(())
    };
    until("at the newest revision", knows_newest, || server.requests());
    // Keeps the last change of a slice only.
    server.limit_history(1);
    assert_eq!(resumed_at(), newest);
    server.apply(service("new", 80));
    assert_eq!(follower.services(), "apply a/new");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn an_expired_watch_resumes_at_its_version() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let mut config = config(&server);
    config.timeouts.watch = Duration::from_secs(1);
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/web]");
    for round in 0..3 {
        let asked = server.requests().len();
        watched_again(&server, asked);
        server.apply(service("web", 100 + round));
        assert_eq!(follower.services(), "apply a/web");
    }
    let status = follower.status().services;
    assert_eq!((status.lists, status.failures), (1, 0));
}

#[test]
fn a_failed_watch_is_retried_at_its_version() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    server.configure(|behaviour| behaviour.watch_error = Some(500));
    server.apply(service("web", 81));
    let status = follower.until("failed twice", |status| status.services.failures >= 2);
    let (_, why) = status.services.failed.unwrap();
    assert_eq!(why, "500 InternalError: as the test wants it");
    let requests = server.requests();
    let gaps: Vec<_> = watches(&requests, "services")
        .map(|request| request.at)
        .collect();
    for pair in gaps.windows(2).skip(1) {
        assert!(pair[1] - pair[0] >= Duration::from_millis(400), "{gaps:?}");
    }
    server.configure(|behaviour| behaviour.watch_error = None);
    assert_eq!(follower.services(), "apply a/web");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn a_slow_receiver_stops_reading_and_loses_nothing() {
    let server = ApiServer::start();
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset []");
    follower.drain();
    let count = 2_000;
    for index in 0..count {
        server.apply(service(&format!("s{index}"), 80));
    }
    follower.until("reading", |status| status.services.changes > 0);
    std::thread::sleep(Duration::from_millis(500));
    // Four messages wait in the channel, and one each in `forward`, the inner channel and the follower.
    let read = follower.status().services.changes;
    assert!((1..=8).contains(&read), "{read} were read ahead");
    for index in 0..count {
        assert_eq!(follower.services(), format!("apply a/s{index}"));
    }
    assert_eq!(follower.status().services.failures, 0);
}

#[test]
fn a_stop_is_fast_in_any_state() {
    let server = ApiServer::start();
    let quickly = |follower: Follower| {
        let started = Instant::now();
        follower.watch.stop();
        // A stop that waited for a response would take a minute.
        assert!(started.elapsed() < Duration::from_secs(30));
        // The sender is dropped: sent messages can be received, and one that waits for room in the channel. Then the
        // channel is closed.
        assert!(follower.messages.iter().count() <= 4 + 1);
    };
    // With a full channel.
    for index in 0..100 {
        server.apply(service(&format!("s{index}"), 80));
    }
    let follower = Follower::start(&server);
    follower.until("synced", |status| status.services.is_synced());
    for index in 0..100 {
        server.apply(service(&format!("s{index}"), 81));
    }
    quickly(follower);
    // During a request.
    server.freeze();
    quickly(Follower::start(&server));
    // During a backoff.
    server.refuse();
    let follower = Follower::start(&server);
    follower.until("failed", |status| status.services.failures > 0);
    quickly(follower);
    // Dropping the receiver stops the watch too.
    server.resume();
    let Follower { watch, messages } = Follower::start(&server);
    drop(messages);
    server.apply(service("last", 80));
    until(
        "over",
        || {
            let asked = server.requests().len();
            server.break_connections();
            std::thread::sleep(Duration::from_millis(1_200));
            (server.requests().len() == asked).then_some(())
        },
        || watch.status(),
    );
}
