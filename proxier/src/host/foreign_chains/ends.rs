//! The chains at whose end our rule must stay, for the thread that listens for changes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::author;
use super::chain::may_drop;
use crate::host::listing::{ChainName, rule_chain};
use nftables::sys::*;

/// The chains that have our rule as their last one. Clones are the same value.
#[derive(Clone, Debug, Default)]
pub(super) struct ChainEnds(Arc<Mutex<BTreeSet<ChainName>>>);

impl ChainEnds {
    /// Replaces the chains.
    pub(super) fn set(&self, chains: BTreeSet<ChainName>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = chains;
    }

    /// Returns whether a notification about a message of this kind (`NFT_MSG_*`) says that a foreign chain may
    /// need [`super::ForeignChains::apply`]: one that may drop packets of Services was added or changed, our rule in one
    /// was deleted, or another may be behind ours that is the last.
    pub(super) fn concern(&self, kind: u16, payload: &[u8]) -> bool {
        match kind {
            NFT_MSG_NEWCHAIN => may_drop(payload),
            // Elsewhere, most new rules are behind ours, which is at the head of the chain. The next resync finds one that
            // drops before it.
            NFT_MSG_NEWRULE => {
                let chains = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                !chains.is_empty()
                    && rule_chain(payload).is_ok_and(|chain| chains.contains(&chain))
                    && author(payload).is_none()
            }
            NFT_MSG_DELRULE => author(payload).is_some(),
            _ => false,
        }
    }
}
