//! What `run` does with flags and files, apart from writing a configuration.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::programs::{file, ours};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ipvs-proxier");

/// A folder with manifests of no object, and flags for a plan that needs no privilege.
struct Scene(TempDir);

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("manifests.yaml"), "# none\n").unwrap();
        Self(folder)
    }

    /// Returns the log of `plan --against empty` with these flags.
    fn plan(&self, flags: &[&str]) -> String {
        String::from_utf8(self.output(flags).stderr).unwrap()
    }

    fn output(&self, flags: &[&str]) -> Output {
        Command::new(PROGRAM)
            .args(["plan", "--against", "empty", "--manifests"])
            .arg(self.0.path().join("manifests.yaml"))
            .args(flags.iter().filter(|flag| !flag.is_empty()))
            .env_remove("RUST_LOG")
            .output()
            .unwrap()
    }
}

#[test]
fn a_flag_without_effect_is_named_once_with_the_reason() {
    let flags = ["--kube-api-qps=50", "--kube-api-qps=60", "--profiling"];
    let log = Scene::new().plan(&flags);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(
        lines[0].contains("--kube-api-qps has no effect here: "),
        "{log}"
    );
    assert!(
        lines[1].contains("--profiling has no effect here: "),
        "{log}"
    );
}

#[test]
fn flags_with_an_effect_cause_no_warning() {
    let flags = [
        "--proxy-mode=ipvs",
        "--ipvs-sync-period=9s",
        "--ipvs-min-sync-period=2s",
        "--ipvs-scheduler=wrr",
        "--cluster-cidr=10.0.0.0/8",
        "--masquerade-all",
        "--oom-score-adj=-998",
        "--healthz-bind-address=127.0.0.1:1",
        "--conntrack-max-per-core=0",
        "-v=2",
    ];
    let log = Scene::new().plan(&flags);
    assert!(!log.contains("WARN"), "{log}");
}

#[test]
fn the_mode_iptables_causes_a_warning() {
    let log = Scene::new().plan(&["--proxy-mode=iptables", "--iptables-sync-period=9s"]);
    assert!(
        log.contains("--proxy-mode: this program programs IPVS"),
        "{log}"
    );
    let log = Scene::new().plan(&["--proxy-mode=ipvs", "--iptables-sync-period=9s"]);
    assert!(
        log.contains("--iptables-sync-period has no effect here"),
        "{log}"
    );
}

#[test]
fn settings_that_kube_proxy_checks_only_in_ipvs_mode_are_checked_in_every_mode() {
    for (flags, message) in [
        (
            "--ipvs-exclude-cidrs=10.0.0.0/8,foo",
            "--ipvs-exclude-cidrs: invalid value \"foo\": must be a valid CIDR",
        ),
        (
            "--ipvs-tcp-timeout=-1s",
            "--ipvs-tcp-timeout: invalid value \"-1s\"",
        ),
        (
            "--ipvs-udp-timeout=2000000h",
            "--ipvs-udp-timeout: invalid value",
        ),
        (
            "--ipvs-sync-period=0",
            "--ipvs-sync-period: invalid value \"0s\": must be greater than 0",
        ),
        (
            "--ipvs-min-sync-period=31s",
            "must be greater than or equal to ipvs.minSyncPeriod (31s)",
        ),
        (
            "--ipvs-min-sync-period=-1s",
            "--ipvs-min-sync-period: invalid value \"-1s\"",
        ),
        (
            "--ipvs-scheduler=a_name_that_is_too_long",
            "--ipvs-scheduler: ",
        ),
    ] {
        let log = Scene::new().plan(&[flags]);
        assert!(log.contains(message), "{flags}: {log}");
    }
}

#[test]
fn the_gate_of_external_ips_removes_them_from_the_plan() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\nspec:\n  \
                   clusterIP: 10.96.0.1\n  externalIPs: [192.0.2.1]\n  ports: [{port: 80}]\n";
    let scene = Scene::new();
    std::fs::write(scene.0.path().join("manifests.yaml"), service).unwrap();
    for (flag, is_served) in [
        ("", true),
        ("--feature-gates=AllowServiceExternalIPs=false", false),
    ] {
        let output = scene.output(&[flag, "-o", "json"]);
        let plan = String::from_utf8(output.stdout).unwrap();
        assert!(plan.contains("10.96.0.1"), "{plan}");
        assert_eq!(plan.contains("192.0.2.1"), is_served, "{flag}: {plan}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("no effect"));
    }
}

