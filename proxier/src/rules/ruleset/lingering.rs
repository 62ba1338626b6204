//! What of the table is not needed any more and goes later.
//!
//! A frontend that goes loses its rules in the packet filter at one moment and its virtual server at
//! another. In between, whoever its guard kept out would come in, and processes of the node would
//! answer at its address. So what only loosens the rules lingers in the table until its owner says
//! that what it protects is gone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::super::frontend::key;
use super::super::names::{GUARDED, REFUSE, SERVICE_ADDRESSES, ranges};
use super::super::{Frontend, Place};
use super::Ruleset;
use crate::nftables::{Chain, Key, Rule, Verdict};

/// The parts of a table that linger.
#[derive(Clone, Debug, Default)]
pub(super) struct Lingering {
    /// The frontends whose guards do, with the chains that only these name.
    pub(super) guards: BTreeSet<Place>,
    addresses: BTreeSet<IpAddr>,
}

impl Ruleset {
    /// As [`Ruleset::set_frontend`], but a guard that the frontend needs no more lingers.
    pub fn tighten_frontend(&mut self, place: Place, frontend: Option<Frontend>) {
        self.put_frontend(place, frontend);
    }

    /// As [`Ruleset::set_service_address`], but an address that is none any more lingers.
    pub fn tighten_service_address(&mut self, address: IpAddr, is_one: bool) {
        let set = SERVICE_ADDRESSES.of(address.into());
        if is_one || !self.table.has_element(set, &Key::new([address.into()])) {
            self.set_service_address(address, is_one);
        } else {
            self.lingering.addresses.insert(address);
        }
    }

    /// Refuses new connections to a frontend that somebody else left, for as long as it
    /// lingers. Those that have a guard keep theirs.
    ///
    /// The guard is a chain of the same name as that of source ranges, so that where such ranges are
    /// in force the kernel's element stays and the rules change in one moment.
    pub fn guard(&mut self, place: Place) {
        let set = GUARDED.of(place.family());
        if self.frontends.contains_key(&place) || self.table.has_element(set, &key(&place)) {
            return;
        }
        let name = ranges(&place);
        let refuse = Verdict::Goto(REFUSE.into());
        self.add_chain(Chain::new(name.clone(), [Rule::new([refuse.into()])]));
        let jump = Verdict::Jump(name);
        self.set_element(set, key(&place), Some(Some(jump)));
        self.lingering.guards.insert(place);
    }

    /// Refuses new connections to an address that somebody else left, for as long as it lingers.
    pub fn guard_address(&mut self, address: IpAddr) {
        let set = SERVICE_ADDRESSES.of(address.into());
        if !self.table.has_element(set, &Key::new([address.into()])) {
            self.set_service_address(address, true);
            self.lingering.addresses.insert(address);
        }
    }

    /// What `place` is set to.
    pub fn frontend(&self, place: &Place) -> Option<&Frontend> {
        self.frontends.get(place)
    }

    /// Takes out the guards and addresses that linger and of which these say that they may go. Says
    /// whether there were any.
    ///
    /// # Cost
    /// Proportional to what lingers.
    pub fn release(
        &mut self,
        may_guard_go: impl Fn(&Place, Option<&Frontend>) -> bool,
        may_address_go: impl Fn(&IpAddr) -> bool,
    ) -> bool {
        let guards = self.lingering.guards.iter().copied();
        let guards: Vec<Place> = guards
            .filter(|place| may_guard_go(place, self.frontends.get(place)))
            .collect();
        let addresses = self.lingering.addresses.iter().copied();
        let addresses: Vec<IpAddr> = addresses.filter(may_address_go).collect();
        for place in &guards {
            self.release_guard(place);
        }
        for &address in &addresses {
            self.set_service_address(address, false);
        }
        !guards.is_empty() || !addresses.is_empty()
    }

    pub(super) fn release_guard(&mut self, place: &Place) {
        if !self.lingering.guards.remove(place) {
            return;
        }
        self.set_element(GUARDED.of(place.family()), key(place), None);
        let name = ranges(place);
        if self.table.chains.contains_key(&name) {
            self.remove_chain(&name);
        }
    }

