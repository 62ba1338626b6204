//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use nftables::RulesClient;

use crate::cli::config::{NodeSettings, Resolved};
use crate::cluster::model::{Cidr, Weights};
use crate::dataplane::ipvs::filter;
use crate::dataplane::ipvs::ledger::{LedgerFile, LedgerLock, LockError};
use crate::dataplane::ipvs::linux::Linux;
use crate::host;
use crate::plan::{self, PlanConfig};
use crate::sources::events::EventTimes;
use crate::sources::message::Message;
use crate::sources::watch::Watch;

use dataplane_flags::DataplaneKind;
use packet_flags::PacketFlags;
use proxy_flags::ProxyFlags;
use source::SourceFlags;

mod arp_flag;
mod cleanup_command;
pub(crate) mod config;
mod config_file;
mod dataplane_flags;
mod empty_kernel;
mod explain_command;
mod foreign_chain_flags;
mod logging;
mod packet_flags;
mod plan_command;
mod planned;
mod process;
mod proxy_flags;
mod run_command;
mod serve_flags;
mod source;
mod status_command;
mod stop_requests;
mod takeover_flag;
mod top_command;

/// A service proxy for Kubernetes nodes that programs the kernel's IPVS.
#[derive(Debug, Parser)]
#[command(name = "ipvs-proxier", version, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Programs the kernel and keeps it up to date with the API server or with manifests.
    Run(run_command::Flags),
    /// Prints what `run` would change on this node, and why. Changes nothing. Exit code: 0 without changes, 2
    /// with changes, 1 on error.
    Plan(plan_command::Flags),
    /// Explains who answers a client's new connection to a Service, and why. Changes nothing. Exit code: 0
    /// answered, 3 refused, 4 dropped, 5 unknown, 1 on error.
    Explain(explain_command::Flags),
    /// Prints the kernel's virtual servers, with Service names where the state file has them.
    Status(status_command::Flags),
    /// Shows the Services of this node live: connections, endpoints and why some get none, health, and the last
    /// changes. Asks the process that `run` started.
    Top(top_command::Flags),
    /// Removes everything that this program added to the kernel. Connections to Services break, unless
    /// kube-proxy serves them already.
    Cleanup(cleanup_command::Flags),
}

impl Cli {
    /// Parses the arguments of this process. They may have kube-proxy's form, which has no commands.
    ///
    /// Exits the process if they are invalid, or if they request help or the version.
    pub fn from_process() -> Self {
        // No valid argument has bytes that are not UTF-8, so such an argument is reported as unknown.
        let arguments = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        Self::try_parse_from(proxy_flags::normalize(arguments)).unwrap_or_else(|error| {
            // If standard error is closed, only the exit code remains.
            let _ = error.print();
            // Not clap's 2, which means "something would change" here.
            std::process::exit(i32::from(error.use_stderr()))
        })
    }

    /// Runs the command and returns its exit code.
    ///
    /// # Errors
    /// If the command cannot do its work. The error prints as one line; the exit code should be 1.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            CliCommand::Run(flags) => flags.run(),
            CliCommand::Plan(flags) => flags.run(),
            CliCommand::Explain(flags) => flags.run(),
            // These have no flags about the log. The others start it with theirs.
            CliCommand::Status(flags) => {
                logging::start(logging::DEFAULT);
                flags.run()
            }
            CliCommand::Top(flags) => flags.run(),
            CliCommand::Cleanup(flags) => {
                logging::start(logging::DEFAULT);
                // Only kube-proxy's flag `--cleanup` removes kube-proxy's objects, too.
                flags.run(cleanup_command::CleanupScope::Ours)
            }
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

    #[command(flatten)]
    packets: PacketFlags,

    /// How service addresses become local addresses of the node [default: routes with IPVS, none with the dataplane
    /// nftables].
    #[arg(long, value_enum)]
    service_addresses: Option<ServiceAddressesFlag>,

    /// Devices of programs that serve a Service's address themselves, as NodeLocal DNSCache does: no
    /// virtual server and no node port is programmed at their addresses. kube-proxy has no such flag.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    #[arg(default_value = "nodelocaldns")]
    yield_devices: Vec<String>,

    /// How long a removed TCP endpoint keeps its connections; 0 closes them at once.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    drain_timeout: DurationFlag,

    /// Weights of endpoints for Services without the annotation ipvs-proxier.io/weights, in its syntax, such as
    /// same-node:8,same-zone:4,*:1 [default: 1 for every endpoint]. kube-proxy has no such flag.
    #[arg(long, value_name = "KEY:WEIGHT[,..]")]
    weights: Option<Weights>,

    /// How long new endpoints have smaller weights, for Services without the annotation ipvs-proxier.io/slow-start, such as
    /// 60s [default: never]. kube-proxy has no such flag.
    #[arg(long, value_name = "DURATION")]
    slow_start: Option<DurationFlag>,

    /// The ranges of addresses that Services may have in spec.externalIPs; others are not served [default: any].
    /// kube-proxy has no such flag.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    external_ip_ranges: Vec<Cidr>,

    /// The ranges of addresses that Services may have in status.loadBalancer.ingress; others are not served [default:
    /// any]. kube-proxy has no such flag.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    load_balancer_ip_ranges: Vec<Cidr>,

