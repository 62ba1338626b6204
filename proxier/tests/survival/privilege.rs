//! The program with the rights of its containers in `deploy/`.

use std::process::Command;

use lab::net::{Answer, Cluster};
use serde_json::json;

use super::daemon::{Daemon, web};

/// A shell script that runs its arguments as a container runtime runs those of the DaemonSet's main
/// container: as root with CAP_NET_ADMIN only, without a way to get more, and with kernel settings that
/// cannot be written.
const CONTAINED: &str = r#"
    mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys &&
    exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+net_admin "$@"
"#;

/// Returns `command` with the rights of the main container.
pub(crate) fn contained(command: &Command) -> Command {
    let mut contained = Command::new("unshare");
    contained.args(["--mount", "sh", "-c", CONTAINED, "sh"]);
    contained.arg(command.get_program());
    contained.args(command.get_args());
    contained
}

#[test]
fn after_the_init_container_net_admin_suffices() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        let flags = ["--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0"];
        let mut daemon = Daemon::new(&flags);
        let mut exposed = web(&json!({}));
        exposed["spec"]["type"] = json!("NodePort");
        exposed["spec"]["ports"][0]["nodePort"] = json!(30_080);
        daemon.api.apply(exposed);
        daemon.endpoints(&[(1, 2), (2, 2)]);

        // Without the init container, the log names the settings that the node lacks.
        daemon.start_contained();
        daemon.await_endpoints(&[(1, 2), (2, 2)]);
        daemon.terminate();
        let log = daemon.log();
        assert!(log.contains("net.ipv4.ip_forward=1"), "{log}");
        let before = log.len();

        let init = daemon.command("run").arg("--init-only").output().unwrap();
        assert!(init.status.success(), "{init:?}");
        daemon.start_contained();
        daemon.endpoints(&[(2, 2)]);
        daemon.await_endpoints(&[(2, 2)]);
        daemon.eventually("clients outside are masqueraded", || {
            let answer = cluster.ext.ask_tcp("172.18.0.2:30080");
            matches!(answer, Answer::Reply { source, .. } if source.ip().to_string() == "172.18.0.2")
        });
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        // Bit 12 is CAP_NET_ADMIN.
        for line in ["CapEff:\t0000000000001000", "CapBnd:\t0000000000001000"] {
            assert!(status.contains(line), "no {line}: {status}");
        }
        daemon.terminate();
        let log = &daemon.log()[before..];
        assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");

        let output = contained(&daemon.command("cleanup")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(cluster.pod3.ask_tcp("10.96.1.1:80").backend(), None);
    });
}
