//! Malformed objects and responses.

use std::time::Duration;

use api_server::{ApiServer, Key};
use proxier::testing::store::{Event, Update};
use proxier::testing::watch::WatchMessage;
use serde_json::{Value, json};

use crate::follower::Follower;
use crate::objects::{key, node, response, service};

#[test]
fn a_malformed_object_does_not_affect_others() {
    for (scenario, streams_lists) in [("streaming lists", true), ("lists in pages", false)] {
        println!("{scenario}");
        let server = ApiServer::start();
        server.configure(|behaviour| behaviour.streams_lists = streams_lists);
        let bad = |spec: Value| {
            let mut object = service("bad", 80);
            object["spec"] = spec;
            object
        };
        let mut halfway = service("halfway", 80);
        halfway["spec"]["externalIPs"] = json!(["192.0.2.1", "bogus"]);
        server.apply(halfway);
        server.put(key("Service", "bad"), bad(json!([])));
        server.put(
            key("Service", "nameless"),
            json!({"spec": {"clusterIP": "10.96.0.1"}}),
        );
        server.put(key("Service", "list"), json!([7]));
        server.apply(service("web", 80));
        let follower = Follower::start(&server);
        assert_eq!(follower.services(), "reset [a/bad?!, a/halfway!, a/web]");
        let problems = follower.problems();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems.iter().all(|problem| problem.object == "Service"),
            "{problems:?}"
        );

        server.put(key("Service", "bad"), bad(json!({"ports": {"a": 1}})));
        assert_eq!(follower.services(), "apply a/bad?!");
        server.put(key("Service", "bad"), bad(json!("x")));
        let object = follower.next("Service", |message| match message {
            WatchMessage::Event(Event::Services(Update::Apply(parsed))) => Some(parsed),
            _ => None,
        });
        let text = object.problems[0].to_string();
        assert!(
            text.starts_with("Service a/bad: cannot be read: "),
            "{text}"
        );
        server.put(key("Service", "nameless"), json!([{"metadata": {}}]));
        assert_eq!(follower.problems().len(), 3);
        server.delete(&key("Service", "bad"));
        assert_eq!(follower.services(), "delete a/bad");
        server.put(key("Service", "bad"), service("bad", 80));
        assert_eq!(follower.services(), "apply a/bad");
        let status = follower.status().services;
        assert_eq!((status.lists, status.failures), (1, 0), "{status:?}");
    }
}

#[test]
fn malformed_responses_are_retried() {
    let server = ApiServer::start();
    server.configure(|behaviour| behaviour.streams_lists = false);
    server.apply(service("web", 80));
    let path = "/api/v1/services";
    let mut broken = response(
        200,
        r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":"#,
    );
    broken.breaks_connection = true;
    let mut busy = response(429, "");
    busy.headers.push(("Retry-After".into(), "2".into()));
    for nonsense in [
        // The response to the streaming list.
        response(200, "{\"type\":\"ADDED\",\n"),
        response(502, "<html>Bad Gateway</html>"),
        broken,
        busy,
    ] {
        server.respond_next_and_freeze(path, nonsense);
    }
    let follower = Follower::start(&server);
    for expected in [
        "malformed response: an event of a watch: EOF",
        "502: <html>Bad Gateway</html>",
        "connection lost: ",
        "429",
    ] {
        follower.until(expected, |status| {
            let failed = &status.services.failed;
            failed
                .as_ref()
                .is_some_and(|(_, why)| why.starts_with(expected))
        });
        server.resume();
    }
    assert_eq!(follower.services(), "reset [a/web]");
    let requests = server.requests();
    let lists: Vec<_> = requests
        .iter()
        .filter(|request| request.path == path)
        .collect();
    let waited = lists[4].at - lists[3].at;
    assert!(
        waited >= Duration::from_secs(2),
        "the server sent Retry-After: {waited:?}"
    );
}

#[test]
fn malformed_protobuf_is_retried() {
    let protobuf = |body: &[u8]| {
        let mut response = response(200, "");
        let media_type = "application/vnd.kubernetes.protobuf";
        response
            .headers
            .push(("Content-Type".into(), media_type.into()));
        response.body = body.into();
        response
    };
    // The first response is that of a streaming list, the others are those of lists.
    for (streamed, why) in [
        (b"\0\0\0\x05ab".as_slice(), "connection lost: a streaming"),
        (
            b"\0\0\0\x01x",
            "malformed response: an event of a watch: the ",
        ),
        (b"\0\0\0\0", "malformed response: an event of a watch: an "),
        (
            b"HTTP",
            "malformed response: an event of a watch is too long",
        ),
    ] {
        let server = ApiServer::start();
        server.apply(service("web", 80));
        for nonsense in [streamed, b"{\"items\":[]}", b"k8s\0\x12\x09\x12\x03"] {
            server.respond_next_and_freeze("/api/v1/services", protobuf(nonsense));
        }
        let follower = Follower::start(&server);
        for expected in [
            why,
            "malformed response: a list: no magic number",
            "malformed response: a list: ends too early",
        ] {
            follower.until(expected, |status| {
                let failed = status.services.failed.as_ref();
                failed.is_some_and(|(_, text)| text.starts_with(expected))
            });
            server.resume();
        }
        assert_eq!(follower.services(), "reset [a/web]");
    }
}

#[test]
fn an_endless_line_ends_the_watch_and_a_list_follows() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    let endless = format!(
        "{{\"type\":\"MODIFIED\",\"object\":\"{}",
        "x".repeat(40 << 20)
    );
    server.respond_next("/api/v1/services", response(200, &endless));
    server.break_connections();
    assert_eq!(follower.services(), "reset [a/web]");
    let failed = follower.status().services.failed.unwrap().1;
    assert!(failed.contains("too long"), "{failed}");
}

#[test]
fn problems_of_our_own_node_are_reported_and_cleared() {
    let server = ApiServer::start();
    server.apply(node("us", "bogus"));
    let follower = Follower::start(&server);
    let problems = follower.problems();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].object, "Node us");
    assert_eq!(problems[0].field, "status.addresses[0].address");
    server.apply(node("us", "192.0.2.1"));
    assert_eq!(follower.problems(), []);
    // A deleted Node keeps its last state.
    follower.drain();
    server.delete(&Key::new("Node", "", "us").unwrap());
    follower.assert_silent();
}
