//! Chains at the forward hook.

use std::fmt;

use ipvs_netlink::Error;
use ipvs_netlink::attr::{Writer, find};

use super::accept_rule::OPERATOR;
use crate::nftables::message::contents;
use crate::nftables::sys::*;

/// A chain at the forward hook, in a table of another program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardChain {
    family: u8,
    table: String,
    name: String,
}

/// The tables in which iptables has a chain at the forward hook.
const IPTABLES_TABLES: [&str; 3] = ["filter", "mangle", "security"];

impl ForwardChain {
    #[cfg(test)]
    pub(super) fn new(family: u8, table: &str, name: &str) -> Self {
        Self {
            family,
            table: table.into(),
            name: name.into(),
        }
    }

    /// Writes the begin of a message about the chain's rules: header, table and chain.
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        writer.header(&[self.family, 0, 0, 0]);
        writer.string(NFTA_RULE_TABLE, &self.table);
        writer.string(NFTA_RULE_CHAIN, &self.name);
    }

    /// Returns the iptables program that made this chain; `None` if nft or a library did.
    pub(super) fn iptables_program(&self) -> Option<&'static str> {
        if self.name != "FORWARD" || !IPTABLES_TABLES.contains(&&*self.table) {
            return None;
        }
        match self.family {
            NFPROTO_IPV4 => Some("iptables"),
            NFPROTO_IPV6 => Some("ip6tables"),
            _ => None,
        }
    }

    /// Returns a shell command that makes the chain accept established connections.
    pub(super) fn command(&self) -> String {
        let Self { table, name, .. } = self;
        match self.iptables_program() {
            Some(program) => format!(
                "{program} -t {table} -I {name} -m conntrack --ctstate ESTABLISHED,RELATED \
                 -m comment --comment {OPERATOR} -j ACCEPT"
            ),
            None => format!(
                "nft insert rule {} {table} {name} ct state established,related accept \
                 comment {OPERATOR}",
                self.family_name()
            ),
        }
    }

    fn family_name(&self) -> &'static str {
        match self.family {
            NFPROTO_IPV4 => "ip",
            NFPROTO_IPV6 => "ip6",
            _ => "inet",
        }
    }
}

impl fmt::Display for ForwardChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, name, .. } = self;
        write!(f, "chain {name} of table {} {table}", self.family_name())
    }
}

/// Reads a chain and whether its policy is drop; `None` if it is not at the forward hook.
pub(super) fn read(payload: &[u8]) -> Result<Option<(ForwardChain, bool)>, Error> {
    let family = payload.first().copied().unwrap_or_default();
    let (mut table, mut name) = (None, None);
    let (mut hook, mut policy) = (None, None);
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = Some(attribute.value),
            NFTA_CHAIN_NAME => name = Some(attribute.value),
            NFTA_CHAIN_POLICY => policy = Some(attribute.u32_be()?),
            NFTA_CHAIN_HOOK => hook = find(attribute.nested(), NFTA_HOOK_HOOKNUM)?,
            _ => {}
        }
    }
    let hook = hook.map(|hook| hook.u32_be()).transpose()?;
    let is_ip = [NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6].contains(&family);
    if !is_ip || hook != Some(NF_INET_FORWARD) {
        return Ok(None);
    }
    let chain = ForwardChain {
        family,
        table: text(table),
        name: text(name),
    };
    Ok(Some((chain, policy == Some(NF_DROP.cast_unsigned()))))
}

/// Returns a name as text. The kernel accepts names of any bytes.
///
/// If a name is not UTF-8, requests with the text fail with `ENOENT`. Only that chain's check fails then.
fn text(name: Option<&[u8]>) -> String {
    let name = String::from_utf8_lossy(name.unwrap_or_default());
    name.trim_end_matches('\0').to_owned()
}

/// Returns whether a message describes a forward chain with policy drop.
pub(in crate::nftables) fn has_drop_policy(payload: &[u8]) -> bool {
    matches!(read(payload), Ok(Some((_, true))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_uses_the_tool_that_made_the_chain() {
        for (family, table, words) in [
            (NFPROTO_IPV4, "filter", "iptables -t filter -I FORWARD -m"),
            (NFPROTO_IPV6, "mangle", "ip6tables -t mangle -I FORWARD -m"),
            (NFPROTO_IPV4, "docker", "nft insert rule ip docker FORWARD"),
            (
                NFPROTO_INET,
                "filter",
                "nft insert rule inet filter FORWARD",
            ),
        ] {
            let command = ForwardChain::new(family, table, "FORWARD").command();
            assert!(command.starts_with(words), "{command}");
        }
    }
}
