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
        let Some(ports) = self.ports(setup) else {
            return Ok(None);
        };
        let client = LeftoverClient::open(mark_chain)?;
        let sync_period = setup.settings.sync_period;
        Ok(Some(Takeover::new(client, ports, sync_period)))
    }

    /// Returns the ports of kube-proxy's servers; `None` if its leftovers stay.
    pub(super) fn ports(&self, setup: &Setup) -> Option<Vec<u16>> {
        if self.kube_proxy_leftovers == LeftoverTreatment::Keep {
            return None;
        }
        // kube-proxy reads the same configuration, so it would listen at the same ports.
        let servers = &setup.settings.servers;
        let servers = [servers.healthz, servers.metrics];
        let ports = servers.iter().flatten().map(|address| address.port());
        Some(ports.collect())
    }
}
