//! The real thing: `etcd` and `kube-apiserver` from the folder that `KUBEBUILDER_ASSETS` names, as
//! `setup-envtest` downloads them.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use api_server::tls;
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::credentials::{kubeconfig, with_kubeconfig};
use crate::follower::Follower;
use crate::objects::{node, service, slice};

/// A program that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A control plane of one process, and its database.
struct ControlPlane {
    assets: PathBuf,
    directory: TempDir,
    port: u16,
    etcd_url: String,
    _etcd: Program,
    server: Option<Program>,
}

impl ControlPlane {
    fn start(assets: PathBuf) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let etcd_url = format!("http://127.0.0.1:{}", free_port());
        let peer_url = format!("http://127.0.0.1:{}", free_port());
        let etcd = Command::new(assets.join("etcd"))
            .arg("--data-dir")
            .arg(directory.path().join("etcd"))
            .args(["--listen-client-urls", &etcd_url])
            .args(["--advertise-client-urls", &etcd_url])
            .args(["--listen-peer-urls", &peer_url])
            .arg("--unsafe-no-fsync")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut plane = Self {
            assets,
            directory,
            port: free_port(),
            etcd_url,
            _etcd: Program(etcd),
            server: None,
        };
        let path = plane.directory.path();
        // Any key will do: nobody has a service account here.
        std::fs::write(path.join("sa.key"), tls::CLIENT_KEY).unwrap();
        std::fs::write(path.join("tokens"), "secret,admin,1,system:masters\n").unwrap();
        let server = format!("https://127.0.0.1:{}", plane.port);
        let mut config: Value =
            serde_json::from_str(&kubeconfig(&server, &json!({"token": "secret"}))).unwrap();
        config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = json!(true);
        std::fs::write(plane.kubeconfig(), config.to_string()).unwrap();
        plane.start_server();
        plane
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    fn start_server(&mut self) {
        let path = |name: &str| self.directory.path().join(name);
        let log = std::fs::File::create(path("log")).unwrap();
        let child = Command::new(self.assets.join("kube-apiserver"))
            .args(["--etcd-servers", &self.etcd_url])
            .args(["--bind-address", "127.0.0.1"])
            .args(["--secure-port", &self.port.to_string()])
            .args(["--service-cluster-ip-range", "10.96.0.0/16"])
            .args(["--service-account-issuer", "https://localhost"])
            .args(["--authorization-mode", "RBAC"])
            .args(["--disable-admission-plugins", "ServiceAccount"])
            .arg("--cert-dir")
            .arg(path("certificates"))
            .arg("--service-account-key-file")
            .arg(path("sa.key"))
            .arg("--service-account-signing-key-file")
            .arg(path("sa.key"))
            .arg("--token-auth-file")
            .arg(path("tokens"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.server = Some(Program(child));
        for _ in 0..600 {
            if self.ask(Method::GET, "/readyz", &Value::Null).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap();
        panic!("kube-apiserver does not get ready: {log}");
    }

    /// One request; the text of its answer.
    fn ask(&self, method: Method, path: &str, body: &Value) -> Result<String, kube::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).unwrap();
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
            let client = kube::Client::try_from(config.unwrap())?;
            let body = match body {
                Value::Null => Vec::new(),
                body => body.to_string().into_bytes(),
            };
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("Content-Type", "application/json")
                .body(body)
                .unwrap();
            client.request_text(request).await
        })
    }

    fn create(&self, path: &str, object: &Value) {
        self.ask(Method::POST, path, object).unwrap();
    }
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

#[test]
fn a_real_api_server_is_followed() {
    let Some(assets) = assets() else {
        let why = "SKIPPED a_real_api_server_is_followed: KUBEBUILDER_ASSETS names no folder with \
                   etcd and kube-apiserver\n";
        // Past the test harness, which would swallow it.
        std::io::stderr().write_all(why.as_bytes()).unwrap();
        return;
    };
    let mut plane = ControlPlane::start(assets);
    let services = "/api/v1/namespaces/a/services";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices";
    plane.create("/api/v1/namespaces", &json!({"metadata": {"name": "a"}}));
    let follower = Follower::with(with_kubeconfig(&plane.kubeconfig()));
    // The server makes its own Service and range when it has the time.
    let first = follower.services();
    assert!(
        first.starts_with("reset [") && !first.contains('!'),
        "{first}"
    );
    follower.until("synced", |status| {
        status.is_synced() && status.service_cidrs.is_synced() && status.node.is_synced()
    });

    let mut web = service("web", 80);
    web["spec"].as_object_mut().unwrap().remove("clusterIP");
    web["spec"].as_object_mut().unwrap().remove("clusterIPs");
    plane.create(services, &web);
    while follower.services() != "apply a/web" {}
    plane.create(slices, &slice("web-1"));
    while follower.slices() != "apply a/web-1" {}
    plane.create("/api/v1/nodes", &node("us", "192.0.2.1"));
    follower.watch.set_other_nodes(true);
    while !follower.nodes().contains("us") {}
    let mut headless = service("headless", 80);
    headless["spec"]["clusterIP"] = json!("None");
    headless["spec"]["clusterIPs"] = json!(["None"]);
    plane.create(services, &headless);
    // The next thing that is told is about another one.
    plane
        .ask(Method::DELETE, &format!("{services}/web"), &Value::Null)
        .unwrap();
    assert_eq!(follower.services(), "delete a/web");

    plane.server = None;
    follower.until("down", |status| status.services.failures > 0);
    plane.start_server();
    plane.create(services, &web);
    // A list comes in between where the server's new cache begins later than the old watch ended.
    while !follower.services().contains("a/web") {}
    assert!(follower.status().is_synced());
}
