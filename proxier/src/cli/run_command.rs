//! The command `ipvs-proxier run`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::SystemTime;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use ipvs_netlink::Timeouts;

use super::dataplane_flags::{Chosen, DataplaneFlags, DataplaneKind};
use super::serve_flags::ServeFlags;
use super::takeover_flag::TakeoverFlag;
use super::{ExcludeFlags, NodeFlags, Setup, StateFlags, cleanup_command, print, process};
use crate::cli::config::{NodeSettings, Resolved};
use crate::daemon::{
    ChainCheck, Daemon, FormerIpvs, FormerNftables, KernelSettings, MarkChainCheck, Meter,
    Narrator, Periods, Publisher, Reporter,
};
use crate::dataplane::Dataplane;
use crate::dataplane::beside::Beside;
use crate::dataplane::ipvs::filter::{self, FilterConfig};
use crate::dataplane::ipvs::linux::{Linux, monitor};
use crate::dataplane::ipvs::op::CARRIER;
use crate::dataplane::ipvs::{Ipvs, Owners};
use crate::dataplane::namespace_lock::NamespaceLock;
use crate::dataplane::nftables::{self, Nftables};
use crate::host::predecessor::MarkChainUse;
use crate::host::sysctl::SysctlConfig;
use crate::host::{ForeignChains, MarkChains};
use crate::observe::instruments::{self, Exporter};
use crate::observe::overview::{Desk, History, Observer, ObserverConfig};
use crate::observe::serve::{self, BindFailures, Sources};
use crate::plan::{PlanConfig, ServiceAddresses};
use crate::reconcile::Proxier;
use crate::sources::events::EventTimes;
use crate::sources::message::Message;
use crate::sources::watch::Watch;

mod inbox;
mod kernel_setup;

use inbox::{Inbox, send_changes_of_addresses, send_changes_of_machine};
use kernel_setup::{init_only, kernel_settings, set_ipvs_timeouts, tell_idle_timeout};

/// Flags of `run`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    state: StateFlags,

    #[command(flatten)]
    dataplane: DataplaneFlags,

    #[command(flatten)]
    serve: ServeFlags,

    /// Maintain the chain KUBE-MARK-MASQ in iptables' tables nat, for plugins that jump to it (portmap with
    /// externalSetMarkChain, CRI-O before 1.29). kube-proxy always does.
    #[arg(long)]
    compat_chains: bool,

    #[command(flatten)]
    takeover: TakeoverFlag,

    /// With --cleanup.
    #[command(flatten)]
    dry_run: cleanup_command::DryRunFlag,

    /// Write Events about invalid input, refused changes and starts to the API server, or none.
    #[arg(long, value_enum, default_value_t)]
    events: EventsFlag,

    /// Program the kernel once and exit. Exit code: 0 if every change took effect, otherwise 1.
    #[arg(long)]
    once: bool,

    /// kube-proxy rejects arguments that are not flags, except empty ones, which templates may leave.
    #[arg(hide = true, value_name = "ARGUMENT", value_parser = empty)]
    _empty: Vec<String>,
}

/// Whether Events are written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum EventsFlag {
    /// Write Events, for which this program's role needs the verbs create, get and patch.
    #[default]
    On,
    /// Write none.
    Off,
}

impl EventsFlag {
    fn times(self) -> Option<EventTimes> {
        match self {
            Self::On => Some(EventTimes::default()),
            Self::Off => None,
        }
    }
}