    pub(super) fn release_address(&mut self, address: &IpAddr) {
        self.lingering.addresses.remove(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, Networks, Protocol, TrafficPolicy};
    use crate::nftables::Command;
    use crate::rules::{Config, Endpoints, Kind};

    const PLACE: Place = Place {
        address: IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 5)),
        protocol: Protocol::Udp,
        port: 53,
    };

    fn frontend(ranges: Option<&str>, endpoints: Endpoints) -> Frontend {
        let networks = |text: &str| Networks::new(Family::V4, [text.parse().unwrap()]);
        Frontend {
            kind: Kind::External,
            policy: TrafficPolicy::Cluster,
            endpoints,
            source_ranges: ranges.map(networks),
            inside: None,
        }
    }

    fn ranged() -> Frontend {
        frontend(Some("203.0.113.0/24"), Endpoints::Some)
    }

    fn open() -> Frontend {
        frontend(None, Endpoints::Some)
    }

    /// A table with this frontend, whose changes were taken.
    fn with(frontend: Frontend) -> Ruleset {
        let mut rules = Ruleset::new(Config::default());
        rules.set_frontend(PLACE, Some(frontend));
        rules.set_service_address(PLACE.address, true);
        rules.take_changes();
        rules
    }

    fn told(rules: &mut Ruleset) -> Vec<String> {
        let changes = rules.take_changes();
        let words = |change: &Command| change.in_table("t").to_string();
        changes.iter().map(words).collect()
    }

    fn release_all(rules: &mut Ruleset) -> bool {
        rules.release(|_, _| true, |_| true)
    }

    const NO_FRONTEND: &str = "delete element inet t frontends-4 { 198.51.100.5 . udp . 53 }";
    const NO_GUARD: &str = "delete element inet t guarded-4 { 198.51.100.5 . udp . 53 }";
    const NO_PING: &str = "delete element inet t pingable-4 { 198.51.100.5 }";
    const NO_ADDRESS: &str = "delete element inet t service-addresses-4 { 198.51.100.5 }";

    #[test]
    fn what_loosens_goes_when_it_is_released() {
        let mut rules = with(ranged());
        rules.tighten_frontend(PLACE, None);
        rules.tighten_service_address(PLACE.address, false);
        assert_eq!(told(&mut rules), [NO_FRONTEND, NO_PING]);
        assert!(!rules.release(|_, _| false, |_| false));
        assert_eq!(told(&mut rules), [""; 0]);
        assert!(rules.release(|_, _| false, |_| true));
        assert_eq!(told(&mut rules), [NO_ADDRESS]);
        assert!(release_all(&mut rules));
        let chain = "ranges-udp-198.51.100.5-53";
        let gone = [
            format!("flush chain inet t {chain}"),
            NO_GUARD.to_owned(),
            format!("delete chain inet t {chain}"),
        ];
        assert_eq!(told(&mut rules), gone);
        assert!(!release_all(&mut rules));
        let nothing = Ruleset::new(Config::default());
        assert_eq!(rules.table(), nothing.table());
        assert_eq!(rules.fingerprint(), nothing.fingerprint());
    }

    #[test]
    fn what_is_needed_again_does_not_go() {
        for again in [ranged(), frontend(None, Endpoints::None), open()] {
            let mut rules = with(ranged());
            rules.tighten_frontend(PLACE, None);
            rules.tighten_service_address(PLACE.address, false);
            rules.tighten_frontend(PLACE, Some(again.clone()));
            rules.tighten_service_address(PLACE.address, true);
            // The guard of the one without is still to go.
            assert_eq!(release_all(&mut rules), again == open());
            let fresh = with(again);
            assert_eq!(rules.table(), fresh.table());
            assert_eq!(rules.fingerprint(), fresh.fingerprint());
        }
    }

    #[test]
    fn the_guard_of_a_frontend_that_stays_may_linger_too() {
        let mut rules = with(frontend(None, Endpoints::None));
        rules.tighten_frontend(PLACE, Some(open()));
        let ping = "add element inet t pingable-4 { 198.51.100.5 }";
        assert_eq!(told(&mut rules), [ping]);
        assert!(!rules.release(|_, now| now.is_none(), |_| true));
        assert!(rules.release(|_, now| now.is_some(), |_| false));
        assert_eq!(told(&mut rules), [NO_GUARD]);
    }

    #[test]
    fn what_others_left_is_refused_until_it_is_released() {
        let mut rules = Ruleset::new(Config::default());
        let nothing = rules.clone();
        rules.guard(PLACE);
        rules.guard(PLACE);
        rules.guard_address(PLACE.address);
        let chain = "ranges-udp-198.51.100.5-53";
        let guard = [
            format!("add chain inet t {chain}"),
            format!("add element inet t guarded-4 {{ 198.51.100.5 . udp . 53 : jump {chain} }}"),
            format!("add rule inet t {chain} goto refuse"),
        ];
        let address = "add element inet t service-addresses-4 { 198.51.100.5 }".to_owned();
        let guard = [&guard[..2], &[address], &guard[2..]].concat();
        assert_eq!(told(&mut rules), guard);
        assert!(release_all(&mut rules));
        assert_eq!(rules.table(), nothing.table());
        // A frontend of ours sees to itself.
        let mut rules = with(open());
        rules.guard(PLACE);
        rules.guard_address(PLACE.address);
        assert_eq!(told(&mut rules), [""; 0]);
        assert!(!release_all(&mut rules));
    }
}
