//! Servers that are unreachable, silent or deny access.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use api_server::ApiServer;
use lab::net::unused_port;
use proxier::testing::watch::FollowState;

use crate::follower::{Follower, PATIENCE, config, until};
use crate::http;
use crate::objects::{key, service};
use crate::program::Program;

#[test]
fn an_outage_changes_no_object_and_the_watch_resumes() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    server.apply(service("gone", 80));
    let mut config = config(&server);
    config.timeouts.outage = PATIENCE;
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/gone, a/web]");
    follower.drain();
    server.refuse();
    // Not the first failures: connections are reset if they break, or if the kernel accepts them before the server
    // stops listening.
    let status = follower.until("refused", |status| {
        [&status.services, &status.endpoint_slices]
            .iter()
            .filter_map(|kind| kind.failed.as_ref())
            .filter(|(_, why)| why.contains("Connection refused"))
            .count()
            == 2
    });
    assert!(status.is_synced());
    assert_eq!(status.services.state, FollowState::Waiting);
    follower.assert_silent();
    server.delete(&key("Service", "gone"));
    server.resume();
    assert_eq!(follower.services(), "delete a/gone");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn a_silent_server_is_disconnected() {
    let server = ApiServer::start();
    server.configure(|behaviour| behaviour.bookmark_every = Duration::from_millis(100));
    server.apply(service("web", 80));
    let mut config = config(&server);
    let silence = Duration::from_secs(6);
    config.timeouts.silence = silence;
    config.timeouts.response = silence;
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/web]");
    bookmarks_count_as_data(&follower, silence);
    // If the server stood still, the watch may have to be opened again first.
    let now = Some(Instant::now());
    let heard = follower.until("heard", |status| status.services.heard > now);
    let before = heard.services.failures;
    server.freeze();
    let status = follower.until("noticed", |status| status.services.failures > before);
    assert_eq!(status.services.failed.unwrap().1, "no data for 6 s");
    // The next attempt fails, too.
    follower.until("asked again", |status| {
        status.services.failures > before + 1
    });
    server.apply(service("web", 81));
    server.resume();
    // The silent watch may have waited for a version that the server lost.
    assert_eq!(follower.services(), "reset [a/web]");
}

/// Asserts that the watch does not fail for longer than `silence`, unless the server or the follower stood still for as
/// long, and no data arrived.
fn bookmarks_count_as_data(follower: &Follower, silence: Duration) {
    let before = follower.status().services;
    let (mut heard, mut longest) = (before.heard.unwrap(), Duration::ZERO);
    let end = Instant::now() + silence + Duration::from_secs(1);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
        let now = follower.status().services;
        longest = longest.max(now.heard.unwrap() - heard);
        heard = now.heard.unwrap();
        let gap = longest.max(heard.elapsed());
        assert!(
            now.failures == before.failures || gap >= silence,
            "a failure though the longest gap between bookmarks is {gap:?}: {now:?}"
        );
    }
}

#[test]
fn a_denied_optional_kind_is_empty_and_a_required_one_is_retried() {
    let server = ApiServer::start();
    server.configure(|behaviour| {
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
    server.configure(|behaviour| behaviour.refused.clear());
    assert_eq!(follower.services(), "reset [a/web]");
    let requests = server.requests();
    let cidrs = requests
        .iter()
        .filter(|request| request.path.ends_with("/servicecidrs"));
    assert_eq!(cidrs.count(), 1, "the next attempt follows minutes later");
}

#[test]
fn an_optional_kind_is_listed_again_if_a_server_that_starts_denies_it_at_first() {
    let server = ApiServer::start();
    let mut config = config(&server);
    config.timeouts.outage = Duration::ZERO;
    let follower = Follower::with(config);
    assert_eq!(follower.cidrs(), "reset []");
    follower.drain();
    server.refuse();
    follower.until("down", |status| status.service_cidrs.failures > 0);
    server.configure(|behaviour| {
        behaviour.refused.insert("servicecidrs".into(), 403);
    });
    server.resume();
    let is_refused = |why: &str| why.starts_with("403 ");
    follower.until("refused", |status| {
        let failed = status.service_cidrs.failed.as_ref();
        failed.is_some_and(|(_, why)| is_refused(why))
    });
    server.configure(|behaviour| behaviour.refused.clear());
    assert_eq!(follower.cidrs(), "reset []");
}

/// The first bookmark of the test's API server would be sent later.
#[test]
fn a_server_that_sends_nothing_makes_the_node_unhealthy_only_with_a_limit() {
    for (limit, has_reason) in [("1s", true), ("0", false)] {
        let server = ApiServer::start();
        server.apply(service("web", 80));
        let (directory, health) = (tempfile::tempdir().unwrap(), unused_port());
        let mut program = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        program
            .args(["run", "--dataplane=userspace", "--node-name=us"])
            .arg(format!("--master={}", server.url()))
            .arg(format!("--healthz-silence-timeout={limit}"))
            .arg(format!("--healthz-bind-address=127.0.0.1:{health}"))
            .arg(format!(
                "--metrics-bind-address=127.0.0.1:{}",
                unused_port()
            ))
            .arg("--state-file")
            .arg(directory.path().join("state"))
            .stderr(Stdio::null());
        let _program = Program(program.spawn().unwrap());
        let page = || http::get(health, "/healthz").unwrap_or_default();
        let is_programmed = || {
            let page = page();
            (!page.is_empty() && !page.contains("not programmed yet")).then_some(())
        };
        until("programmed", is_programmed, page);
        if has_reason {
            let is_silent = || {
                page()
                    .contains("the API server sends nothing")
                    .then_some(())
            };
            until("silent", is_silent, page);
        } else {
            std::thread::sleep(Duration::from_secs(3));
            assert!(!page().contains("sends nothing"), "{}", page());
        }
    }
}
