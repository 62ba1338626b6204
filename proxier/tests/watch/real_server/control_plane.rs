//! The control plane of a test.

use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use api_server::control_plane::{self, Site};
use http::Method;
use serde_json::{Value, json};

use crate::follower::until;

/// An API server and its database.
pub(super) struct ControlPlane(control_plane::ControlPlane);

impl Deref for ControlPlane {
    type Target = control_plane::ControlPlane;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for ControlPlane {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl ControlPlane {
    /// Returns a ready control plane, or `None` without the programs.
    pub(super) fn start(test: &str) -> Option<Self> {
        let Some(assets) = control_plane::ControlPlane::assets() else {
            assert!(
                std::env::var("PEERS_REQUIRED").as_deref() != Ok("1"),
                "KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver"
            );
            let why = format!(
                "SKIPPED {test}: KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver\n"
            );
            // Written to stderr directly, because the test harness captures `eprintln!`.
            std::io::stderr().write_all(why.as_bytes()).unwrap();
            return None;
        };
        let plane = Self(control_plane::ControlPlane::start(
            assets,
            Site {
                bind: Ipv4Addr::LOCALHOST.into(),
                endpoint: Ipv4Addr::new(192, 0, 2, 200).into(),
                port: None,
                service_ranges: "10.96.0.0/16,fd00:10:96::/112".to_owned(),
            },
        ));
        let namespace = json!({"metadata": {"name": "a"}});
        plane.create("/api/v1/namespaces", &namespace);
        // Wait for the server's own objects, so that they do not interfere later.
        for own in [
            "/api/v1/namespaces/default/services/kubernetes",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
        ] {
            let is_there = || plane.ask(Method::GET, own, &Value::Null).ok();
            until("there", is_there, || own);
        }
        Some(plane)
    }

    /// Runs `work` while the server listens on another port, where followers cannot reach it.
    pub(super) fn elsewhere(&mut self, work: impl FnOnce(&Self)) {
        let port = self.move_away();
        work(self);
        self.return_to(port);
    }

    /// Creates an object and returns it.
    pub(super) fn create(&self, path: &str, object: &Value) -> Value {
        // Not only at 409: the server may refuse a repetition because the object itself has its address or port.
        self.insist(Method::POST, path, object, |_| {
            let name = object["metadata"]["name"].as_str()?;
            self.read(&format!("{path}/{name}"))
        })
    }

    /// Returns an object; `None` if it does not exist.
    pub(super) fn read(&self, path: &str) -> Option<Value> {
        let answer = || match self.ask(Method::GET, path, &Value::Null) {
            Ok(text) => Some(Some(serde_json::from_str(&text).unwrap())),
            Err(error) if is_absent(&error) => Some(None),
            Err(error) if is_passing(&error) => None,
            Err(error) => panic!("{path}: {error}"),
        };
        until("answered", answer, || path)
    }

    pub(super) fn patch(&self, path: &str, change: &Value) {
        self.insist(Method::PATCH, path, change, |_| None);
    }

    pub(super) fn delete(&self, path: &str) {
        self.insist(Method::DELETE, path, &Value::Null, |error| {
            is_absent(error).then_some(Value::Null)
        });
    }

    /// Repeats a request that fails because etcd or the server stands still. Such a request may have had its effect, so
    /// when a repetition fails, `effect` looks for it.
    ///
    /// # Panics
    /// If the server refuses the request, or fails for too long.
    fn insist(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        effect: impl Fn(&kube::Error) -> Option<Value>,
    ) -> Value {
        let mut last: Option<kube::Error> = None;
        let answer = lab::await_some(Duration::from_millis(100), || {
            let error = match self.ask(method.clone(), path, body) {
                Ok(text) => return Some(serde_json::from_str(&text).unwrap()),
                Err(error) => error,
            };
            let is_repetition = last.is_some();
            if is_repetition && let Some(effect) = effect(&error) {
                return Some(effect);
            }
            assert!(is_passing(&error), "{method} {path}: {error}");
            last = Some(error);
            None
        });
        answer.unwrap_or_else(|| panic!("{method} {path}: {last:?}"))
    }

    /// Returns the requests of `user` that the server answered: one object of the audit log each.
    pub(super) fn requests_of(&self, user: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.directory().join("audit.log")).unwrap();
        // The server may be writing the last line.
        let events = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let is_of_user = |event: &Value| event["user"]["username"] == user;
        events.filter(is_of_user).collect()
    }

    /// Runs kubectl as administrator and returns its output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub(super) fn kubectl(&self, kubectl: &Path, arguments: &[&str], input: &str) -> String {
        run(self.administer(kubectl).args(arguments), input)
    }

    /// Runs kubectl as administrator and returns its error messages.
    ///
    /// # Panics
    /// If it succeeds.
    #[track_caller]
    pub(super) fn kubectl_error(&self, kubectl: &Path, arguments: &[&str], input: &str) -> String {
        let output = output(self.administer(kubectl).args(arguments), input);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns a command that is kubectl or runs it, as administrator.
    pub(super) fn administer(&self, program: &Path) -> Command {
        let file = self.kubeconfig("kubectl", &json!({"token": "secret"}));
        let mut command = Command::new(program);
        command.env("KUBECONFIG", file);
        // kubectl caches the server's kinds in HOME.
        command.env("HOME", self.directory());
        command
    }

    /// Waits until the server rejects this bearer token.
    pub(super) fn until_rejected(&self, token: &str) {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        until(
            "rejected",
            || (self.create(path, &review)["status"]["authenticated"] != json!(true)).then_some(()),
            || (),
        );
    }
}

fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Returns whether the same request may succeed later: there was no answer, or the server failed or was busy.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

/// Runs a command with this standard input and returns its standard output.
///
/// # Panics
/// If it fails.
#[track_caller]
pub(super) fn run(command: &mut Command, input: &str) -> String {
    let output = output(command, input);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}\n{input}");
    String::from_utf8(output.stdout).unwrap()
}

fn output(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}
