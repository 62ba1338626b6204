//! Tests against `etcd` and `kube-apiserver` from the directory `KUBEBUILDER_ASSETS`.
//!
//! `setup-envtest use` downloads them; `.ci/run` unpacks them if they are beside the checkout. Then run
//!
//! ```text
//! KUBEBUILDER_ASSETS=DIRECTORY cargo test -p proxier --test watch -- real
//! ```
//!
//! The tests pass on old servers, without streaming lists and ServiceCIDRs, and on new ones.

mod chart;
mod cleaning;
mod control_plane;
mod deployment;
mod recording;
mod restored;
mod shadow;
mod side_by_side;

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use api_server::tls;
use proxier::testing::store::{Event, Update};
use proxier::testing::watch::{FollowState, WatchMessage};
use serde_json::{Value, json};

use self::control_plane::ControlPlane;
use crate::credentials::with_kubeconfig;
use crate::follower::{Follower, PATIENCE};
use crate::objects::{node, service, slice};

const SERVICES: &str = "/api/v1/namespaces/a/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices";
const NODES: &str = "/api/v1/nodes";

/// A Service whose address the server allocates.
fn new_service(name: &str) -> Value {
    let mut service = service(name, 80);
    let spec = service["spec"].as_object_mut().unwrap();
    spec.remove("clusterIP");
    spec.remove("clusterIPs");
    service
}

/// Starts a follower and waits for its first lists.
fn follow(plane: &ControlPlane) -> Follower {
    let follower = Follower::with(with_kubeconfig(&plane.follower()));
    assert_eq!(follower.services(), "reset [default/kubernetes]");
    let status = follower.until("synced", |status| {
        status.is_synced() && status.service_cidrs.is_synced() && status.node.is_synced()
    });
    let cidrs = status.service_cidrs.state;
    assert!([FollowState::Watching, FollowState::Absent].contains(&cidrs));
    for (kind, followed) in status.kinds() {
        assert_eq!(followed.failures, 0, "{kind}: {followed:?}");
    }
    follower.drain();
    follower
}

#[test]
fn a_real_api_server_is_followed() {
    let Some(mut plane) = ControlPlane::start("a_real_api_server_is_followed") else {
        return;
    };
    let follower = follow(&plane);
    plane.create(SERVICES, &new_service("web"));
    assert_eq!(follower.services(), "apply a/web");
    plane.create(SLICES, &slice("web-1"));
    assert_eq!(follower.slices(), "apply a/web-1");
    plane.create(NODES, &node("us", "192.0.2.1"));
    follower.watch.set_other_nodes(true);
    while !follower.nodes().contains("us") {}
    // The server's selectors exclude headless Services and those of other proxies.
    let mut headless = new_service("headless");
    headless["spec"]["clusterIP"] = json!("None");
    plane.create(SERVICES, &headless);
    let foreign =
        json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "x"}}});
    let mut other = new_service("other");
    other["metadata"]["labels"] = foreign["metadata"]["labels"].clone();
    plane.create(SERVICES, &other);
    plane.patch(
        &format!("{SERVICES}/web"),
        &json!({"spec": {"sessionAffinity": "ClientIP"}}),
    );
    assert_eq!(follower.services(), "apply a/web");
    // A label that assigns the Service to another proxy deletes it; without the label, it is new.
    plane.patch(&format!("{SERVICES}/web"), &foreign);
    assert_eq!(follower.services(), "delete a/web");
    let ours = json!({"metadata": {"labels": null}});
    plane.patch(&format!("{SERVICES}/web"), &ours);
    assert_eq!(follower.services(), "apply a/web");
    plane.delete(&format!("{SERVICES}/web"));
    assert_eq!(follower.services(), "delete a/web");
    let mut headless = slice("headless-1");
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = json!("");
    plane.create(SLICES, &headless);
    plane.delete(&format!("{SLICES}/web-1"));
    assert_eq!(follower.slices(), "delete a/web-1");

    plane.stop_server();
    follower.until("down", |status| status.services.failures > 0);
    follower.drain();
    plane.start_server();
    plane.create(SERVICES, &new_service("again"));
    // If the restarted server's cache begins after the watch's version, a list arrives first.
    while !follower.services().contains("a/again") {}
    assert!(follower.status().is_synced());
}

