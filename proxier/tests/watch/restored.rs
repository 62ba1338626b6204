//! Servers whose database was restored from a backup: other objects, and versions that begin before those that a follower
//! knows.

use std::time::Duration;

use api_server::{ApiServer, Request};
use proxier::testing::watch::Timeouts;
use serde_json::{Value, json};

use crate::follower::{Follower, PATIENCE, config};
use crate::objects::{key, response, service};

const SERVICES: &str = "/api/v1/services";

/// Starts a follower of a server that has had 50 versions, and has the Service `a/late`.
fn scene(change: impl FnOnce(&mut Timeouts)) -> (ApiServer, Follower) {
    let server = ApiServer::start();
    for index in 0..50 {
        server.apply(service("web", 100 + index));
    }
    let mut config = config(&server);
    change(&mut config.timeouts);
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/web]");
    server.apply(service("late", 80));
    assert_eq!(follower.services(), "apply a/late");
    (server, follower)
}

/// Returns the requests for Services after the first `asked` requests.
fn later(server: &ApiServer, asked: usize) -> Vec<Request> {
    let requests = server.requests().split_off(asked);
    let of_services = requests
        .into_iter()
        .filter(|request| request.path == SERVICES);
    of_services.collect()
}

fn is_list(request: &Request) -> bool {
    !request.is_watch() || request.parameter("sendInitialEvents") == "true"
}

#[test]
fn a_server_that_was_gone_for_long_is_listed_even_if_it_has_passed_the_version() {
    let (server, follower) = scene(|timeouts| timeouts.outage = Duration::ZERO);
    let asked = server.requests().len();
    server.refuse();
    follower.until("down", |status| status.services.failures > 0);
    server.restore(5);
    server.delete(&key("Service", "late"));
    for index in 0..100 {
        server.apply(service("early", 100 + index));
    }
    server.resume();
    assert_eq!(follower.services(), "reset [a/early, a/web]");
    server.apply(service("new", 80));
    assert_eq!(follower.services(), "apply a/new");
    let later = later(&server, asked);
    assert!(is_list(&later[0]), "{later:?}");
    assert_eq!(later[0].parameter("resourceVersionMatch"), "NotOlderThan");
}

#[test]
fn a_watch_of_the_future_leads_to_a_list() {
    for what in ["a silent watch", "the first watch after a failure"] {
        println!("{what}");
        let (server, follower) = scene(|timeouts| {
            timeouts.outage = PATIENCE;
            match what {
                "a silent watch" => timeouts.silence = Duration::from_secs(1),
                _ => timeouts.trial = Duration::from_secs(1),
            }
        });
        server.restore(5);
        server.delete(&key("Service", "late"));
        assert_eq!(follower.services(), "reset [a/web]");
        server.apply(service("new", 80));
        assert_eq!(follower.services(), "apply a/new");
    }
}

#[test]
fn a_server_that_knows_the_version_is_not_listed_after_a_failure() {
    let (server, follower) = scene(|timeouts| {
        timeouts.outage = PATIENCE;
        timeouts.trial = Duration::from_secs(1);
    });
    let asked = server.requests().len();
    server.break_connections();
    // The trial, and a watch after it.
    follower.until("watched again", |_| later(&server, asked).len() >= 2);
    let times: Vec<u64> = later(&server, asked)
        .iter()
        .map(|request| request.parameter("timeoutSeconds").parse().unwrap())
        .collect();
    assert!(times[0] <= 2 && times[1] >= 300, "{times:?}");
    assert_eq!(follower.status().services.lists, 1);
}

/// Answers the next watch of Services with this event, after which the follower must list the newest state.
fn goes_backwards(event: &Value) {
    let (server, follower) = scene(|timeouts| timeouts.outage = PATIENCE);
    let asked = server.requests().len();
    server.respond_next(SERVICES, response(200, &format!("{event}\n")));
    server.break_connections();
    assert_eq!(follower.services(), "reset [a/late, a/web]");
    let later = later(&server, asked);
    assert!(!is_list(&later[0]) && is_list(&later[1]), "{later:?}");
    assert_eq!(later[1].parameter("resourceVersion"), "");
    let (_, why) = follower.status().services.failed.unwrap();
    assert!(why.contains("version 7") && why.contains("backup"), "{why}");
}

#[test]
fn a_version_that_goes_backwards_leads_to_the_newest_list() {
    let bookmark = json!({"kind": "Service", "metadata": {"resourceVersion": "7"}});
    goes_backwards(&json!({"type": "BOOKMARK", "object": bookmark}));
    let mut changed = service("other", 80);
    changed["metadata"]["resourceVersion"] = json!("7");
    goes_backwards(&json!({"type": "MODIFIED", "object": changed}));
}

#[test]
fn a_list_that_is_older_than_requested_is_not_used() {
    let (server, follower) = scene(|timeouts| timeouts.outage = PATIENCE);
    server.configure(|behaviour| behaviour.streams_lists = false);
    let asked = server.requests().len();
    let old = json!({"metadata": {"resourceVersion": "7"}, "items": [service("old", 80)]});
    server.respond_next(SERVICES, response(410, "{}"));
    server.respond_next(SERVICES, response(422, "{}"));
    server.respond_next(SERVICES, response(200, &old.to_string()));
    server.break_connections();
    assert_eq!(follower.services(), "reset [a/late, a/web]");
    let later = later(&server, asked);
    assert_eq!(later[2].parameter("resourceVersionMatch"), "NotOlderThan");
    assert_eq!(later[3].parameter("resourceVersion"), "", "{later:?}");
}
