//! The node, its network, and the API server that both programs follow.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use api_server::ApiServer;
use lab::net::Cluster;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tempfile::TempDir;

use super::programs::{Iptables, Process, assets};
use super::services::{self, Client, Frontend};

/// Rules that the kubelet makes, and that must stay. Without `-w`, most versions of iptables-legacy fail while
/// kube-proxy has the lock.
const OF_KUBELET: [&str; 4] = [
    "iptables -w -t mangle -N KUBE-KUBELET-CANARY",
    "iptables -w -t filter -N KUBE-FIREWALL",
    "iptables -w -t filter -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate \
     RELATED,ESTABLISHED,DNAT -j DROP",
    "iptables -w -t filter -A OUTPUT -j KUBE-FIREWALL",
];

/// The names of kube-proxy's chains begin so, in all modes.
const CHAINS: &str = "KUBE-(SERVICES|POSTROUTING|NODE-PORT|NODEPORTS|LOAD-BALANCER|MARK-MASQ|FORWARD|\
                      PROXY-|SOURCE-RANGES|IPVS-|EXTERNAL|SVC-|SEP-|EXT-|FW-|SVL-)";

/// The pause between two looks at what a service proxy serves.
const PAUSE: Duration = Duration::from_millis(200);

/// A node without a service proxy.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    pub(crate) api: ApiServer,
    iptables: Iptables,
    assets: PathBuf,
    folder: TempDir,
}

impl Scene {
    /// Returns the node and the Services of this test; `None` without kube-proxy.
    pub(crate) fn start(iptables: Iptables) -> Option<Self> {
        Self::with(iptables, services::objects())
    }

    /// Returns the node in a cluster with these objects; `None` without kube-proxy.
    pub(crate) fn with(iptables: Iptables, objects: Vec<Value>) -> Option<Self> {
        let Some(assets) = assets() else {
            assert!(
                std::env::var("PEERS_REQUIRED").as_deref() != Ok("1"),
                "KUBEBUILDER_ASSETS names no folder with kube-proxy"
            );
            let why = "SKIPPED takeover: KUBEBUILDER_ASSETS names no folder with kube-proxy\n";
            // Written to stderr directly, because the test harness captures `eprintln!`.
            std::io::stderr().write_all(why.as_bytes()).unwrap();
            return None;
        };
        // Clients and servers of all connections are in this process.
        let files = getrlimit(Resource::Nofile);
        let all = Rlimit {
            current: files.maximum,
            ..files
        };
        setrlimit(Resource::Nofile, all).unwrap();
        let scene = Self {
            cluster: Cluster::conformance(),
            api: ApiServer::start(),
            iptables,
            assets,
            folder: tempfile::tempdir().unwrap(),
        };
        for pod in [&scene.cluster.pod1, &scene.cluster.pod_b1] {
            for port in services::target_ports() {
                pod.serve_tcp(port);
                pod.serve_udp(port);
            }
        }
        scene.keep_flows();
        let bin = scene.file("bin");
        std::fs::create_dir(&bin).unwrap();
        iptables.link(&bin);
        for object in objects {
            scene.api.apply(object);
        }
        Some(scene)
    }

    /// Makes the node remember UDP flows for the whole test. A flow that the node forgot is a new one: the
    /// present rules decide about its source address.
    fn keep_flows(&self) {
        for state in ["", "_stream"] {
            let setting = format!("net.netfilter.nf_conntrack_udp_timeout{state}=3600");
            self.sh(&format!("sysctl -q {setting}"));
        }
    }

    /// Gives the node a default route. Without one, its processes reach only service addresses that are local.
    pub(crate) fn add_default_routes(&self) {
        self.sh("ip -4 route add default via 172.18.0.1 src 172.18.0.2");
        self.sh("ip -6 route add default via fd00:172:18::1 src fd00:172:18::2");
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn path(&self) -> String {
        let bin = self.file("bin");
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display())
    }

    /// Returns the lock of iptables-legacy. The nodes of all tests share `/run`, but no table.
    fn xtables_lock(&self) -> PathBuf {
        self.file("xtables.lock")
    }

    /// Returns the flags that both programs get.
    pub(crate) fn flags(&self) -> Vec<String> {
        let master = format!("--master={}", self.api.url());
        let flags = [
            &*master,
            "--hostname-override=node-a",
            "--cluster-cidr=10.244.0.0/16,fd00:244::/32",
            "--ipvs-min-sync-period=0s",
        ];
        flags.map(str::to_owned).to_vec()
    }

    /// Starts kube-proxy.
    pub(crate) fn kube_proxy(&self, mode: &str) -> Process {
        let mut command = Command::new(self.assets.join("kube-proxy"));
        command.args(self.flags());
        command.arg(format!("--proxy-mode={mode}"));
        // A sync starts about a hundred processes. With the default period, they leave the clients
        // more of the lab's processor.
        command.args(["--conntrack-max-per-core=0", "-v=2"]);
        command.env("PATH", self.path());
        // kube-proxy waits for the lock for 5 s, and then for its next sync.
        command.env("XTABLES_LOCKFILE", self.xtables_lock());
        Process::start("kube-proxy", command, &self.file("theirs.log"))
    }

