//! Guards: rules that stay until the kernel no longer needs them.
//!
//! The rules of a removed frontend are deleted in one transaction, and its virtual server by a later Op.
//! Between the two, IPVS would admit clients outside the source ranges, and daemons of the node would
//! answer at the service address. So until [`Ruleset::release`], a removed frontend keeps its guard, and
//! connections to a removed service address stay rejected.
//!
//! A virtual server that is missing, because another program deleted it, is guarded by a rule behind IPVS too, and not by
//! taking its address away: another port of the address may have its virtual server.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::admission::key;
use super::names::{GUARDED, REFUSE, SERVICE_ADDRESSES, ranges};
use super::ruleset::Ruleset;
use crate::dataplane::ipvs::Admission;
use crate::frontend::Frontend;
use crate::model::Protocol;
use nftables::{Chain, Element, Key, Rule, Verdict};

/// The guards and service addresses of the table that stay until [`Ruleset::release`].
#[derive(Clone, Debug, Default)]
pub(super) struct Guards {
    /// The frontends whose guard stays: their element of [`GUARDED`] and the chain that it names.
    pub(super) frontends: BTreeSet<Frontend>,
    /// The service addresses that are in the table but not desired.
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl Guards {
    /// Returns whether a frontend at `address` has a guard.
    fn has_frontend_at(&self, address: IpAddr) -> bool {
        // Frontends are ordered by address first.
        let first = Frontend {
            address,
            protocol: Protocol::Tcp,
            port: 0,
        };
        let mut from_there = self.frontends.range(first..);
        from_there
            .next()
            .is_some_and(|found| found.address == address)
    }
}

impl Ruleset {
    /// Rejects new connections to a stale frontend until it is released.
    ///
    /// Does nothing if the frontend is desired or has a guard. The new guard's chain has the name of
    /// the frontend's source-range chain. If the kernel has that chain from an earlier process, the
    /// write keeps its element and replaces only its rules, which is atomic.
    pub fn guard_frontend(&mut self, frontend: Frontend) {
        let set = GUARDED.of(frontend.family());
        let is_guarded = self.table().has_element(set, &key(&frontend));
        if is_guarded || self.frontend(&frontend).is_some() {
            return;
        }
        let name = ranges(&frontend);
        self.add_chain(refusing(name.clone()));
        let element = Element {
            key: key(&frontend),
            verdict: Some(Verdict::Jump(name)),
        };
        self.add_element(set, element);
        self.guards.frontends.insert(frontend);
    }

    /// Gives a stale frontend the guard of [`Ruleset::guard_frontend`] in place of its present one. Does
    /// nothing if the frontend is desired.
    pub fn replace_guard(&mut self, frontend: Frontend) {
        let name = ranges(&frontend);
        // A guard that is replaced already stays, so that a round without changes writes nothing.
        let is_replaced = |chain: &Chain| *chain == refusing(name.clone());
        if !self.table().chains.get(&name).is_some_and(is_replaced) {
            self.remove_guard(&frontend);
        }
        self.guard_frontend(frontend);
        self.hide_retired(frontend.address);
    }

    /// Rejects new connections to a stale service address until it is released.
    pub fn guard_address(&mut self, address: IpAddr) {
        if !self.has_service_address(address) {
            self.add_service_address(address);
            self.guards.addresses.insert(address);
            self.hide(address);
        }
    }

    /// Removes the guards that the closures permit to remove. Returns whether there were any.
    ///
    /// # Cost
    /// Proportional to the number of guards.
    pub fn release(
        &mut self,
        may_release_frontend: impl Fn(&Frontend, Option<&Admission>) -> bool,
        may_release_address: impl Fn(&IpAddr) -> bool,
    ) -> bool {
        let frontends = self.guards.frontends.iter().copied();
        let frontends: Vec<Frontend> = frontends
            .filter(|frontend| may_release_frontend(frontend, self.frontend(frontend).as_ref()))
            .collect();
        let addresses = self.guards.addresses.iter().copied();
        let addresses: Vec<IpAddr> = addresses.filter(may_release_address).collect();
        for frontend in &frontends {
            self.remove_guard(frontend);
        }
        for &address in &addresses {
            self.guards.addresses.remove(&address);
            let key = Key::new([address.into()]);
            self.remove_element(SERVICE_ADDRESSES.of(address.into()), key);
            self.unsilence(address);
        }
        let has_arp = self.release_arp();
        has_arp || !frontends.is_empty() || !addresses.is_empty()
    }

    /// Hides a service address that stays local for a guarded frontend.
    ///
    /// A guard does not show whether its frontend was external, so a cluster IP is hidden too.
    pub(super) fn hide_retired(&mut self, address: IpAddr) {
        if self.guards.has_frontend_at(address) && self.has_service_address(address) {
            self.hide(address);
            self.review_arp(address);
        }
    }

    /// Returns whether `address`, or a frontend there, has a guard.
    pub(super) fn is_guarded(&self, address: IpAddr) -> bool {
        self.guards.addresses.contains(&address) || self.guards.has_frontend_at(address)
    }

