//! The way from the dataplane nftables to another one on a live node.

use nftables::RulesClient;

use super::{Chore, Round};
use crate::dataplane::{Dataplane, Failure, nftables::TABLE};

/// Removes the table of the dataplane nftables when another dataplane serves.
///
/// Until then, the table serves new connections. The connections that it translated continue without it: the kernel
/// translates them as long as any table has a NAT chain, and ours for IPVS has one.
#[derive(Debug)]
pub(crate) struct FormerNftables(Option<RulesClient>);

impl FormerNftables {
    /// Looks for the table of an earlier process.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub(crate) fn open() -> Result<Self, Failure> {
        let mut client = RulesClient::open(TABLE).map_err(Failure::netfilter_socket)?;
        Ok(Self(client.exists()?.then_some(client)))
    }
}

impl<D: Dataplane> Chore<D> for FormerNftables {
    fn after(&mut self, round: &Round<'_, D>) {
        if !round.has_succeeded() || !round.proxier.dataplane().has_written_rules() {
            return;
        }
        let Some(mut client) = self.0.take() else {
            return;
        };
        match client.delete() {
            Ok(()) => tracing::info!("nothing of the dataplane nftables is left"),
            Err(error) => {
                tracing::warn!("removing table inet {TABLE}: {error}; the next round tries again");
                self.0 = Some(client);
            }
        }
    }
}
