//! The way from the dataplane nftables to another one on a live node.

use nftables::RulesClient;
use tracing::Level;

use super::{Chore, Round};
use crate::dataplane::nftables::TABLE;
use crate::dataplane::{Dataplane, Extent, Failure};
use crate::util::conditions::{Coverage, LastingConditions};
use crate::util::timer::Timer;

/// Removes the table of the dataplane nftables when another dataplane serves.
///
/// Until then, the table serves new connections. The connections that it translated continue without it: the kernel
/// translates them as long as any table has a NAT chain, and ours for IPVS has one.
#[derive(Debug)]
pub(crate) struct FormerNftables {
    /// `None` when nothing is left.
    client: Option<RulesClient>,
    /// The number of resyncs that failed in part.
    tries: u32,
    /// The wait after a failure.
    retry: Timer,
    /// Failures that last.
    failures: LastingConditions,
}

/// The resyncs after which the table is removed although the kernel refuses some Ops: the endpoints in it are old.
const MOST_TRIES: u32 = 3;

impl FormerNftables {
    /// Looks for the table of an earlier process.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub(crate) fn open() -> Result<Self, Failure> {
        let mut client = RulesClient::open(TABLE).map_err(Failure::netfilter_socket)?;
        Ok(Self {
            client: client.exists()?.then_some(client),
            tries: 0,
            retry: Timer::retry(),
            failures: LastingConditions::default(),
        })
    }
}

impl<D: Dataplane> Chore<D> for FormerNftables {
    fn after(&mut self, round: &Round<'_, D>) {
        let Ok(applied) = round.result else {
            return;
        };
        self.tries += u32::from(round.extent == Extent::All);
        let is_whole = round.has_succeeded() && applied.has_tried_all;
        let serves = round.proxier.dataplane().has_written_rules();
        if self.retry.is_waiting(round.now) || !serves || !is_whole && self.tries < MOST_TRIES {
            return;
        }
        let Some(client) = &mut self.client else {
            return;
        };
        let mut report = self.failures.report(Coverage::All, round.now);
        match client.delete() {
            Ok(()) => {
                tracing::info!("nothing of the dataplane nftables is left");
                self.client = None;
            }
            Err(error) => {
                self.retry.back_off(round.now);
                let text =
                    format_args!("removing table inet {TABLE}: {error}; a later round tries again");
                report.add(Level::WARN, "failures to remove the former dataplane", text);
            }
        }
        report.write();
    }
}
