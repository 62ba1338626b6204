//! Lists.

use std::time::Duration;

use api_server::{ApiServer, Request};
use proxier::testing::store::{Event, Update};
use proxier::testing::watch::{FollowState, NodeScope, Status, WatchMessage};
use serde_json::{Value, json};

use crate::follower::{Follower, PATIENCE, brief, config, until};
use crate::objects::{key, node, response, service, slice};

#[test]
fn a_list_is_streamed_if_the_server_can_and_requested_whole_otherwise() {
    for (scenario, streams_lists) in [("streaming lists", true), ("no streaming lists", false)] {
        println!("{scenario}");
        let server = ApiServer::start();
        server.configure(|behaviour| behaviour.streams_lists = streams_lists);
        for index in 0..1_200 {
            server.apply(service(&format!("s{index:04}"), 80));
        }
        let follower = Follower::start(&server);
        let first = follower.services();
        assert_eq!(first.matches("a/s").count(), 1_200, "{first}");

        // An object is deleted during an outage, and the event is compacted. The next list shows it.
        server.refuse();
        follower.until("down", |status| status.services.failures > 0);
        server.delete(&key("Service", "s0007"));
        server.compact();
        let asked = server.requests().len();
        server.resume();
        let second = follower.services();
        assert!(second.starts_with("reset ["), "{second}");
        assert_eq!(second.matches("a/s").count(), 1_199);
        assert!(!second.contains("a/s0007"));
        // The request excludes lists that are older than the last seen version.
        let requests = server.requests().split_off(asked);
        let mut lists = requests.iter().filter(|request| {
            let is_list = !request.is_watch() || !request.parameter("sendInitialEvents").is_empty();
            request.path.ends_with("/services") && is_list
        });
        let first = lists.next().unwrap();
        assert_eq!(first.parameter("resourceVersionMatch"), "NotOlderThan");
        assert!(!["", "0"].contains(&first.parameter("resourceVersion")));
        assert_eq!(first.is_watch(), streams_lists);
        assert_eq!(lists.count(), 0, "the list has one page");

        server.apply(service("new", 80));
        assert_eq!(follower.services(), "apply a/new");
        let status = follower.status().services;
        assert_eq!((status.lists, status.changes), (2, 1));
    }
}

#[test]
fn lists_at_the_start_and_after_a_restart_are_served_from_the_watch_cache() {
    for streams_lists in [true, false] {
        let server = ApiServer::start();
        server.configure(|behaviour| behaviour.streams_lists = streams_lists);
        for index in 0..600 {
            server.apply(service(&format!("s{index:03}"), 80));
            server.apply(slice(&format!("s{index:03}-1")));
        }
        let follower = Follower::start(&server);
        let synced = follower.services();
        assert_eq!(synced.matches("a/s").count(), 600, "{synced}");
        follower.until("synced", |status| {
            follower.drain();
            status.is_synced() && status.node.is_synced() && status.service_cidrs.is_synced()
        });

        // The watch cache of a restarted server has no history, so no watch can resume.
        server.refuse();
        follower.until("down", |status| {
            status.services.failures > 0 && status.endpoint_slices.failures > 0
        });
        server.delete(&key("Service", "s000"));
        server.delete(&key("EndpointSlice", "s000-1"));
        server.compact();
        server.resume();
        follower.until("listed again", |status| {
            follower.drain();
            status.services.lists == 2 && status.endpoint_slices.lists == 2
        });
        for request in server.requests() {
            assert!(request.is_served_from_cache(), "from etcd: {request:?}");
        }
    }
}

