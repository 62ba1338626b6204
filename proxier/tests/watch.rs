//! Following an API server: a real HTTP server that lists and watches, over loopback.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Debug;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use api_server::{ApiServer, Canned, Key, Request};
use proxier::problem::Problem;
use proxier::store::{Change, Event, Parsed};
use proxier::watch::{self, Config, Message, Server, State, Status, Timeouts, Watch};
use serde_json::{Value, json};

/// Longer than anything here should take, with two busy cores.
const PATIENCE: Duration = Duration::from_secs(20);

/// A watch and what it has told.
struct Follower {
    watch: Watch,
    messages: Receiver<Message>,
}

impl Follower {
    fn start(server: &ApiServer) -> Self {
        Self::with(config(server))
    }

    fn with(config: Config) -> Self {
        let (sender, messages) = sync_channel(4);
        let watch = watch::start(config, sender).unwrap();
        Self { watch, messages }
    }

    fn status(&self) -> Status {
        self.watch.status()
    }

    /// The next message that `pick` knows what to do with; others are passed over.
    fn next<T>(&self, what: &str, pick: impl Fn(Message) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(message) => {
                    if let Some(picked) = pick(message) {
                        return picked;
                    }
                }
                Err(error) => panic!("no {what}: {error}; {:#?}", self.status()),
            }
        }
    }

    /// The next change of Services, in short.
    fn services(&self) -> String {
        self.next("change of Services", |message| match message {
            Message::Event(Event::Services(change)) => Some(brief(&change)),
            _ => None,
        })
    }

    fn slices(&self) -> String {
        self.next("change of EndpointSlices", |message| match message {
            Message::Event(Event::EndpointSlices(change)) => Some(brief(&change)),
            _ => None,
        })
    }

    fn cidrs(&self) -> String {
        self.next("change of ServiceCIDRs", |message| match message {
            Message::Event(Event::ServiceCidrs(change)) => Some(brief(&change)),
            _ => None,
        })
    }

    fn nodes(&self) -> String {
        self.next("change of Nodes", |message| match message {
            Message::Event(Event::Nodes(change)) => Some(brief(&change)),
            _ => None,
        })
    }

    fn problems(&self) -> Vec<Problem> {
        self.next("problems", |message| match message {
            Message::Problems { problems, .. } => Some(problems),
            Message::Event(_) => None,
        })
    }

    /// Passes over everything until all is quiet.
    fn drain(&self) {
        self.until("synced", |status| {
            status.is_synced() && status.service_cidrs.is_synced() && status.node.is_synced()
        });
        while let Ok(_message) = self.messages.recv_timeout(Duration::from_millis(100)) {}
    }

    /// Nothing is told for a while.
    fn is_quiet(&self) {
        if let Ok(message) = self.messages.recv_timeout(Duration::from_millis(300)) {
            panic!("{message:?}");
        }
    }

    /// Waits until the status is as wanted.
    fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        until(
            what,
            || Some(self.status()).filter(&is_so),
            || self.status(),
        )
    }
}

fn until<T, D: Debug>(what: &str, look: impl Fn() -> Option<T>, shown: impl Fn() -> D) -> T {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(seen) = look() {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never {what}: {:#?}", shown());
}

fn config(server: &ApiServer) -> Config {
    Config {
        server: Server {
            kubeconfig: None,
            master: Some(server.url()),
        },
        node_name: "us".into(),
        timeouts: Timeouts::default(),
    }
}

/// `reset [a/b, a/c?]`, `apply a/b`, `delete a/b`; objects of which nothing can be used with `?`,
/// those with problems with `!`.
fn brief<T>(change: &Change<T>) -> String {
    let name = |parsed: &Parsed<T>| {
        let mut text = parsed.name.to_string();
        text.extend(parsed.object.is_none().then_some('?'));
        text.extend((!parsed.problems.is_empty()).then_some('!'));
        text
    };
    match change {
        Change::Apply(parsed) => format!("apply {}", name(parsed)),
        Change::Delete(gone) => format!("delete {gone}"),
        Change::Reset(all) => {
            let all: Vec<_> = all.iter().map(name).collect();
            format!("reset [{}]", all.join(", "))
        }
    }
}

fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "a", "name": name},
        "spec": {
            "clusterIP": "10.96.0.7",
            "clusterIPs": ["10.96.0.7"],
            "ipFamilies": ["IPv4"],
            "ports": [{"port": port, "protocol": "TCP"}],
        },
    })
}

