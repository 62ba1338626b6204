//! Chains at the forward hook.

use std::fmt;

use ipvs_netlink::Error;
use ipvs_netlink::attr::find;

use crate::nftables::message::contents;
use crate::nftables::sys::*;

/// A chain at the forward hook, of somebody else's table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardChain {
    family: u8,
    table: String,
    name: String,
}

/// The tables of iptables that have a chain at the forward hook.
const TABLES_OF_IPTABLES: [&str; 3] = ["filter", "mangle", "security"];

impl ForwardChain {
    #[cfg(test)]
    pub(super) fn new(family: u8, table: &str, name: &str) -> Self {
        Self {
            family,
            table: table.into(),
            name: name.into(),
        }
    }

    pub(super) fn family(&self) -> u8 {
        self.family
    }

    pub(super) fn table(&self) -> &str {
        &self.table
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The name of the iptables program that this chain is of. It reads rules in its own dialect
    /// only, and gives up on a table with any other.
    pub(super) fn program(&self) -> Option<&'static str> {
        if self.name != "FORWARD" || !TABLES_OF_IPTABLES.contains(&&*self.table) {
            return None;
        }
        match self.family {
            NFPROTO_IPV4 => Some("iptables"),
            NFPROTO_IPV6 => Some("ip6tables"),
            _ => None,
        }
    }

    /// The command by which the chain accepts established connections.
    pub(super) fn command(&self) -> String {
        let Self { table, name, .. } = self;
        match self.program() {
            Some(program) => format!(
                "{program} -t {table} -I {name} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
            ),
            None => format!(
                "nft insert rule {} {table} {name} ct state established,related accept",
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

/// The chain that a message describes, and whether its policy is drop, if it is at the forward hook.
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
    let is_packets = [NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6].contains(&family);
    if !is_packets || hook != Some(NF_INET_FORWARD) {
        return Ok(None);
    }
    let chain = ForwardChain {
        family,
        table: readable(table),
        name: readable(name),
    };
    Ok(Some((chain, policy == Some(NF_DROP.cast_unsigned()))))
}

/// A name, as far as it can be read: to the kernel it is just bytes. By any other the kernel finds
/// nothing, and says so of this chain alone.
fn readable(name: Option<&[u8]>) -> String {
    let name = String::from_utf8_lossy(name.unwrap_or_default());
    name.trim_end_matches('\0').to_owned()
}

/// Whether a message describes a chain that drops what is forwarded.
pub(in crate::nftables) fn is_dropping(payload: &[u8]) -> bool {
    matches!(read(payload), Ok(Some((_, true))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_of_the_tool_that_made_the_chain() {
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