#[test]
fn a_list_waits_for_a_cache_that_lags_instead_of_reading_etcd() {
    let server = ApiServer::start();
    server.configure(|behaviour| behaviour.streams_lists = false);
    server.apply(service("web", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    // Otherwise the first watch could take the first response, before the others are there.
    follower.until("watching", |status| {
        status.services.state == FollowState::Watching
    });
    let path = "/api/v1/services";
    // The resuming watch gets the first response, and the lists that follow get the other two.
    let cause = json!({"reason": "ResourceVersionTooLarge"});
    let lags = json!({"code": 504, "reason": "Timeout", "details": {"causes": [cause]}});
    let lags = lags.to_string();
    server.respond_next(path, response(410, "{}"));
    server.respond_next(path, response(504, &lags));
    server.respond_next(path, response(504, &lags));
    server.break_connections();
    assert_eq!(follower.services(), "reset [a/web]");
    assert!(follower.status().services.failures >= 3);
    for request in server.requests() {
        assert!(request.is_served_from_cache(), "from etcd: {request:?}");
    }
}

#[test]
fn a_list_that_expires_between_two_pages_is_restarted() {
    let server = ApiServer::start();
    server.configure(|behaviour| behaviour.streams_lists = false);
    server.apply(service("web", 80));
    let path = "/api/v1/services";
    let refused = response(422, "{}");
    server.respond_next(path, refused);
    let page = json!({
        "metadata": {"resourceVersion": "1", "continue": "of another time"},
        "items": [service("old", 80)],
    });
    server.respond_next(path, response(200, &page.to_string()));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    let failed = follower.status().services.failed.unwrap().1;
    assert!(failed.contains("410 Expired"), "{failed}");
}

#[test]
fn other_nodes_are_followed_while_needed_and_only_their_metadata() {
    let server = ApiServer::start();
    server.apply(node("us", "192.0.2.1"));
    server.apply(node("them", "192.0.2.2"));
    let follower = Follower::start(&server);
    follower.watch.set_other_nodes(true);
    assert_eq!(follower.nodes(), "reset [them, us]");
    server.apply(node("more", "192.0.2.3"));
    let place = follower.next("node", |message| match message {
        WatchMessage::Event(Event::Nodes(Update::Apply(parsed))) => parsed.object,
        _ => None,
    });
    assert_eq!(
        (&*place.name, place.region.as_deref()),
        ("more", Some("north"))
    );
    for request in server.requests() {
        let is_for_all =
            request.path == "/api/v1/nodes" && request.parameter("fieldSelector").is_empty();
        let accept = request.accept.unwrap();
        assert_eq!(
            accept.contains("PartialObjectMetadata"),
            is_for_all,
            "{accept}"
        );
    }
    follower.watch.set_other_nodes(false);
    assert_eq!(follower.nodes(), "reset []");
    follower.until("off", |status| status.nodes.state == FollowState::Off);
    server.apply(node("most", "192.0.2.4"));
    follower.watch.set_other_nodes(true);
    assert_eq!(follower.nodes(), "reset [more, most, them, us]");
}

#[test]
fn other_nodes_are_followed_only_if_that_is_permitted() {
    let server = ApiServer::start();
    server.apply(node("us", "192.0.2.1"));
    server.apply(node("them", "192.0.2.2"));
    let mut config = config(&server);
    config.nodes = NodeScope::Own;
    let follower = Follower::with(config);
    follower.watch.set_other_nodes(true);
    follower.drain();
    let requests = server.requests();
    let of_nodes = |request: &&Request| request.path == "/api/v1/nodes";
    for request in requests.iter().filter(of_nodes) {
        assert_eq!(request.parameter("fieldSelector"), "metadata.name=us");
    }
    assert_eq!(follower.status().nodes.state, FollowState::Off);
}

#[test]
fn objects_of_other_proxies_and_headless_services_are_not_sent() {
    let server = ApiServer::start();
    let label = |mut object: Value, label: &str| {
        object["metadata"]["labels"][label] = json!("");
        object
    };
    let foreign = "service.kubernetes.io/service-proxy-name";
    let mut headless = service("headless", 80);
    headless["spec"]["clusterIP"] = json!("None");
    server.apply(headless);
    server.apply(label(service("foreign", 80), foreign));
    server.apply(service("web", 80));
    server.apply(label(slice("headless-1"), "service.kubernetes.io/headless"));
    server.apply(slice("web-1"));
    let follower = Follower::start(&server);
    follower.until("synced", Status::is_synced);
    let mut received: Vec<_> = (0..3)
        .filter_map(
            |_| match follower.messages.recv_timeout(PATIENCE).unwrap() {
                WatchMessage::Event(Event::Services(change)) => Some(brief(&change)),
                WatchMessage::Event(Event::EndpointSlices(change)) => Some(brief(&change)),
                _ => None,
            },
        )
        .collect();
    received.sort();
    assert_eq!(received, ["reset [a/web-1]", "reset [a/web]"]);
    server.apply(label(service("web", 80), foreign));
    assert_eq!(follower.services(), "delete a/web");
    server.apply(service("foreign", 80));
    assert_eq!(follower.services(), "apply a/foreign");
}

#[test]
fn a_streaming_list_without_end_is_replaced_by_pages() {
    for has_bookmarks in [true, false] {
        println!("bookmarks: {has_bookmarks}");
        let server = ApiServer::start();
        server.configure(|behaviour| {
            behaviour.ends_no_list = true;
            if has_bookmarks {
                behaviour.bookmark_every = Duration::from_millis(100);
            }
        });
        server.apply(service("web", 80));
        let mut config = config(&server);
        // Without bookmarks, only the time after the last object can end the list.
        config.timeouts.response = match has_bookmarks {
            true => PATIENCE,
            false => Duration::from_secs(1),
        };
        let follower = Follower::with(config);
        let changes = || {
            server.apply(service("web", 81));
            let status = follower.status().services;
            status.is_synced().then_some(())
        };
        until("listed", changes, || follower.status());
        assert_eq!(follower.services(), "reset [a/web]");
    }
}
