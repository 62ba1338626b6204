//! A program under test, and what it answered.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::super::control_plane::ControlPlane;
use crate::program::Program;

/// Returns the response to a request, without the parts that differ each time; `None` without a
/// response.
pub(super) fn ask(method: &str, address: &str, path: &str) -> Option<String> {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(lab::patience(Duration::from_secs(60))))
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

/// Replaces the values of `lastUpdated` and `currentTime`, and removes our own field `reasons`.
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
    text += rest;
    // The last field of a body that says no. kube-proxy does not have it.
    match text.split_once(",\"reasons\":[") {
        Some((before, _)) => format!("{before}}}"),
        None => text,
    }
}

/// A program under test, and what it answered.
pub(super) struct Subject {
    pub(super) name: &'static str,
    log: PathBuf,
    process: Program,
    pub(super) record: String,
}

fn spawn(mut command: Command, log: &Path) -> Program {
    let file = std::fs::File::create(log).unwrap();
    let command = command.stdout(Stdio::null()).stderr(file);
    Program(command.spawn().unwrap())
}

#[track_caller]
fn await_some<T>(what: &str, log: &Path, look: impl FnMut() -> Option<T>) -> T {
    let found = lab::await_some(Duration::from_millis(500), look);
    found.unwrap_or_else(|| panic!("never {what}\n{}", std::fs::read_to_string(log).unwrap()))
}

impl Subject {
    pub(super) fn start(name: &'static str, command: Command, log: PathBuf) -> Self {
        Self {
            name,
            process: spawn(command, &log),
            log,
            record: String::new(),
        }
    }

    /// Returns the log of the last process.
    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Kills the process.
    pub(super) fn end(&mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }

    /// Starts another process, and waits until it ends. Returns its exit code.
    #[track_caller]
    pub(super) fn run_again(&mut self, command: Command) -> i32 {
        self.process = spawn(command, &self.log);
        let child = &mut self.process.0;
        let status = await_some("the end of the process", &self.log, || {
            child.try_wait().unwrap()
        });
        status.code().unwrap()
    }

    /// Waits until the answer to `GET /` at `address` contains `part`.
    #[track_caller]
    pub(super) fn await_answer(&self, address: &str, path: &str, part: &str) {
        self.await_some(&format!("{address}{path} with {part:?}"), || {
            ask("GET", address, path).filter(|answer| answer.contains(part))
        });
    }

    /// Waits until `look` returns a value.
    #[track_caller]
    pub(super) fn await_some<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        await_some(&format!("{}: {what}", self.name), &self.log, look)
    }

    /// Records the answers to these requests.
    pub(super) fn record(&mut self, situation: &str, requests: &[(&str, &str, &str)]) {
        writeln!(self.record, "=== {situation}").unwrap();
        for (method, address, path) in requests {
            let answer = ask(method, address, path).unwrap_or_else(|| "no answer".to_owned());
            writeln!(self.record, "--- {method} {address}{path}\n{answer}").unwrap();
        }
    }

    /// Waits until the program has written an Event with this reason, and returns it.
    #[track_caller]
    pub(super) fn await_event(&self, plane: &ControlPlane, namespace: &str, reason: &str) -> Value {
        self.await_some(reason, || self.event(plane, namespace, reason))
    }

    /// Returns the program's Event with this reason.
    pub(super) fn event(
        &self,
        plane: &ControlPlane,
        namespace: &str,
        reason: &str,
    ) -> Option<Value> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let events = plane.read(&path)?;
        let is_of_subject = |event: &&Value| {
            let controller = event["reportingController"].as_str().unwrap_or_default();
            controller.contains(self.name) && event["reason"] == reason
        };
        let mut events = events["items"].as_array()?.iter();
        events.find(is_of_subject).cloned()
    }

    /// Records an Event, without its time and its note.
    pub(super) fn record_event(&mut self, event: &Value) {
        let object = &event["regarding"];
        let (kind, name) = (&object["kind"], &object["name"]);
        let (severity, action, reason) = (&event["type"], &event["action"], &event["reason"]);
        writeln!(
            self.record,
            "--- {severity} {reason} {action} {kind} {name}"
        )
        .unwrap();
    }
}
