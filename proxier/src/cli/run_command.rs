//! The command `ipvs-proxier run`.

use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::sysctl_flags::SysctlFlags;
use super::{DurationFlag, ExcludeFlags, NodeFlags, StateFlags};
use crate::daemon::{Daemon, Message, Periods, QUEUE_LENGTH};
use crate::dataplane::linux::{Linux, monitor};
use crate::nftables::{Forwarding, Treatment};
use crate::sync::Proxier;

/// Flags of `run`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    state: StateFlags,

    #[command(flatten)]
    sysctl: SysctlFlags,

    /// Interval of resyncs: each reads the kernel back and repairs differences.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    ipvs_sync_period: DurationFlag,

    /// Minimum time between two rounds of changes; 0 applies each change at once.
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    ipvs_min_sync_period: DurationFlag,

    #[command(flatten)]
    exclude: ExcludeFlags,

    /// What to do if a forward chain of another program drops the answers of endpoints. kube-proxy has
    /// no such flag.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    forward_drop: ForwardDrop,

    /// Program the kernel once and exit. Exit code: 0 if every change took effect, otherwise 1.
    #[arg(long)]
    once: bool,
}

/// [`Treatment`] as the command line spells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ForwardDrop {
    /// Insert a rule at its head that accepts the answers, as kube-proxy does.
    #[default]
    Accept,
    /// Log a warning only.
    Warn,
}

impl From<ForwardDrop> for Treatment {
    fn from(value: ForwardDrop) -> Self {
        match value {
            ForwardDrop::Accept => Self::Accept,
            ForwardDrop::Warn => Self::Warn,
        }
    }
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let _lock = self.state.lock()?;
        let linux = Linux::open(self.node.service_addresses.into())?;
        let (sender, messages) = sync_channel(QUEUE_LENGTH);
        stop_on_signals(sender.clone())?;
        // The monitors start before the first round reads the kernel, so that no change falls between
        // the two.
        self.monitor(&linux, &sender)?;
        let proxier = Proxier::new(linux, self.node.config()?, self.state.file())?
            .filtering(self.node.packets.config())
            .excluding(self.exclude.ipvs_exclude_cidrs.clone());
        let watch = self.node.source.follow(self.node.node_name()?, sender)?;
        let mut daemon = Daemon::new(proxier, self.periods()?, watch)
            .setting(self.sysctl.settings())
            .forwarding(Forwarding::open(self.forward_drop.into())?);
        if self.once {
            return Ok(match daemon.run_once(&messages) {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            });
        }
        daemon.run(&messages);
        tracing::info!("stopped; the kernel keeps its state and continues to serve");
        Ok(ExitCode::SUCCESS)
    }

    /// Starts threads that send a message when another program changes the kernel.
    fn monitor(&self, linux: &Linux, listener: &SyncSender<Message>) -> anyhow::Result<()> {
        let addresses = listener.clone();
        monitor::addresses(self.node.service_addresses.into(), move || {
            addresses.send(Message::MachineChanged).is_ok()
        })?;
        let rules = listener.clone();
        monitor::rules(linux.rules_port(), move |tampering| {
            rules.send(Message::RulesChanged(tampering)).is_ok()
        })?;
        Ok(())
    }

    fn periods(&self) -> anyhow::Result<Periods> {
        let periods = Periods {
            sync: self.ipvs_sync_period.0,
            min_sync: self.ipvs_min_sync_period.0,
        };
        // kube-proxy has the same limits (`ValidateKubeProxyConfiguration`).
        anyhow::ensure!(
            periods.sync > Duration::ZERO,
            "--ipvs-sync-period must be longer than 0"
        );
        anyhow::ensure!(
            periods.min_sync <= periods.sync,
            "--ipvs-min-sync-period must not be longer than --ipvs-sync-period"
        );
        Ok(periods)
    }
}

/// Starts a thread that sends a stop request on SIGTERM and SIGINT.
fn stop_on_signals(listener: SyncSender<Message>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("installing signal handlers")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            // The queue is full or closed. Exit at once: blocking here could delay the stop until
            // kubelet sends SIGKILL, and the kernel continues to serve in either case.
            if listener.try_send(Message::Stop).is_err() {
                std::process::exit(0);
            }
        }
    });
    Ok(())
}
