//! Servers that are away, silent or unwilling.

use std::time::Duration;

use api_server::ApiServer;
use proxier::watch::FollowState;

use crate::follower::{Follower, config};
use crate::objects::{key, service};

#[test]
fn an_outage_changes_nothing_and_ends_by_itself() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    server.apply(service("gone", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/gone, a/web]");
    follower.drain();
    server.refuse();
    follower.until("down", |status| {
        status.services.failures > 1 && status.endpoint_slices.failures > 1
    });
    let status = follower.status();
    assert!(status.is_synced());
    assert_eq!(status.services.state, FollowState::Waiting);
    let (_, why) = status.services.failed.unwrap();
    assert!(why.contains("Connection refused"), "{why}");
    follower.is_quiet();
    server.delete(&key("Service", "gone"));
    server.resume();
    assert_eq!(follower.services(), "delete a/gone");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn a_server_that_is_there_but_says_nothing_is_given_up() {
    let server = ApiServer::start();
    server.behave(|behaviour| behaviour.bookmark_every = Duration::from_millis(100));
    server.apply(service("web", 80));
    let mut config = config(&server);
    config.timeouts.silence = Duration::from_secs(6);
    config.timeouts.response = Duration::from_secs(6);
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/web]");
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(
        follower.status().services.failures,
        0,
        "bookmarks are signs of life"
    );
    server.freeze();
    let status = follower.until("noticed", |status| status.services.failures > 0);
    assert_eq!(status.services.failed.unwrap().1, "no data for 6 s");
    // Nor does it help to ask again.
    follower.until("asked again", |status| status.services.failures > 1);
    server.apply(service("web", 81));
    server.resume();
    assert_eq!(follower.services(), "apply a/web");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn what_the_server_withholds_is_done_without_or_waited_for() {
    let server = ApiServer::start();
    server.behave(|behaviour| {
        behaviour.refused.insert("servicecidrs".into(), 404);
        behaviour.refused.insert("services".into(), 403);
    });
    server.apply(service("web", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.cidrs(), "reset []");
    let status = follower.until("refused", |status| {
        status.services.failures > 0 && status.service_cidrs.state == FollowState::Absent
    });
    assert!(!status.is_synced() && status.service_cidrs.is_synced());
    let (_, why) = status.services.failed.unwrap();
    assert_eq!(why, "403 Forbidden: services are refused");
    server.behave(|behaviour| behaviour.refused.clear());
    assert_eq!(follower.services(), "reset [a/web]");
    let requests = server.requests();
    let cidrs = requests
        .iter()
        .filter(|request| request.path.ends_with("/servicecidrs"));
    assert_eq!(cidrs.count(), 1, "asked once, and then not for minutes");
}