fn slice(name: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "a",
            "name": name,
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"port": 80, "protocol": "TCP", "name": ""}],
        "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true}}],
    })
}

fn node(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"topology.kubernetes.io/region": "north"},
        },
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    })
}

fn key(kind: &str, name: &str) -> Key {
    Key::new(kind, "a", name).unwrap()
}

fn watches<'a>(requests: &'a [Request], plural: &'a str) -> impl Iterator<Item = &'a Request> {
    let path = format!("/{plural}");
    requests
        .iter()
        .filter(move |request| request.is_watch() && request.path.ends_with(&path))
}

#[test]
fn everything_is_listed_once_and_watched_from_there_on() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    server.apply(slice("web-1"));
    server.apply(node("us", "192.0.2.1"));
    server.apply(node("them", "192.0.2.2"));
    let follower = Follower::start(&server);
    follower.until("synced", |status| {
        status.is_synced() && status.node.is_synced() && status.service_cidrs.is_synced()
    });
    // As many as the channel holds are on their way, in no order between kinds.
    let mut told: Vec<_> = (0..4)
        .map(
            |_| match follower.messages.recv_timeout(PATIENCE).unwrap() {
                Message::Event(Event::Services(change)) => brief(&change),
                Message::Event(Event::EndpointSlices(change)) => brief(&change),
                Message::Event(Event::ServiceCidrs(change)) => brief(&change),
                Message::Event(Event::Node(node)) => format!("{} {:?}", node.name, node.addresses),
                other => panic!("{other:?}"),
            },
        )
        .collect();
    told.sort();
    let expected = [
        "reset []",
        "reset [a/web-1]",
        "reset [a/web]",
        "us [192.0.2.1]",
    ];
    assert_eq!(told, expected);

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
        Message::Event(Event::Node(node)) => Some(node.addresses),
        _ => None,
    });
    assert_eq!(
        addresses,
        ["192.0.2.9".parse::<std::net::IpAddr>().unwrap()]
    );
    server.apply(node("them", "192.0.2.10"));
    follower.is_quiet();
    let status = follower.status();
    assert_eq!(status.services.state, State::Watching);
    assert_eq!((status.services.lists, status.services.changes), (1, 3));
    assert_eq!(
        (status.nodes.state, status.services.failures),
        (State::Off, 0)
    );
}

#[test]
fn a_list_streams_where_the_server_can_and_comes_in_pages_where_it_cannot() {
    for streams_lists in [true, false] {
        let server = ApiServer::start();
        server.behave(|behaviour| behaviour.streams_lists = streams_lists);
        for index in 0..1_200 {
            server.apply(service(&format!("s{index:04}"), 80));
        }
        let follower = Follower::start(&server);
        let first = follower.services();
        assert_eq!(first.matches("a/s").count(), 1_200, "{first}");

        // What happens while nobody watches, and is forgotten, is seen in the next list.
        server.refuse();
        server.delete(&key("Service", "s0007"));
        server.compact();
        let asked = server.requests().len();
        server.resume();
        let second = follower.services();
        assert!(second.starts_with("reset ["), "{second}");
        assert_eq!(second.matches("a/s").count(), 1_199);
        assert!(!second.contains("a/s0007"));
        // That it does not go back in time is asked for.
        let requests = server.requests().split_off(asked);
        let mut lists = requests.iter().filter(|request| {
            let is_list = !request.is_watch() || !request.parameter("sendInitialEvents").is_empty();
            request.path.ends_with("/services") && is_list
        });
        let first = lists.next().unwrap();
        assert_eq!(first.parameter("resourceVersionMatch"), "NotOlderThan");
        assert!(!["", "0"].contains(&first.parameter("resourceVersion")));
        assert_eq!(first.is_watch(), streams_lists);
        // 1,199 objects are three pages of 500.
        assert_eq!(lists.count(), if streams_lists { 0 } else { 2 });

        server.apply(service("new", 80));
        assert_eq!(follower.services(), "apply a/new");
        let status = follower.status().services;
        assert_eq!((status.lists, status.changes), (2, 1));
    }
}

