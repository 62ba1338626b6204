//! The packets that our rule accepts in a foreign chain: its matches, its comment and its command.

use super::chain::{ForeignChain, ForeignHook};
use crate::host::ChainName;

/// The packets that our rule accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Accepted {
    /// At the forward hook: answers of endpoints.
    Answers,
    /// Packets of Services. Our table sets this mark, one bit, before them.
    Marked {
        /// The mark.
        mark: u32,
    },
}

/// The comments in the commands for the operator ([`Accepted::command`]). Each is one word:
/// nft needs quotes around several words, and a shell would remove them.
const OPERATOR_ANSWERS: &str = "ipvs-proxier";
const OPERATOR_MARKED: &str = "ipvs-proxier-marked";

const ANSWERS: &str = "ipvs-proxier: answers of endpoints";
const FOR_FRONTENDS: &str = "ipvs-proxier: packets for frontends";

/// The author of a rule, according to its comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// This program, with this comment. It may delete the rule.
    Program(String),
    /// The operator, with the command that the log named, and with this comment.
    Operator(String),
}

impl Author {
    /// Returns the author with this comment; `None` if the comment is not ours.
    pub(super) fn of(comment: &str) -> Option<Self> {
        match comment {
            OPERATOR_ANSWERS | OPERATOR_MARKED => Some(Self::Operator(comment.to_owned())),
            _ if comment.starts_with(ANSWERS) || comment.starts_with(FOR_FRONTENDS) => {
                Some(Self::Program(comment.to_owned()))
            }
            _ => None,
        }
    }
}

impl Accepted {
    /// Returns whether our rule is the last one of a chain at `hook`, so that all others decide first: a network policy
    /// may drop what is forwarded to a Pod, and only the chain's own policy must not.
    ///
    /// Elsewhere it is the first one: a drop before it would be final.
    pub(super) fn comes_last(self, hook: ForeignHook) -> bool {
        hook == ForeignHook::Forward && matches!(self, Self::Marked { .. })
    }

    /// Returns the comment of the rule that this program inserts.
    ///
    /// It names the mark, so that a rule of a process with another mark is recognised and replaced.
    pub(super) fn comment(self) -> String {
        match self {
            Self::Answers => ANSWERS.to_owned(),
            Self::Marked { mark } => format!("{FOR_FRONTENDS}, mark {mark:#x}"),
        }
    }

    /// Returns the comment of the rule of [`Self::command`].
    pub(super) fn operators_comment(self) -> &'static str {
        match self {
            Self::Answers => OPERATOR_ANSWERS,
            Self::Marked { .. } => OPERATOR_MARKED,
        }
    }

    /// Returns a shell command that makes the chain accept these packets.
    pub(super) fn command(self, chain: &ForeignChain) -> String {
        let ChainName {
            family,
            table,
            name,
        } = &chain.name;
        let comment = self.operators_comment();
        match chain.iptables_program() {
            Some(program) => format!(
                "{program} -t {table} {} {name} {} -m comment --comment {comment} -j ACCEPT",
                self.iptables_action(chain.hook),
                self.iptables_match()
            ),
            None => {
                let add = if self.comes_last(chain.hook) {
                    "add"
                } else {
                    "insert"
                };
                format!(
                    "nft {add} rule {family} {table} {name} {} accept comment {comment}",
                    self.nft_match()
                )
            }
        }
    }

    pub(super) fn iptables_action(self, hook: ForeignHook) -> &'static str {
        if self.comes_last(hook) { "-A" } else { "-I" }
    }

    pub(super) fn iptables_match(self) -> String {
        match self {
            Self::Answers => "-m conntrack --ctstate ESTABLISHED,RELATED".to_owned(),
            Self::Marked { mark } => format!("-m mark --mark {mark:#x}/{mark:#x}"),
        }
    }

    fn nft_match(self) -> String {
        match self {
            Self::Answers => "ct state established,related".to_owned(),
            // In a shell, an ampersand would need quotes.
            Self::Marked { mark } => format!("meta mark and {mark:#x} == {mark:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_uses_the_tool_that_made_the_chain() {
        use ForeignHook::{Forward, Input};
        for (hook, family, table, name, words) in [
            (
                Forward,
                "ip",
                "filter",
                "FORWARD",
                "iptables -t filter -I FORWARD -m conntrack",
            ),
            (
                Forward,
                "ip6",
                "mangle",
                "FORWARD",
                "ip6tables -t mangle -I FORWARD -m conntrack",
            ),
            (
                Forward,
                "ip",
                "docker",
                "FORWARD",
                "nft insert rule ip docker FORWARD ct state",
            ),
            (
                Forward,
                "inet",
                "filter",
                "FORWARD",
                "nft insert rule inet filter FORWARD ct state",
            ),
            (
                Input,
                "ip",
                "filter",
                "INPUT",
                "iptables -t filter -I INPUT -m mark --mark 0x1000/0x1000 ",
            ),
            (
                Input,
                "ip6",
                "filter",
                "FORWARD",
                "nft insert rule ip6 filter FORWARD meta mark and 0x1000",
            ),
        ] {
            let chain = ForeignChain::new(hook, family, table, name);
            let accepted = match hook {
                Forward => Accepted::Answers,
                _ => Accepted::Marked { mark: 0x1000 },
            };
            let command = accepted.command(&chain);
            assert!(command.starts_with(words), "{command}");
        }
    }
}
