//! Configurations that are refused, and credentials that are not sent.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;

use api_server::{ApiServer, tls};
use lab::net::unused_port;
use proxier::testing::watch::{self, ServerLocation, WatchConfig, WatchMessage};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::credentials::{kubeconfig, with_kubeconfig};
use crate::follower::{Follower, until};
use crate::objects::service;
use crate::program::Program;

/// The URL of a server that is not asked.
const HTTPS: &str = "https://127.0.0.1:1";

/// A folder with a kubeconfig.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let file = self.0.path().join(name);
        std::fs::write(&file, content).unwrap();
        file
    }

    /// Writes a kubeconfig of this cluster and this user.
    fn kubeconfig(&self, cluster: &Value, user: &Value) -> WatchConfig {
        let mut text: Value = serde_json::from_str(&kubeconfig("", user)).unwrap();
        text["clusters"][0]["cluster"] = cluster.clone();
        with_kubeconfig(&self.write("kubeconfig", text.to_string()))
    }
}

/// Returns the error of a start with this configuration.
fn refusal(config: WatchConfig) -> String {
    let (sender, _messages) = sync_channel::<WatchMessage>(1);
    watch::start(config, sender).unwrap_err().to_string()
}

/// Asserts that a start names the kubeconfig, and each of `parts`, in one line.
#[track_caller]
fn assert_refused(config: WatchConfig, parts: &[&str]) {
    let file = config.server.kubeconfig.clone().unwrap();
    let error = refusal(config);
    assert!(error.contains(file.to_str().unwrap()), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!error.contains('\n'), "{error}");
}

/// A credential plugin that returns this status, and creates `trace` when it runs.
fn plugin(trace: &Path, status: &Value) -> Value {
    let output = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    });
    let script = format!("touch {}; echo '{output}'", trace.display());
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", script],
        "interactiveMode": "Never",
    }})
}

#[test]
fn no_credential_is_sent_without_tls() {
    let folder = Folder::new();
    let token = folder.write("token", "secret");
    let trace = folder.0.path().join("trace");
    let users = [
        json!({"token": "secret"}),
        json!({"tokenFile": token}),
        json!({"username": "admin", "password": "secret"}),
        plugin(&trace, &json!({"token": "secret"})),
        json!({"auth-provider": {"name": "oidc", "config": {"id-token": "secret"}}}),
        json!({"client-certificate": "missing", "client-key": "missing", "token": "a\nb"}),
    ];
    for user in users {
        let server = ApiServer::start();
        server.apply(service("web", 80));
        let url = server.url();
        let address = url.trim_start_matches("http://");
        // Without a scheme, client-go connects without TLS, also if there is an authority.
        for (url, master) in [(&*url, None), (address, None), (HTTPS, Some(address))] {
            let cluster = json!({"server": url, "certificate-authority": "missing"});
            let mut config = folder.kubeconfig(&cluster, &user);
            config.server.master = master.map(str::to_owned);
            assert_eq!(Follower::with(config).services(), "reset [a/web]");
        }
        let sent = server.requests();
        assert!(
            sent.iter().all(|sent| sent.authorization.is_none()),
            "{user}: {sent:?}"
        );
    }
    assert!(!trace.exists(), "the plugin was run");
}

#[test]
fn a_warning_names_the_setting_without_tls() {
    let server = ApiServer::start();
    let address = server.url().trim_start_matches("http://").to_owned();
    let folder = Folder::new();
    let log = folder.0.path().join("log");
    let logged = || std::fs::read_to_string(&log).unwrap();
    for (url, master) in [(&*address, None), (HTTPS, Some(&address))] {
        let config = folder.kubeconfig(&json!({"server": url}), &json!({"token": "secret"}));
        let file = config.server.kubeconfig.unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        program
            .args(["run", "--dataplane=userspace", "--node-name=us"])
            .arg(format!(
                "--healthz-bind-address=127.0.0.1:{}",
                unused_port()
            ))
            .arg(format!(
                "--metrics-bind-address=127.0.0.1:{}",
                unused_port()
            ))
            .arg("--state-file")
            .arg(folder.0.path().join("state"))
            .arg("--kubeconfig")
            .arg(&file)
            .args(master.map(|master| format!("--master={master}")))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        let _program = Program(program.spawn().unwrap());
        let has = |text: &'static str| move || logged().contains(text).then_some(());
        until("warned", has("not sent"), logged);
        // Each failure makes the program read its configuration again.
        server.refuse();
        until("refused", has("Connection refused"), logged);
        server.resume();
        let lines = logged();
        let warnings: Vec<_> = lines
            .lines()
            .filter(|line| line.contains("not sent"))
            .collect();
        let [warning] = warnings[..] else {
            panic!("{lines}")
        };
        let setting = master.map_or_else(|| file.display().to_string(), |_| "--master".into());
        assert!(
            warning.contains(&setting) && warning.contains(&address),
            "{warning}"
        );
        assert!(!lines.contains("secret"), "{lines}");
    }
}

