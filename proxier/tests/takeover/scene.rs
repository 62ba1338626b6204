//! The node, its network, and the API server that both programs follow.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use api_server::ApiServer;
use lab::net::Cluster;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::programs::{Iptables, Process, assets};

/// One frontend of each kind, over TCP. Each but the second belongs to another Service with another
/// target port: IPVS finds the connection of an answer by client and endpoint, so two connections from
/// one port of a client to one port of an endpoint, through two frontends, are mixed up.
pub(crate) const FRONTENDS: [&str; 5] = [
    "10.96.2.1:80",
    "[fd00:10:96::2:1]:80",
    "172.18.0.2:30081",
    "198.51.100.22:80",
    "198.51.100.33:80",
];

/// The number of Services. Service `n` has the target port `7000 + n`.
const SERVICES: u16 = 4;

/// The addresses of the node, one of which masqueraded connections have.
const NODE: [&str; 6] = [
    "172.18.0.2",
    "203.0.113.1",
    "192.0.2.1",
    "fd00:172:18::2",
    "2001:db8:113::1",
    "2001:db8:2::1",
];

/// Rules that the kubelet makes, and that must stay.
const OF_KUBELET: [&str; 4] = [
    "iptables -t mangle -N KUBE-KUBELET-CANARY",
    "iptables -t filter -N KUBE-FIREWALL",
    "iptables -t filter -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate \
     RELATED,ESTABLISHED,DNAT -j DROP",
    "iptables -t filter -A OUTPUT -j KUBE-FIREWALL",
];

/// The names of kube-proxy's chains begin so, in all modes.
const CHAINS: &str = "KUBE-(SERVICES|POSTROUTING|NODE-PORT|NODEPORTS|LOAD-BALANCER|MARK-MASQ|FORWARD|\
                      PROXY-|SOURCE-RANGES|IPVS-|EXTERNAL|SVC-|SEP-|EXT-|FW-|SVL-)";

/// A node without a service proxy.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    pub(crate) api: ApiServer,
    iptables: Iptables,
    assets: PathBuf,
    folder: TempDir,
}

impl Scene {
    /// Returns the node; `None` without kube-proxy.
    pub(crate) fn start(iptables: Iptables) -> Option<Self> {
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
        let scene = Self {
            cluster: Cluster::conformance(),
            api: ApiServer::start(),
            iptables,
            assets,
            folder: tempfile::tempdir().unwrap(),
        };
        for pod in [&scene.cluster.pod1, &scene.cluster.pod_b1] {
            for port in (0..SERVICES).map(|number| 7_000 + number) {
                pod.serve_tcp(port);
                pod.serve_udp(port);
            }
        }
        let bin = scene.file("bin");
        std::fs::create_dir(&bin).unwrap();
        iptables.link(&bin);
        for object in objects() {
            scene.api.apply(object);
        }
        Some(scene)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn path(&self) -> String {
        let bin = self.file("bin");
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display())
    }

    /// Returns the flags that both programs get.
    pub(crate) fn flags(&self) -> Vec<String> {
        let master = format!("--master={}", self.api.url());
        let flags = [
            &*master,
            "--hostname-override=node-a",
            "--cluster-cidr=10.244.0.0/16,fd00:244::/32",
            "--ipvs-sync-period=4s",
            "--ipvs-min-sync-period=0s",
        ];
        flags.map(str::to_owned).to_vec()
    }

    /// Starts kube-proxy.
    pub(crate) fn kube_proxy(&self, mode: &str) -> Process {
        let mut command = Command::new(self.assets.join("kube-proxy"));
        command.args(self.flags());
        command.arg(format!("--proxy-mode={mode}"));
        command.args(["--conntrack-max-per-core=0", "-v=2"]);
        command.env("PATH", self.path());
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
        let command = format!("PATH={}; {command}", self.path());
        self.cluster.node.exec(&["/bin/sh", "-c", &command])
    }

    #[track_caller]
    pub(crate) fn await_service(&self, what: &str) {
        let end = std::time::Instant::now() + lab::patience(std::time::Duration::from_secs(120));
        // The source shows that the rules stand too: clients outside are masqueraded.
        let is_masqueraded = |frontend: &&str| {
            let source = self.cluster.ext.ask_tcp(*frontend).source();
            source.is_some_and(|source| NODE.contains(&&*source.to_string()))
        };
        let answers = |frontend: &&str| self.cluster.pod3.ask_tcp(*frontend).backend().is_some();
        loop {
            if FRONTENDS.iter().all(is_masqueraded) && FRONTENDS.iter().all(answers) {
                return;
            }
            if std::time::Instant::now() > end {
                let theirs = std::fs::read_to_string(self.file("theirs.log")).unwrap_or_default();
                panic!("never came true: {what}\n{theirs}");
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
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
    pub(crate) fn connection_counts(&self) -> BTreeMap<String, u64> {
        let listed = self.sh("ipvsadm -Ln --stats --exact");
        let servers = listed.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let protocol = words.next().filter(|word| ["TCP", "UDP"].contains(word))?;
            let (address, count) = (words.next()?, words.next()?);
            Some((format!("{protocol} {address}"), count.parse().ok()?))
        });
        servers.collect()
    }
}

fn objects() -> Vec<Value> {
    let cluster = [
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "172.18.0.2"},
                {"type": "InternalIP", "address": "fd00:172:18::2"},
            ]},
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
        }),
    ];
    let services = (0..SERVICES).flat_map(service);
    cluster.into_iter().chain(services).collect()
}

/// Returns a Service with addresses of all kinds, and its endpoints on both nodes.
fn service(number: u16) -> [Value; 3] {
    let name = format!("web{number}");
    let (v4, v6) = (
        format!("10.96.2.{}", number + 1),
        format!("fd00:10:96::2:{}", number + 1),
    );
    let ports = json!([
        {"name": "http", "port": 80, "nodePort": 30_080 + number, "targetPort": 7_000 + number, "protocol": "TCP"},
        {"name": "dns", "port": 53, "nodePort": 30_050 + number, "targetPort": 7_000 + number, "protocol": "UDP"},
    ]);
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": v4, "clusterIPs": [v4, v6],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "externalIPs": [format!("198.51.100.{}", 20 + number)],
            "ports": ports,
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": format!("198.51.100.{}", 30 + number), "ipMode": "VIP"},
        ]}},
    });
    let slice = |family: &str, [here, there]: [&str; 2]| {
        let endpoint = |address: &str, node: &str| json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}});
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": format!("{name}-{}", family.to_lowercase()),
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": family,
            "ports": [
                {"name": "http", "port": 7_000 + number, "protocol": "TCP"},
                {"name": "dns", "port": 7_000 + number, "protocol": "UDP"},
            ],
            "endpoints": [endpoint(here, "node-a"), endpoint(there, "node-b")],
        })
    };
    [
        slice("IPv4", ["10.244.1.2", "10.244.2.2"]),
        slice("IPv6", ["fd00:244:1::2", "fd00:244:2::2"]),
        service,
    ]
}
