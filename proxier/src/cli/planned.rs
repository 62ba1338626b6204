//! Flags of the commands that plan and change nothing: `plan` and `explain`.

use std::sync::mpsc::sync_channel;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::dataplane_flags::{DataplaneKind, PlannedDataplaneFlag};
use super::empty_kernel::EmptyKernel;
use super::{NodeFlags, Setup, StateFlags};
use crate::daemon::{Daemon, Periods, StandingsFile};
use crate::dataplane::Dataplane;
use crate::dataplane::ipvs::filter::FilterConfig;
use crate::dataplane::ipvs::ledger::LedgerFile;
use crate::dataplane::ipvs::linux::Linux;
use crate::dataplane::ipvs::{Ipvs, Kernel};
use crate::dataplane::nftables::Nftables;
use crate::reconcile::Proxier;
use crate::sources::message::QUEUE_LENGTH;
use crate::util::clock;

/// Flags about the node, the dataplane, and the kernel that counts.
#[derive(Args, Debug)]
pub(super) struct PlannedFlags {
    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    state: StateFlags,

    #[command(flatten)]
    dataplane: PlannedDataplaneFlag,

    /// State to compare the plan with.
    #[arg(long, value_enum, default_value_t)]
    pub(super) against: Against,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Against {
    /// The kernel of this machine; needs CAP_NET_ADMIN.
    #[default]
    Kernel,
    /// A kernel without virtual servers, on a machine with the addresses of the Node object.
    Empty,
}

/// The flag that counts beside `--config`: the kubeconfig that kube-proxy's file names is in its Pod.
const BESIDE_FILE: &[&str] = &["kubeconfig"];

impl PlannedFlags {
    /// Reads the configuration and starts the log.
    pub(super) fn setup(&self) -> anyhow::Result<Setup> {
        let (_, settings) = self.node.resolve(BESIDE_FILE)?;
        self.node.setup(settings)
    }

    /// Returns the kind of the dataplane.
    pub(super) fn kind(&self, setup: &Setup) -> DataplaneKind {
        self.dataplane.kind(&setup.settings)
    }

    /// Makes service addresses local in the chosen form; not at all with the dataplane nftables.
    pub(super) fn place_addresses(&self, setup: &mut Setup) -> anyhow::Result<()> {
        if self.kind(setup) == DataplaneKind::Nftables {
            return self.node.ensure_no_local_addresses();
        }
        setup.plan.service_addresses = self.node.local_addresses()?;
        Ok(())
    }

    /// Returns the configuration of the packet rules.
    pub(super) fn packets(&self, setup: &Setup) -> anyhow::Result<FilterConfig> {
        self.node.packets.config(&setup.settings, self.kind(setup))
    }

    /// Returns a proxier of this machine's IPVS after it received its complete input.
    pub(super) fn on_kernel(&self, setup: &Setup) -> anyhow::Result<Proxier<Ipvs<Linux>>> {
        let linux = self.node.open_kernel().and_then(|mut linux| {
            linux.check_permission()?;
            Ok(linux)
        });
        let linux = linux
            .context("the kernel's table cannot be read (--against=empty needs no privilege)")?;
        self.ipvs(setup, linux, self.state.file(), DataplaneKind::Ipvs)
    }

    /// Returns a proxier of a kernel without virtual servers after it received its complete input. It is that of the chosen
    /// dataplane, so that its addresses are valid.
    pub(super) fn on_empty_kernel(
        &self,
        setup: &Setup,
    ) -> anyhow::Result<Proxier<Ipvs<EmptyKernel>>> {
        // An empty kernel has no virtual server that a ledger could name.
        let ledger = LedgerFile::new("/nonexistent");
        let mut proxier = self.ipvs(setup, EmptyKernel::default(), ledger, self.kind(setup))?;
        // Node ports and preferred sources need addresses of the machine. Those of the Node object
        // replace them.
        let node = proxier.snapshot().node();
        let addresses = node.map(|node| node.addresses.iter().copied().collect());
        proxier.kernel().machine.addresses = addresses.unwrap_or_default();
        Ok(proxier)
    }

    /// Returns a proxier of this machine's nf_tables after it received its complete input.
    pub(super) fn on_nftables(&self, setup: &Setup) -> anyhow::Result<Proxier<Nftables>> {
        let dataplane = Nftables::open(self.packets(setup)?, &self.node.yield_devices)?;
        self.proxier(setup, dataplane, DataplaneKind::Nftables)
    }

    fn ipvs<K: Kernel>(
        &self,
        setup: &Setup,
        kernel: K,
        ledger: LedgerFile,
        kind: DataplaneKind,
    ) -> anyhow::Result<Proxier<Ipvs<K>>> {
        let ipvs = Ipvs::new(kernel, ledger)?
            .filtering(self.packets(setup)?)
            .excluding(setup.settings.exclude.clone());
        self.proxier(setup, ipvs, kind)
    }

    fn proxier<D: Dataplane>(
        &self,
        setup: &Setup,
        dataplane: D,
        kind: DataplaneKind,
    ) -> anyhow::Result<Proxier<D>> {
        let standings = StandingsFile::read(&self.state.standings(), clock::since_boot());
        let proxier = Proxier::of(dataplane, setup.plan.clone())
            .knowing(standings)
            .ignoring_external_ips(setup.settings.ignores_external_ips);
        let (sender, messages) = sync_channel(QUEUE_LENGTH);
        let watch = setup.follow(&self.node.source, kind, (None, sender))?;
        // A daemon that only listens: its gate decides when the input is complete, as for `run`.
        let mut daemon = Daemon::new(proxier, Periods::default(), watch);
        daemon.await_input(&messages)?;
        let mut proxier = daemon.into_proxier();
        anyhow::ensure!(
            proxier.may_start()?,
            "some manifests are unreadable, and an earlier run left virtual servers in the kernel: \
             `run` would change nothing until all manifests are readable: {}",
            problems(&proxier)
        );
        Ok(proxier)
    }
}

fn problems<D: Dataplane>(proxier: &Proxier<D>) -> String {
    let problems = proxier.problems();
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}
