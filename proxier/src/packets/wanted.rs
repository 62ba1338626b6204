//! What the rules should be: they follow the plan, and what is there while that goes or is not known.

use std::net::IpAddr;
use std::sync::Arc;

use ipvs_netlink as ipvs;

use super::Packets;
use super::held::kept;
use super::place::{key, place};
use crate::model::Node;
use crate::observed::Observed;
use crate::plan::{Changed, Desired, Machine};
use crate::rules::{Frontend, Place, Ruleset, Surplus};
use crate::sync::Input;

impl Packets {
    /// Takes in what changed in the plan. While only part of the input is known, the rules of
    /// frontends that go or run empty stay, as these do.
    ///
    /// # Cost
    /// Proportional to the change, unless our Node's addresses or networks changed.
    pub fn follow(
        &mut self,
        changed: &Changed,
        desired: &Desired,
        node: Option<&Node>,
        machine: &Machine,
        input: Input,
    ) {
        let config = self.choice.on(node);
        let is_remade = config != self.config;
        if input == Input::Whole {
            let held = std::mem::take(&mut self.held);
            self.take_in(&held, desired, machine, input);
            if std::mem::replace(&mut self.surplus, Surplus::Goes) != Surplus::Goes {
                self.distrust();
            }
        } else {
            self.release_own(machine);
        }
        if let Surplus::Stays { own } = &mut self.surplus {
            let is_moved = **own != machine.addresses;
            if is_moved {
                *own = Arc::new(machine.addresses.clone());
            }
            // The kernel may have other rules already for what was not known before.
            if is_moved || *changed != Changed::default() {
                self.distrust();
            }
        }
        if !is_remade || input == Input::Partial {
            self.take_in(changed, desired, machine, input);
        }
        if is_remade {
            let before = std::mem::replace(&mut self.ruleset, Ruleset::new(config.clone()));
            self.config = config;
            self.distrust();
            take(
                &mut self.ruleset,
                desired,
                desired.virtual_servers.keys(),
                desired.addresses.keys(),
                &desired.local_endpoints,
                desired.health_checks.keys(),
            );
            self.hold_from(&before);
        }
        if changed.virtual_servers.len() > desired.virtual_servers.len() / 2 {
            self.ruleset.pack();
        }
        if !self.is_in_step() {
            // All of it will be set; what changed on the way is only memory.
            self.ruleset.forget_changes();
        }
    }

    /// Takes over what these are in the plan now, as far as `input` tells that.
    fn take_in(&mut self, changed: &Changed, desired: &Desired, machine: &Machine, input: Input) {
        let (rules, held) = (&mut self.ruleset, &mut self.held);
        let is_partial = input == Input::Partial;
        for key in &changed.virtual_servers {
            let Some(place) = place(key) else {
                continue;
            };
            let mut frontend = desired.rules(key);
            let before = rules.frontend(&place).filter(|_| is_partial);
            if let Some(kept) = before.and_then(|before| kept(before, frontend.as_ref())) {
                held.virtual_servers.insert(*key);
                frontend = Some(kept);
            }
            rules.tighten_frontend(place, frontend);
        }
        for &address in &changed.addresses {
            let is_one = desired.addresses.contains_key(&address);
            if machine.addresses.contains(&address) {
                rules.set_service_address(address, false);
            } else if is_partial && !is_one {
                held.addresses.insert(address);
            } else {
                rules.tighten_service_address(address, is_one);
            }
        }
        for &address in &changed.local_endpoints {
            let is_one = desired.local_endpoints.contains(&address);
            if is_partial && !is_one {
                held.local_endpoints.insert(address);
            } else {
                rules.set_local_endpoint(address, is_one);
            }
        }
        for &port in &changed.health_checks {
            let is_one = desired.health_checks.contains_key(&port);
            if is_partial && !is_one {
                held.health_checks.insert(port);
            } else {
                rules.set_health_check_port(port, is_one);
            }
        }
    }

    /// Where the kernel's rules are not known: sees to what is there and neither planned nor held.
    ///
    /// It is guarded until it goes, virtual servers only if they are `doomed`: the process before may
    /// have left it with guards, and with ones that would go sooner. Until all input was known once
    /// nothing goes, and what serves is not refused because its endpoints are not known.
    ///
    /// # Cost
    /// Linear in what is there; nothing where the rules are known.
    pub fn guard_leftovers(
        &mut self,
        known: &Observed,
        desired: &Desired,
        machine: &Machine,
        is_doomed: impl Fn(&ipvs::ServiceKey) -> bool,
    ) {
        if self.is_in_step() {
            return;
        }
        if self.surplus != Surplus::Goes {
            self.hold_serving(known, desired);
            return self.ruleset.forget_changes();
        }
        let is_wanted = |key: &&ipvs::ServiceKey| desired.virtual_servers.contains_key(key);
        let left = known.virtual_servers.keys().filter(|key| !is_wanted(key));
        for place in left.filter(|key| is_doomed(key)).filter_map(place) {
            self.ruleset.guard(place);
        }
        for &address in known.addresses.keys() {
            let is_own = machine.addresses.contains(&address);
            if !is_own && !desired.addresses.contains_key(&address) {
                self.ruleset.guard_address(address);
            }
        }
        self.ruleset.forget_changes();
    }

    /// Takes out the guards whose work is done: those of frontends that are gone, or have somebody to
    /// serve them at last; and of addresses that are not local any more. Says whether there were any,
    /// so that there is something to [program](Packets::program).
    pub fn release(&mut self, known: &Observed) -> bool {
        let may_guard_go = |place: &Place, frontend: Option<&Frontend>| {
            let server = known.virtual_servers.get(&key(place));
            match frontend {
                None => server.is_none(),
                Some(_) => server.is_some_and(|server| !server.destinations.is_empty()),
            }
        };
        let may_address_go = |address: &IpAddr| !known.addresses.contains_key(address);
        let is_any = self.ruleset.release(may_guard_go, may_address_go);
        if !self.is_in_step() {
            self.ruleset.forget_changes();
        }
        is_any
    }
}

/// Takes over what these are in the plan now.
pub(super) fn take<'a>(
    rules: &mut Ruleset,
    desired: &Desired,
    virtual_servers: impl IntoIterator<Item = &'a ipvs::ServiceKey>,
    addresses: impl IntoIterator<Item = &'a IpAddr>,
    local_endpoints: impl IntoIterator<Item = &'a IpAddr>,
    health_checks: impl IntoIterator<Item = &'a u16>,
) {
    for key in virtual_servers {
        if let Some(place) = place(key) {
            rules.set_frontend(place, desired.rules(key));
        }
    }
    for address in addresses {
        rules.set_service_address(*address, desired.addresses.contains_key(address));
    }
    for address in local_endpoints {
        rules.set_local_endpoint(*address, desired.local_endpoints.contains(address));
    }
    for port in health_checks {
        rules.set_health_check_port(*port, desired.health_checks.contains_key(port));
    }
}
