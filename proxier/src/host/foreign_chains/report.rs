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
    /// Whether our rule stays before those of others for a while, which another check ends.
    pub waits: bool,
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
    /// Why our rule is missing; `None` with [`super::Treatment::Warn`].
    pub(super) missing: Option<MissingRule>,
}

/// The reason why a chain drops the packets that none of its rules accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DropCause {
    Policy,
    LastRule,
}

/// Why our rule is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MissingRule {
    /// The kernel refuses it.
    Refused {
        words: String,
        /// Whether only the process that made the table may change it (`NFT_TABLE_F_OWNER`).
        is_of_owner: bool,
    },
    /// Another program put its rules behind it again and again.
    Displaced,
}

impl From<&Refusal> for MissingRule {
    fn from(refusal: &Refusal) -> Self {
        Self::Refused {
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
            missing,
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
        match missing {
            Some(MissingRule::Refused { words, .. }) => {
                write!(f, "inserting a rule for them was refused: {words}; ")?;
            }
            Some(MissingRule::Displaced) => f.write_str(
                "our rule for them is left out for ten minutes, because another program puts rules behind it again and \
                 again, which it would overrule; ",
            )?,
            None => {}
        }
        match (accepted, missing) {
            // The command needs the mark, which our table sets only if it may insert the rule.
            (Some(Accepted::Marked { .. }), None) => {
                write!(f, "to accept them, {}", start_again(chain.hook))
            }
            (_, Some(MissingRule::Refused { is_of_owner, .. }))
                if *is_of_owner && chain.is_of_firewalld() =>
            {
                write!(
                    f,
                    "to permit it, set `NftablesTableOwner=no` in /etc/firewalld/firewalld.conf and restart \
                 firewalld"
                )
            }
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