#[test]
fn an_endpoint_of_a_real_server_is_parsed() {
    let Some(plane) = ControlPlane::start("an_endpoint_of_a_real_server_is_parsed") else {
        return;
    };
    let follower = follow(&plane);
    let mut full = slice("web-1");
    full["endpoints"] = json!([{
        "addresses": ["10.1.0.1"],
        "conditions": {"ready": true},
        "zone": "north-1",
        "targetRef": {"kind": "Pod", "namespace": "a", "name": "web-x"},
    }, {
        "addresses": ["10.1.0.2"],
        "conditions": {"ready": false},
    }]);
    full["ports"] = json!([{"name": "http", "port": 8080}]);
    plane.create(SLICES, &full);
    let received = follower.next("EndpointSlice", |message| match message {
        WatchMessage::Event(Event::EndpointSlices(Update::Apply(parsed))) => Some(parsed),
        _ => None,
    });
    assert_eq!(received.problems, []);
    insta::assert_debug_snapshot!(received.object);
    // Like kubelet, the test sets the Node's status in a separate request.
    plane.create(NODES, &node("us", "192.0.2.1"));
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}});
    plane.patch(&format!("{NODES}/us/status"), &status);
    let wanted = ["192.0.2.9".parse::<IpAddr>().unwrap()];
    let addresses = || {
        follower.next("node", |message| match message {
            WatchMessage::Event(Event::Node(node)) => Some(node.addresses),
            _ => None,
        })
    };
    while addresses() != wanted {}
}

#[test]
fn an_expired_real_watch_resumes_at_its_version() {
    let Some(plane) = ControlPlane::start("an_expired_real_watch_resumes_at_its_version") else {
        return;
    };
    let mut config = with_kubeconfig(&plane.follower());
    config.timeouts.watch = Duration::from_secs(1);
    let follower = Follower::with(config);
    follower.drain();
    // The time of a watch limits a streaming list, too: if the server stands still, the first list fails.
    let before = follower.status().services;
    let rounds = 4;
    for round in 0..rounds {
        // Outlasts a watch, which takes one to two seconds.
        std::thread::sleep(Duration::from_millis(2_500));
        plane.create(SERVICES, &new_service(&format!("s{round}")));
        assert_eq!(follower.services(), format!("apply a/s{round}"));
    }
    let after = follower.status().services;
    assert_eq!(after.lists, before.lists, "{after:?}");
    // If the end of a watch counted as a failure, each round would have one. A server that stands still may cause one.
    assert!(after.failures < before.failures + rounds, "{after:?}");
}

#[test]
fn a_real_server_is_listed_again_after_a_compaction() {
    let Some(mut plane) = ControlPlane::start("a_real_server_is_listed_again_after_a_compaction")
    else {
        return;
    };
    // More objects than a page holds.
    for index in 0..600 {
        plane.create(SERVICES, &new_service(&format!("s{index}")));
    }
    let mut config = with_kubeconfig(&plane.follower());
    // After an outage, the follower lists without trying to resume.
    config.timeouts.outage = PATIENCE;
    let follower = Follower::with(config);
    let first = follower.services();
    assert_eq!(first.matches("a/s").count(), 600, "{first}");
    follower.drain();
    let before = follower.status().services;
    assert_eq!((before.lists, before.failures), (1, 0));

    plane.elsewhere(|plane| {
        plane.delete(&format!("{SERVICES}/s7"));
        plane.create(SERVICES, &new_service("new"));
        plane.compact();
    });
    plane.start_server();
    let second = follower.services();
    assert!(second.starts_with("reset ["), "{second}");
    assert_eq!(second.matches("a/s").count(), 599, "{second}");
    assert!(
        second.contains("a/new") && !second.contains("a/s7,"),
        "{second}"
    );
    let after = follower.status().services;
    assert_eq!(after.lists, 2);
    let (_, why) = after.failed.unwrap();
    assert!(why.starts_with("410 "), "{why}");
    plane.delete(&format!("{SERVICES}/s8"));
    assert_eq!(follower.services(), "delete a/s8");
}

