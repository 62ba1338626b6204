//! The real kube-proxy and this program, in the same situations: their health answers and metrics are the
//! same.
//!
//! Both follow one real API server inside a lab kernel, one after the other, at kube-proxy's default
//! ports. `kube-proxy` must be in `KUBEBUILDER_ASSETS`, too.

#[path = "side_by_side/metrics.rs"]
mod metrics;
#[path = "side_by_side/subject.rs"]
mod subject;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::process::Command;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::{NODES, SERVICES, SLICES};
use crate::http;
use subject::{Subject, ask};

const HEALTHZ: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";
const METRICS_PORT: u16 = 10_249;
/// The Service's `healthCheckNodePort`, by family.
const PORT: [&str; 2] = ["127.0.0.1:32123", "[::1]:32123"];

/// A `healthCheckNodePort` that another process has.
const TAKEN: u16 = 32_124;

/// Records the Event of a Service whose health-check port another process has.
#[track_caller]
fn record_port_in_use(plane: &ControlPlane, subject: &mut Subject) {
    let _taken = TcpListener::bind(("0.0.0.0", TAKEN)).unwrap();
    let service = json!({
        "metadata": {"name": "taken"},
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": TAKEN,
            "ports": [{"port": 80}],
        },
    });
    plane.create(SERVICES, &service);
    let event = subject.await_event(plane, "a", "FailedToStartServiceHealthcheck");
    let note = event["note"].as_str().unwrap();
    let says = |part: &str| assert!(note.contains(part), "{note}");
    says("node-a");
    says(&TAKEN.to_string());
    subject.record_event(&event);
    plane.delete(&format!("{SERVICES}/taken"));
}

fn slice(name: &str, family: &str, endpoints: &Value) -> Value {
    let now = humantime::format_rfc3339(SystemTime::now()).to_string();
    json!({
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/service-name": "lb"},
            // The programs measure the latency from then.
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": now},
        },
        "addressType": family,
        "ports": [{"name": "a", "port": 8080}, {"name": "b", "port": 8081}],
        "endpoints": endpoints,
    })
}

fn endpoint(address: &str, node: &str) -> Value {
    json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}})
}

/// Leads `subject` through all situations, and undoes the changes of objects.
fn play(plane: &ControlPlane, subject: &mut Subject) {
    plane.create(NODES, &json!({"metadata": {"name": "node-a"}}));
    let node = format!("{NODES}/node-a");
    let addresses = json!([{"type": "InternalIP", "address": "172.18.0.2"}]);
    plane.patch(
        &format!("{node}/status"),
        &json!({"status": {"addresses": addresses}}),
    );
    let health = [("GET", HEALTHZ, "/healthz"), ("GET", HEALTHZ, "/livez")];
    subject.await_answer(HEALTHZ, "/healthz", "200 OK");
    // Until the first round has ended, the answer has no status.
    for family in ["IPv4", "IPv6"] {
        subject.await_answer(HEALTHZ, "/healthz", &format!("\"{family}\":{{"));
    }
    subject.record("serving", &health);
    // Each server begins to listen at a time of its own.
    let configz = subject.await_some("/configz", || ask("GET", METRICS, "/configz"));
    let (head, body) = configz.split_once("\n\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    // Sorted: the order of keys has no meaning.
    writeln!(subject.record, "--- /configz\n{head}\n{body:#}").unwrap();
    subject.record(
        "methods and paths",
        &[
            ("HEAD", HEALTHZ, "/healthz"),
            ("POST", HEALTHZ, "/healthz?x=y"),
            ("GET", HEALTHZ, "/healthz/"),
            ("GET", HEALTHZ, "/"),
            ("GET", METRICS, "/proxyMode"),
            ("POST", METRICS, "/proxyMode"),
            ("GET", METRICS, "/healthz"),
            ("GET", METRICS, "/healthz?verbose"),
            ("GET", METRICS, "/livez"),
            ("GET", METRICS, "/"),
        ],
    );

    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81}]);
    let service = json!({
        "metadata": {"name": "lb"},
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32123,
            "ipFamilyPolicy": "RequireDualStack",
            "ports": ports,
        },
    });
    plane.create(SERVICES, &service);
    subject.await_answer(PORT[0], "/", "Weight: 0");
    subject.await_answer(PORT[1], "/", "Weight: 0");
    let checks = [("GET", PORT[0], "/"), ("GET", PORT[1], "/any/path")];
    subject.record("no endpoint", &checks);
    let v4 = json!([
        endpoint("10.244.1.2", "node-a"),
        endpoint("10.244.1.3", "node-a"),
        endpoint("10.244.2.2", "node-b"),
    ]);
    let v6 = json!([endpoint("fd00:10:244:1::2", "node-a")]);
    plane.create(SLICES, &slice("lb-4", "IPv4", &v4));
    plane.create(SLICES, &slice("lb-6", "IPv6", &v6));
    subject.await_answer(PORT[0], "/", "Weight: 2");
    subject.await_answer(PORT[1], "/", "Weight: 1");
    subject.record("endpoints", &checks);
    subject.record(
        "methods at a health-check port",
        &[("HEAD", PORT[0], "/"), ("POST", PORT[0], "/healthz?x")],
    );

    record_port_in_use(plane, subject);

    let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
    plane.patch(&node, &json!({"spec": {"taints": [taint]}}));
    subject.await_answer(HEALTHZ, "/healthz", "503");
    subject.record("taint of the autoscaler", &[&health[..], &checks].concat());
    let finalizer = json!({"finalizers": ["example.com/wait"]});
    plane.patch(
        &node,
        &json!({"spec": {"taints": null}, "metadata": finalizer}),
    );
    subject.await_answer(HEALTHZ, "/healthz", "200 OK");

    let terminating = json!({"ready": false, "serving": true, "terminating": true});
    let v4 =
        json!([{"addresses": ["10.244.1.2"], "nodeName": "node-a", "conditions": terminating}]);
    plane.patch(&format!("{SLICES}/lb-4"), &json!({"endpoints": v4}));
    subject.await_answer(PORT[0], "/", "Weight: 0");
    subject.record("terminating endpoints", &checks);

    plane.delete(&node);
    subject.await_answer(HEALTHZ, "/healthz", "503");
    subject.record("Node being deleted", &[&health[..], &checks].concat());
    plane.patch(&node, &json!({"metadata": {"finalizers": null}}));

    plane.delete(&format!("{SERVICES}/lb"));
    // kube-proxy closes the ports of its two families one after the other.
    subject.await_some("closed ports", || {
        let is_open = PORT.iter().any(|port| ask("GET", port, "/").is_some());
        (!is_open).then_some(())
    });
    subject.record("Node and Service deleted", &[&health[..], &checks].concat());
    plane.delete(&format!("{SLICES}/lb-4"));
    plane.delete(&format!("{SLICES}/lb-6"));
}

