//! The table of family `arp`: this node neither claims nor uses load-balancer and external addresses on its
//! links (`--arp=services`).
//!
//! Linux answers an ARP request for any local address on any link, and sends its own requests with the
//! source address of the packet that waits. Service addresses are local on every node, so every node would
//! claim them, and a speaker such as MetalLB's could not move them. `arp_ignore` and `arp_announce`
//! (`--arp=strict`) prevent that for all addresses of the host. This table does it for service addresses only:
//!
//! ```text
//!  request ─▶ input: target is one of the addresses? drop
//!  our request ─▶ output: sender is one of the addresses? the link's own address instead
//! ```
//!
//! An address that an interface has is no service address, so its owner answers. A speaker with raw sockets
//! does not pass these hooks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::chains::rule;
use super::config::NodeFacts;
use super::names::{ARP_ADDRESSES, ARP_SENDERS, OWN_SENDER, sender};
use super::ruleset::{Count, Ruleset, SharedPart};
use crate::model::Family;
use nftables::{
    Chain, Element, Hook, Key, KeyType, Match, Rule, Selector, Set, SetKind, Statement, Table,
    Value, Verdict,
};

/// The IPv4 address that each link has of its own, by its name.
pub(crate) type LinkAddresses = BTreeMap<Arc<str>, Ipv4Addr>;

/// The facts on which the table depends.
#[derive(Clone, Debug, Default)]
pub(super) struct ArpFacts {
    /// The number of external frontends at each address.
    external: BTreeMap<Ipv4Addr, usize>,
    /// The addresses that [`Ruleset::release_arp`] may have to remove.
    stale: BTreeSet<Ipv4Addr>,
    links: LinkAddresses,
}

/// Returns the table of a node without Services.
pub(super) fn table(node: &NodeFacts) -> Table {
    let mut table = Table::default();
    let address = [KeyType::Address(Family::V4)];
    table.add_set(Set::new(ARP_ADDRESSES, address, SetKind::Set));
    let link = [KeyType::Interface];
    table.add_set(Set::new(ARP_SENDERS, link, SetKind::Verdicts));
    let is_service = |selector| Statement::In {
        key: [selector].into(),
        set: ARP_ADDRESSES.into(),
    };
    let request = || Statement::from(Match::ArpRequest);
    for chain in [
        Chain::at(
            "input",
            Hook::ArpInput,
            [rule([
                request(),
                is_service(Selector::ArpTarget),
                Verdict::Drop.into(),
            ])],
        ),
        Chain::at(
            "output",
            Hook::ArpOutput,
            [rule([
                request(),
                is_service(Selector::ArpSender),
                Verdict::Goto(OWN_SENDER.into()).into(),
            ])],
        ),
        Chain::new(OWN_SENDER, own_sender(node)),
    ] {
        table.add_chain(chain);
    }
    table
}

/// Replaces the sender by the link's address. On a link without an address, replaces it by the node's.
fn own_sender(node: &NodeFacts) -> Vec<Rule> {
    let by_link = Statement::VerdictMap {
        key: [Selector::OutputInterface].into(),
        map: ARP_SENDERS.into(),
    };
    let node = node.addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(rule([Statement::SetArpSender(*address)])),
        IpAddr::V6(_) => None,
    });
    [rule([by_link])].into_iter().chain(node).collect()
}

impl Ruleset {
    /// Counts an external frontend at `address`.
    pub(super) fn count_arp(&mut self, count: Count, address: IpAddr) {
        let (Some(arp), IpAddr::V4(v4)) = (&mut self.arp, address) else {
            return;
        };
        match count.apply(&mut arp.external, v4) {
            Some(SharedPart::Add) => {
                arp.stale.remove(&v4);
                self.silence(address);
            }
            // The address may still be local. When it is not, `release_arp` removes the element.
            Some(SharedPart::Remove) => drop(arp.stale.insert(v4)),
            None => {}
        }
    }

    /// Hides `address`, whether or not it is external: after a restart, that is unknown for an address that
    /// is no longer desired.
    pub(super) fn hide(&mut self, address: IpAddr) {
        if let (Some(mut table), IpAddr::V4(address)) = (self.arp_table(), address) {
            let key = Key::new([Value::V4(address)]);
            table.add_element(ARP_ADDRESSES, key.into());
        }
    }

    /// Makes [`Ruleset::release_arp`] check `address`, which is desired again.
    pub(super) fn review_arp(&mut self, address: IpAddr) {
        if let (Some(arp), IpAddr::V4(v4)) = (&mut self.arp, address) {
            arp.stale.insert(v4);
        }
    }

    /// Adds `address` to the table if it is local for Services and has an external frontend.
    pub(super) fn silence(&mut self, address: IpAddr) {
        let (Some(arp), IpAddr::V4(v4)) = (&self.arp, address) else {
            return;
        };
        if arp.external.contains_key(&v4) && self.has_service_address(address) {
            self.hide(address);
        }
    }

