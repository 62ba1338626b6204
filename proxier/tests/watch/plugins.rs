//! Credential plugins.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use api_server::{ApiServer, tls};
use lab::net::unused_port;
use proxier::testing::watch::WatchConfig;
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::credentials::{kubeconfig, with_kubeconfig};
use crate::follower::{Follower, until};
use crate::http;
use crate::objects::service;
use crate::program::Program;

/// A kubeconfig whose user has a plugin: a shell script that runs in the folder.
struct Scene {
    folder: TempDir,
    server: ApiServer,
}

impl Scene {
    /// Returns a scene with a server that needs the token `good`.
    fn new() -> Self {
        let server = ApiServer::start_secure();
        server.configure(|behaviour| behaviour.tokens = Some(vec!["good".into()]));
        server.apply(service("web", 80));
        Self {
            folder: tempfile::tempdir().unwrap(),
            server,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the words of a file that the script writes; none without the file.
    fn words(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.file(name)).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn plugin(&self, script: &str, settings: &Value) -> WatchConfig {
        let mut exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", format!("cd {}; {script}", self.folder.path().display())],
            "interactiveMode": "Never",
        });
        for (name, value) in settings.as_object().unwrap() {
            exec[name] = value.clone();
        }
        let text = kubeconfig(&self.server.url(), &json!({"exec": exec}));
        let file = self.file("kubeconfig");
        std::fs::write(&file, text).unwrap();
        with_kubeconfig(&file)
    }

    /// Waits until the processes that a script wrote to `pids` have ended.
    fn await_end_of_processes(&self) {
        let running = || {
            let mut pids = self.words("pids");
            pids.retain(|pid| is_running(pid));
            pids
        };
        let have_ended = || running().is_empty().then_some(());
        until("ended", have_ended, running);
    }
}

/// A zombie does not run: a test's init may not wait for its children.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    let state = |stat: &str| stat.rsplit(") ").next().map(|rest| rest.starts_with('Z'));
    stat.is_ok_and(|stat| state(&stat) == Some(false))
}

const HANG: &str = "echo $$ >>pids; sleep 1000 & echo $! >>pids; wait";

const GOOD: &str = r#"echo '{"status": {"token": "good"}}'"#;

#[test]
fn a_plugin_that_hangs_is_ended_and_run_again() {
    let scene = Scene::new();
    let script = format!("if test -e works; then {GOOD}; else {HANG}; fi");
    let mut config = scene.plugin(&script, &json!({}));
    config.timeouts.plugin = Duration::from_millis(300);
    let follower = Follower::with(config);
    let runs = || (scene.words("pids").len() > 12).then_some(());
    until("run again", runs, || scene.words("pids"));
    let failed = follower.status().services.failed.unwrap().1;
    assert!(failed.contains("no result in"), "{failed}");
    std::fs::write(scene.file("works"), "").unwrap();
    assert_eq!(follower.services(), "reset [a/web]");
    scene.await_end_of_processes();
}

#[test]
fn a_stop_ends_a_plugin_that_hangs() {
    let scene = Scene::new();
    let follower = Follower::with(scene.plugin(HANG, &json!({})));
    until(
        "run",
        || (scene.words("pids").len() > 1).then_some(()),
        || (),
    );
    drop(follower);
    scene.await_end_of_processes();
}

/// A process of the program with the kubeconfig of a scene.
fn start(scene: &Scene, health: u16) -> Program {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
    program
        .args(["run", "--dataplane=userspace", "--node-name=us"])
        .arg(format!("--healthz-bind-address=127.0.0.1:{health}"))
        .arg(format!(
            "--metrics-bind-address=127.0.0.1:{}",
            unused_port()
        ))
        .arg("--state-file")
        .arg(scene.file("state"))
        .arg("--kubeconfig")
        .arg(scene.file("kubeconfig"))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(scene.file("log")).unwrap());
    Program(program.spawn().unwrap())
}

#[test]
fn a_signal_ends_a_start_that_waits_for_a_plugin() {
    let scene = Scene::new();
    scene.plugin(HANG, &json!({}));
    let health = unused_port();
    let mut program = start(&scene, health);
    let log = || std::fs::read_to_string(scene.file("log")).unwrap();
    let runs = || (scene.words("pids").len() > 1).then_some(());
    until("run", runs, log);
    until("alive", || http::get(health, "/livez").ok(), log);
    let waits = "waiting for the credential plugin sh, for at most 60 s";
    assert_eq!(log().matches(waits).count(), 1, "{}", log());
    kill_process(Pid::from_child(&program.0), Signal::TERM).unwrap();
    let status = program.0.wait().unwrap();
    // It would be 1 if the process had waited for the plugin.
    assert_eq!(status.code(), Some(0), "{}", log());
    assert!(!log().contains("no result in"), "{}", log());
    scene.await_end_of_processes();
}

#[test]
fn a_signal_ends_a_start_that_waits_for_a_file() {
    let scene = Scene::new();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, scene.file("kubeconfig"), mode).unwrap();
    let program = RefCell::new(start(&scene, unused_port()));
    let log = || std::fs::read_to_string(scene.file("log")).unwrap();
    let starts = || log().contains("relaying for node").then_some(());
    until("started", starts, log);
    kill_process(Pid::from_child(&program.borrow().0), Signal::TERM).unwrap();
    let end = || program.borrow_mut().0.try_wait().unwrap();
    assert_eq!(until("ended", end, log).code(), Some(0), "{}", log());
}

