//! A real control plane: `etcd` and `kube-apiserver` as child processes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use lab::net::unused_port;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{CannedResponse, reader, tls};

/// Records each request once it is answered, without its body.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// How often the server is started until it is ready.
const STARTS: u32 = 4;

/// The pause between two looks at a program that starts.
const PAUSE: Duration = Duration::from_millis(500);

/// The addresses and the port of a control plane, and the address ranges of its Services.
#[derive(Clone, Debug)]
pub struct Site {
    /// The address at which the server listens. Clients use 127.0.0.1.
    pub bind: IpAddr,
    /// The endpoint of `default/kubernetes`, which must not be a loopback address.
    pub endpoint: IpAddr,
    /// The server's port; `None`: an unused one.
    pub port: Option<u16>,
    /// The ranges of cluster IPs, separated by commas.
    pub service_ranges: String,
}

/// An API server and its database, with an administrator's client. Dropping it stops both.
pub struct ControlPlane {
    assets: PathBuf,
    directory: TempDir,
    site: Site,
    /// The server's port, also after a restart.
    port: u16,
    etcd: u16,
    runtime: Runtime,
    /// An administrator's client for the current port.
    client: Option<Client>,
    /// More flags of the server at its next start.
    pub flags: Vec<&'static str>,
    // Declared before etcd, so that it is dropped first.
    server: Option<Process>,
    database: Option<Process>,
}

