//! The CNI plugin portmap (Debian's containernetworking-plugins), run as a container runtime runs it.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use lab::net::Host;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program that plugins find as `iptables` and `ip6tables`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Iptables {
    Nft,
    Legacy,
}

impl Iptables {
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Nft => "/usr/sbin/xtables-nft-multi",
            Self::Legacy => "/usr/sbin/xtables-legacy-multi",
        }
    }
}

/// The plugin, for pod3 with the host ports 80 (TCP) and 53 (UDP).
pub(crate) struct Plugin {
    /// A directory with `iptables` and `ip6tables`.
    programs: TempDir,
    config: Value,
}

impl Plugin {
    /// Returns the plugin; `mark_chain` is its `externalSetMarkChain`, empty for its own chain.
    pub(crate) fn new(iptables: Iptables, mark_chain: &str) -> Self {
        let programs = tempfile::tempdir().unwrap();
        for name in ["iptables", "ip6tables"] {
            symlink(iptables.program(), programs.path().join(name)).unwrap();
        }
        let mut config = json!({
            "cniVersion": "0.4.0", "name": "pods", "type": "portmap",
            "capabilities": {"portMappings": true}, "snat": true,
            "runtimeConfig": {"portMappings": [
                {"hostPort": 80, "containerPort": 8080, "protocol": "tcp"},
                {"hostPort": 53, "containerPort": 5353, "protocol": "udp"},
            ]},
            "prevResult": {
                "cniVersion": "0.4.0",
                "interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod3"}],
                "ips": [
                    {"version": "4", "address": "10.244.1.4/32", "interface": 0},
                    {"version": "6", "address": "fd00:244:1::4/128", "interface": 0},
                ],
            },
        });
        if !mark_chain.is_empty() {
            config["externalSetMarkChain"] = mark_chain.into();
        }
        Self { programs, config }
    }

    /// Adds the host ports on `node`. Returns the plugin's error.
    pub(crate) fn add(&self, node: &Host) -> Result<(), String> {
        self.run(node, "ADD")
    }

    /// Deletes the host ports from `node`.
    pub(crate) fn delete(&self, node: &Host) -> Result<(), String> {
        self.run(node, "DEL")
    }

    fn run(&self, node: &Host, command: &str) -> Result<(), String> {
        node.run(|| {
            let mut child = Command::new("/usr/lib/cni/portmap")
                .env_clear()
                .env("PATH", self.programs.path())
                .env("CNI_COMMAND", command)
                .env("CNI_CONTAINERID", "pod3")
                .env("CNI_NETNS", "/run/netns/pod3")
                .env("CNI_IFNAME", "eth0")
                .env("CNI_PATH", "/usr/lib/cni")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("run portmap (install the package containernetworking-plugins)");
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(self.config.to_string().as_bytes()).unwrap();
            drop(stdin);
            let output = child.wait_with_output().unwrap();
            match output.status.success() {
                true => Ok(()),
                // A plugin prints its error as JSON.
                false => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
            }
        })
    }
}
