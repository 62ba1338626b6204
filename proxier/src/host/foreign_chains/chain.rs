//! Base chains of other programs at the hooks that packets of Services pass.

use std::fmt;

use netlink::Error;
use netlink::attr::{Writer, find};

use crate::host::listing::{family_name, text};
use nftables::raw::contents;
use nftables::sys::*;

/// A hook at which a chain of another program can drop packets of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ForeignHook {
    /// The forward hook: the answers of endpoints pass it.
    Forward,
    /// The input hook: packets of clients for frontends pass it.
    Input,
    /// The output hook: IPVS sends the packets of clients to endpoints through it.
    Output,
}

impl ForeignHook {
    fn of(number: u32) -> Option<Self> {
        match number {
            NF_INET_FORWARD => Some(Self::Forward),
            NF_INET_LOCAL_IN => Some(Self::Input),
            NF_INET_LOCAL_OUT => Some(Self::Output),
            _ => None,
        }
    }

    /// Returns iptables' name of its chains at this hook.
    pub(super) fn iptables_chain(self) -> &'static str {
        match self {
            Self::Forward => "FORWARD",
            Self::Input => "INPUT",
            Self::Output => "OUTPUT",
        }
    }
}

impl fmt::Display for ForeignHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Input => "input",
            Self::Output => "output",
        })
    }
}

/// A base chain in a table of another program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignChain {
    pub(super) hook: ForeignHook,
    family: u8,
    table: String,
    name: String,
}

/// The priority of IPVS at the input hook (`NF_IP_PRI_NAT_SRC - 2`). It takes packets for frontends from the
/// hook, so later chains do not see them.
const IPVS_INPUT: i32 = 98;

/// The tables in which iptables has chains of type filter at these hooks.
const IPTABLES_TABLES: [&str; 3] = ["filter", "mangle", "security"];

impl ForeignChain {
    #[cfg(test)]
    pub(super) fn new(hook: ForeignHook, family: u8, table: &str, name: &str) -> Self {
        Self {
            hook,
            family,
            table: table.into(),
            name: name.into(),
        }
    }

    /// Returns the hook.
    pub(crate) fn hook(&self) -> ForeignHook {
        self.hook
    }

    /// Returns the table's name.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// Returns the chain's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Writes the begin of a message about the chain's rules: header, table and chain.
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        writer.header(&[self.family, 0, 0, 0]);
        writer.string(NFTA_RULE_TABLE, &self.table);
        writer.string(NFTA_RULE_CHAIN, &self.name);
    }

    /// Returns the iptables program that made this chain; `None` if nft or a library did.
    pub(super) fn iptables_program(&self) -> Option<&'static str> {
        if self.name != self.hook.iptables_chain() || !IPTABLES_TABLES.contains(&&*self.table) {
            return None;
        }
        match self.family {
            NFPROTO_IPV4 => Some("iptables"),
            NFPROTO_IPV6 => Some("ip6tables"),
            _ => None,
        }
    }

    pub(super) fn family_name(&self) -> &'static str {
        family_name(self.family)
    }
}

impl fmt::Display for ForeignChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, name, .. } = self;
        write!(f, "chain {name} of table {} {table}", self.family_name())
    }
}

/// Reads a chain and whether its policy is drop; `None` if packets of Services do not pass it.
pub(super) fn read(payload: &[u8]) -> Result<Option<(ForeignChain, bool)>, Error> {
    let family = payload.first().copied().unwrap_or_default();
    let (mut table, mut name) = (None, None);
    let (mut hook, mut priority, mut policy) = (None, None, None);
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = Some(attribute.value),
            NFTA_CHAIN_NAME => name = Some(attribute.value),
            NFTA_CHAIN_POLICY => policy = Some(attribute.u32_be()?),
            NFTA_CHAIN_HOOK => {
                hook = find(attribute.nested(), NFTA_HOOK_HOOKNUM)?;
                priority = find(attribute.nested(), NFTA_HOOK_PRIORITY)?;
            }
            _ => {}
        }
    }
    let hook = hook.map(|hook| hook.u32_be()).transpose()?;
    let is_ip = [NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6].contains(&family);
    let Some(hook) = hook.filter(|_| is_ip).and_then(ForeignHook::of) else {
        return Ok(None);
    };
    let priority = priority.map(|priority| priority.u32_be()).transpose()?;
    let is_behind_ipvs = priority.is_some_and(|priority| priority.cast_signed() >= IPVS_INPUT);
    if hook == ForeignHook::Input && is_behind_ipvs {
        return Ok(None);
    }
    let chain = ForeignChain {
        hook,
        family,
        // If a name is not UTF-8, only that chain's check fails.
        table: text(table.unwrap_or_default()),
        name: text(name.unwrap_or_default()),
    };
    Ok(Some((chain, policy == Some(NF_DROP.cast_unsigned()))))
}

/// Returns whether a new chain may drop packets of Services.
///
/// At the hooks of host firewalls, whatever its policy: firewalld's chain accepts by policy and rejects by its last
/// rule, which the kernel announces separately, without the chain's hook.
pub(crate) fn may_drop(payload: &[u8]) -> bool {
    match read(payload) {
        Ok(Some((chain, has_drop_policy))) => has_drop_policy || chain.hook != ForeignHook::Forward,
        _ => false,
    }
}
