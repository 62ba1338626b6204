//! Families of addresses that this node serves but does not speak: it has no usable address of them.

use std::net::IpAddr;

use crate::cluster::model::Family;
use crate::cluster::problem::Problem;
use crate::plan::{Desired, Machine, SourceFlaw};

/// What this node lacks to speak IPv6, though it has IPv6 frontends.
///
/// IPv4 has no counterpart: the kernel detects no duplicates in it, and kubelet needs an address.
enum Lack {
    /// It has link-local addresses at most.
    Address,
    /// Each address is tentative or a duplicate; the lowest one.
    UsableAddress(IpAddr),
}

/// Returns the Problem that this node has no usable IPv6 address.
pub(super) fn problem(machine: &Machine, desired: &Desired) -> Option<Problem> {
    let (value, message) = match lack(machine, desired)? {
        Lack::Address => (
            String::new(),
            "has no IPv6 address but link-local ones, so IPv6 connections that must be masqueraded reach no endpoint on \
             another node; give it an address",
        ),
        Lack::UsableAddress(address) => (
            address.to_string(),
            "is tentative or a duplicate (`ip -6 address` says dadfailed), as each IPv6 address of this node: its \
             connections to IPv6 Services, and those that must be masqueraded, fail; give it another address",
        ),
    };
    Some(Problem::new("This node", "IPv6 addresses", value, message))
}

/// Returns why the node is unhealthy.
///
/// Not if it has no address: it was set up so, and serves IPv4 alone.
pub(super) fn refusal(machine: &Machine, desired: &Desired) -> Option<String> {
    match lack(machine, desired)? {
        Lack::Address => None,
        Lack::UsableAddress(address) => Some(format!(
            "each IPv6 address of this node is tentative or a duplicate, for example {address}"
        )),
    }
}

fn lack(machine: &Machine, desired: &Desired) -> Option<Lack> {
    // Sorted by address, IPv4 first.
    let (last, _) = desired.frontends.last_key_value()?;
    if last.family() == Family::V4 {
        return None;
    }
    let is_unusable = |it: &&IpAddr| machine.flawed_sources.get(*it) == Some(&SourceFlaw::Unusable);
    let all = || machine.addresses.iter().filter(|it| it.is_ipv6());
    match all().next() {
        None => Some(Lack::Address),
        Some(first) => all()
            .all(|it| is_unusable(&it))
            .then_some(Lack::UsableAddress(*first)),
    }
}
