//! Measures scrapes of the daemon's metrics, with series of each Service.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::cluster::Cluster;
use super::daemon::{self, Daemon};
use super::{Flags, megabytes};

/// Maximum CPU time of a scrape.
const MAX_CPU: Duration = Duration::from_millis(150);

/// Maximum growth of the daemon's memory by scrapes, in bytes for each virtual server.
const MAX_BYTES: u64 = 2_000;

/// The number of scrapes whose CPU time is summed up, because the kernel counts it in steps of 10 ms.
const TIMES: u32 = 20;

/// The pause between two scrapes: the daemon answers with the same page for a second.
const PAUSE: Duration = Duration::from_millis(1_100);

/// The series of each virtual server.
const SERIES: u64 = 5;

/// The cost of scrapes.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// The CPU time of the daemon for one scrape, system time included.
    cpu: Duration,
    /// The size of the page in bytes.
    page: u64,
    /// The growth of the highest resident memory, in KiB.
    growth: u64,
}

/// Runs the executable `program` with series of every Service, and scrapes it.
fn measure(program: &Path, cluster: Cluster) -> anyhow::Result<Figures> {
    let server = daemon::api_server(cluster);
    daemon::add_node_address()?;
    // Resyncs would count as scrapes.
    let flags = ["--ipvs-sync-period=1h", "--service-metrics-limit=1000000"];
    let mut daemon = Daemon::start(program, &server, &flags)?;
    daemon.programmed(cluster)?;
    std::thread::sleep(PAUSE);
    let before = daemon.memory()?;
    // An idle daemon costs a little too, which is subtracted.
    let begin = daemon.cpu()?;
    std::thread::sleep(PAUSE * TIMES);
    let idle = daemon.cpu()? - begin;
    let begin = daemon.cpu()?;
    let mut page = 0;
    for _ in 0..TIMES {
        let text = scrape()?;
        // Not the gauge `ipvs_proxier_service_addresses`, which has no labels.
        let is_series =
            |line: &&str| line.starts_with("ipvs_proxier_service_") && line.contains('{');
        let series = text.lines().filter(is_series).count() as u64;
        ensure!(
            series == u64::from(cluster.services) * SERIES,
            "the page has {series} series of Services"
        );
        page = text.len() as u64;
        std::thread::sleep(PAUSE);
    }
    Ok(Figures {
        cpu: (daemon.cpu()? - begin).saturating_sub(idle) / TIMES,
        page,
        growth: daemon.memory()?.peak.saturating_sub(before.resident),
    })
}

/// Asserts that without flags a page of `cluster` has series of 1,000 virtual servers, and that the log says why.
fn without_flags(program: &Path, cluster: Cluster) -> anyhow::Result<String> {
    let server = daemon::api_server(cluster);
    daemon::add_node_address()?;
    let mut daemon = Daemon::start(program, &server, &[])?;
    daemon.programmed(cluster)?;
    let text = scrape()?;
    let series = text
        .matches("ipvs_proxier_service_connections_total{")
        .count();
    ensure!(series == 1_000, "{series} series without a flag");
    std::thread::sleep(PAUSE);
    let log = daemon.log();
    let reason = log
        .into_iter()
        .find(|line| line.contains("--service-metrics-limit"));
    reason.context("no log line names the limit")
}

/// Returns the response of the metrics server.
fn scrape() -> anyhow::Result<String> {
    let mut stream = TcpStream::connect("127.0.0.1:10249").context("the metrics server")?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    ensure!(response.starts_with("HTTP/1.0 200"), "{response:.100}");
    Ok(response)
}

impl Flags {
    /// Prints the cost of a scrape.
    pub(super) fn scrape(&self, exceeded: &mut Vec<String>) -> anyhow::Result<()> {
        let cluster = self.cluster(self.memory_services);
        let program = self.program()?;
        let figures = lab::in_fresh_network(|| measure(&program, cluster))??;
        println!(
            "a scrape with series of every Service, {} Services x {} endpoints, Linux {} (limits: {} ms of \
             CPU; {MAX_BYTES} bytes of memory for each virtual server)\n\n\
             {:.1} ms of CPU; page {}; memory grows by {}",
            cluster.services,
            cluster.endpoints,
            lab::kernel_release(),
            MAX_CPU.as_millis(),
            figures.cpu.as_secs_f64() * 1e3,
            megabytes(figures.page / 1024),
            megabytes(figures.growth),
        );
        if figures.cpu > MAX_CPU && !cfg!(debug_assertions) {
            exceeded.push(format!("a scrape costs {:?} of CPU", figures.cpu));
        }
        if figures.growth * 1024 > u64::from(cluster.services) * MAX_BYTES {
            let growth = megabytes(figures.growth);
            exceeded.push(format!("scrapes make the daemon grow by {growth}"));
        }
        let reason = lab::in_fresh_network(|| without_flags(&program, cluster))??;
        println!("without flags: {reason}\n");
        Ok(())
    }
}