#[test]
fn a_real_server_checks_credentials() {
    let Some(plane) = ControlPlane::start("a_real_server_checks_credentials") else {
        return;
    };
    plane.create(SERVICES, &new_service("web"));
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let bind = |name: &str, subject: Value| {
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                // The server's built-in role for service proxies.
                "name": "system:node-proxier",
            },
            "subjects": [subject],
        });
        plane.create(bindings, &binding);
    };
    let accounts = "/api/v1/namespaces/a/serviceaccounts";
    let account = |name: &str| {
        plane.create(accounts, &json!({"metadata": {"name": name}}));
        let request = json!({"spec": {"expirationSeconds": 600}});
        let answer = plane.create(&format!("{accounts}/{name}/token"), &request);
        answer["status"]["token"].as_str().unwrap().to_owned()
    };

    // An invalid token, then one without permissions, then one with permissions.
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "nonsense").unwrap();
    let file = plane.kubeconfig("account", &json!({"tokenFile": token.path()}));
    let follower = Follower::with(with_kubeconfig(&file));
    let refused = |code: &str| {
        follower.until("refused", |status| {
            let failed = status.services.failed.as_ref();
            failed.is_some_and(|(_, why)| why.starts_with(code))
        })
    };
    assert!(!refused("401 ").is_synced());
    let first = account("first");
    std::fs::write(token.path(), &first).unwrap();
    assert!(!refused("403 ").is_synced());
    bind(
        "first",
        json!({"kind": "ServiceAccount", "name": "first", "namespace": "a"}),
    );
    let listed = follower.services();
    assert!(
        listed.starts_with("reset [") && listed.contains("a/web"),
        "{listed}"
    );
    follower.until("synced", |status| {
        status.is_synced() && status.node.is_synced()
    });
    follower.watch.set_other_nodes(true);
    follower.until("synced", |status| status.nodes.is_synced());

    // The token of a deleted account.
    plane.delete(&format!("{accounts}/first"));
    plane.until_rejected(&first);
    let file = plane.kubeconfig("gone", &json!({"token": first}));
    let gone = Follower::with(with_kubeconfig(&file));
    gone.until("refused", |status| {
        let failed = status.services.failed.as_ref();
        failed.is_some_and(|(_, why)| why.starts_with("401 "))
    });

    // A certificate.
    let pair = tempfile::tempdir().unwrap();
    let certificate = pair.path().join("client.pem");
    let key = pair.path().join("client.key");
    std::fs::write(&certificate, tls::CLIENT_CERTIFICATE).unwrap();
    std::fs::write(&key, tls::CLIENT_KEY).unwrap();
    let user = json!({"client-certificate": certificate, "client-key": key});
    bind(
        "certificate",
        json!({"kind": "User", "name": "test client"}),
    );
    let follower = Follower::with(with_kubeconfig(&plane.kubeconfig("certificate", &user)));
    let listed = follower.services();
    assert!(listed.contains("a/web"), "{listed}");
}

#[test]
fn the_plan_for_a_real_cluster_is_printed() {
    let Some(plane) = ControlPlane::start("the_plan_for_a_real_cluster_is_printed") else {
        return;
    };
    plane.create(NODES, &node("us", "192.0.2.1"));
    let mut web = service("web", 80);
    web["spec"]["type"] = json!("NodePort");
    web["spec"]["ports"][0]["nodePort"] = json!(30080);
    plane.create(SERVICES, &web);
    plane.create(SLICES, &slice("web-1"));
    let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args([
            "plan",
            "--against",
            "empty",
            "--output",
            "ops",
            "--node-name",
            "us",
            "--kubeconfig",
        ])
        .arg(plane.follower())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // Exit code 2: the plan has changes.
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    // Excludes `default/kubernetes`, because the test does not control when the server creates it.
    let is_own = |line: &str| line.contains("10.96.0.1:") || line.contains("10.96.0.1 ");
    let ours: Vec<_> = text.lines().filter(|line| !is_own(line)).collect();
    insta::assert_snapshot!(ours.join("\n"));
}
