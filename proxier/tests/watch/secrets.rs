//! The program writes no credential into its log and onto no page, at the highest verbosity.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;

use api_server::{ApiServer, tls};
use lab::net::unused_port;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::credentials::{kubeconfig, secure_kubeconfig};
use crate::follower::until;
use crate::http;
use crate::objects::service;
use crate::program::Program;

const SECRET: &str = "correct-horse-battery-staple";

const FORMATS: [&str; 2] = ["text", "json"];

/// A folder with a kubeconfig, and the log of a program that uses it.
struct Scene {
    directory: TempDir,
    metrics: u16,
}

impl Scene {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            metrics: unused_port(),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    /// Starts the program at the highest verbosity.
    fn start(&self, format: &str, flags: &[&str]) -> Program {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        program
            .args(["run", "--dataplane=userspace", "--node-name=us", "-v=9"])
            .arg(format!("--logging-format={format}"))
            .arg(format!(
                "--healthz-bind-address=127.0.0.1:{}",
                unused_port()
            ))
            .arg(format!("--metrics-bind-address=127.0.0.1:{}", self.metrics))
            .arg("--state-file")
            .arg(self.file("state"))
            .args(flags)
            .env_remove("RUST_LOG")
            .stdout(std::fs::File::create(self.file("output")).unwrap())
            .stderr(std::fs::File::create(self.file("log")).unwrap());
        Program(program.spawn().unwrap())
    }

    fn follow(&self, format: &str) -> Program {
        let file = self.file("kubeconfig");
        self.start(format, &["--kubeconfig", file.to_str().unwrap()])
    }

    /// Returns all that the program has written.
    fn written(&self) -> String {
        let read = |name| std::fs::read_to_string(self.file(name)).unwrap();
        read("log") + &read("output")
    }

    fn await_log(&self, part: &str) {
        let is_logged = || self.written().contains(part).then_some(());
        until(part, is_logged, || self.written());
    }

    /// Waits until the status page contains `part`.
    fn await_status(&self, part: &str) {
        let page = || http::get(self.metrics, "/statusz").unwrap_or_default();
        until(part, || page().contains(part).then_some(()), page);
    }

    /// Asserts that the log and the pages of the running program have none of these texts.
    #[track_caller]
    fn assert_without<'a>(&self, secrets: impl IntoIterator<Item = &'a str>) {
        let page = |path| http::get(self.metrics, path).unwrap();
        let pages = ["/metrics", "/statusz", "/configz"].map(page);
        for secret in secrets {
            assert_absent(secret, &self.written());
            pages.iter().for_each(|page| assert_absent(secret, page));
        }
    }
}

#[track_caller]
fn assert_absent(secret: &str, text: &str) {
    let line = text.lines().find(|line| line.contains(secret));
    assert_eq!(line, None, "has {secret}");
}

#[test]
fn no_log_line_and_no_page_has_a_credential() {
    for format in FORMATS {
        for user in ["token", "tokenFile", "password"] {
            let server = ApiServer::start_secure();
            server.apply(service("web", 80));
            let scene = Scene::new();
            scene.write("token", SECRET);
            let settings = match user {
                "token" => json!({"token": SECRET}),
                "tokenFile" => json!({"tokenFile": scene.file("token")}),
                _ => json!({"username": "admin", "password": SECRET}),
            };
            scene.write("kubeconfig", &kubeconfig(&server.url(), &settings));
            let _program = scene.follow(format);
            // A line of debugging.
            scene.await_log("listed");
            scene.await_status("Services: Watching");
            let sent = server.requests()[0].authorization.clone().unwrap();
            let (_, sent) = sent.split_once(' ').unwrap();
            scene.assert_without([SECRET, sent]);

            server.configure(|behaviour| behaviour.tokens = Some(Vec::new()));
            server.break_connections();
            scene.await_log("401");
            scene.await_status("401");
            scene.assert_without([SECRET, sent]);

            scene.write("token", &format!("{SECRET}\n{SECRET}"));
            if user != "tokenFile" {
                scene.write("kubeconfig", &format!("users: {SECRET}"));
            }
            scene.await_status(match user {
                "tokenFile" => "such as a line break",
                _ => "is invalid at line 1",
            });
            scene.assert_without([SECRET, sent]);
        }
    }
}