    /// Removes the stale addresses without an external frontend, except those that the kernel may still
    /// have. Returns whether there were any.
    pub(super) fn release_arp(&mut self) -> bool {
        let Some(arp) = &mut self.arp else {
            return false;
        };
        let stale = std::mem::take(&mut arp.stale);
        let (kept, mut gone): (BTreeSet<_>, BTreeSet<_>) =
            (stale.into_iter()).partition(|&address| self.is_guarded(IpAddr::V4(address)));
        if let Some(arp) = &mut self.arp {
            gone.retain(|address| !arp.external.contains_key(address));
            arp.stale = kept;
        }
        for &address in &gone {
            self.unsilence(address.into());
        }
        !gone.is_empty()
    }

    /// Removes a service address that the kernel no longer has.
    pub(super) fn unsilence(&mut self, address: IpAddr) {
        if let Some(mut table) = self.arp_table() {
            table.remove_element(ARP_ADDRESSES, Key::new([address.into()]));
        }
    }

    /// Sets the addresses with which the node sends ARP requests, by link.
    pub fn set_links(&mut self, links: &LinkAddresses) {
        let Some(arp) = &mut self.arp else {
            return;
        };
        let old = std::mem::replace(&mut arp.links, links.clone());
        let Some(mut table) = self.arp_table() else {
            return;
        };
        let element = |(link, &address): (&Arc<str>, &Ipv4Addr)| {
            Some(Element {
                key: Key::new([Value::interface(link)?]),
                verdict: Some(Verdict::Goto(sender(address))),
            })
        };
        // In any order: `Table::difference` puts the commands into the one that the kernel accepts.
        for gone in old.iter().filter(|(link, _)| !links.contains_key(*link)) {
            if let Some(element) = element(gone) {
                table.remove_element(ARP_SENDERS, element.key);
            }
        }
        for new in links
            .iter()
            .filter(|(link, address)| old.get(*link) != Some(*address))
        {
            if let Some(element) = element(new) {
                table.add_element(ARP_SENDERS, element);
            }
        }
        let addresses = |links: &LinkAddresses| links.values().copied().collect::<BTreeSet<_>>();
        let (before, after) = (addresses(&old), addresses(links));
        for &address in before.difference(&after) {
            table.remove_chain(&sender(address));
        }
        for &address in after.difference(&before) {
            let set = rule([Statement::SetArpSender(address)]);
            table.add_chain(Chain::new(sender(address), [set]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ipvs::Admission;
    use crate::filter::FilterConfig;
    use crate::frontend::Frontend;
    use crate::model::{Protocol, TrafficPolicy};
    use crate::plan::{Availability, Scope};

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 5);

    fn rules() -> Ruleset {
        let config = FilterConfig {
            hides_arp: true,
            ..FilterConfig::default()
        };
        Ruleset::new(&config, None)
    }

    fn set_frontend(rules: &mut Ruleset, scope: Option<Scope>) {
        let frontend = Frontend {
            address: ADDRESS.into(),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let admission = scope.map(|scope| Admission {
            scope,
            policy: TrafficPolicy::Cluster,
            endpoints: Availability::Usable,
            source_ranges: None,
            inside: None,
        });
        rules.set_frontend(frontend, admission);
    }

    fn is_hidden(rules: &Ruleset) -> bool {
        let key = Key::new([Value::V4(ADDRESS)]);
        let arp = rules.table().arp.as_ref();
        arp.is_some_and(|arp| arp.has_element(ARP_ADDRESSES, &key))
    }

    #[test]
    fn only_external_service_addresses_are_hidden() {
        for (scope, is_service_address, expected) in [
            (Scope::External, true, true),
            // An interface has the address.
            (Scope::External, false, false),
            (Scope::Internal, true, false),
            (Scope::NodePort, false, false),
        ] {
            let mut rules = rules();
            set_frontend(&mut rules, Some(scope));
            if is_service_address {
                rules.add_service_address(ADDRESS.into());
            }
            assert_eq!(
                is_hidden(&rules),
                expected,
                "{scope:?}, {is_service_address}"
            );
        }
    }

    #[test]
    fn a_removed_address_stays_hidden_until_the_kernel_does_not_have_it() {
        let mut rules = rules();
        set_frontend(&mut rules, Some(Scope::External));
        rules.add_service_address(ADDRESS.into());
        set_frontend(&mut rules, None);
        rules.remove_service_address(ADDRESS.into());
        rules.release(|_, _| true, |_| false);
        assert!(is_hidden(&rules));
        rules.release(|_, _| true, |_| true);
        assert!(!is_hidden(&rules));

        // An earlier process left the address.
        rules.guard_address(ADDRESS.into());
        assert!(is_hidden(&rules));
        // It returns as a cluster IP.
        set_frontend(&mut rules, Some(Scope::Internal));
        rules.add_service_address(ADDRESS.into());
        rules.release(|_, _| true, |_| true);
        assert!(!is_hidden(&rules));
    }
}
