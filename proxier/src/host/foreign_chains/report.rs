//! The result of a check of foreign chains.

use std::collections::BTreeSet;
use std::fmt;

use netlink::Refusal;
use rustix::io::Errno;

use super::accepted::Accepted;
use super::chain::{ForeignChain, ForeignHook};
use super::legacy::LegacyFilter;

/// The result of [`super::ForeignChains::apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainReport {
    /// The chains that got our rule.
    pub inserted: Vec<ForeignChain>,
    /// The chains that lost our rule, because the chain or the treatment changed.
    pub removed: Vec<ForeignChain>,
    /// The chains that may drop packets of Services.
    pub dropping: BTreeSet<DroppingChain>,
    /// Errors, each with its chain. The next check may succeed.
    pub failures: BTreeSet<String>,
    /// The tables of iptables-legacy in use.
    pub legacy_tables: Vec<LegacyFilter>,
}

/// A chain that drops packets and lacks our rule.
///
/// Prints with the command that ends that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppingChain {
    pub(super) chain: ForeignChain,
    pub(super) cause: DropCause,
    /// What our rule would accept; `None` at the output hook, for which there is none.
    pub(super) accepted: Option<Accepted>,
    /// Whether the packets are translated before.
    pub(super) are_translated: bool,
    /// The kernel's error for our rule; `None` with [`super::Treatment::Warn`].
    pub(super) refusal: Option<RefusedRule>,
}

/// The reason why a chain drops the packets that none of its rules accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DropCause {
    Policy,
    LastRule,
}

/// The kernel's refusal to insert our rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RefusedRule {
    words: String,
    /// Whether only the process that made the table may change it (`NFT_TABLE_F_OWNER`).
    is_of_owner: bool,
}

impl From<&Refusal> for RefusedRule {
    fn from(refusal: &Refusal) -> Self {
        Self {
            words: refusal.to_string(),
            is_of_owner: refusal.errno == Errno::PERM,
        }
    }
}

impl fmt::Display for DroppingChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            chain,
            cause,
            accepted,
            are_translated,
            refusal,
        } = self;
        let cause = match cause {
            DropCause::Policy => "policy",
            DropCause::LastRule => "last rule",
        };
        let (packets, accepting, effect) = match (chain.hook, are_translated) {
            (ForeignHook::Forward, false) => (
                "forwarded",
                "established connections",
                "only processes of this node receive the answers of endpoints",
            ),
            (ForeignHook::Forward, true) => (
                "forwarded",
                "them",
                "only processes of this node reach Services",
            ),
            (ForeignHook::Input, false) => (
                "incoming",
                "them",
                "only processes of this node reach Services",
            ),
            (ForeignHook::Input, true) => (
                "incoming",
                "them",
                "only processes of this node reach endpoints at addresses of this node",
            ),
            (ForeignHook::Output, false) => (
                "outgoing",
                "packets for endpoints",
                "no client reaches Services",
            ),
            (ForeignHook::Output, true) => (
                "outgoing",
                "packets for endpoints",
                "processes of this node do not reach Services",
            ),
        };
        write!(
            f,
            "{chain} drops {packets} packets by its {cause}; unless one of its rules accepts {accepting}, {effect}; "
        )?;
        if let Some(refusal) = refusal {
            write!(
                f,
                "inserting a rule for them was refused: {}; ",
                refusal.words
            )?;
        }
        match (accepted, refusal) {
            // The command needs the mark, which our table sets only if it may insert the rule.
            (Some(Accepted::Marked { .. }), None) => {
                write!(f, "to accept them, {}", start_again(chain.hook))
            }
            (_, Some(refusal)) if refusal.is_of_owner && chain.is_of_firewalld() => write!(
                f,
                "to permit it, set `NftablesTableOwner=no` in /etc/firewalld/firewalld.conf and restart \
                 firewalld"
            ),
            (Some(accepted), _) => {
                write!(f, "to accept them, run `{}`", accepted.command(chain))
            }
            (None, _) => f.write_str("accept the networks of Pods, nodes and Services in it"),
        }
    }
}

/// Returns the operator's action that lets our table mark packets of Services at `hook`.
pub(super) fn start_again(hook: ForeignHook) -> String {
    format!("start ipvs-proxier with `--{hook}-drop=accept`")
}