#[test]
fn no_log_line_has_a_part_of_a_client_key() {
    for format in FORMATS {
        let server = ApiServer::start_secure();
        server.configure(|behaviour| behaviour.tokens = Some(Vec::new()));
        server.apply(service("web", 80));
        let scene = Scene::new();
        secure_kubeconfig(scene.directory.path(), &server, tls::AUTHORITY);
        let _program = scene.follow(format);
        scene.await_log("listed");
        scene.await_status("Services: Watching");
        let lines = tls::CLIENT_KEY.lines();
        let lines: Vec<&str> = lines.filter(|line| !line.contains("KEY-----")).collect();
        assert!(!lines.is_empty());
        scene.assert_without(lines);
    }
}

/// Returns a kubeconfig of a user with a credential plugin, which runs this script.
fn plugin(script: &str) -> String {
    let plugin = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", script],
        "env": [{"name": "PLUGIN_KEY", "value": SECRET}],
        "interactiveMode": "Never",
    });
    kubeconfig("https://127.0.0.1:1", &json!({"exec": plugin}))
}

#[test]
fn an_unusable_credential_is_explained_without_its_text() {
    let of = |user: &Value| kubeconfig("https://127.0.0.1:1", user);
    let url = format!("http://admin:{SECRET}@127.0.0.1:1");
    let with_user_in_url = kubeconfig(&url, &json!({}));
    let ftp = format!("--master=ftp://admin:{SECRET}@a");
    let master = format!("--master={url}");
    let no_flag: &[&str] = &[];
    let cases: [(String, &[&str], &str); 10] = [
        (format!("users: {SECRET}"), no_flag, "invalid at line 1"),
        (
            format!("users:\n- token: \"{SECRET}"),
            no_flag,
            "invalid at line",
        ),
        (format!("{{{SECRET}"), no_flag, "invalid at line"),
        (of(&json!(SECRET)), no_flag, "invalid at line 1"),
        (of(&json!({"token": [SECRET]})), no_flag, "invalid at line"),
        (
            of(&json!({"token": format!("{SECRET}\n{SECRET}")})),
            no_flag,
            "such as a line break",
        ),
        (
            of(&json!({"client-key-data": SECRET, "client-certificate-data": SECRET})),
            no_flag,
            "base64",
        ),
        (with_user_in_url, no_flag, "has a user name"),
        (of(&json!({})), &[&master], "has a user name"),
        (of(&json!({})), &[&ftp], "is not the URL of an API server"),
    ];
    for format in FORMATS {
        for (text, flags, explanation) in &cases {
            let scene = Scene::new();
            scene.write("kubeconfig", text);
            let file = scene.file("kubeconfig");
            let flags = [&["--kubeconfig", file.to_str().unwrap()], *flags].concat();
            let program = RefCell::new(scene.start(format, &flags));
            let end = || program.borrow_mut().0.try_wait().unwrap();
            let end = until("ended", end, || scene.written());
            assert!(!end.success());
            let written = scene.written();
            assert!(written.contains(explanation), "{explanation}: {written}");
            assert_absent(SECRET, &written);
        }
    }
}

#[test]
fn a_plugin_that_fails_is_explained_without_its_output() {
    let output = |token: &str| {
        let status = json!({"status": {"token": token}}).to_string();
        status.replace('\\', "\\\\")
    };
    for (script, explanation) in [
        (
            format!("echo {SECRET}; printf 'no\\nticket\\n' >&2; exit 3"),
            "the credential plugin sh: failed with exit status: 3: no ticket",
        ),
        (
            format!("echo 'status: {{token: {SECRET}'"),
            "the output is invalid at line",
        ),
        (
            format!("printf '%b' '{}'", output(&format!("{SECRET}\n{SECRET}"))),
            "such as a line break",
        ),
        (
            format!("echo '{{\"kind\": \"{SECRET}\"}}'"),
            "has no status",
        ),
        (
            format!("echo 'status: {{clientKeyData: {SECRET}}}'"),
            "has only one of",
        ),
        (
            format!("echo 'status: {{clientKeyData: {SECRET}, clientCertificateData: {SECRET}}}'"),
            "the text has no certificate",
        ),
    ] {
        for format in FORMATS {
            let scene = Scene::new();
            scene.write("kubeconfig", &plugin(&script));
            let mut program = scene.follow(format);
            scene.await_log(explanation);
            scene.await_status(explanation);
            // A plugin that fails may work later.
            assert_eq!(program.0.try_wait().unwrap(), None);
            scene.assert_without([SECRET]);
        }
    }
}