fn empty(argument: &str) -> Result<String, &'static str> {
    let is_empty = argument.is_empty();
    is_empty.then(String::new).ok_or("only flags are permitted")
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(form) = self.node.proxy.version() {
            print(&version(form))?;
            return Ok(ExitCode::SUCCESS);
        }
        let (resolved, settings) = self.node.resolve(&[])?;
        let command = &resolved.command;
        let write_config_to = command.text("write-config-to");
        if !write_config_to.is_empty() {
            return write_config(&resolved, &write_config_to);
        }
        if command.is_true("cleanup") {
            return self.cleanup(settings);
        }
        anyhow::ensure!(
            !self.dry_run.dry_run,
            "--dry-run is for --cleanup; the command `plan` prints what `run` would change"
        );
        let setup = self.node.setup(settings)?;
        if command.is_true("init-only") {
            let kind = self.dataplane.kernel_kind(&setup.settings);
            return init_only(&setup, &self.sysctl(&setup), kind);
        }
        self.serve(&resolved, &setup)
    }

    /// Serves until the process is stopped.
    fn serve(&self, resolved: &Resolved, setup: &Setup) -> anyhow::Result<ExitCode> {
        // Held until this function returns.
        let _lock = self.state.lock()?;
        process::adjust_oom_score(setup.settings.oom_score_adj);
        process::raise_file_limit();
        kernel_setup::remove_left_trace();
        let start = Start {
            resolved,
            setup,
            exporter: instruments::install(SystemTime::now())?,
            owners: Arc::new(Owners::new(self.node.packets.service_metrics_limit)),
        };
        match self.dataplane.choose(&self.node, &setup.settings)? {
            Chosen::Ipvs(linux) => self.serve_with_ipvs(*linux, start),
            Chosen::Nftables => self.serve_with_nftables(start),
            Chosen::Userspace => self.serve_in_userspace(start),
        }
    }

    /// Programs the kernel until the process is stopped.
    fn serve_with_ipvs(&self, mut linux: Linux, start: Start<'_>) -> anyhow::Result<ExitCode> {
        // Held until this function returns.
        let _lock = NamespaceLock::acquire()?;
        let setup = start.setup;
        set_ipvs_timeouts(&mut linux, setup);
        tell_idle_timeout(&mut linux);
        let packets = self.packets(&mut linux, setup)?;
        let inbox = Inbox::open(start.resolved)?;
        tracing::info!("programming IPVS for node {}", setup.plan.node_name);
        // These monitors start before the first round reads the kernel, so that no change between the two is
        // lost.
        let (form, devices) = (self.node.local_addresses()?, &self.node.yield_devices);
        send_changes_of_addresses(form, devices, linux.addresses_port(), &inbox.sender)?;
        let (sender, rules_port) = (inbox.sender.clone(), linux.rules_port());
        let settings = &setup.settings;
        let mark = packets.masquerade_bit.mark();
        let plan = PlanConfig {
            service_addresses: form,
            ..self.plan(setup, DataplaneKind::Ipvs)
        };
        let ipvs = Ipvs::new(linux, self.state.file())?
            .filtering(packets)
            .excluding(settings.exclude.clone())
            .naming(start.owners.clone());
        let dataplane = Beside::new(ipvs, self.dataplane.start_companion(&setup.settings)?);
        let proxier =
            Proxier::of(dataplane, plan).ignoring_external_ips(settings.ignores_external_ips);
        let equip = |daemon| {
            let rules = (filter::TABLE, rules_port);
            let daemon = self.equip(daemon, setup, DataplaneKind::Ipvs, rules, mark, sender)?;
            self.succeed(daemon.doing(FormerNftables::open()?), setup)
        };
        let (daemon, code) = self.run_daemon(proxier, DataplaneKind::Ipvs, start, inbox, equip)?;
        tracing::info!("stopping; the kernel keeps its state and continues to serve");
        let patience = self.dataplane.stop_timeout();
        daemon.into_proxier().into_dataplane().stop(patience);
        Ok(code)
    }

    /// Programs maps of nftables until the process is stopped.
    fn serve_with_nftables(&self, start: Start<'_>) -> anyhow::Result<ExitCode> {
        // Held until this function returns.
        let _lock = NamespaceLock::acquire()?;
        self.node.ensure_no_local_addresses()?;
        let setup = start.setup;
        if setup.settings.ipvs_timeouts != Timeouts::default() {
            tracing::warn!("the timeouts of IPVS have no effect with the dataplane nftables");
        }
        let kind = DataplaneKind::Nftables;
        let packets = self.node.packets.config(&setup.settings, kind)?;
        let mark = packets.masquerade_bit.mark();
        let devices = &self.node.yield_devices;
        let dataplane = Nftables::open(packets.clone(), devices)?.naming(start.owners.clone());
        let inbox = Inbox::open(start.resolved)?;
        tracing::info!("programming nftables for node {}", setup.plan.node_name);
        let plan = self.plan(setup, DataplaneKind::Nftables);
        let (form, port) = (plan.service_addresses, dataplane.addresses_port());
        send_changes_of_machine(form, devices, port, &inbox.sender)?;
        let (sender, rules_port) = (inbox.sender.clone(), dataplane.rules_port());
        let former = self.former_ipvs(setup, &plan, packets)?;
        let dataplane = Beside::new(dataplane, self.dataplane.start_companion(&setup.settings)?);
        let proxier =
            Proxier::of(dataplane, plan).ignoring_external_ips(setup.settings.ignores_external_ips);
        let equip = |daemon| {
            let rules = (nftables::TABLE, rules_port);
            let daemon = self.equip(daemon, setup, kind, rules, mark, sender)?;
            let daemon = match former {
                Some(former) => daemon.doing(former),
                None => daemon,
            };
            self.succeed(daemon, setup)
        };
        let (daemon, code) =
            self.run_daemon(proxier, DataplaneKind::Nftables, start, inbox, equip)?;
        tracing::info!("stopping; the kernel keeps its state and continues to serve");
        let patience = self.dataplane.stop_timeout();
        daemon.into_proxier().into_dataplane().stop(patience);
        Ok(code)
    }

    /// Adds the chores of a dataplane that programs the packet filter. `rules` are its table and the port of its changes,
    /// `mark` the masquerade bit.
    fn equip<D: Dataplane>(
        &self,
        daemon: Daemon<D>,
        setup: &Setup,
        kind: DataplaneKind,
        (table, port): (&'static str, u32),
        mark: u32,
        sender: SyncSender<Message>,
    ) -> anyhow::Result<Daemon<D>> {
        let settings = kernel_settings(&self.sysctl(setup), kind);
        let chains = ForeignChains::open(self.node.packets.foreign.treatments(kind))?;
        let concerns = chains.concerns();
        let changed = move |tampering| sender.send(Message::RulesChanged(tampering)).is_ok();
        let daemon = daemon
            .doing(KernelSettings::new(settings))
            .monitoring_rules(move || monitor::rules(table, port, concerns, changed))
            .doing(ChainCheck::new(chains));
        Ok(match self.compat_chains {
            true => daemon.doing(MarkChainCheck::new(MarkChains::open(mark)?)),
            false => daemon,
        })
    }

    /// Adds the removal of what kube-proxy left.
    fn succeed<D: Dataplane>(&self, daemon: Daemon<D>, setup: &Setup) -> anyhow::Result<Daemon<D>> {
        let mark_chain = match self.compat_chains {
            true => MarkChainUse::Plugins,
            false => MarkChainUse::KubeProxy,
        };
        Ok(match self.takeover.takeover(setup, mark_chain)? {
            Some(takeover) => daemon.doing(takeover),
            None => daemon,
        })
    }

    /// Returns what kube-proxy or an earlier process that programmed IPVS left; `None` if nothing shows one.
    fn former_ipvs(
        &self,
        setup: &Setup,
        plan: &PlanConfig,
        packets: FilterConfig,
    ) -> anyhow::Result<Option<FormerIpvs<Linux>>> {
        let is_ours = self.state.shows_ipvs()?;
        let theirs = self.takeover.ports(setup).filter(|_| has_carrier());
        if !is_ours && theirs.is_none() {
            return Ok(None);
        }
        // The only form that needs no device. Addresses of all forms are deleted.
        let form = ServiceAddresses::Loopback;
        let linux = match Linux::yielding(form, &self.node.yield_devices) {
            Ok(linux) => linux,
            Err(failure) => {
                tracing::warn!("what an earlier process programmed stays: {failure}");
                return Ok(None);
            }
        };
        let ipvs = Ipvs::new(linux, self.state.file())?.excluding(setup.settings.exclude.clone());
        let plan = PlanConfig {
            service_addresses: form,
            ..plan.clone()
        };
        let file = self.state.file();
        let former = FormerIpvs::new(ipvs, file, plan, packets);
        Ok(Some(match theirs {
            Some(ports) => former.with_kube_proxys(ports),
            None => former,
        }))
    }

    /// Relays connections until a stop is requested, and then until they have ended or the timeout is over.
    fn serve_in_userspace(&self, start: Start<'_>) -> anyhow::Result<ExitCode> {
        let setup = start.setup;
        let relay = self.dataplane.start(&setup.settings.local_mode)?;
        let inbox = Inbox::open(start.resolved)?;
        tracing::info!("relaying for node {}", setup.plan.node_name);
        let plan = PlanConfig {
            // The form that needs no device, which this process may not be permitted to create.
            service_addresses: ServiceAddresses::Loopback,
            ..self.plan(setup, DataplaneKind::Userspace)
        };
        let port = relay.addresses_port();
        send_changes_of_addresses(plan.service_addresses, &[], port, &inbox.sender)?;
        // Without packet rules: the relay itself decides which clients may connect.
        let proxier =
            Proxier::of(relay, plan).ignoring_external_ips(setup.settings.ignores_external_ips);
        let (daemon, code) =
            self.run_daemon(proxier, DataplaneKind::Userspace, start, inbox, Ok)?;
        let patience = self.dataplane.stop_timeout();
        tracing::info!("stopping; waiting up to {patience:?} for open connections");
        daemon.into_proxier().into_dataplane().stop(patience);
        Ok(code)
    }

    /// Returns the choices of the plan for this dataplane.
    fn plan(&self, setup: &Setup, kind: DataplaneKind) -> PlanConfig {
        PlanConfig {
            has_localhost_node_ports: self
                .dataplane
                .has_localhost_node_ports(kind, &setup.settings),
            ..setup.plan.clone()
        }
    }

    /// Makes rounds until the process is stopped. Returns the daemon and the exit code.
    fn run_daemon<D: Dataplane>(
        &self,
        proxier: Proxier<D>,
        kind: DataplaneKind,
        start: Start<'_>,
        inbox: Inbox,
        equip: impl FnOnce(Daemon<D>) -> anyhow::Result<Daemon<D>>,
    ) -> anyhow::Result<(Daemon<D>, ExitCode)> {
        let Start {
            resolved,
            setup,
            exporter,
            owners,
        } = start;
        let periods = Periods {
            sync: setup.settings.sync_period,
            min_sync: setup.settings.min_sync_period,
        };
        let on_bind_failure = inbox.on_bind_failure(setup);
        // A process that exits after one round may end before its Events are written.
        let inquiries = inbox.sender.clone();
        let follower = (self.events.times().filter(|_| !self.once), inbox.sender);
        let watch = setup.follow(&self.node.source, kind, follower)?;
        inbox.has_source.store(true, Ordering::Relaxed);
        let (history, desk) = (Arc::<History>::default(), Arc::<Desk>::default());
        let observer = Observer::new(ObserverConfig {
            node: setup.plan.node_name.clone(),
            dataplane: kind.name(),
            history: history.clone(),
            desk: desk.clone(),
            daemon: inquiries,
            source: kind.counters(),
        });
        let sources = Sources {
            observer: Arc::new(observer),
            board: Arc::default(),
            health_ports: Arc::default(),
            bind_failures: Arc::new(BindFailures::new(&setup.plan.node_name)),
            watch: watch.as_ref().map(Watch::status_reader),
        };
        let (board, health_ports) = (sources.board.clone(), sources.health_ports.clone());
        let daemon = Daemon::new(proxier, periods, watch).remembering(self.state.standings());
        let mut daemon = equip(daemon)?
            .doing(Publisher::new(board, health_ports))
            .doing(Meter::default())
            .doing(Narrator::new(history, desk))
            .doing(Reporter::new(sources.bind_failures.clone()));
        if self.once {
            let code = match daemon.run_once(&inbox.messages)? {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            };
            return Ok((daemon, code));
        }
        let scraper = self.serve.scraper(exporter, owners, kind);
        let mode = (resolved, kind.mode());
        let config =
            (self.serve).config(setup, mode, scraper, self.state.socket(), on_bind_failure);
        let _servers = serve::start(config, sources).context("starting the HTTP servers")?;
        daemon.run(&inbox.messages);
        // Relaxed suffices, also below: the message that ended `run` was sent after the flag was
        // set.
        if inbox.has_bind_failure.load(Ordering::Relaxed) {
            daemon.report_end();
            return Ok((daemon, ExitCode::FAILURE));
        }
        let code = match inbox.has_new_config {
            Some(changed) if changed.load(Ordering::Relaxed) => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        };
        Ok((daemon, code))
    }

    /// Returns the configuration of the packet rules, without the features that the kernel lacks.
    fn packets(&self, linux: &mut Linux, setup: &Setup) -> anyhow::Result<FilterConfig> {
        let kind = DataplaneKind::Ipvs;
        let mut packets = self.node.packets.config(&setup.settings, kind)?;
        if packets.hides_arp && !linux.supports_arp_rules()? {
            packets.hides_arp = false;
            tracing::error!(
                "--arp=services has no effect: the kernel lacks nf_tables for ARP (CONFIG_NF_TABLES_ARP), \
                 so this node answers ARP requests for load-balancer addresses; use --arp=strict"
            );
        }
        Ok(packets)
    }

    /// Returns the kernel settings of the configuration and of `--arp`.
    fn sysctl(&self, setup: &Setup) -> SysctlConfig {
        let config = &setup.settings.sysctl;
        SysctlConfig {
            strict_arp: self.node.packets.arp.is_strict(config.strict_arp),
            ..config.clone()
        }
    }

    /// `--cleanup`: removes the objects of this program and of kube-proxy.
    fn cleanup(self, settings: NodeSettings) -> anyhow::Result<ExitCode> {
        let flags = cleanup_command::Flags {
            state: self.state,
            service_addresses: self.node.service_addresses.unwrap_or_default(),
            exclude: ExcludeFlags {
                ipvs_exclude_cidrs: settings.exclude,
            },
            successor: cleanup_command::SuccessorFlag::GONE,
            drain_timeout: self.node.drain_timeout,
            dry_run: self.dry_run,
        };
        flags.run(cleanup_command::CleanupScope::OursAndKubeProxys)
    }
}

