//! The command line: flags in, an exit code out.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipvs_netlink as ipvs;

use crate::ledger::{LedgerFile, LedgerLock, LockError};
use crate::plan::{self, NodePortAddresses, PlanConfig};

use packet_flags::PacketFlags;
use source::SourceFlags;

mod cleanup_command;
mod packet_flags;
mod plan_command;
mod run_command;
mod source;
mod status_command;
mod sysctl_flags;

/// A service proxy for Kubernetes nodes that programs the kernel's IPVS.
#[derive(Debug, Parser)]
#[command(name = "ipvs-proxier", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Programs the kernel and follows the API server, or manifests.
    Run(run_command::Flags),
    /// Prints what would change. Exits 0 when nothing would, 2 when something would, 1 on error.
    Plan(plan_command::Flags),
    /// Prints the kernel's table of virtual servers, with Service names where known.
    Status(status_command::Flags),
    /// Removes everything from the kernel that this program made. Connections break.
    Cleanup(cleanup_command::Flags),
}

impl Cli {
    /// Does what the command line says.
    ///
    /// # Errors
    /// One line that says what was being done and what happened; the exit code is 1 then.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(flags) => flags.run(),
            Command::Plan(flags) => flags.run(),
            Command::Status(flags) => flags.run(),
            Command::Cleanup(flags) => flags.run(),
        }
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// What is served, and as which node.
#[derive(Args, Debug)]
struct NodeFlags {
    #[command(flatten)]
    source: SourceFlags,

    /// The name of this node, as endpoints name it [default: the host name].
    #[arg(long, visible_alias = "hostname-override", value_name = "NAME")]
    node_name: Option<String>,

    #[command(flatten)]
    packets: PacketFlags,

    /// Addresses of this node that serve node ports: networks, or the word primary [default: all].
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    nodeport_addresses: Vec<String>,

    /// The scheduler of virtual servers.
    #[arg(long, value_name = "NAME", default_value = "rr")]
    ipvs_scheduler: ipvs::SchedulerName,

    /// How service addresses become local.
    #[arg(long, value_enum, default_value_t)]
    service_addresses: ServiceAddresses,

    /// How long a removed TCP endpoint may keep its connections; 0 = not at all.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    drain_timeout: DurationFlag,
}

/// [`plan::ServiceAddresses`] as the command line spells it.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ServiceAddresses {
    /// Local routes, with the node's address as their source.
    #[default]
    Routes,
    /// Addresses on the device kube-ipvs0.
    Dummy,
}

impl From<ServiceAddresses> for plan::ServiceAddresses {
    fn from(choice: ServiceAddresses) -> Self {
        match choice {
            ServiceAddresses::Routes => Self::Routes,
            ServiceAddresses::Dummy => Self::Dummy,
        }
    }
}

impl NodeFlags {
    fn node_name(&self) -> anyhow::Result<Arc<str>> {
        let name = match &self.node_name {
            Some(name) => name.trim().to_lowercase(),
            None => {
                let host = rustix::system::uname();
                host.nodename().to_string_lossy().trim().to_lowercase()
            }
        };
        anyhow::ensure!(!name.is_empty(), "this host has no name; pass --node-name");
        Ok(name.into())
    }

    fn config(&self) -> anyhow::Result<PlanConfig> {
        let node_ports = self.nodeport_addresses.iter().map(String::as_str);
        Ok(PlanConfig {
            node_name: self.node_name()?,
            scheduler: self.ipvs_scheduler,
            node_port_addresses: NodePortAddresses::parse(node_ports)
                .context("--nodeport-addresses")?,
            service_addresses: self.service_addresses.into(),
            drain: self.drain_timeout.0,
        })
    }
}

/// Where the kernel's state that is ours is remembered.
#[derive(Args, Debug)]
struct StateFlags {
    /// The file that remembers which virtual servers are ours while the kernel runs.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/run/ipvs-proxier/state.jsonl"
    )]
    state_file: PathBuf,
}

impl StateFlags {
    fn file(&self) -> LedgerFile {
        LedgerFile::new(&self.state_file)
    }

    /// Locks the ledger, so that no other process programs this node until the lock is dropped.
    ///
    /// `None` if the file system cannot lock: a full disk must not keep a node from being served.
    fn lock(&self) -> anyhow::Result<Option<LedgerLock>> {
        match LedgerLock::acquire(&self.state_file) {
            Ok(lock) => Ok(Some(lock)),
            Err(error @ LockError::Held { .. }) => Err(error.into()),
            Err(error @ LockError::Unusable { .. }) => {
                tracing::warn!("{error}; another process on this node would not be noticed");
                Ok(None)
            }
        }
    }
}

/// A length of time as kube-proxy's flags spell it: `30s`, `1m30s`, `500ms`, `0`.
#[derive(Clone, Copy, Debug)]
struct DurationFlag(Duration);

impl std::str::FromStr for DurationFlag {
    type Err = humantime::DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text).map(Self)
    }
}

/// Writes `text` to standard output.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("writing the output")
}

fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
