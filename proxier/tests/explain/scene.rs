//! The network of the conformance cluster, our proxy on its node, and questions.

use std::path::PathBuf;
use std::process::Command;

use lab::net::{Answer, Cluster, Host};
use serde_json::Value;
use tempfile::TempDir;

use super::recorded::conformance;

/// The network, and what our proxy programmed on its node.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    directory: TempDir,
    manifests: PathBuf,
    dataplane: &'static str,
}

/// A question, and what `explain` and a real client get.
pub(crate) struct Case {
    pub(crate) scenario: &'static str,
    pub(crate) client: &'static str,
    pub(crate) to: &'static str,
    /// `answered`, `refused`, `dropped` or `unknown`.
    pub(crate) outcome: &'static str,
    /// A part of the first line; empty if it must name no cause.
    pub(crate) cause: &'static str,
    pub(crate) flags: &'static [&'static str],
}

pub(crate) const fn case(
    scenario: &'static str,
    (client, to): (&'static str, &'static str),
    outcome: &'static str,
    cause: &'static str,
) -> Case {
    Case {
        scenario,
        client,
        to,
        outcome,
        cause,
        flags: &[],
    }
}

impl Scene {
    /// Returns the network with the Services of the conformance cluster.
    pub(crate) fn new(dataplane: &'static str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let manifests = directory.path().join("cluster.yaml");
        std::fs::copy(conformance("cluster.yaml"), &manifests).unwrap();
        let scene = Self {
            cluster: Cluster::conformance(),
            directory,
            manifests,
            dataplane,
        };
        // No service address is local with maps, so a process of the node needs a route.
        let route = "ip route add default via 203.0.113.9 src 172.18.0.2";
        scene.on_node(route);
        scene.run();
        scene
    }

    /// Runs a command on the node.
    pub(crate) fn on_node(&self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        self.cluster.node.exec(&words)
    }

    /// Runs the nft `commands` on the node.
    pub(crate) fn nft(&self, commands: &str) {
        let file = self.directory.path().join("commands.nft");
        std::fs::write(&file, commands).unwrap();
        self.on_node(&format!("/usr/sbin/nft -f {}", file.display()));
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        command.arg(name);
        command.arg("--manifests").arg(&self.manifests);
        command
            .arg("--state-file")
            .arg(self.directory.path().join("state"));
        command.args(["--node-name", "node-a", "--dataplane", self.dataplane]);
        command.args(["--cluster-cidr", "10.244.0.0/16,fd00:244::/32"]);
        command
    }

    /// Removes what our proxy made, and serves the first manifests with another dataplane.
    pub(crate) fn change_to(&mut self, dataplane: &'static str) {
        let output = self.cleanup().output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::copy(conformance("cluster.yaml"), &self.manifests).unwrap();
        self.dataplane = dataplane;
        self.run();
    }

    /// Returns the command that removes all that our proxy made.
    pub(crate) fn cleanup(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
        command.arg("cleanup");
        command
            .arg("--state-file")
            .arg(self.directory.path().join("state"));
        command
    }

    /// Programs the kernel.
    pub(crate) fn run(&self) {
        let output = self.command("run").arg("--once").output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Replaces a part of the manifests, and programs the kernel.
    pub(crate) fn edit(&self, old: &str, new: &str) {
        let text = std::fs::read_to_string(&self.manifests).unwrap();
        assert!(text.contains(old), "{old}");
        std::fs::write(&self.manifests, text.replace(old, new)).unwrap();
        self.run();
    }

    pub(crate) fn host(&self, name: &str) -> (&Host, &'static str) {
        match name {
            "pod1" => (&self.cluster.pod1, "10.244.1.2"),
            "pod3" => (&self.cluster.pod3, "10.244.1.4"),
            "peer" => (&self.cluster.peer, "172.18.0.3"),
            "ext" => (&self.cluster.ext, "203.0.113.9"),
            "ext2" => (&self.cluster.ext2, "192.0.2.9"),
            "node" => (&self.cluster.node, "node"),
            other => panic!("{other}"),
        }
    }

    /// Returns the output of `explain`.
    pub(crate) fn explain(&self, from: &str, to: &str, flags: &[&str]) -> Value {
        let mut command = self.command("explain");
        command.args([from, to, "--output", "json"]).args(flags);
        let output = command.output().unwrap();
        let explained: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        explained[0].clone()
    }

    /// Asks a question, compares its first line, and asks as the client.
    #[track_caller]
    pub(crate) fn check(&self, case: &Case) {
        let Case {
            scenario,
            client,
            to,
            outcome,
            cause,
            flags,
        } = *case;
        let (host, from) = self.host(client);
        let explained = self.explain(from, to, flags);
        let text = explained["verdict"]["text"].as_str().unwrap();
        let said = explained["verdict"]["outcome"].as_str().unwrap();
        assert_eq!(said, outcome, "{scenario}: {explained:#}");
        match cause {
            "" => assert!(!text.contains('['), "{scenario}: {text}"),
            cause => assert!(text.contains(cause), "{scenario}: {text}"),
        }
        let answer = host.ask_tcp(to);
        let is_as_said = match outcome {
            "answered" => answer.backend().is_some(),
            "refused" => answer == Answer::Refused,
            "dropped" => answer.backend().is_none() && answer != Answer::Refused,
            _ => true,
        };
        assert!(
            is_as_said,
            "{scenario}: {text}, but the client got {answer}"
        );
    }
}
