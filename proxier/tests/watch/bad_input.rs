//! Objects and answers that are not as promised.

use std::time::Duration;

use api_server::{ApiServer, Key};
use proxier::store::{Event, Update};
use proxier::watch::Message;
use serde_json::{Value, json};

use crate::follower::Follower;
use crate::objects::{answer, key, node, service};

#[test]
fn a_bad_object_costs_no_more_than_itself() {
    for streams_lists in [true, false] {
        let server = ApiServer::start();
        server.behave(|behaviour| behaviour.streams_lists = streams_lists);
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
            Message::Event(Event::Services(Update::Apply(parsed))) => Some(parsed),
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
fn nonsense_is_survived_and_asked_again() {
    let server = ApiServer::start();
    server.behave(|behaviour| behaviour.streams_lists = false);
    server.apply(service("web", 80));
    let path = "/api/v1/services";
    let mut broken = answer(
        200,
        r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":"#,
    );
    broken.breaks_off = true;
    let mut busy = answer(429, "");
    busy.headers.push(("Retry-After".into(), "2".into()));
    for nonsense in [
        // To the attempt at a streaming list.
        answer(200, "{\"type\":\"ADDED\",\n"),
        answer(502, "<html>Bad Gateway</html>"),
        broken,
        busy,
    ] {
        server.answer_next(path, nonsense);
    }
    let follower = Follower::start(&server);
    for expected in [
        "malformed response: a line of a watch: EOF",
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
        "the server asked for it: {waited:?}"
    );
}

#[test]
fn a_line_without_end_is_cut_short_and_seen_to_by_a_list() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    let endless = format!(
        "{{\"type\":\"MODIFIED\",\"object\":\"{}",
        "x".repeat(40 << 20)
    );
    server.answer_next("/api/v1/services", answer(200, &endless));
    server.cut();
    assert_eq!(follower.services(), "reset [a/web]");
    let failed = follower.status().services.failed.unwrap().1;
    assert!(failed.contains("too long"), "{failed}");
}

#[test]
fn problems_of_our_own_node_come_and_go() {
    let server = ApiServer::start();
    server.apply(node("us", "bogus"));
    let follower = Follower::start(&server);
    let problems = follower.problems();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].object, "Node us");
    assert_eq!(problems[0].field, "status.addresses[0].address");
    server.apply(node("us", "192.0.2.1"));
    assert_eq!(follower.problems(), []);
    // A node that is gone stays what it was.
    follower.drain();
    server.delete(&Key::new("Node", "", "us").unwrap());
    follower.is_quiet();
}