#[test]
fn verbosity_and_format_of_the_log_are_those_of_flags_and_file() {
    let scene = Scene::new();
    let path = scene.0.path().join("config.yaml");
    std::fs::write(&path, file("mode: ipvs\nfoo: 1\nlogging: {format: json}")).unwrap();
    let config = format!("--config={}", path.display());
    let log = scene.plan(&[&config]);
    let line: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(line["level"], "warn", "{log}");
    assert!(
        line["msg"]
            .as_str()
            .unwrap()
            .contains(":4: foo: is an unknown field"),
        "{log}"
    );
    let log = scene.plan(&[&config, "--logging-format=text"]);
    assert!(serde_json::from_str::<serde_json::Value>(log.lines().next().unwrap()).is_err());
}

#[test]
fn the_version_is_printed_whatever_the_other_flags_say() {
    let expected = format!("ipvs-proxier {}\n", env!("CARGO_PKG_VERSION"));
    for flags in [
        &["--version"][..],
        &["--version=true", "--config=/nonexistent"],
    ] {
        let output = Command::new(PROGRAM).args(flags).output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
    let output = Command::new(PROGRAM).arg("--version=raw").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("version="), "{text}");
}

#[test]
fn a_command_line_of_kube_proxy_needs_no_command() {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("written");
    let output = Command::new(PROGRAM)
        .arg("--proxy_mode=ipvs")
        .arg("--write-config-to")
        .arg(&written)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        std::fs::read_to_string(written)
            .unwrap()
            .contains("\nmode: ipvs\n")
    );
}

#[test]
fn kube_proxy_accepts_empty_arguments_and_so_does_run() {
    let folder = tempfile::tempdir().unwrap();
    let written = format!(
        "--write-config-to={}",
        folder.path().join("written").display()
    );
    let output = ours().run(&["", &written]);
    assert!(output.status.success(), "{output:?}");
    let output = ours().run(&["x", &written]);
    assert!(!output.status.success(), "{output:?}");
}

/// A daemon that is killed when it is dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if the process has exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_changed_configuration_file_ends_the_daemon_with_exit_code_1() {
    lab::test(|| {
        // Not in the lab's own file system, hostfs: Linux 6.1 makes a new inode for each lookup there, so
        // that no notification reaches a watch.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("config.yaml");
        let manifests = folder.path().join("manifests.yaml");
        std::fs::write(&manifests, "# none\n").unwrap();
        // The third row is the update of a ConfigMap, which kube-proxy does not notice either.
        for (change, code) in [("write", Some(1)), ("rename", Some(1)), ("swap", Some(0))] {
            let real = folder.path().join("real.yaml");
            std::fs::write(&real, file("mode: ipvs\noomScoreAdj: 77")).unwrap();
            let _ = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(&real, &path).unwrap();
            let mut daemon = Daemon(
                Command::new(PROGRAM)
                    .args(["run", "--node-name=node-a", "--config"])
                    .arg(&path)
                    .arg("--manifests")
                    .arg(&manifests)
                    .arg("--state-file")
                    .arg(folder.path().join("state"))
                    .stderr(Stdio::piped())
                    .env_remove("RUST_LOG")
                    .spawn()
                    .unwrap(),
            );
            let mut log = BufReader::new(daemon.0.stderr.take().unwrap()).lines();
            let is_running = |line: &String| line.contains("programming IPVS for node node-a");
            let mut lines = log.by_ref().map_while(Result::ok);
            assert!(lines.any(|line| is_running(&line)));
            let score = format!("/proc/{}/oom_score_adj", daemon.0.id());
            assert_eq!(std::fs::read_to_string(score).unwrap().trim(), "77");
            match change {
                "write" => std::fs::write(&real, file("mode: iptables")).unwrap(),
                "rename" => std::fs::rename(&real, folder.path().join("old")).unwrap(),
                _ => {
                    std::fs::remove_file(&path).unwrap();
                    std::os::unix::fs::symlink(&manifests, &path).unwrap();
                    kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
                }
            }
            assert_eq!(daemon.0.wait().unwrap().code(), code, "{change}");
            let rest: Vec<String> = log.map_while(Result::ok).collect();
            let is_named = rest
                .iter()
                .any(|line| line.contains("config.yaml changed; exiting"));
            assert_eq!(is_named, code == Some(1), "{change}: {rest:?}");
        }
    });
}

