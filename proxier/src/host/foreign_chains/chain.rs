//! Base chains of other programs at the hooks that packets of Services pass.

use std::fmt;

use netlink::Error;
use netlink::attr::find;

use crate::host::listing::{ChainName, chain_name};
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
    pub(super) name: ChainName,
}

/// The priority of IPVS at the input hook (`NF_IP_PRI_NAT_SRC - 2`). It takes packets for frontends from the
/// hook, so later chains do not see them.
const IPVS_INPUT: i32 = 98;

/// The tables in which iptables has chains of type filter at these hooks.
const IPTABLES_TABLES: [&str; 3] = ["filter", "mangle", "security"];

impl ForeignChain {
    #[cfg(test)]
    pub(super) fn new(hook: ForeignHook, family: &'static str, table: &str, name: &str) -> Self {
        let name = ChainName {
            family,
            table: table.into(),
            name: name.into(),
        };
        Self { hook, name }
    }

    /// Returns the hook.
    pub(crate) fn hook(&self) -> ForeignHook {
        self.hook
    }

    /// Returns whether firewalld made this chain.
    pub(super) fn is_of_firewalld(&self) -> bool {
        self.name.table == "firewalld"
    }

    /// Returns the iptables program that made this chain; `None` if nft or a library did.
    pub(super) fn iptables_program(&self) -> Option<&'static str> {
        let ChainName {
            family,
            table,
            name,
        } = &self.name;
        if name != self.hook.iptables_chain() || !IPTABLES_TABLES.contains(&&**table) {
            return None;
        }
        match *family {
            "ip" => Some("iptables"),
            "ip6" => Some("ip6tables"),
            _ => None,
        }
    }
}

impl fmt::Display for ForeignChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// Reads a chain and whether its policy is drop; `None` if packets of Services do not pass it.
pub(super) fn read(payload: &[u8]) -> Result<Option<(ForeignChain, bool)>, Error> {
    let family = payload.first().copied().unwrap_or_default();
    let (mut hook, mut priority, mut policy) = (None, None, None);
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
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
    // If a name is not UTF-8, only that chain's check fails.
    let name = chain_name(payload)?;
    let chain = ForeignChain { hook, name };
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
