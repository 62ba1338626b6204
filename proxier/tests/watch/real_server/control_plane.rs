//! `etcd` and `kube-apiserver` as child processes of a test.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use api_server::tls;
use http::{Method, Request};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::credentials::kubeconfig;
use crate::follower::until;
use crate::program::Program;

/// Records each request once it is answered, without its body.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// An API server and its database.
pub(super) struct ControlPlane {
    assets: PathBuf,
    directory: TempDir,
    /// The server's port, also after a restart.
    port: u16,
    etcd: u16,
    runtime: Runtime,
    /// An administrator's client for the current port.
    client: Option<Client>,
    /// More flags of the server at its next start.
    pub(super) flags: Vec<&'static str>,
    // Declared before etcd, so that it is dropped first.
    server: Option<Program>,
    _etcd: Program,
}

impl ControlPlane {
    /// Returns a ready control plane, or `None` without the programs.
    pub(super) fn start(test: &str) -> Option<Self> {
        let Some(assets) = assets() else {
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
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        write("authority.pem", tls::AUTHORITY);
        write("server.pem", tls::SERVER_CERTIFICATE);
        write("server.key", tls::SERVER_KEY);
        // Any key can sign tokens. The public key needs its own file, because the server does not
        // extract it from a PKCS #8 key.
        write("accounts.key", tls::CLIENT_KEY);
        write("accounts.pem", tls::CLIENT_CERTIFICATE);
        write("tokens", "secret,admin,1,system:masters\n");
        write("audit.yaml", AUDIT_POLICY);
        let etcd = free_port();
        let url = format!("http://127.0.0.1:{etcd}");
        let database = Command::new(assets.join("etcd"))
            .arg("--data-dir")
            .arg(directory.path().join("etcd"))
            .args(["--listen-client-urls", &url])
            .args(["--advertise-client-urls", &url])
            .arg("--listen-peer-urls")
            .arg(format!("http://127.0.0.1:{}", free_port()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut plane = Self {
            assets,
            directory,
            port: free_port(),
            etcd,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
            client: None,
            flags: Vec::new(),
            server: None,
            _etcd: Program(database),
        };
        plane.start_server();
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

    /// Returns the path of another program that is beside the servers' programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.assets.join(name)
    }

    /// Writes a kubeconfig file called `name` with these credentials.
    pub(super) fn kubeconfig(&self, name: &str, user: &Value) -> PathBuf {
        let server = format!("https://127.0.0.1:{}", self.port);
        let mut config: Value = serde_json::from_str(&kubeconfig(&server, user)).unwrap();
        config["clusters"][0]["cluster"]["certificate-authority"] = json!("authority.pem");
        let file = self.directory.path().join(name);
        std::fs::write(&file, config.to_string()).unwrap();
        file
    }

    /// Writes the kubeconfig of a follower with all permissions.
    pub(super) fn follower(&self) -> PathBuf {
        self.kubeconfig("follower", &json!({"token": "secret"}))
    }

    pub(super) fn stop_server(&mut self) {
        self.server = None;
    }

    pub(super) fn start_server(&mut self) {
        let path = |name: &str| self.directory.path().join(name);
        let log = std::fs::File::create(path("log")).unwrap();
        let mut command = Command::new(self.assets.join("kube-apiserver"));
        for (flag, file) in [
            ("--tls-cert-file", "server.pem"),
            ("--tls-private-key-file", "server.key"),
            ("--client-ca-file", "authority.pem"),
            ("--service-account-key-file", "accounts.pem"),
            ("--service-account-signing-key-file", "accounts.key"),
            ("--token-auth-file", "tokens"),
            ("--audit-policy-file", "audit.yaml"),
            ("--audit-log-path", "audit.log"),
        ] {
            command.arg(flag).arg(path(file));
        }
        let child = command
            .arg("--etcd-servers")
            .arg(format!("http://127.0.0.1:{}", self.etcd))
            .args(["--bind-address", "127.0.0.1"])
            // The server rejects loopback as the endpoint of `default/kubernetes`.
            .args(["--advertise-address", "192.0.2.200"])
            .args(["--secure-port", &self.port.to_string()])
            .args([
                "--service-cluster-ip-range",
                "10.96.0.0/16,fd00:10:96::/112",
            ])
            .args(["--service-account-issuer", "https://localhost"])
            .args(["--authorization-mode", "RBAC"])
            .arg("--allow-privileged")
            .args(["--disable-admission-plugins", "ServiceAccount"])
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut program = Program(child);
        self.client = Some(self.client());
        for _ in 0..600 {
            if let Some(status) = program.0.try_wait().unwrap() {
                let log = std::fs::read_to_string(path("log")).unwrap();
                panic!("kube-apiserver ends with {status}: {log}");
            }
            if self.ask(Method::GET, "/readyz", &Value::Null).is_ok() {
                self.server = Some(program);
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = std::fs::read_to_string(path("log")).unwrap();
        panic!("kube-apiserver does not get ready: {log}");
    }

    /// Runs `work` while the server listens on another port, where followers cannot reach it.
    pub(super) fn elsewhere(&mut self, work: impl FnOnce(&Self)) {
        self.stop_server();
        let port = std::mem::replace(&mut self.port, free_port());
        self.start_server();
        work(self);
        self.stop_server();
        self.port = port;
    }

    fn client(&self) -> Client {
        // Not the followers' file: they read theirs again after a failure and would find the new port.
        let file = self.kubeconfig("administrator", &json!({"token": "secret"}));
        let kubeconfig = Kubeconfig::read_from(file).unwrap();
        let options = KubeConfigOptions::default();
        self.runtime.block_on(async {
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
            Client::try_from(config.unwrap()).unwrap()
        })
    }

    /// Sends a request and returns the text of the response.
    fn ask(&self, method: Method, path: &str, body: &Value) -> Result<String, kube::Error> {
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", content)
            .body(body)
            .unwrap();
        let client = self.client.as_ref().unwrap();
        self.runtime.block_on(client.request_text(request))
    }

    /// Creates an object and returns it.
    pub(super) fn create(&self, path: &str, object: &Value) -> Value {
        let created = self.ask(Method::POST, path, object).unwrap();
        serde_json::from_str(&created).unwrap()
    }

    /// Returns an object; `None` if it does not exist.
    pub(super) fn read(&self, path: &str) -> Option<Value> {
        let text = self.ask(Method::GET, path, &Value::Null).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(super) fn patch(&self, path: &str, change: &Value) {
        self.ask(Method::PATCH, path, change).unwrap();
    }

    pub(super) fn delete(&self, path: &str) {
        self.ask(Method::DELETE, path, &Value::Null).unwrap();
    }

    /// Returns the requests of `user` that the server answered: one object of the audit log each.
    pub(super) fn requests_of(&self, user: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.directory.path().join("audit.log")).unwrap();
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

    fn administer(&self, kubectl: &Path) -> Command {
        let file = self.kubeconfig("kubectl", &json!({"token": "secret"}));
        let mut command = Command::new(kubectl);
        // kubectl caches the server's kinds in HOME.
        command.arg("--kubeconfig").arg(file);
        command.env("HOME", self.directory.path());
        command
    }

    /// Compacts the database to its current revision.
    pub(super) fn compact(&self) {
        let now = self.etcd("/v3/kv/range", &json!({"key": "AA=="}));
        let revision = &now["header"]["revision"];
        self.etcd("/v3/kv/compaction", &json!({"revision": revision}));
    }

    /// Sends a request to etcd's JSON gateway.
    fn etcd(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.etcd)).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{answer}");
        serde_json::from_str(body).unwrap()
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

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn assets() -> Option<PathBuf> {
    let assets = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?);
    let has = |name: &str| Path::is_file(&assets.join(name));
    (has("etcd") && has("kube-apiserver")).then_some(assets)
}