/// Ends the subject, starts it again with `bindAddressHardFail` while another process has the address
/// of `/healthz`, and records how it ends.
fn end_of_a_process_that_cannot_listen(
    plane: &ControlPlane,
    mut subject: Subject,
    command: impl Fn() -> Command,
) -> Subject {
    subject.end();
    plane.create(NODES, &json!({"metadata": {"name": "node-a"}}));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut end = || {
        let mut command = command();
        command.arg(format!("--healthz-bind-address={address}"));
        command.arg("--bind-address-hard-fail");
        let code = subject.run_again(command);
        let event = subject.event(plane, "default", "FailedToStartProxierHealthcheck");
        (code, event, subject.log())
    };
    // The server of a slow machine may not take the Event in time; then the process says so.
    let is_in_time = |(_, event, log): &(i32, Option<Value>, String)| {
        event.is_some() || !log.contains("did not take the last Events")
    };
    let (code, event, log) = (0..5).map(|_| end()).find(is_in_time).unwrap();
    writeln!(
        subject.record,
        "=== bindAddressHardFail\n--- exit code {code}"
    )
    .unwrap();
    // kube-proxy asks for this Event too, but its process usually ends before the request is sent.
    match event {
        Some(event) => subject.record_event(&event),
        None => assert_eq!(subject.name, "kube-proxy", "{log}"),
    }
    plane.delete(&format!("{NODES}/node-a"));
    subject
}

#[test]
fn health_answers_and_metrics_are_those_of_kube_proxy() {
    lab::test(|| {
        let Some(plane) = ControlPlane::start("health_answers_and_metrics_are_those_of_kube_proxy")
        else {
            return;
        };
        for line in [
            "link add ext0 type dummy",
            "address add 172.18.0.2/24 dev ext0",
            "address add fd00:18::2/64 dev ext0 nodad",
            "link set ext0 up",
            "route add default via 172.18.0.1",
        ] {
            let words = line.split(' ');
            assert!(Command::new("ip").args(words).status().unwrap().success());
        }
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let kubeconfig = plane.follower();
        let flags = [
            "--hostname-override=node-a",
            "--ipvs-min-sync-period=100ms",
            // Our Events follow a round.
            "--ipvs-sync-period=10s",
            "--proxy-mode=ipvs",
            "--conntrack-max-per-core=0",
        ];

        let ours = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
            command.arg("run").arg("--kubeconfig").arg(&kubeconfig);
            command.arg("--state-file").arg(file("state")).args(flags);
            command
        };
        let theirs = || {
            let mut command = Command::new(plane.program("kube-proxy"));
            command.arg("--kubeconfig").arg(&kubeconfig).args(flags);
            command
        };
        let run = |name, command: &dyn Fn() -> Command| {
            let mut subject = Subject::start(name, command(), file(name));
            play(&plane, &mut subject);
            let metrics = http::get(METRICS_PORT, "/metrics").unwrap();
            let subject = end_of_a_process_that_cannot_listen(&plane, subject, command);
            (subject, metrics)
        };
        let (ours, our_metrics) = run("ipvs-proxier", &ours);
        let (theirs, their_metrics) = run("kube-proxy", &theirs);
        metrics::compare(&our_metrics, &their_metrics);

        assert!(theirs.record.contains("Weight: 2"), "{}", theirs.record);
        let mut request = "";
        for (ours, theirs) in ours.record.lines().zip(theirs.record.lines()) {
            if ["===", "---"].iter().any(|mark| ours.starts_with(mark)) {
                request = ours;
            }
            assert_eq!(ours, theirs, "ours, theirs; after {request}");
        }
        // Only the Event at the end may be missing.
        let rest = ours.record.strip_prefix(&theirs.record);
        let event = "--- \"Warning\" \"FailedToStartProxierHealthcheck\" \"StartKubeProxy\" \"Node\" \"node-a\"\n";
        assert!(["", event].map(Some).contains(&rest), "{rest:?}");
        assert!(ours.record.ends_with(event), "{}", ours.record);
    });
}