#[test]
fn init_only_writes_kernel_settings_and_ipvs_timeouts_and_exits() {
    lab::test(|| {
        let output = Command::new(PROGRAM)
            .args([
                "--init-only",
                "--conntrack-max-per-core=0",
                "--ipvs-tcp-timeout=600s",
            ])
            .args(["--conntrack-tcp-timeout-established=2h"])
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap();
        assert_eq!(read("net/ipv4/vs/conntrack").trim(), "1");
        assert_eq!(
            read("net/netfilter/nf_conntrack_tcp_timeout_established").trim(),
            "7200"
        );
        let mut client = ipvs_netlink::Client::open().unwrap();
        assert_eq!(client.timeouts().unwrap().tcp_secs, 600);
        assert!(client.services().unwrap().is_empty());
    });
}

#[test]
fn a_usage_error_is_no_change_of_a_plan() {
    for flags in [
        &["--bogus"][..],
        &["--arp=srvices"],
        &["--drain-timeout=600"],
    ] {
        let output = Scene::new().output(flags);
        assert_eq!(output.status.code(), Some(1), "{flags:?}: {output:?}");
    }
    let output = Command::new(PROGRAM).args(["plan", "--help"]).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
}

#[test]
fn of_an_own_flag_the_last_value_counts_and_lists_of_kube_proxy_grow() {
    let log = Scene::new().plan(&["--arp=off", "--arp=services", "--service-addresses=dummy"]);
    assert!(!log.contains("cannot be used"), "{log}");
    let output = Command::new(PROGRAM)
        .args([
            "run",
            "--nodeport-addresses=10.0.0.0/8",
            "--nodeport-addresses=11.0.0.0/8",
        ])
        .arg("--write-config-to=-")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("10.0.0.0/8") && text.contains("11.0.0.0/8"),
        "{text}"
    );
}

#[test]
fn the_kubeconfig_of_a_plan_counts_beside_a_file_that_names_one_of_a_pod() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.conf");
    let content = "clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}";
    std::fs::write(&path, file(content)).unwrap();
    let config = format!("--config={}", path.display());
    let run = |command: &str| {
        let output = Command::new(PROGRAM)
            .args([
                command,
                &config,
                "--kubeconfig=/no/such/file",
                "--node-name=us",
            ])
            .args((command == "plan").then_some("--against=empty"))
            .args((command == "run").then_some("--dataplane=userspace"))
            .arg(format!(
                "--state-file={}",
                folder.path().join("state").display()
            ))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let log = run("plan");
    assert!(
        log.contains("kubeconfig /no/such/file") && !log.contains("ignored"),
        "{log}"
    );
    let log = run("run");
    assert!(
        log.contains("kubeconfig /var/lib/kube-proxy/kubeconfig.conf"),
        "{log}"
    );
    assert!(
        log.contains("these flags are ignored: --kubeconfig"),
        "{log}"
    );
}

#[test]
fn a_log_that_nobody_reads_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = folder.path().join("manifests.yaml");
    std::fs::write(&manifests, "# none\n").unwrap();
    let mut child = Command::new(PROGRAM)
        .args([
            "run",
            "--once",
            "--dataplane=userspace",
            "--node-name=us",
            "--manifests",
        ])
        .arg(&manifests)
        .arg(format!(
            "--state-file={}",
            folder.path().join("state").display()
        ))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_configuration_is_written_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    std::fs::write(&log, "before\n").unwrap();
    for name in ["-", "/dev/stdout"] {
        let file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
        let status = Command::new(PROGRAM)
            .args(["run", &format!("--write-config-to={name}")])
            .stdout(file)
            .current_dir(&folder)
            .status()
            .unwrap();
        assert!(status.success());
    }
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("before\napiVersion"), "{text}");
    assert_eq!(text.matches("kind: KubeProxyConfiguration").count(), 2);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}