#[test]
fn an_authority_and_no_verification_contradict_each_other() {
    let folder = Folder::new();
    let authority = folder.write("ca.pem", tls::AUTHORITY);
    let data = json!(k8s_openapi::ByteString(tls::AUTHORITY.into()));
    for (field, value) in [
        ("certificate-authority", json!(authority)),
        ("certificate-authority-data", data),
    ] {
        let mut cluster = json!({"server": HTTPS, "insecure-skip-tls-verify": true});
        cluster[field] = value;
        let config = folder.kubeconfig(&cluster, &json!({}));
        assert_refused(config, &[field, "insecure-skip-tls-verify"]);
    }
    let unverified = json!({"server": HTTPS, "insecure-skip-tls-verify": true,
        "certificate-authority": ""});
    drop(Follower::with(folder.kubeconfig(&unverified, &json!({}))));
}

#[test]
fn an_unusable_authority_is_named() {
    let folder = Folder::new();
    let missing = folder.0.path().join("missing.pem");
    let key_only = folder.write("key.pem", tls::CLIENT_KEY);
    let empty = folder.write("empty.pem", "");
    let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let garbage = folder.write("garbage.pem", text);
    for (file, why) in [
        (&missing, "No such file"),
        (&key_only, "has no certificate"),
        (&empty, "has no certificate"),
        (&garbage, "has no readable certificate"),
    ] {
        let cluster = json!({"server": HTTPS, "certificate-authority": file});
        let config = folder.kubeconfig(&cluster, &json!({}));
        assert_refused(
            config,
            &["certificate-authority", file.to_str().unwrap(), why],
        );
    }
    for (data, why) in [("!", "base64"), ("QQ==", "has no certificate")] {
        let cluster = json!({"server": HTTPS, "certificate-authority-data": data});
        let config = folder.kubeconfig(&cluster, &json!({}));
        assert_refused(config, &["certificate-authority-data", why]);
    }
}

#[test]
fn a_url_that_names_no_server_is_refused() {
    let folder = Folder::new();
    for (url, why) in [
        ("https://127.0.0.1:99999", "port"),
        ("https://127.0.0.1:0", "port"),
        ("127.0.0.1:99999", "port"),
        ("https://[::1]:x", "is not the URL of an API server"),
        ("https://", "is not the URL of an API server"),
        ("unix:///run/x", "is not the URL of an API server"),
        ("127.0.0.1/path", "is not the URL of an API server"),
        ("https://a b", "is not the URL of an API server"),
        ("", "is missing"),
        ("https://admin@127.0.0.1", "user name"),
    ] {
        let config = folder.kubeconfig(&json!({"server": url}), &json!({}));
        assert_refused(config.clone(), &["server", why]);
        if !url.is_empty() {
            let master = WatchConfig {
                server: ServerLocation {
                    kubeconfig: None,
                    master: Some(url.into()),
                },
                ..config
            };
            let error = refusal(master);
            assert!(error.contains("--master") && error.contains(why), "{error}");
        }
    }
    assert_refused(
        folder.kubeconfig(&json!({}), &json!({})),
        &["server", "is missing"],
    );
}

/// Otherwise whoever keeps a node from the servers with TLS could be its API server.
#[test]
fn servers_with_and_without_tls_together_are_refused() {
    let folder = Folder::new();
    let mut config = folder.kubeconfig(&json!({"server": HTTPS}), &json!({"token": "secret"}));
    let why = "some addresses have https and others not";
    for master in [
        "https://127.0.0.1:1,127.0.0.1:2",
        "http://127.0.0.1:2,https://127.0.0.1:1,https://127.0.0.1:3",
    ] {
        config.server.master = Some(master.into());
        assert_refused(config.clone(), &["--master", why]);
    }
    let extension =
        json!([{"name": "ipvs-proxier.io/servers", "extension": ["http://127.0.0.1:1"]}]);
    let cluster = json!({"server": HTTPS, "extensions": extension});
    assert_refused(folder.kubeconfig(&cluster, &json!({})), &["server", why]);
}

