//! The real program, while it watches an API server in this process.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use api_server::ApiServer;
use ipvs_netlink::Client;

use super::cluster::{Cluster, NODE, NODE_ADDRESS};
use crate::process::{self, Cpu, Memory, ip};

/// The time limit for programming the whole cluster.
const PATIENCE: Duration = Duration::from_secs(240);

/// The running daemon. Dropping it kills it.
pub(crate) struct Daemon {
    process: Child,
    began: Instant,
    directory: PathBuf,
    /// The lines of the log, each with the time of its arrival.
    log: Receiver<(Instant, String)>,
}

/// Returns an API server with the objects of `cluster`.
pub(crate) fn api_server(cluster: Cluster) -> ApiServer {
    let server = ApiServer::start();
    server.apply(cluster.node());
    for number in 0..cluster.services {
        server.apply(cluster.service(number));
        server.apply(cluster.slice(number, cluster.endpoints));
    }
    server
}

/// Adds the address of the node to the loopback device.
pub(crate) fn add_node_address() -> anyhow::Result<()> {
    let [a, b, c, d] = NODE_ADDRESS;
    ip(&format!("address add {a}.{b}.{c}.{d}/24 dev lo"))
}

impl Daemon {
    /// Starts the executable `program` in the network namespace of the calling thread.
    pub(crate) fn start(
        program: &Path,
        server: &ApiServer,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let directory = process::temporary("run");
        std::fs::create_dir_all(&directory)?;
        let began = Instant::now();
        let mut process = Command::new(program)
            .args(["run", "--master", &server.url()])
            .args(["--hostname-override", NODE])
            .arg("--state-file")
            .arg(directory.join("state.json"))
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("running {}", program.display()))?;
        let (sender, log) = channel();
        // Without a reader the pipe fills up and the daemon blocks on its next log line.
        if let Some(errors) = process.stderr.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    let arrival = Instant::now();
                    eprintln!("  {line}");
                    // Fails after the daemon was dropped.
                    let _ = sender.send((arrival, line));
                }
            });
        }
        Ok(Self {
            process,
            began,
            directory,
            log,
        })
    }

    /// Waits until the first round has programmed `cluster`.
    ///
    /// Returns the time from the start of the process to the log line of the round.
    pub(crate) fn programmed(&mut self, cluster: Cluster) -> anyhow::Result<Duration> {
        let deadline = Instant::now() + PATIENCE;
        let arrival = loop {
            let patience = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(patience) {
                Ok((arrival, line)) if line.contains("synced") => break arrival,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the cluster is not programmed after {PATIENCE:?}")
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the daemon exited: {}", self.process.wait()?)
                }
            }
        };
        let table = Client::open()?.table()?;
        let destinations: usize = table.iter().map(|(_, servers)| servers.len()).sum();
        ensure!(
            destinations as u64 == cluster.all_endpoints(),
            "the first round programmed {destinations} destinations"
        );
        Ok(arrival - self.began)
    }

    /// Returns the log lines since the last call.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.try_iter().map(|(_, line)| line).collect()
    }

    /// Returns the memory of the process.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        Memory::of(self.process.id())
    }

    /// Returns the CPU time of the process so far, in steps of 10 ms.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let cpu = Cpu::of(self.process.id())?;
        Ok(Duration::from_secs_f64(cpu.user + cpu.system))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // If the daemon has already exited, `kill` fails and `wait` reaps it. An error of the last call
        // leaves only files in the directory for temporary files.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