    /// Removes the guard of a frontend if it is one of [`Guards`].
    pub(super) fn remove_guard(&mut self, frontend: &Frontend) {
        if self.guards.frontends.remove(frontend) {
            self.remove_element(GUARDED.of(frontend.family()), key(frontend));
            self.remove_chain(&ranges(frontend));
        }
    }
}

/// Returns a chain that rejects new connections.
fn refusing(name: Arc<str>) -> Chain {
    let refuse = Verdict::Goto(REFUSE.into());
    Chain::new(name, [Rule::new([refuse.into()])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FilterConfig;
    use crate::model::{Family, Networks, TrafficPolicy};
    use crate::plan::{Availability, Scope};
    use nftables::Command;

    const FRONTEND: Frontend = Frontend {
        address: IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 5)),
        protocol: Protocol::Udp,
        port: 53,
    };

    fn admission(ranges: Option<&str>, endpoints: Availability) -> Admission {
        let networks = |text: &str| Networks::new(Family::V4, [text.parse().unwrap()]);
        Admission {
            scope: Scope::External,
            policy: TrafficPolicy::Cluster,
            endpoints,
            source_ranges: ranges.map(networks),
            inside: None,
        }
    }

    fn ranged() -> Admission {
        admission(Some("203.0.113.0/24"), Availability::Usable)
    }

    fn open() -> Admission {
        admission(None, Availability::Usable)
    }

    /// Returns a ruleset with one frontend and no commands left to write.
    fn with(admission: Admission) -> Ruleset {
        let mut rules = Ruleset::new(&FilterConfig::default(), None);
        rules.set_frontend(FRONTEND, Some(admission));
        rules.add_service_address(FRONTEND.address);
        rules.take_commands();
        rules
    }

    fn commands(rules: &mut Ruleset) -> Vec<String> {
        let commands = rules.take_commands();
        let text = |command: &Command| command.in_table("t").to_string();
        commands.iter().map(text).collect()
    }

    fn release_all(rules: &mut Ruleset) -> bool {
        rules.release(|_, _| true, |_| true)
    }

    const REMOVE_FRONTEND: &str = "delete element inet t frontends-4 { 198.51.100.5 . udp . 53 }";
    const REMOVE_SHIELD: &str = "delete element inet t external-4 { 198.51.100.5 . udp . 53 }";
    const REMOVE_GUARD: &str = "delete element inet t guarded-4 { 198.51.100.5 . udp . 53 }";
    const REMOVE_PING: &str = "delete element inet t pingable-4 { 198.51.100.5 }";
    const REMOVE_ADDRESS: &str = "delete element inet t service-addresses-4 { 198.51.100.5 }";

    #[test]
    fn a_guard_is_removed_when_it_is_released() {
        let mut rules = with(ranged());
        rules.set_frontend(FRONTEND, None);
        rules.remove_service_address(FRONTEND.address);
        assert_eq!(
            commands(&mut rules),
            [REMOVE_SHIELD, REMOVE_FRONTEND, REMOVE_PING]
        );
        assert!(!rules.release(|_, _| false, |_| false));
        assert_eq!(commands(&mut rules), [""; 0]);
        assert!(rules.release(|_, _| false, |_| true));
        assert_eq!(commands(&mut rules), [REMOVE_ADDRESS]);
        assert!(release_all(&mut rules));
        let chain = "ranges-udp-198.51.100.5-53";
        let gone = [
            format!("flush chain inet t {chain}"),
            REMOVE_GUARD.to_owned(),
            format!("delete chain inet t {chain}"),
        ];
        assert_eq!(commands(&mut rules), gone);
        assert!(!release_all(&mut rules));
        let nothing = Ruleset::new(&FilterConfig::default(), None);
        assert_eq!(rules.table(), nothing.table());
        assert_eq!(rules.fingerprint(), nothing.fingerprint());
    }

    #[test]
    fn a_frontend_that_returns_keeps_its_guard_if_it_needs_one() {
        for (scenario, again, is_released) in [
            ("source ranges", ranged(), false),
            ("no endpoints", admission(None, Availability::None), false),
            ("neither", open(), true),
        ] {
            let mut rules = with(ranged());
            rules.set_frontend(FRONTEND, None);
            rules.remove_service_address(FRONTEND.address);
            rules.set_frontend(FRONTEND, Some(again.clone()));
            rules.add_service_address(FRONTEND.address);
            assert_eq!(release_all(&mut rules), is_released, "{scenario}");
            let fresh = with(again);
            assert_eq!(rules.table(), fresh.table(), "{scenario}");
            assert_eq!(rules.fingerprint(), fresh.fingerprint(), "{scenario}");
        }
    }

    #[test]
    fn a_frontend_that_gets_endpoints_keeps_its_guard_until_release() {
        let mut rules = with(admission(None, Availability::None));
        rules.set_frontend(FRONTEND, Some(open()));
        let ping = "add element inet t pingable-4 { 198.51.100.5 }";
        assert_eq!(commands(&mut rules), [ping]);
        assert!(!rules.release(|_, admission| admission.is_none(), |_| true));
        assert!(rules.release(|_, admission| admission.is_some(), |_| false));
        assert_eq!(commands(&mut rules), [REMOVE_GUARD]);
    }

    #[test]
    fn a_stale_frontend_is_rejected_until_it_is_released() {
        let mut rules = Ruleset::new(&FilterConfig::default(), None);
        let nothing = rules.clone();
        rules.guard_frontend(FRONTEND);
        rules.guard_frontend(FRONTEND);
        rules.guard_address(FRONTEND.address);
        let chain = "ranges-udp-198.51.100.5-53";
        let guard = [
            format!("add chain inet t {chain}"),
            format!("add element inet t guarded-4 {{ 198.51.100.5 . udp . 53 : jump {chain} }}"),
            format!("add rule inet t {chain} goto refuse"),
        ];
        let address = "add element inet t service-addresses-4 { 198.51.100.5 }".to_owned();
        let guard = [&guard[..2], &[address], &guard[2..]].concat();
        assert_eq!(commands(&mut rules), guard);
        assert!(release_all(&mut rules));
        assert_eq!(rules.table(), nothing.table());
        // A desired frontend has only the guard that its admission needs, here none.
        let mut rules = with(open());
        rules.guard_frontend(FRONTEND);
        rules.guard_address(FRONTEND.address);
        assert_eq!(commands(&mut rules), [""; 0]);
        assert!(!release_all(&mut rules));
    }
}