#[test]
fn a_list_that_expires_between_two_pages_is_begun_again() {
    let server = ApiServer::start();
    server.behave(|behaviour| behaviour.streams_lists = false);
    server.apply(service("web", 80));
    let path = "/api/v1/services";
    let refused = answer(422, "{}");
    server.answer_next(path, refused);
    let page = json!({
        "metadata": {"resourceVersion": "1", "continue": "of another time"},
        "items": [service("old", 80)],
    });
    server.answer_next(path, answer(200, &page.to_string()));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    let failed = follower.status().services.failed.unwrap().1;
    assert!(failed.contains("410 Expired"), "{failed}");
}

#[test]
fn bookmarks_spare_lists_after_a_compaction() {
    let server = ApiServer::start();
    server.behave(|behaviour| behaviour.bookmark_every = Duration::from_millis(50));
    server.apply(service("web", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    // Time goes by without Services changing, and what was is forgotten.
    for index in 0..100 {
        server.apply(slice(&format!("web-{index}")));
    }
    std::thread::sleep(Duration::from_millis(200));
    server.compact();
    std::thread::sleep(Duration::from_millis(200));
    let revision = server.revision();
    let asked = server.requests().len();
    server.cut();
    let again = until(
        "watched again",
        || {
            watches(&server.requests()[asked..], "services")
                .next()
                .cloned()
        },
        || server.requests(),
    );
    assert_eq!(again.parameter("resourceVersion"), revision.to_string());
    server.apply(service("new", 80));
    assert_eq!(follower.services(), "apply a/new");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn a_watch_whose_time_is_up_goes_on_where_it_was() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let mut config = config(&server);
    config.timeouts.watch = Duration::from_secs(1);
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/web]");
    for round in 0..3 {
        let asked = server.requests().len();
        until(
            "watched again",
            || {
                watches(&server.requests()[asked..], "services")
                    .next()
                    .cloned()
            },
            || server.requests(),
        );
        server.apply(service("web", 100 + round));
        assert_eq!(follower.services(), "apply a/web");
    }
    let status = follower.status().services;
    assert_eq!((status.lists, status.failures), (1, 0));
}

#[test]
fn a_watch_that_fails_midway_is_tried_again_from_where_it_was() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    server.behave(|behaviour| behaviour.watch_error = Some(500));
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
    server.behave(|behaviour| behaviour.watch_error = None);
    assert_eq!(follower.services(), "apply a/web");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn a_server_restored_from_a_backup_is_listed_afresh() {
    let server = ApiServer::start();
    for index in 0..50 {
        server.apply(service("web", 100 + index));
    }
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset [a/web]");
    server.delete(&key("Service", "web"));
    assert_eq!(follower.services(), "delete a/web");
    server.put(key("Service", "old"), service("old", 80));
    assert_eq!(follower.services(), "apply a/old");
    server.restore(5);
    assert_eq!(follower.services(), "reset [a/old]");
    server.apply(service("new", 80));
    assert_eq!(follower.services(), "apply a/new");
}

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
    assert_eq!(status.services.state, State::Waiting);
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
    config.timeouts.silence = Duration::from_secs(1);
    config.timeouts.answer = Duration::from_secs(1);
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/web]");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(
        follower.status().services.failures,
        0,
        "bookmarks are signs of life"
    );
    server.freeze();
    let frozen = Instant::now();
    let status = follower.until("noticed", |status| status.services.failures == 1);
    let noticed = frozen.elapsed();
    assert!(noticed < Duration::from_millis(2_500), "{noticed:?}");
    assert_eq!(status.services.failed.unwrap().1, "silent for 1 s");
    // Nor does it help to ask again.
    follower.until("asked again", |status| status.services.failures == 2);
    server.apply(service("web", 81));
    server.resume();
    assert_eq!(follower.services(), "apply a/web");
    assert_eq!(follower.status().services.lists, 1);
}

