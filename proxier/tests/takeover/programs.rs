//! The processes: kube-proxy and ours.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::scene::Scene;

/// The iptables that kube-proxy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Iptables {
    Nft,
    Legacy,
}

impl Iptables {
    /// Fills `folder` with the commands that kube-proxy runs.
    pub(crate) fn link(self, folder: &Path) {
        let multi = match self {
            Self::Nft => "/usr/sbin/xtables-nft-multi",
            Self::Legacy => "/usr/sbin/xtables-legacy-multi",
        };
        for family in ["iptables", "ip6tables"] {
            for command in ["", "-save", "-restore"] {
                symlink(multi, folder.join(format!("{family}{command}"))).unwrap();
            }
        }
    }
}

/// The folder with the real programs, if there is one.
pub(crate) fn assets() -> Option<PathBuf> {
    let assets = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?);
    assets.join("kube-proxy").is_file().then_some(assets)
}

/// A process whose log is a file.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(name: &'static str, mut command: Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).unwrap();
        let command = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        Self {
            name,
            child: command.spawn().unwrap(),
            log: log.to_owned(),
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn terminate(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the process has ended, with success.
    #[track_caller]
    pub(crate) fn await_success(&mut self, what: &str) {
        await_true(what, || !self.is_running());
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
    }

    /// Waits until `is_true` returns true.
    #[track_caller]
    pub(crate) fn eventually(&self, what: &str, is_true: impl FnMut() -> bool) {
        await_true(what, is_true);
    }
}

#[track_caller]
fn await_true(what: &str, mut is_true: impl FnMut() -> bool) {
    let comes_true = lab::await_true(Duration::from_millis(500), || {
        let begin = Instant::now();
        let is_true = is_true();
        if !is_true {
            // Most conditions are processes, and the lab has one processor.
            std::thread::sleep(2 * begin.elapsed());
        }
        is_true
    });
    assert!(comes_true, "never came true: {what}");
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(60)..];
            eprintln!("--- {}\n{}", self.name, last.join("\n"));
        }
    }
}

/// Our daemon.
pub(crate) struct Ours(Process);

impl Ours {
    pub(crate) fn start(scene: &Scene) -> Self {
        Self::with(scene, "ipvs")
    }

    /// Starts the daemon with a dataplane.
    pub(crate) fn with(scene: &Scene, dataplane: &str) -> Self {
        let mut command = scene.our_command("run");
        command.args(scene.flags());
        command.args(["--dataplane", dataplane]);
        // kube-proxy's leftovers are removed after they were quiet for longer than this.
        command.arg("--ipvs-sync-period=4s");
        Self(Process::start(
            "ipvs-proxier",
            command,
            &scene.file("ours.log"),
        ))
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }

    pub(crate) fn terminate(&mut self) {
        self.0.terminate();
    }

    #[track_caller]
    pub(crate) fn eventually(&self, what: &str, is_true: impl FnMut() -> bool) {
        self.0.eventually(what, is_true);
    }

    pub(crate) fn log(&self) -> String {
        self.0.log()
    }

    /// Waits until the log has a command that begins with `begin`, and returns it.
    #[track_caller]
    pub(crate) fn await_command(&self, begin: &str) -> String {
        let mut found = None;
        self.0.eventually(begin, || {
            let log = self.0.log();
            let at = log.find(&format!("`{begin}"));
            found = at.and_then(|at| Some(log[at + 1..].split_once('`')?.0.to_owned()));
            found.is_some()
        });
        found.unwrap()
    }
}
