//! The relays that are compared, each in a process of its own.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::endpoints::ECHO;
use crate::process::Memory;

/// The time within which a relay must accept connections.
const PATIENCE: Duration = Duration::from_secs(10);

/// A relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(super) enum Contestant {
    /// The barest relay.
    Barest,
    /// HAProxy, `mode tcp`.
    Haproxy,
    /// nginx, `stream`.
    Nginx,
    /// The relay of the userspace dataplane.
    Ours,
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Barest => "barest",
            Self::Haproxy => "HAProxy",
            Self::Nginx => "nginx",
            Self::Ours => "ours",
        })
    }
}

impl Contestant {
    /// Returns the address at which the relay listens. The configuration files of the peers name
    /// it, too.
    pub(super) fn address(self) -> Ipv4Addr {
        match self {
            Self::Barest => Ipv4Addr::new(127, 0, 0, 11),
            Self::Haproxy => Ipv4Addr::new(127, 0, 0, 12),
            Self::Nginx => Ipv4Addr::new(127, 0, 0, 13),
            Self::Ours => Ipv4Addr::new(127, 0, 0, 14),
        }
    }

    /// Returns the name and version of a peer's program.
    pub(super) fn version(self) -> Option<String> {
        let program = match self {
            Self::Haproxy => HAPROXY,
            Self::Nginx => NGINX,
            Self::Barest | Self::Ours => return None,
        };
        let output = Command::new(program).arg("-v").output().ok()?;
        // nginx writes to standard error.
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let words = text.lines().next()?.replace("nginx version: ", "");
        let version: Vec<&str> = words.split_whitespace().take(3).collect();
        Some(version.join(" "))
    }

    pub(super) fn has_datagrams(self) -> bool {
        self != Self::Haproxy
    }

    pub(super) fn is_peer(self) -> bool {
        matches!(self, Self::Haproxy | Self::Nginx)
    }

    /// Returns the Debian packages that the relay needs and the machine lacks.
    fn missing(self) -> &'static [&'static str] {
        let has = |path: &str| Path::new(path).exists();
        match self {
            Self::Haproxy if !has(HAPROXY) => &["haproxy"],
            Self::Nginx if !has(NGINX) || !has(NGINX_STREAM) => &["nginx", "libnginx-mod-stream"],
            _ => &[],
        }
    }

    fn command(self, workers: usize, directory: &Path) -> anyhow::Result<Command> {
        let configured = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            Ok(path)
        };
        Ok(match self {
            Self::Haproxy => {
                let text = include_str!("../../relay/haproxy.cfg");
                let mut command = Command::new(HAPROXY);
                // -db: one process, in the foreground.
                command
                    .arg("-db")
                    .arg("-f")
                    .arg(configured("haproxy.cfg", text)?);
                command.env("WORKERS", workers.to_string());
                command
            }
            Self::Nginx => {
                let text = include_str!("../../relay/nginx.conf");
                let pid = directory.join("nginx.pid");
                let mut command = Command::new(NGINX);
                command.arg("-c").arg(configured("nginx.conf", text)?);
                command.arg("-p").arg(directory).args(["-e", "stderr"]);
                let global = format!("worker_processes {workers}; pid {};", pid.display());
                command.arg("-g").arg(global);
                command
            }
            Self::Barest | Self::Ours => {
                let program = std::env::current_exe().context("finding this program")?;
                let mut command = Command::new(program);
                let role = if self == Self::Ours { "ours" } else { "barest" };
                command.args(["relay", "--role", role]);
                command.args(["--workers", &workers.to_string()]);
                command
            }
        })
    }
}

const HAPROXY: &str = "/usr/sbin/haproxy";
const NGINX: &str = "/usr/sbin/nginx";
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Fails if a program is missing, and names the packages.
pub(super) fn ensure_installed(contestants: &[Contestant]) -> anyhow::Result<()> {
    let missing = contestants
        .iter()
        .flat_map(|it| it.missing().iter().copied());
    let missing: Vec<&str> = missing.collect();
    ensure!(
        missing.is_empty(),
        "missing Debian packages: {0}\n  sudo RUNLEVEL=1 apt-get install --no-install-recommends {0}",
        missing.join(" ")
    );
    Ok(())
}

/// A running relay. Dropping it ends its process.
#[derive(Debug)]
pub(super) struct Running {
    contestant: Contestant,
    child: Child,
}

impl Running {
    /// Starts a relay on the processors `processors`, and waits until it accepts connections.
    pub(super) fn start(
        contestant: Contestant,
        workers: usize,
        processors: &CpuSet,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let mut command = contestant.command(workers, directory)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // A child inherits the processors of the thread that starts it.
        let own = sched_getaffinity(None)?;
        sched_setaffinity(None, processors)?;
        let child = command.spawn();
        sched_setaffinity(None, &own)?;
        let child = child.with_context(|| format!("starting {contestant}"))?;
        let mut running = Self { contestant, child };
        running.wait_until_it_accepts()?;
        Ok(running)
    }

    fn wait_until_it_accepts(&mut self) -> anyhow::Result<()> {
        let address = SocketAddrV4::new(self.contestant.address(), ECHO);
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at once: {status}", self.contestant);
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "{} does not listen at {address}",
                self.contestant
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(super) fn contestant(&self) -> Contestant {
        self.contestant
    }

    /// Returns the CPU time of all its threads and processes.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        let mut nanos = 0;
        for process in self.processes()? {
            for task in fs::read_dir(format!("/proc/{process}/task"))? {
                // The first number is the time on a processor, in nanoseconds. `stat` has it in
                // ticks of 10 ms only.
                let statistics = fs::read_to_string(task?.path().join("schedstat"))?;
                let time = statistics.split_whitespace().next();
                nanos += time.context("an empty schedstat")?.parse::<u64>()?;
            }
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Returns the resident memory of all its processes, in bytes.
    pub(super) fn resident(&self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        for process in self.processes()? {
            bytes += Memory::of(process)?.resident * 1_024;
        }
        Ok(bytes)
    }

    /// Returns the relay's process and its children: the workers of nginx are processes.
    fn processes(&self) -> anyhow::Result<Vec<u32>> {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"))?;
        let children = children.split_whitespace().map(str::parse);
        let mut processes = children.collect::<Result<Vec<u32>, _>>()?;
        processes.push(own);
        Ok(processes)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After SIGKILL the workers of nginx would keep running; on SIGTERM nginx ends them.
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(process, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