    #[command(flatten)]
    proxy: ProxyFlags,
}

/// [`plan::ServiceAddresses`] as the command line spells it.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ServiceAddressesFlag {
    /// Local routes on the dummy device kube-ipvs0, whose preferred source is the node's address.
    #[default]
    Routes,
    /// Addresses on the dummy device kube-ipvs0, as kube-proxy adds them.
    Dummy,
    /// Local routes on lo. Calico then does not apply its policies to Services.
    Loopback,
    /// Not at all. Only the dataplane nftables serves addresses that are not local.
    None,
}

impl ServiceAddressesFlag {
    /// Returns the form of addresses for IPVS.
    fn local(self) -> anyhow::Result<plan::ServiceAddresses> {
        match self {
            Self::Routes => Ok(plan::ServiceAddresses::Routes),
            Self::Dummy => Ok(plan::ServiceAddresses::Dummy),
            Self::Loopback => Ok(plan::ServiceAddresses::Loopback),
            Self::None => anyhow::bail!(
                "--service-addresses=none: IPVS serves local addresses only; this value is for --dataplane=nftables"
            ),
        }
    }
}

impl NodeFlags {
    /// Reads the configuration, starts the log, and logs which settings have no effect.
    ///
    /// `beside_file` names the flags that count beside `--config` with this command, and not with kube-proxy.
    fn resolve(
        &self,
        beside_file: &'static [&'static str],
    ) -> anyhow::Result<(Resolved, NodeSettings)> {
        let (resolved, settings) = self.proxy.resolve(beside_file)?;
        logging::start(resolved.logging());
        for notice in &resolved.notices {
            tracing::warn!("{notice}");
        }
        Ok((resolved, settings))
    }

    fn open_kernel(&self) -> anyhow::Result<Linux> {
        let form = self.local_addresses()?;
        Ok(Linux::yielding(form, &self.yield_devices)?)
    }

    /// Returns the form of service addresses for IPVS.
    fn local_addresses(&self) -> anyhow::Result<plan::ServiceAddresses> {
        self.service_addresses.unwrap_or_default().local()
    }

    /// Checks that service addresses need not become local.
    fn ensure_no_local_addresses(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            matches!(
                self.service_addresses,
                None | Some(ServiceAddressesFlag::None)
            ),
            "--service-addresses: the dataplane nftables makes no address local; the only valid value is none"
        );
        Ok(())
    }

    /// Returns the configuration of a command.
    fn setup(&self, settings: NodeSettings) -> anyhow::Result<Setup> {
        let node_name = match &settings.node_name {
            Some(name) => name.clone(),
            None => host_name()?,
        };
        let plan = PlanConfig {
            node_name,
            scheduler: settings.scheduler.as_str().into(),
            weights: self.weights.clone().map(Arc::new),
            slow_start: self.slow_start.map(|it| it.0),
            external_ranges: plan::ExternalRanges {
                external_ips: self.external_ip_ranges.clone(),
                load_balancer_ips: self.load_balancer_ip_ranges.clone(),
            },
            service_ranges: self.source.service_ranges(),
            node_port_addresses: settings.node_port_addresses.clone(),
            has_localhost_node_ports: false,
            // With IPVS, `local_addresses` replaces it.
            service_addresses: plan::ServiceAddresses::None,
            drain: self.drain_timeout.0,
        };
        Ok(Setup { settings, plan })
    }
}

/// The configuration of a command.
struct Setup {
    settings: NodeSettings,
    plan: PlanConfig,
}

impl Setup {
    /// Starts to send the objects of `source` and their changes to `listener`.
    fn follow(
        &self,
        source: &SourceFlags,
        dataplane: DataplaneKind,
        (events, listener): (Option<EventTimes>, SyncSender<Message>),
    ) -> anyhow::Result<Option<Watch>> {
        let node_name = self.plan.node_name.clone();
        source.follow(&self.settings, node_name, dataplane, (events, listener))
    }
}

/// Returns the host name in lower case, as kubelet registers the node.
fn host_name() -> anyhow::Result<Arc<str>> {
    let host = rustix::system::uname();
    let name = host.nodename().to_string_lossy().trim().to_lowercase();
    anyhow::ensure!(
        !name.is_empty(),
        "the host name is empty; pass --hostname-override"
    );
    Ok(name.into())
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
    /// Returns whether the ledger or the packet rules show that an earlier process programmed IPVS.
    fn shows_ipvs(&self) -> anyhow::Result<bool> {
        let has_rules = || anyhow::Ok(RulesClient::open(filter::TABLE)?.exists()?);
        Ok(self.state_file.exists() || host::has_nfnetlink()? && has_rules()?)
    }

    /// Returns the socket beside it, through which `top` asks the process.
    fn socket(&self) -> PathBuf {
        self.state_file.with_extension("sock")
    }

    /// Returns the file beside it that records which endpoints are new, and which do not answer.
    fn standings(&self) -> PathBuf {
        self.state_file.with_extension("standings")
    }

    fn file(&self) -> LedgerFile {
        LedgerFile::new(&self.state_file)
    }

    /// Locks the ledger, so that no other process programs this node until the lock is dropped.
    ///
    /// Returns `None` if the lock file cannot be used, because a full disk must not stop the proxy.
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
/// Replaces `print!`, which panics if the reader of a pipe has exited.
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
