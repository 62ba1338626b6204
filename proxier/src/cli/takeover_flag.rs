//! The flag about the leftovers of kube-proxy.

use clap::{Args, ValueEnum};

use super::Setup;
use crate::daemon::Takeover;
use crate::host::predecessor::{LeftoverClient, MarkChainUse};

/// The flag about the leftovers of kube-proxy.
#[derive(Args, Debug)]
pub(super) struct TakeoverFlag {
    /// What to do with the chains, tables and ipsets that kube-proxy left on this node.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "remove")]
    kube_proxy_leftovers: LeftoverTreatment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LeftoverTreatment {
    /// Remove them, after this program has programmed everything, and unless kube-proxy seems to run: by its
    /// process, its ports, or a write of its rules within --ipvs-sync-period.
    Remove,
    /// Keep them.
    Keep,
}

impl TakeoverFlag {
    /// Returns the removal of the leftovers; `None` if they stay.
    pub(super) fn takeover(
        &self,
        setup: &Setup,
        mark_chain: MarkChainUse,
    ) -> anyhow::Result<Option<Takeover>> {
        if self.kube_proxy_leftovers == LeftoverTreatment::Keep {
            return Ok(None);
        }
        let settings = &setup.settings;
        // kube-proxy reads the same configuration, so it would listen at the same ports.
        let servers = [settings.servers.healthz, settings.servers.metrics];
        let ports = servers.iter().flatten().map(|address| address.port());
        Ok(Some(Takeover::new(
            LeftoverClient::open(mark_chain)?,
            ports.collect(),
            settings.sync_period,
        )))
    }
}