#[test]
fn a_file_that_hangs_later_delays_no_stop() {
    let scene = Scene::new();
    let mut config = scene.plugin(GOOD, &json!({}));
    config.timeouts.plugin = Duration::from_millis(300);
    let file = config.server.kubeconfig.clone().unwrap();
    let follower = Follower::with(config);
    follower.drain();
    std::fs::remove_file(&file).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, mode).unwrap();
    let better = Some(vec!["better".into()]);
    scene
        .server
        .configure(|behaviour| behaviour.tokens = better);
    scene.server.break_connections();
    follower.until("waiting", |status| {
        let failed = status.services.failed.as_ref();
        failed.is_some_and(|(_, why)| why.contains("the configuration is not read"))
    });
    drop(follower);
}

#[test]
fn a_plugin_runs_once_and_again_when_its_token_is_refused() {
    let scene = Scene::new();
    let script = r#"echo x >>runs; echo "{\"status\": {\"token\": \"$(cat token)\"}}""#;
    std::fs::write(scene.file("token"), "good").unwrap();
    let follower = Follower::with(scene.plugin(script, &json!({})));
    follower.drain();
    assert_eq!(scene.words("runs"), ["x"]);
    std::fs::write(scene.file("token"), "better").unwrap();
    let better = Some(vec!["better".into()]);
    scene
        .server
        .configure(|behaviour| behaviour.tokens = better);
    scene.server.break_connections();
    scene.server.apply(service("new", 80));
    assert_eq!(follower.services(), "apply a/new");
    let sent = scene.server.requests();
    let is_better = |sent: Option<&str>| sent == Some("Bearer better");
    assert!(is_better(sent.last().unwrap().authorization.as_deref()));
}

#[test]
fn a_token_is_replaced_before_it_expires() {
    let scene = Scene::new();
    let script = r#"echo x >>runs; n=$(wc -l <runs)
        echo "{\"status\": {\"token\": \"t$n\", \"expirationTimestamp\": \"$(cat expiry)\"}}""#;
    scene.server.configure(|behaviour| behaviour.tokens = None);
    let tokens = || {
        let sent = scene.server.requests().into_iter();
        sent.map(|sent| sent.authorization.unwrap())
            .collect::<Vec<_>>()
    };
    // An offset, as Go permits.
    std::fs::write(scene.file("expiry"), "2126-01-01T00:00:00+02:00").unwrap();
    let follower = Follower::with(scene.plugin(script, &json!({})));
    follower.drain();
    assert!(tokens().iter().all(|token| token == "Bearer t1"));
    drop(follower);
    std::fs::write(scene.file("expiry"), "2026-01-01T00:00:00Z").unwrap();
    let follower = Follower::with(scene.plugin(script, &json!({})));
    follower.drain();
    assert!(tokens().contains(&"Bearer t3".to_owned()), "{:?}", tokens());
}

#[test]
fn a_plugin_gets_what_the_documentation_says() {
    let scene = Scene::new();
    let script = format!("echo $KUBERNETES_EXEC_INFO >info; echo $NAME $0 $1 >words; {GOOD}");
    let mut config: Value = {
        let settings = json!({
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "env": [{"name": "NAME", "value": "value"}],
            "provideClusterInfo": true,
        });
        let file = scene.plugin(&script, &settings).server.kubeconfig.unwrap();
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    let args = &mut config["users"][0]["user"]["exec"]["args"];
    args.as_array_mut()
        .unwrap()
        .extend([json!("zero"), json!("one")]);
    let settings = json!({"cluster": "settings"});
    config["clusters"][0]["cluster"]["extensions"] =
        json!([{"name": "client.authentication.k8s.io/exec", "extension": settings}]);
    let file = scene.file("kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    let follower = Follower::with(with_kubeconfig(&file));
    assert_eq!(follower.services(), "reset [a/web]");
    assert_eq!(scene.words("words"), ["value", "zero", "one"]);
    let info = std::fs::read_to_string(scene.file("info")).unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    let expected = json!({
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": false,
            "cluster": {
                "server": scene.server.url(),
                "certificate-authority-data": k8s_openapi::ByteString(tls::AUTHORITY.into()),
                "config": settings,
            },
        },
    });
    assert_eq!(info, expected);
}

#[test]
fn a_plugin_may_print_a_certificate() {
    let scene = Scene::new();
    scene
        .server
        .configure(|behaviour| behaviour.tokens = Some(Vec::new()));
    let output = json!({"status": {
        "clientCertificateData": tls::CLIENT_CERTIFICATE,
        "clientKeyData": tls::CLIENT_KEY,
    }});
    std::fs::write(scene.file("output"), output.to_string()).unwrap();
    let follower = Follower::with(scene.plugin("cat output", &json!({})));
    assert_eq!(follower.services(), "reset [a/web]");
    assert!(scene.server.requests()[0].has_certificate);
}

#[test]
fn a_process_that_a_plugin_leaves_behind_does_not_delay_it() {
    let scene = Scene::new();
    let script = format!("sleep 1000 & echo $! >>pids; {GOOD}");
    let follower = Follower::with(scene.plugin(&script, &json!({})));
    assert_eq!(follower.services(), "reset [a/web]");
    drop(follower);
    for pid in scene.words("pids") {
        assert!(is_running(&pid));
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
}

#[test]
fn a_plugin_that_cannot_be_run_is_named() {
    let scene = Scene::new();
    for (command, why) in [
        ("missing-plugin", "No such file"),
        ("./missing-plugin", "No such file"),
        ("true", "the output has no status"),
        ("yes", "failed with signal: 13"),
    ] {
        let config = scene.plugin("", &json!({"command": command, "args": []}));
        let follower = Follower::with(config);
        let status = follower.until("failed", |status| status.services.failures > 0);
        let failed = status.services.failed.unwrap().1;
        assert!(failed.contains(why), "{failed}");
        assert!(failed.contains(command.trim_start_matches('.')), "{failed}");
    }
}
