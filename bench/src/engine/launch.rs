//! Measures the time from the start of the real program to the end of its first programming.

use std::path::Path;
use std::time::Duration;

use super::Flags;
use super::cluster::Cluster;
use super::daemon::{self, Daemon};

/// Maximum duration.
const MAX: Duration = Duration::from_secs(1);

/// The number of starts.
const TIMES: usize = 5;

/// Starts the executable `program` several times, each time on a node without state.
///
/// Returns the durations, sorted. The API server, which has all objects in memory, answers at once.
fn measure(program: &Path, cluster: Cluster) -> anyhow::Result<Vec<Duration>> {
    let mut durations = Vec::new();
    for _ in 0..TIMES {
        durations.push(lab::in_fresh_network(|| {
            let server = daemon::api_server(cluster);
            daemon::add_node_address()?;
            Daemon::start(program, &server, &[])?.programmed(cluster)
        })??);
    }
    durations.sort();
    Ok(durations)
}

impl Flags {
    /// Prints the durations.
    pub(super) fn launch(&self, exceeded: &mut Vec<String>) -> anyhow::Result<()> {
        let cluster = self.cluster(self.launch_services);
        let durations = measure(&self.program()?, cluster)?;
        let median = durations[TIMES / 2];
        println!(
            "from the start of the process to the end of the first programming, {} Services x {} endpoints, \
             Linux {} (limit: {MAX:?}): median {} ms, {} to {} ms\n",
            cluster.services,
            cluster.endpoints,
            lab::kernel_release(),
            median.as_millis(),
            durations[0].as_millis(),
            durations[TIMES - 1].as_millis(),
        );
        if median > MAX && !cfg!(debug_assertions) {
            exceeded.push(format!("the first programming takes {median:?}"));
        }
        Ok(())
    }
}
