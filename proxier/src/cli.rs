//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipvs_netlink as ipvs;

use crate::ledger::{LedgerFile, LedgerLock, LockError};
use crate::model::Cidr;
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
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Programs the kernel and keeps it up to date with the API server or with manifests.
    Run(run_command::Flags),
    /// Prints the changes that `run` would make. Exit code: 0 without changes, 2 with changes, 1 on error.
    Plan(plan_command::Flags),
    /// Prints the kernel's virtual servers, with Service names where the state file has them.
    Status(status_command::Flags),
    /// Removes everything that this program added to the kernel. Connections to Services break.
    Cleanup(cleanup_command::Flags),
}

impl Cli {
    /// Runs the command and returns its exit code.
    ///
    /// # Errors
    /// If the command cannot do its work. The error prints as one line; the exit code should be 1.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            CliCommand::Run(flags) => flags.run(),
            CliCommand::Plan(flags) => flags.run(),
            CliCommand::Status(flags) => flags.run(),
            CliCommand::Cleanup(flags) => flags.run(),
        }
    }
}

/// The format of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A table for people.
    #[default]
    Text,
    /// JSON for programs.
    Json,
}

/// Flags about the node and its plan.
#[derive(Args, Debug)]
struct NodeFlags {
    #[command(flatten)]
    source: SourceFlags,

    /// Name of this node, as in nodeName of endpoints [default: the host name].
    #[arg(long, visible_alias = "hostname-override", value_name = "NAME")]
    node_name: Option<String>,

    #[command(flatten)]
    packets: PacketFlags,

    /// Addresses that serve node ports: networks, or primary for the Node object's main addresses
    /// [default: all].
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    nodeport_addresses: Vec<String>,

    /// Scheduler of Services without the annotation ipvs-proxier.io/scheduler.
    #[arg(long, value_name = "NAME", default_value = "rr")]
    ipvs_scheduler: ipvs::SchedulerName,

    /// How service addresses become local addresses of the node.
    #[arg(long, value_enum, default_value_t)]
    service_addresses: ServiceAddressesFlag,

    /// How long a removed TCP endpoint keeps its connections; 0 closes them at once.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    drain_timeout: DurationFlag,
}

/// [`plan::ServiceAddresses`] as the command line spells it.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ServiceAddressesFlag {
    /// Local routes whose preferred source is the node's address.
    #[default]
    Routes,
    /// Addresses on the dummy device kube-ipvs0, as kube-proxy adds them.
    Dummy,
}

impl From<ServiceAddressesFlag> for plan::ServiceAddresses {
    fn from(choice: ServiceAddressesFlag) -> Self {
        match choice {
            ServiceAddressesFlag::Routes => Self::Routes,
            ServiceAddressesFlag::Dummy => Self::Dummy,
        }
    }
}

impl NodeFlags {
    /// Returns the name of the node in lower case, as kubelet registers it.
    fn node_name(&self) -> anyhow::Result<Arc<str>> {
        let name = match &self.node_name {
            Some(name) => name.trim().to_lowercase(),
            None => {
                let host = rustix::system::uname();
                host.nodename().to_string_lossy().trim().to_lowercase()
            }
        };
        anyhow::ensure!(!name.is_empty(), "the host name is empty; pass --node-name");
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

/// Flags about the ledger.
#[derive(Args, Debug)]
struct StateFlags {
    /// File that records which of the kernel's virtual servers this program created. It should not
    /// survive a reboot.
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
    /// Returns `None` if the lock file cannot be used: a full disk must not stop the proxy.
    fn lock(&self) -> anyhow::Result<Option<LedgerLock>> {
        match LedgerLock::acquire(&self.state_file) {
            Ok(lock) => Ok(Some(lock)),
            Err(error @ LockError::Held { .. }) => Err(error.into()),
            Err(error @ LockError::Unusable { .. }) => {
                tracing::warn!(
                    "{error}; continuing without the lock: a second ipvs-proxier on this node will \
                     not be detected"
                );
                Ok(None)
            }
        }
    }
}

/// The ranges in which no virtual server is deleted.
#[derive(Args, Debug)]
struct ExcludeFlags {
    /// Never delete virtual servers with an address in these ranges.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<Cidr>,
}

/// A duration in the syntax of kube-proxy's flags: `30s`, `1m30s`, `500ms`, `0`.
#[derive(Clone, Copy, Debug)]
struct DurationFlag(Duration);

impl std::str::FromStr for DurationFlag {
    type Err = humantime::DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text).map(Self)
    }
}

/// Writes `text` to standard output.
///
/// Not `print!`, which panics if the reader of a pipe has exited.
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