fn kubeconfig(server: &str, user: &Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    })
    .to_string()
}

fn with_kubeconfig(path: &Path) -> Config {
    Config {
        server: Server {
            kubeconfig: Some(path.to_owned()),
            master: None,
        },
        node_name: "us".into(),
        timeouts: Timeouts::default(),
    }
}

#[test]
fn a_rotated_token_is_used_at_once_and_an_expired_one_is_waited_out() {
    let server = ApiServer::start();
    server.behave(|behaviour| behaviour.tokens = Some(vec!["first".into(), "second".into()]));
    server.apply(service("web", 80));
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "first\n").unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(
        &file,
        kubeconfig(&server.url(), &json!({"tokenFile": token})),
    )
    .unwrap();
    let follower = Follower::with(with_kubeconfig(&file));
    assert_eq!(follower.services(), "reset [a/web]");

    std::fs::write(&token, "second").unwrap();
    server.cut();
    until(
        "used the new token",
        || {
            let requests = server.requests();
            let last = watches(&requests, "services").last()?;
            (last.authorization.as_deref() == Some("Bearer second")).then_some(())
        },
        || server.requests(),
    );
    server.apply(service("new", 80));
    assert_eq!(follower.services(), "apply a/new");

    server.behave(|behaviour| behaviour.tokens = Some(vec!["third".into()]));
    server.cut();
    let status = follower.until("refused", |status| {
        status
            .services
            .failed
            .as_ref()
            .is_some_and(|(_, why)| why.contains("401"))
    });
    assert!(status.is_synced());
    std::fs::write(&token, "third").unwrap();
    server.apply(service("newer", 80));
    assert_eq!(follower.services(), "apply a/newer");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn a_server_that_moved_is_found_through_the_kubeconfig() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let user = json!({"token": "in the file"});
    std::fs::write(&file, kubeconfig(&server.url(), &user)).unwrap();
    let follower = Follower::with(with_kubeconfig(&file));
    assert_eq!(follower.services(), "reset [a/web]");
    let token = server.requests()[0].authorization.clone();
    assert_eq!(token.as_deref(), Some("Bearer in the file"));

    let moved = ApiServer::start();
    moved.apply(service("moved", 80));
    moved.restore(server.revision() + 1_000);
    std::fs::write(&file, kubeconfig(&moved.url(), &user)).unwrap();
    drop(server);
    assert_eq!(follower.services(), "reset [a/moved]");
}

#[test]
fn a_configuration_that_cannot_be_used_is_told_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let error = |config: Config| {
        let (sender, _messages) = sync_channel::<Message>(1);
        watch::start(config, sender).unwrap_err().to_string()
    };
    let missing = error(with_kubeconfig(&file));
    let name = file.display().to_string();
    assert!(
        missing.contains(&name) && missing.contains("No such file"),
        "{missing}"
    );
    std::fs::write(&file, "{").unwrap();
    let broken = error(with_kubeconfig(&file));
    assert!(broken.contains(&name), "{broken}");
    let mut config = with_kubeconfig(&file);
    config.server = Server {
        kubeconfig: None,
        master: Some("ftp://x".into()),
    };
    let wrong = error(config.clone());
    assert!(
        wrong.contains("\"ftp://x\" is not the URL of an API server"),
        "{wrong}"
    );
    config.server.master = None;
    let nowhere = error(config);
    assert!(nowhere.contains("not in a cluster"), "{nowhere}");
}

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
            Message::Event(Event::Services(Change::Apply(parsed))) => Some(parsed),
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

