//! Measures the memory of the daemon while it watches an API server.

use std::path::Path;
use std::time::Duration;

use super::cluster::Cluster;
use super::daemon::{self, Daemon};
use super::{Flags, megabytes};
use crate::process::Memory;

/// Maximum resident memory of 10,000 x 10, in megabytes: of the static program, the only one that is shipped
/// (`--proxier`).
const MAX_MEGABYTES: u64 = 30;

/// Runs the executable `program` against an API server with the objects of `cluster`.
///
/// Returns its memory after the whole cluster was programmed, and after three resyncs. The daemon runs in
/// the network namespace of the calling thread.
fn measure(program: &Path, cluster: Cluster) -> anyhow::Result<[Memory; 2]> {
    let server = daemon::api_server(cluster);
    daemon::add_node_address()?;
    let mut daemon = Daemon::start(program, &server, &["--ipvs-sync-period=5s"])?;
    daemon.programmed(cluster)?;
    std::thread::sleep(Duration::from_secs(1));
    let programmed = daemon.memory()?;
    // Three resyncs of 5 s each, and one second for the last of them to end.
    std::thread::sleep(Duration::from_secs(16));
    Ok([programmed, daemon.memory()?])
}

impl Flags {
    /// Prints the memory at both times.
    pub(super) fn memory(&self, exceeded: &mut Vec<String>) -> anyhow::Result<()> {
        let cluster = self.cluster(self.memory_services);
        let program = self.program()?;
        let figures = lab::in_fresh_network(|| measure(&program, cluster))??;
        println!(
            "memory of the daemon, {} Services x {} endpoints, Linux {} (limit: {MAX_MEGABYTES} MB)\n",
            cluster.services,
            cluster.endpoints,
            lab::kernel_release(),
        );
        if figures[1].resident * 1024 > MAX_MEGABYTES * 1_000_000 {
            exceeded.push(format!(
                "the daemon has more than {MAX_MEGABYTES} MB of resident memory"
            ));
        }
        for (when, memory) in ["programmed", "read back"].into_iter().zip(figures) {
            let Memory {
                resident,
                anonymous,
                peak,
            } = memory;
            let per_endpoint = anonymous * 1024 / cluster.all_endpoints().max(1);
            println!(
                "{when:>12}  resident {}, of which data {}; peak {}; data per endpoint \
                 {per_endpoint} bytes",
                megabytes(resident),
                megabytes(anonymous),
                megabytes(peak),
            );
        }
        Ok(())
    }
}