/// Returns whether the device exists on which kube-proxy's IPVS mode has the service addresses.
fn has_carrier() -> bool {
    nix::net::if_::if_nametoindex(CARRIER).is_ok()
}

/// The values with which a serving process starts.
struct Start<'a> {
    resolved: &'a Resolved,
    setup: &'a Setup,
    /// Installed before the relay and the watch start, so that the metrics of both are complete.
    exporter: Exporter,
    /// The names of virtual servers or frontends, for their metrics.
    owners: Arc<Owners>,
}

/// Returns the text of `--version` or `--version=raw`.
fn version(form: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match form {
        "raw" => format!(
            "version={version} kube-proxy=1.36 os={} arch={}\n",
            std::env::consts::OS,
            std::env::consts::ARCH
        ),
        _ => format!("ipvs-proxier {version}\n"),
    }
}

/// `--write-config-to`: writes the configuration that results from the flags and the file.
fn write_config(resolved: &Resolved, path: &str) -> anyhow::Result<ExitCode> {
    let text = resolved.to_yaml();
    // As a file, standard output would be truncated.
    if ["-", "/dev/stdout"].contains(&path) {
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::write(path, text).with_context(|| format!("writing the configuration to {path}"))?;
    tracing::info!("wrote the configuration to {path}");
    Ok(ExitCode::SUCCESS)
}
