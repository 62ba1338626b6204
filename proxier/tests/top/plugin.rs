//! The plugin of kubectl, with a kubectl that answers from files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A kubectl that lists the Pods in the file `pods`, answers `exec POD` with the file POD, and records its arguments.
const KUBECTL: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
while [ "${1#-}" != "$1" ]; do
    case $1 in -n) shift ;; esac
    shift
done
case $1 in
    get) cat "$here/pods" ;;
    exec)
        [ "$2" != -it ] || shift
        if [ -f "$here/$2" ]; then cat "$here/$2"; else echo "error: $2 does not run" >&2; exit 1; fi ;;
esac
"#;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("deploy")
}

/// A cluster with these nodes, each with the output of its Pod; `None` if it cannot be asked.
struct Cluster(TempDir);

impl Cluster {
    fn new(nodes: &[(&str, Option<&str>)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("kubectl", KUBECTL);
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path().join("kubectl"), executable).unwrap();
        let mut pods = String::new();
        for (node, output) in nodes {
            pods += &format!("{node} pod-of-{node}\n");
            if let Some(output) = output {
                write(&format!("pod-of-{node}"), output);
            }
        }
        write("pods", &pods);
        Self(directory)
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let path = format!(
            "{}:{}",
            self.0.path().display(),
            std::env::var("PATH").unwrap()
        );
        let mut command = Command::new(deploy().join("kubectl-ipvs_proxier"));
        let output = command.args(arguments).env("PATH", path).output().unwrap();
        let Output {
            status,
            stdout,
            stderr,
        } = output;
        let text = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
        (status.code(), text.concat())
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.0.path().join("calls")).unwrap()
    }
}

#[test]
fn the_plugin_asks_the_pod_of_a_node() {
    let cluster = Cluster::new(&[("node-a", Some("of a\n")), ("node-b", Some("of b\n"))]);
    let asked = cluster.run(&[
        "--context=east",
        "--node",
        "node-b",
        "top",
        "--once",
        "shop/web",
    ]);
    assert_eq!(asked, (Some(0), "of b\n".to_owned()));
    let call =
        "--context=east -n kube-system exec pod-of-node-b -- /ipvs-proxier top --once shop/web";
    assert!(
        cluster.calls().lines().any(|line| line == call),
        "{}",
        cluster.calls()
    );
    let (code, text) = cluster.run(&["status"]);
    assert!(
        code == Some(1) && text.contains("nodes with a Pod: node-a node-b"),
        "{text}"
    );
    let (code, text) = cluster.run(&["--node", "node-c", "status"]);
    assert!(
        code == Some(1) && text.contains("no Pod of ipvs-proxier runs on the node node-c"),
        "{text}"
    );
    let (code, text) = cluster.run(&["format-disk"]);
    assert!(
        code == Some(1) && text.contains("unknown option or command: format-disk"),
        "{text}"
    );
    let one = Cluster::new(&[("node-a", Some("alone\n"))]);
    assert_eq!(
        one.run(&["-n", "proxy", "plan"]),
        (Some(0), "alone\n".to_owned())
    );
    assert!(
        one.calls()
            .contains("-n proxy get pods -l app.kubernetes.io/name=ipvs-proxier")
    );
}

#[test]
fn the_plugin_prints_which_nodes_differ() {
    let view = |node: &str, health: &str, round: u32| {
        format!(
            "ipvs-proxier 0.1.0 on {node}, ipvs: {health}\nAPI 3s ago, last round {round}s ago\n\nServices\n"
        )
    };
    let nodes = ["a", "b", "c", "d"].map(|node| {
        let health = if node == "c" {
            "UNHEALTHY the kernel refuses"
        } else {
            "healthy"
        };
        view(node, health, 1)
    });
    let cluster = Cluster::new(&[
        ("a", Some(&nodes[0])),
        ("b", Some(&nodes[1])),
        ("c", Some(&nodes[2])),
        ("d", Some(&nodes[3])),
    ]);
    let (code, text) = cluster.run(&["-A", "top"]);
    assert_eq!(code, Some(3), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("==")).collect();
    assert_eq!(lines, ["== 3 nodes: a b d", "== 1 node: c"], "{text}");
    assert!(text.contains("UNHEALTHY the kernel refuses"), "{text}");
    assert!(cluster.calls().contains("/ipvs-proxier top --once"));

    // Connections differ on every node.
    let table = |active: u32| {
        format!(
            "TCP 10.96.0.1:443  rr  default/kubernetes\n  -> 10.0.0.1:6443   Masquerade  1  {active}  7\n"
        )
    };
    let same = Cluster::new(&[("a", Some(&table(1))), ("b", Some(&table(900)))]);
    let (code, text) = same.run(&["-A", "status"]);
    assert_eq!((code, text.matches("==").count()), (Some(0), 1), "{text}");

    let silent = Cluster::new(&[("a", Some(&table(1))), ("b", None)]);
    let (code, text) = silent.run(&["-A", "status"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("== 1 node: b\nerror: pod-of-b does not run"),
        "{text}"
    );
}

/// The real kubectl takes the file for the plugin `ipvs-proxier`.
#[test]
fn kubectl_finds_the_plugin() {
    let Some(tools) = std::env::var_os("DEPLOY_TOOLS") else {
        assert!(
            std::env::var_os("PEERS_REQUIRED").is_none(),
            "DEPLOY_TOOLS is not set"
        );
        return eprintln!("skipped: DEPLOY_TOOLS names no folder with kubectl");
    };
    let path = format!("{}:{}", deploy().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(Path::new(&tools).join("kubectl"));
    let output = command
        .args(["ipvs-proxier", "--help"])
        .env("PATH", path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.starts_with("kubectl ipvs-proxier [OPTION ..]"),
        "{text}"
    );
}
