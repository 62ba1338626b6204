//! The daemon on node-a, and the API server that it follows.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use api_server::{ApiServer, Key};
use ipvs_netlink as ipvs;
use nftables::{KeyType, RulesClient, Set, SetKind, Value};
use proxier::testing::model::Family;
use serde_json::json;
use tempfile::TempDir;

use super::alone::alone;
use super::privilege::contained;

/// The flag of the dataplane nftables.
pub(crate) const NFTABLES: &str = "--dataplane=nftables";

/// An API server and a daemon that follows it.
pub(crate) struct Daemon {
    pub(crate) api: ApiServer,
    directory: TempDir,
    ledger: PathBuf,
    /// Manifests to follow instead of the API server.
    manifests: Option<PathBuf>,
    flags: Vec<String>,
    process: Option<Child>,
}

impl Daemon {
    /// Returns a daemon that does not run yet, and an API server without objects.
    pub(crate) fn bare(flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            api: ApiServer::start(),
            ledger: directory.path().join("state"),
            directory,
            manifests: None,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            process: None,
        }
    }

    /// Returns a daemon that does not run yet, and an API server with Service `default/web` without
    /// endpoints.
    pub(crate) fn new(flags: &[&str]) -> Self {
        let daemon = Self::bare(flags);
        let api = &daemon.api;
        api.apply(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "172.18.0.2"},
                {"type": "InternalIP", "address": "fd00:172:18::2"},
            ]},
        }));
        api.apply(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
        }));
        api.apply(web(&json!({})));
        daemon
    }

    /// Replaces the flags for the next start.
    pub(crate) fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    }

    /// The file of the program's ledger.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.ledger.clone()
    }

    /// Follows the manifests in `path` instead of the API server.
    pub(crate) fn follow_manifests(&mut self, path: &Path) {
        self.manifests = Some(path.to_owned());
    }

    /// Puts the ledger into another directory.
    pub(crate) fn move_ledger(&mut self, directory: &Path) {
        self.ledger = directory.join("state");
    }

    /// Returns a command of the program, with the flags of this daemon.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        command.arg(name);
        command.arg("--state-file").arg(self.ledger());
        if ["run", "plan"].contains(&name) {
            match &self.manifests {
                Some(path) => command.arg("--manifests").arg(path),
                None => command.args(["--master", &self.api.url()]),
            };
            command.args(["--hostname-override", "node-a"]);
        }
        if name == "run" {
            command.args(&self.flags);
        }
        command
    }

    /// Starts the daemon.
    pub(crate) fn start(&mut self) {
        self.spawn(self.command("run"));
    }

    /// Starts the daemon on a machine without any other program.
    pub(crate) fn start_alone(&mut self) {
        self.spawn(self.alone("run"));
    }

    /// Runs a command of the program on a machine without any other program.
    pub(crate) fn run_alone(&self, name: &str) -> Output {
        self.alone(name).output().unwrap()
    }

    /// Starts the daemon with the rights of its container in `deploy/`.
    pub(crate) fn start_contained(&mut self) {
        self.spawn(contained(&self.command("run")));
    }

    fn alone(&self, name: &str) -> Command {
        let empty = self.directory.path().join("empty");
        std::fs::create_dir_all(&empty).unwrap();
        alone(&self.command(name), &empty)
    }

    fn spawn(&mut self, mut command: Command) {
        assert!(self.process.is_none(), "the daemon runs already");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join("log"))
            .unwrap();
        let child = command.stdin(Stdio::null()).stderr(log).spawn();
        self.process = Some(child.unwrap());
    }

    /// Returns the log of all daemons of this test.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns the process ID of the running daemon.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Kills the daemon with SIGKILL, if it runs.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops the daemon with SIGTERM and waits for its end.
    pub(crate) fn terminate(&mut self) {
        let mut child = self.process.take().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Sets the endpoints of Service web. `(1, 2)` is 10.244.1.2 on node-a, `(2, 2)` is 10.244.2.2 on
    /// node-b.
    pub(crate) fn endpoints(&self, endpoints: &[(u8, u8)]) {
        self.annotated_endpoints(endpoints, &json!({}));
    }

    /// Does the same, and names the present time as that of the change.
    pub(crate) fn endpoints_changed_now(&self, endpoints: &[(u8, u8)]) {
        let now = humantime::format_rfc3339_nanos(SystemTime::now()).to_string();
        let changed = json!({"endpoints.kubernetes.io/last-change-trigger-time": now});
        self.annotated_endpoints(endpoints, &changed);
    }

    fn annotated_endpoints(&self, endpoints: &[(u8, u8)], annotations: &serde_json::Value) {
        let endpoint = |&(node, last): &(u8, u8)| {
            json!({
                "addresses": [format!("10.244.{node}.{last}")],
                "nodeName": if node == 1 { "node-a" } else { "node-b" },
                "conditions": {"ready": true, "serving": true, "terminating": false},
            })
        };
        let endpoints: Vec<serde_json::Value> = endpoints.iter().map(endpoint).collect();
        self.api.apply(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": "web-1",
                "labels": {"kubernetes.io/service-name": "web"},
                "annotations": annotations,
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints,
        }));
    }

    /// Waits until exactly these endpoints of Service web get new connections.
    pub(crate) fn await_endpoints(&self, expected: &[(u8, u8)]) {
        let mut expected: Vec<String> = expected
            .iter()
            .map(|(node, last)| format!("10.244.{node}.{last}:8080"))
            .collect();
        expected.sort();
        self.eventually(&format!("{expected:?}"), || self.serving() == expected);
    }

    /// Returns the endpoints of Service web that get new connections, sorted.
    fn serving(&self) -> Vec<String> {
        let mut serving = match self.flags.iter().any(|flag| flag == NFTABLES) {
            true => targets(),
            false => destinations(),
        };
        serving.sort();
        serving
    }

    /// Waits until `is_true` returns true. Panics if it never does.
    pub(crate) fn eventually(&self, what: &str, is_true: impl FnMut() -> bool) {
        assert!(
            lab::await_true(Duration::from_millis(20), is_true),
            "never came true: {what}; serving {:?}",
            self.serving()
        );
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Returns Service `default/web` with `labels`.
pub(crate) fn web(labels: &serde_json::Value) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": "web", "labels": labels},
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"],
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
    })
}

