//! Measures the memory of the daemon while it watches an API server.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use api_server::ApiServer;
use ipvs_netlink::Client;

use super::cluster::{Cluster, NODE, NODE_ADDRESS};
use crate::process::{Memory, ip};

/// The time limit for programming the whole cluster.
const PATIENCE: Duration = Duration::from_secs(240);

/// The memory of a daemon at two points in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// After the whole cluster was programmed.
    pub(crate) started: Memory,
    /// After three resyncs.
    pub(crate) settled: Memory,
}

/// Runs the executable `program` against an API server with the objects of `cluster`.
///
/// The daemon runs in the network namespace of the calling thread.
pub(crate) fn measure(program: &Path, cluster: Cluster) -> anyhow::Result<Figures> {
    let server = ApiServer::start();
    server.apply(cluster.node());
    for number in 0..cluster.services {
        server.apply(cluster.service(number));
        server.apply(cluster.slice(number, cluster.endpoints));
    }
    add_node_address()?;
    let directory = super::temporary("run");
    std::fs::create_dir_all(&directory)?;
    let mut daemon = Daemon::start(program, &server, &directory)?;
    let figures = daemon.watch(cluster);
    drop(daemon);
    std::fs::remove_dir_all(&directory)?;
    figures
}

pub(crate) fn add_node_address() -> anyhow::Result<()> {
    let [a, b, c, d] = NODE_ADDRESS;
    ip(&format!("address add {a}.{b}.{c}.{d}/24 dev lo"))
}

/// The running daemon; killed when dropped.
struct Daemon {
    process: Child,
}

impl Daemon {
    fn start(program: &Path, server: &ApiServer, directory: &Path) -> anyhow::Result<Self> {
        let mut process = Command::new(program)
            .args([
                "run",
                "--master",
                &server.url(),
                "--hostname-override",
                NODE,
            ])
            .args(["--ipvs-sync-period", "5s", "--state-file"])
            .arg(directory.join("state.json"))
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("running {}", program.display()))?;
        // Without a reader the pipe fills up and the daemon blocks on its next log line.
        if let Some(log) = process.stderr.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(log).lines().map_while(Result::ok) {
                    eprintln!("  {line}");
                }
            });
        }
        Ok(Self { process })
    }

    fn watch(&mut self, cluster: Cluster) -> anyhow::Result<Figures> {
        let deadline = Instant::now() + PATIENCE;
        let mut client = Client::open()?;
        while !is_programmed(&mut client, cluster)? {
            if let Some(status) = self.process.try_wait()? {
                bail!("the daemon exited: {status}");
            }
            ensure!(
                Instant::now() < deadline,
                "the cluster is not programmed after {PATIENCE:?}"
            );
            std::thread::sleep(Duration::from_secs(1));
        }
        std::thread::sleep(Duration::from_secs(1));
        let started = self.memory()?;
        // Three periods of `--ipvs-sync-period`, and one second more.
        std::thread::sleep(Duration::from_secs(16));
        let settled = self.memory()?;
        Ok(Figures { started, settled })
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        Memory::of(self.process.id())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // If the daemon has already exited, `kill` fails and `wait` reaps it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether the kernel has a destination for every endpoint of `cluster`.
fn is_programmed(client: &mut Client, cluster: Cluster) -> anyhow::Result<bool> {
    let table = client.table()?;
    let destinations: usize = table.iter().map(|(_, servers)| servers.len()).sum();
    Ok(destinations as u64 == cluster.all_endpoints())
}