    /// Returns a command of our program.
    pub(crate) fn our_command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        command
            .arg(name)
            .arg("--state-file")
            .arg(self.file("state"));
        command
    }

    /// Runs `cleanup` and returns what it prints.
    #[track_caller]
    pub(crate) fn cleanup(&self, flags: &[&str]) -> String {
        self.output(self.our_command("cleanup").args(flags))
    }

    /// Starts `cleanup`.
    pub(crate) fn start_cleanup(&self) -> Process {
        let command = self.our_command("cleanup");
        Process::start("cleanup", command, &self.file("cleanup.log"))
    }

    /// Runs `cleanup` and returns what it prints; `None` if it refuses because kube-proxy starts.
    pub(crate) fn try_cleanup(&self, flags: &[&str]) -> Option<String> {
        let output = self.our_command("cleanup").args(flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let is_refused = error.contains("kube-proxy starts on this node");
        assert!(output.status.success() || is_refused, "{output:?}");
        (!is_refused).then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// Runs kube-proxy's `--cleanup` of our program and returns what it prints.
    #[track_caller]
    pub(crate) fn cleanup_of_kube_proxy(&self, flags: &[&str]) -> String {
        self.output(self.our_command("run").arg("--cleanup").args(flags))
    }

    #[track_caller]
    fn output(&self, command: &mut Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a shell command on the node and returns its output.
    pub(crate) fn sh(&self, command: &str) -> String {
        let (path, lock) = (self.path(), self.xtables_lock());
        let command = format!(
            "export PATH={path} XTABLES_LOCKFILE={}; {command}",
            lock.display()
        );
        self.cluster.node.exec(&["/bin/sh", "-c", &command])
    }

    #[track_caller]
    pub(crate) fn await_service(&self, what: &str) {
        self.await_service_for(&Client::ALL, what);
    }

    /// Waits until a service proxy has all its rules for these clients.
    #[track_caller]
    pub(crate) fn await_service_for(&self, clients: &[Client], what: &str) {
        let is_served = |(client, frontend): (Client, Frontend)| {
            let host = client.host(self);
            let answers = [host.ask_tcp(frontend.tcp), host.ask_udp(frontend.udp)];
            let mut answers = answers.iter();
            answers.all(|answer| frontend.is_complete(client, answer))
        };
        let is_refused = |frontend: Frontend| {
            let answer = services::stranger(self).ask_udp(frontend.udp);
            answer.backend().is_none()
        };
        let comes_true = lab::await_true(PAUSE, || {
            let mut served = services::served().filter(|(client, _)| clients.contains(client));
            served.all(is_served) && services::restricted().all(is_refused)
        });
        if !comes_true {
            let theirs = std::fs::read_to_string(self.file("theirs.log")).unwrap_or_default();
            panic!("never came true: {what}\n{theirs}");
        }
    }

    /// Adds a Service, and waits until it is served. A service proxy needs that long for a change.
    #[track_caller]
    pub(crate) fn await_new_service(&self) {
        for object in services::late() {
            self.api.apply(object);
        }
        let pod = &self.cluster.pod3;
        let is_served = || pod.ask_tcp(services::LATE).backend().is_some();
        assert!(
            lab::await_true(PAUSE, is_served),
            "the new Service is never served"
        );
    }

    pub(crate) fn add_rules_of_the_kubelet(&self) {
        for rule in OF_KUBELET {
            self.sh(rule);
        }
    }

    /// Asserts that the kubelet's rules stand.
    #[track_caller]
    pub(crate) fn assert_rules_of_the_kubelet(&self) {
        let saved = self.sh("iptables-save -t mangle; iptables-save -t filter");
        for part in [
            ":KUBE-KUBELET-CANARY",
            "-A OUTPUT -j KUBE-FIREWALL",
            "-A KUBE-FIREWALL",
        ] {
            assert!(saved.contains(part), "{part} is missing\n{saved}");
        }
    }

    /// Returns what kube-proxy has on the node: chains, rules, ipsets, addresses.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let save = match self.iptables {
            Iptables::Nft => "iptables-nft-save; ip6tables-nft-save",
            Iptables::Legacy => "iptables-legacy-save; ip6tables-legacy-save",
        };
        let all = self.sh(&format!(
            "({save}) 2>/dev/null | grep -E '{CHAINS}'; ipset list -n | grep KUBE; \
             nft list tables | grep kube-proxy; ip -oneline address show dev kube-ipvs0; true"
        ));
        all.lines().map(str::to_owned).collect()
    }

    /// Returns whether kube-proxy's IPVS mode has service addresses on its device.
    pub(crate) fn has_addresses_of_kube_proxy(&self) -> bool {
        let addresses = "ip -oneline address show dev kube-ipvs0 2>/dev/null; true";
        !self.sh(addresses).is_empty()
    }

    /// Returns what our program has on the node.
    pub(crate) fn ours(&self) -> Vec<String> {
        let state = self.file("state");
        let all = self.sh(&format!(
            "nft list tables | grep ipvs-proxier; nft list ruleset | grep 'ipvs-proxier:'; \
             ip route show table local proto 73; ip -6 route show table local proto 73; \
             ip link show kube-ipvs0 | grep 'alias ipvs-proxier'; ipvsadm -Ln | grep FWM; \
             ls {} 2>/dev/null; true",
            state.display()
        ));
        all.lines().map(str::to_owned).collect()
    }

    /// Returns how many connections each virtual server has had.
    ///
    /// On Linux 6.1 a listing may lack a server, because another test of the same machine adds or removes some. So
    /// this is the union of three listings.
    pub(crate) fn connection_counts(&self) -> BTreeMap<String, u64> {
        let list = "ipvsadm -Ln --stats --exact";
        let listed = self.sh(&format!("{list}; {list}; {list}"));
        let servers = listed.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let protocol = words.next().filter(|word| ["TCP", "UDP"].contains(word))?;
            let (address, count) = (words.next()?, words.next()?);
            Some((format!("{protocol} {address}"), count.parse().ok()?))
        });
        // A later count replaces an earlier one.
        servers.collect()
    }
}