fn answer(status: u16, body: &str) -> Canned {
    Canned {
        status,
        headers: Vec::new(),
        body: body.to_owned(),
        breaks_off: false,
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
        "malformed answer: a line of a watch: EOF",
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
        status.services.failures > 0 && status.service_cidrs.state == State::Absent
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

#[test]
fn other_nodes_are_followed_while_asked_for_and_only_their_metadata() {
    let server = ApiServer::start();
    server.apply(node("us", "192.0.2.1"));
    server.apply(node("them", "192.0.2.2"));
    let follower = Follower::start(&server);
    follower.watch.set_other_nodes(true);
    assert_eq!(follower.nodes(), "reset [them, us]");
    server.apply(node("more", "192.0.2.3"));
    let place = follower.next("node", |message| match message {
        Message::Event(Event::Nodes(Change::Apply(parsed))) => parsed.object,
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
    follower.until("off", |status| status.nodes.state == State::Off);
    server.apply(node("most", "192.0.2.4"));
    follower.watch.set_other_nodes(true);
    assert_eq!(follower.nodes(), "reset [more, most, them, us]");
}

#[test]
fn what_is_not_for_us_never_arrives() {
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
    let mut told: Vec<_> = (0..3)
        .filter_map(
            |_| match follower.messages.recv_timeout(PATIENCE).unwrap() {
                Message::Event(Event::Services(change)) => Some(brief(&change)),
                Message::Event(Event::EndpointSlices(change)) => Some(brief(&change)),
                _ => None,
            },
        )
        .collect();
    told.sort();
    assert_eq!(told, ["reset [a/web-1]", "reset [a/web]"]);
    server.apply(label(service("web", 80), foreign));
    assert_eq!(follower.services(), "delete a/web");
    server.apply(service("foreign", 80));
    assert_eq!(follower.services(), "apply a/foreign");
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

#[test]
fn reading_stops_where_nobody_keeps_up_and_nothing_is_lost() {
    let server = ApiServer::start();
    let follower = Follower::start(&server);
    assert_eq!(follower.services(), "reset []");
    follower.drain();
    let count = 2_000;
    for index in 0..count {
        server.apply(service(&format!("s{index}"), 80));
    }
    std::thread::sleep(Duration::from_millis(500));
    // Four in the channel, one before it, one in between, one in hand.
    let read = follower.status().services.changes;
    assert!((1..=8).contains(&read), "{read} were read ahead");
    for index in 0..count {
        assert_eq!(follower.services(), format!("apply a/s{index}"));
    }
    assert_eq!(follower.status().services.failures, 0);
}

#[test]
fn stopping_takes_no_time_whatever_goes_on() {
    let server = ApiServer::start();
    let quickly = |follower: Follower| {
        let started = Instant::now();
        follower.watch.stop();
        assert!(started.elapsed() < Duration::from_secs(2));
        // The sender is gone: what was sent can be read, and then the end is known.
        assert!(follower.messages.iter().count() <= 4);
    };
    // While its queue is full.
    for index in 0..100 {
        server.apply(service(&format!("s{index}"), 80));
    }
    let follower = Follower::start(&server);
    follower.until("synced", |status| status.services.is_synced());
    for index in 0..100 {
        server.apply(service(&format!("s{index}"), 81));
    }
    quickly(follower);
    // While it waits for an answer.
    server.freeze();
    quickly(Follower::start(&server));
    // While it waits to try again.
    server.refuse();
    let follower = Follower::start(&server);
    follower.until("failed", |status| status.services.failures > 0);
    quickly(follower);
    // Nobody listening is as good as a stop.
    server.resume();
    let Follower { watch, messages } = Follower::start(&server);
    drop(messages);
    server.apply(service("last", 80));
    until(
        "over",
        || {
            let asked = server.requests().len();
            server.cut();
            std::thread::sleep(Duration::from_millis(1_200));
            (server.requests().len() == asked).then_some(())
        },
        || watch.status(),
    );
}