impl ControlPlane {
    /// Returns the folder in KUBEBUILDER_ASSETS, if it has the programs.
    pub fn assets() -> Option<PathBuf> {
        let assets = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?);
        let has = |name: &str| Path::is_file(&assets.join(name));
        (has("etcd") && has("kube-apiserver")).then_some(assets)
    }

    /// Starts the programs of the folder `assets` and waits until the server is ready.
    ///
    /// # Panics
    /// If that fails.
    pub fn start(assets: PathBuf, site: Site) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in [
            ("authority.pem", tls::AUTHORITY),
            ("server.pem", tls::SERVER_CERTIFICATE),
            ("server.key", tls::SERVER_KEY),
            // Any key can sign tokens. The public key needs its own file, because the server does not
            // extract it from a PKCS #8 key.
            ("accounts.key", tls::CLIENT_KEY),
            ("accounts.pem", tls::CLIENT_CERTIFICATE),
            ("tokens", "secret,admin,1,system:masters\n"),
            ("audit.yaml", AUDIT_POLICY),
        ] {
            std::fs::write(directory.path().join(name), text).expect("a writable directory");
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let mut plane = Self {
            assets,
            directory,
            port: site.port.unwrap_or_else(unused_port),
            site,
            etcd: unused_port(),
            runtime,
            client: None,
            flags: Vec::new(),
            server: None,
            database: None,
        };
        plane.start_database();
        plane.start_server();
        plane
    }

    /// Starts the database and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    fn start_database(&mut self) {
        let url = format!("http://127.0.0.1:{}", self.etcd);
        let database = Command::new(self.assets.join("etcd"))
            .arg("--data-dir")
            .arg(self.directory.path().join("etcd"))
            .args(["--listen-client-urls", &url])
            .args(["--advertise-client-urls", &url])
            .arg("--listen-peer-urls")
            .arg(format!("http://127.0.0.1:{}", unused_port()))
            // Beside a program that writes much, fsync(2) can take longer than kube-apiserver waits at its start.
            .arg("--unsafe-no-fsync")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        let mut database = Process(database);
        // While etcd does not listen, kube-apiserver fails its first attempts and pauses between them.
        database.await_listener(self.etcd);
        self.database = Some(database);
    }

    /// Copies the database to a folder called `name`, while database and server are stopped.
    ///
    /// # Panics
    /// If a file cannot be copied.
    pub fn back_up(&mut self, name: &str) {
        self.stop_server();
        self.database = None;
        let path = |name: &str| self.directory.path().join(name);
        copy_folder(&path("etcd"), &path(name));
        self.start_database();
        self.start_server();
    }

    /// Replaces the database by the copy in the folder `name`, while database and server are stopped.
    ///
    /// # Panics
    /// If a file cannot be copied.
    pub fn restore(&mut self, name: &str) {
        self.stop_server();
        self.database = None;
        let path = |name: &str| self.directory.path().join(name);
        std::fs::remove_dir_all(path("etcd")).expect("a writable directory");
        copy_folder(&path(name), &path("etcd"));
        self.start_database();
        self.start_server();
    }

    /// Returns the path of another program that is beside the servers' programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.assets.join(name)
    }

    /// Returns the folder of the server's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the server's URL.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Writes a kubeconfig file called `name` with the credentials `user`.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn kubeconfig(&self, name: &str, user: &Value) -> PathBuf {
        let authority = "authority.pem";
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "c",
                "cluster": {"server": self.url(), "certificate-authority": authority},
            }],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        let file = self.directory.path().join(name);
        std::fs::write(&file, config.to_string()).expect("a writable directory");
        file
    }

    /// Writes the kubeconfig of a follower with all permissions.
    pub fn follower(&self) -> PathBuf {
        self.kubeconfig("follower", &json!({"token": "secret"}))
    }

    /// Stops the server, but not its database.
    pub fn stop_server(&mut self) {
        self.server = None;
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Panics
    /// If it does not get ready; with its log.
    pub fn start_server(&mut self) {
        let path = |name: &str| self.directory.path().join(name);
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
        command
            .arg("--etcd-servers")
            .arg(format!("http://127.0.0.1:{}", self.etcd))
            .args(["--bind-address", &self.site.bind.to_string()])
            .args(["--advertise-address", &self.site.endpoint.to_string()])
            .args(["--secure-port", &self.port.to_string()])
            .args(["--service-cluster-ip-range", &self.site.service_ranges])
            .args(["--service-account-issuer", "https://localhost"])
            .args(["--authorization-mode", "RBAC"])
            .arg("--allow-privileged")
            .args(["--disable-admission-plugins", "ServiceAccount"])
            .args(&self.flags)
            .stdout(Stdio::null());
        self.client = Some(self.administrator());
        let is_ready = (0..STARTS).any(|_| self.try_start(&mut command));
        assert!(
            is_ready,
            "kube-apiserver gives up {STARTS} starts: {}",
            self.log()
        );
    }

    /// Starts the server once, and waits until it is ready. Returns `false` if it gives up because the machine is slow.
    fn try_start(&mut self, command: &mut Command) -> bool {
        let log = File::create(self.log_path()).expect("a writable directory");
        let child = command.stderr(log).spawn();
        let mut process = Process(child.expect("kube-apiserver starts"));
        let is_ready = lab::await_some(PAUSE, || {
            if let Ok(Some(status)) = process.0.try_wait() {
                let log = self.log();
                assert!(
                    was_too_slow(&log),
                    "kube-apiserver ends with {status}: {log}"
                );
                return Some(false);
            }
            let answer = self.ask(Method::GET, "/readyz", &Value::Null);
            answer.is_ok().then_some(true)
        });
        let is_ready =
            is_ready.unwrap_or_else(|| panic!("kube-apiserver does not get ready: {}", self.log()));
        if is_ready {
            self.server = Some(process);
        }
        is_ready
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Starts the server at another port, where followers cannot reach it. [`ControlPlane::return_to`]
    /// ends that.
    pub fn move_away(&mut self) -> u16 {
        self.stop_server();
        let port = std::mem::replace(&mut self.port, unused_port());
        self.start_server();
        port
    }

    /// Stops the server that [`ControlPlane::move_away`] started. The next start is at the port `port`.
    pub fn return_to(&mut self, port: u16) {
        self.stop_server();
        self.port = port;
    }

    fn administrator(&self) -> Client {
        // Not the followers' file: they read theirs again after a failure and would find the new port.
        let file = self.kubeconfig("administrator", &json!({"token": "secret"}));
        let client = self.runtime.block_on(reader::client(&file));
        client.expect("a valid file with valid certificates")
    }

    /// Sends a request as administrator and returns the text of the response.
    ///
    /// # Errors
    /// If there is no response, or one that is no success.
    ///
    /// # Panics
    /// If `path` is no path.
    pub fn ask(&self, method: Method, path: &str, body: &Value) -> Result<String, kube::Error> {
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
            .expect("a path");
        let client = self.client.as_ref().expect("a server that was started");
        self.runtime.block_on(client.request_text(request))
    }

    /// Requests `path` as administrator with this `Accept` header. Returns the response as it is.
    ///
    /// # Panics
    /// If there is no response, or `path` is no path.
    pub fn fetch(&self, path: &str, accept: &str) -> CannedResponse {
        let request = Request::get(path).header("Accept", accept);
        let request = request.body(Body::empty()).expect("a path");
        let client = self.client.as_ref().expect("a server that was started");
        self.runtime.block_on(async {
            let response = client.send(request).await.expect("a response");
            let (head, body) = response.into_parts();
            let media_type = head.headers.get("Content-Type").expect("a type");
            let media_type = media_type.to_str().expect("text");
            let body = body.collect().await.expect("the whole body");
            CannedResponse {
                status: head.status.as_u16(),
                headers: vec![("Content-Type".into(), media_type.into())],
                body: body.to_bytes().into(),
                breaks_connection: false,
            }
        })
    }

    /// Compacts the database to its current revision.
    ///
    /// # Panics
    /// If etcd refuses.
    pub fn compact(&self) {
        let now = self.etcd("/v3/kv/range", &json!({"key": "AA=="}));
        let revision = &now["header"]["revision"];
        self.etcd("/v3/kv/compaction", &json!({"revision": revision}));
    }

    /// Sends a request to etcd's JSON gateway.
    fn etcd(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.etcd)).expect("etcd listens");
        let mut answer = String::new();
        let sent = stream.write_all((head + &body).as_bytes());
        sent.and_then(|()| stream.read_to_string(&mut answer))
            .expect("etcd answers");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.contains(" 200 "), "{answer}");
        serde_json::from_str(body).expect("JSON")
    }
}

/// Returns whether the log says that the server ended by a deadline of its own, as on a busy lab kernel: it was not
/// connected to etcd after 20 s, or its first objects were not in etcd after 30 s (its roles, or its priority classes).
/// Those that are in etcd stay, so that the next start has fewer to write.
fn was_too_slow(log: &str) -> bool {
    let is_end = |line: &str| {
        let is_connection =
            line.contains("\"command failed\"") && line.contains("context deadline exceeded");
        let is_hook = line.contains("PostStartHook \"") && line.contains("\" failed");
        is_connection || is_hook
    };
    log.lines().any(is_end)
}

/// Copies a folder with all that is in it.
fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a writable directory");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("a readable folder");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a readable file")),
        }
    }
}

/// A process that is killed when it is dropped.
struct Process(Child);

impl Process {
    /// Waits until the process listens at this port of 127.0.0.1.
    fn await_listener(&mut self, port: u16) {
        let listens = lab::await_true(PAUSE, || {
            let ended = self.0.try_wait().expect("a child");
            assert!(ended.is_none(), "port {port}: the process ends: {ended:?}");
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        assert!(listens, "nobody listens at port {port}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