#[test]
fn a_server_without_scheme_has_no_tls() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let folder = Folder::new();
    let address = server.url().replace("http://127.0.0.1", "localhost");
    let config = folder.kubeconfig(&json!({"server": address}), &json!({}));
    assert_eq!(Follower::with(config).services(), "reset [a/web]");
}

#[test]
fn a_credential_that_cannot_be_sent_is_named() {
    let folder = Folder::new();
    let provider =
        |name: &str, config: Value| json!({"auth-provider": {"name": name, "config": config}});
    for (user, parts) in [
        (json!({"token": "a\nb"}), ["token", "such as a line break"]),
        (
            provider("oidc", json!({"id-token": "a\nb"})),
            ["auth-provider", "such as a line break"],
        ),
        (provider("oidc", json!({})), ["auth-provider", "id-token"]),
        (
            provider("gcp", json!({"cmd-path": "/bin/echo", "cmd-args": "token"})),
            ["auth-provider", "gcp"],
        ),
        (json!({"exec": {"apiVersion": "v1"}}), ["exec", "command"]),
        (
            json!({"client-certificate": "missing.pem", "client-key": "missing.key"}),
            ["missing.pem", "No such file"],
        ),
        (
            json!({"client-certificate-data": "QQ=="}),
            ["client-key", "is missing"],
        ),
        (
            json!({"client-key-data": "QQ=="}),
            ["client-certificate", "is missing"],
        ),
        (
            json!({"client-certificate-data": "QQ==", "client-key-data": "QQ=="}),
            ["client-certificate-data", "has no certificate"],
        ),
        (json!({"as": "a\nb"}), ["as", "header"]),
    ] {
        let config = folder.kubeconfig(&json!({"server": HTTPS}), &user);
        assert_refused(config, &parts);
    }
    let name = json!({"server": HTTPS, "tls-server-name": "a b"});
    assert_refused(folder.kubeconfig(&name, &json!({})), &["tls-server-name"]);
    let other_key = json!({
        "client-certificate": folder.write("c.pem", tls::CLIENT_CERTIFICATE),
        "client-key": folder.write("c.key", tls::SERVER_KEY),
    });
    let config = folder.kubeconfig(&json!({"server": HTTPS}), &other_key);
    assert_refused(config, &["c.key", "c.pem", "does not belong"]);
}

#[test]
fn a_file_in_half_a_character_is_an_error() {
    let folder = Folder::new();
    for text in [
        &b"\xff\xfeab\0"[..],
        b"\xfe\xffa",
        b"\xff\xfe\0\xd8",
        b"\xff",
    ] {
        let file = folder.write("kubeconfig", text);
        assert_refused(with_kubeconfig(&file), &["text"]);
    }
    // An empty file has no current context.
    for text in ["", "current-context: x", "- 1"] {
        let file = folder.write("kubeconfig", text);
        assert_refused(with_kubeconfig(&file), &[]);
    }
}

#[test]
fn commands_that_end_do_not_wait_for_an_api_server_that_rejects_them() {
    let folder = Folder::new();
    let state = folder.0.path().join("state.jsonl");
    let state = format!("--state-file={}", state.display());
    for code in [401, 403] {
        let server = ApiServer::start();
        server.configure(|behaviour| {
            behaviour.refused.insert("services".into(), code);
        });
        let master = format!("--master={}", server.url());
        for command in [
            &["plan", "--against=empty"][..],
            &["run", "--once", "--dataplane=userspace"],
        ] {
            let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
                .args(command)
                .args([&master, &state, "--node-name=us"])
                .output()
                .unwrap();
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command:?}: {log}");
            let expected = format!("the API server rejects this node's requests: {code}");
            assert!(log.contains(&expected), "{command:?}: {log}");
        }
    }
}

/// The limit is 30 s.
#[test]
fn commands_that_end_do_not_wait_for_ever_for_an_api_server_that_is_down() {
    let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args(["plan", "--against=empty", "--node-name=us"])
        .arg(format!("--master=127.0.0.1:{}", unused_port()))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains("nothing from the API server for 30 s: no connection"),
        "{log}"
    );
}