pub(crate) fn web_key() -> Key {
    Key::new("Service", "default", "web").unwrap()
}

/// Returns the virtual server of Service web.
pub(crate) fn virtual_server() -> ipvs::ServiceKey {
    ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Tcp,
        address: [10, 96, 1, 1].into(),
        port: 80,
    }
}

/// Returns the endpoint of each slot of Service web in the maps of nftables.
fn targets() -> Vec<String> {
    let family = Family::V4;
    let frontend = [KeyType::Address(family), KeyType::Protocol, KeyType::Port];
    let key: Vec<KeyType> = frontend.into_iter().chain([KeyType::Mark]).collect();
    let map = Set::new("endpoints-4", key, SetKind::Targets(family));
    let mut client = RulesClient::open("ipvs-proxier-maps").unwrap();
    let map = client.read_elements(&map).unwrap();
    let address = Some(Value::V4([10, 96, 1, 1].into()));
    let of_web = (map.targets()).filter(|(key, _)| key.parts().next() == address);
    of_web.map(|(_, endpoint)| endpoint.to_string()).collect()
}

/// Returns the destinations of Service web that get new connections.
fn destinations() -> Vec<String> {
    let mut client = ipvs::Client::open().unwrap();
    let entries = client.destinations(&virtual_server()).unwrap();
    let serving = entries.iter().map(|entry| entry.destination);
    serving
        .filter(|destination| destination.weight > 0)
        .map(|destination| destination.key.to_string())
        .collect()
}
