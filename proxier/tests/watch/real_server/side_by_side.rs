//! The real kube-proxy and this program, in the same situations: their health answers are the same.
//!
//! Both follow one real API server inside a lab kernel, one after the other, at kube-proxy's default
//! ports. `kube-proxy` must be in `KUBEBUILDER_ASSETS`, too.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::{NODES, SERVICES, SLICES};
use crate::program::Program;

const HEALTHZ: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";
/// The Service's `healthCheckNodePort`, by family.
const PORT: [&str; 2] = ["127.0.0.1:32123", "[::1]:32123"];

/// A `healthCheckNodePort` that another process has.
const TAKEN: u16 = 32_124;
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/a/events";

/// Returns the response to a request, without the parts that differ each time; `None` without a
/// response.
fn ask(method: &str, address: &str, path: &str) -> Option<String> {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let mut lines: Vec<&str> = head.lines().collect();
    // A time has up to nine digits, so that the length varies.
    let is_stable = |line: &&str| {
        let variable = ["Date: ", "Content-Length: ", "Connection: "];
        !variable.iter().any(|name| line.starts_with(name))
    };
    lines.retain(is_stable);
    lines[1..].sort_unstable();
    Some(format!("{}\n\n{}", lines.join("\n"), without_times(body)))
}

/// Replaces the values of `lastUpdated` and `currentTime`.
fn without_times(body: &str) -> String {
    let mut text = String::new();
    let mut rest = body;
    for name in std::iter::repeat(["lastUpdated\":\"", "currentTime\":\""]) {
        let found = name
            .iter()
            .filter_map(|name| Some((rest.find(name)?, name)));
        let Some((at, name)) = found.min() else { break };
        let end = at + name.len();
        text += &rest[..end];
        text += "TIME";
        rest = rest[end..].split_once('"').map_or("", |(_, rest)| rest);
        text.push('"');
    }
    text + rest
}

/// A program under test, and what it answered.
struct Subject {
    name: &'static str,
    log: PathBuf,
    process: Program,
    record: String,
}

impl Subject {
    fn start(name: &'static str, mut command: Command, log: PathBuf) -> Self {
        let file = std::fs::File::create(&log).unwrap();
        let process = command
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Self {
            name,
            log,
            process: Program(process),
            record: String::new(),
        }
    }

    /// Waits until the answer to `GET /` at `address` contains `part`.
    #[track_caller]
    fn await_answer(&self, address: &str, path: &str, part: &str) {
        self.await_some(&format!("{address}{path} with {part:?}"), || {
            ask("GET", address, path).filter(|answer| answer.contains(part))
        });
    }

    /// Waits until `look` returns a value.
    #[track_caller]
    fn await_some<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + lab::patience(Duration::from_secs(60));
        while Instant::now() < end {
            if let Some(found) = look() {
                return found;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = std::fs::read_to_string(&self.log).unwrap();
        panic!("{}: never {what}\n{log}", self.name);
    }

    /// Records the answers to these requests.
    fn record(&mut self, situation: &str, requests: &[(&str, &str, &str)]) {
        writeln!(self.record, "=== {situation}").unwrap();
        for (method, address, path) in requests {
            let answer = ask(method, address, path).unwrap_or_else(|| "no answer".to_owned());
            writeln!(self.record, "--- {method} {address}{path}\n{answer}").unwrap();
        }
    }

    /// Records the Event of a Service whose health-check port another process has.
    #[track_caller]
    fn record_port_in_use(&mut self, plane: &ControlPlane) {
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
        let is_of_subject = |event: &Value| {
            let controller = event["reportingController"].as_str().unwrap_or_default();
            controller.contains(self.name) && event["reason"] == "FailedToStartServiceHealthcheck"
        };
        let found = || {
            let events = plane.read(EVENTS)?;
            let events = events["items"].as_array()?;
            events.iter().find(|event| is_of_subject(event)).cloned()
        };
        let event = self.await_some("an Event", found);
        let note = event["note"].as_str().unwrap();
        assert!(
            note.contains("node-a") && note.contains(&TAKEN.to_string()),
            "{note}"
        );
        let object = &event["regarding"];
        let (kind, name) = (&object["kind"], &object["name"]);
        let (severity, action) = (&event["type"], &event["action"]);
        writeln!(self.record, "--- {severity} {action} {kind} {name}").unwrap();
        plane.delete(&format!("{SERVICES}/taken"));
    }
}

fn slice(name: &str, family: &str, endpoints: &Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "lb"}},
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

    subject.record_port_in_use(plane);

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
    let end = Instant::now() + lab::patience(Duration::from_secs(60));
    // kube-proxy closes the ports of its two families one after the other.
    let is_open = || PORT.iter().any(|port| ask("GET", port, "/").is_some());
    while is_open() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
    }
    subject.record("Node and Service deleted", &[&health[..], &checks].concat());
    plane.delete(&format!("{SLICES}/lb-4"));
    plane.delete(&format!("{SLICES}/lb-6"));
}

#[test]
fn health_answers_are_those_of_kube_proxy() {
    lab::test(|| {
        let Some(plane) = ControlPlane::start("health_answers_are_those_of_kube_proxy") else {
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

        let mut ours = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        ours.arg("run").arg("--kubeconfig").arg(&kubeconfig);
        ours.arg("--state-file").arg(file("state")).args(flags);
        let mut ours = Subject::start("ipvs-proxier", ours, file("ours.log"));
        play(&plane, &mut ours);
        drop(ours.process);

        let mut theirs = Command::new(plane.program("kube-proxy"));
        theirs.arg("--kubeconfig").arg(&kubeconfig).args(flags);
        let mut theirs = Subject::start("kube-proxy", theirs, file("theirs.log"));
        play(&plane, &mut theirs);
        drop(theirs.process);

        assert!(theirs.record.contains("Weight: 2"), "{}", theirs.record);
        let mut request = "";
        for (ours, theirs) in ours.record.lines().zip(theirs.record.lines()) {
            if ["===", "---"].iter().any(|mark| ours.starts_with(mark)) {
                request = ours;
            }
            assert_eq!(ours, theirs, "ours, theirs; after {request}");
        }
        assert_eq!(ours.record, theirs.record);
    });
}
