//! The program on a machine without any other program.

use std::path::{Path, PathBuf};
use std::process::Command;

use lab::net::{Answer, Cluster};
use serde_json::json;

use super::daemon::{Daemon, web};

/// A shell script that runs its arguments in a mount namespace without programs. `$0` is an empty directory.
const ALONE: &str = r#"
    for directory in /usr/local/bin /usr/local/sbin /sbin /bin /usr/sbin /usr/bin; do
        test ! -d "$directory" || /usr/bin/mount --bind "$0" "$directory"
    done
    exec "$@"
"#;

/// Returns `command` without environment and without any other program: no iptables, ipset, nft,
/// conntrack or modprobe, neither by `PATH` nor by an absolute path.
pub(crate) fn alone(command: &Command, empty: &Path) -> Command {
    let mut alone = Command::new("/usr/bin/unshare");
    alone.args(["--mount", "/usr/bin/sh", "-c", ALONE]);
    alone.arg(empty).arg(command.get_program());
    alone.args(command.get_args()).env_clear();
    alone
}

#[test]
fn the_program_needs_no_other_program() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let mut daemon = Daemon::new(&["--cluster-cidr", "10.244.0.0/16"]);
        let mut exposed = web(&json!({}));
        exposed["spec"]["type"] = json!("NodePort");
        exposed["spec"]["ports"][0]["nodePort"] = json!(30_080);
        daemon.api.apply(exposed);
        daemon.endpoints(&[(1, 2), (2, 2)]);
        daemon.start_alone();
        daemon.await_endpoints(&[(1, 2), (2, 2)]);
        daemon.eventually("clients outside are masqueraded", || {
            let answer = cluster.ext.ask_tcp("172.18.0.2:30080");
            matches!(answer, Answer::Reply { source, .. } if source.ip().to_string() == "172.18.0.2")
        });
        for program in ["usr/sbin/nft", "usr/bin/ip", "bin/sh"] {
            let path = PathBuf::from(format!("/proc/{}/root/{program}", daemon.pid()));
            assert!(!path.exists(), "{program} exists");
        }
        daemon.endpoints(&[(2, 2)]);
        daemon.await_endpoints(&[(2, 2)]);
        assert_eq!(
            cluster.pod3.ask_tcp("10.96.1.1:80").backend(),
            Some("podB1")
        );
        daemon.terminate();
        for command in ["status", "cleanup"] {
            let output = daemon.run_alone(command);
            assert!(output.status.success(), "{output:?}");
        }
        assert_eq!(cluster.pod3.ask_tcp("10.96.1.1:80").backend(), None);
        let log = daemon.log().to_lowercase();
        assert!(!log.contains("no such file"), "{log}");
    });
}
