//! What stays while only part of the input is known.

use ipvs_netlink as ipvs;

use super::Packets;
use super::place::place;
use crate::model::{Family, TrafficPolicy};
use crate::observed::Observed;
use crate::plan::{Desired, Machine, mark, serve};
use crate::rules::{Endpoints, Frontend, Kind, Ruleset};

impl Packets {
    /// Takes over what is held from rules that were made otherwise.
    pub(super) fn hold_from(&mut self, before: &Ruleset) {
        for place in self.held.virtual_servers.iter().filter_map(place) {
            let frontend = before.frontend(&place).cloned();
            self.ruleset.set_frontend(place, frontend);
        }
        for &address in &self.held.addresses {
            self.ruleset.set_service_address(address, true);
        }
        for &address in &self.held.local_endpoints {
            self.ruleset.set_local_endpoint(address, true);
        }
        for &port in &self.held.health_checks {
            self.ruleset.set_health_check_port(port, true);
        }
    }

    /// Lets go of addresses that the machine has by now: what is to be had at them is its own.
    pub(super) fn release_own(&mut self, machine: &Machine) {
        let (held, rules) = (&mut self.held.addresses, &mut self.ruleset);
        held.retain(|&address| {
            let is_own = machine.addresses.contains(&address);
            if is_own {
                rules.set_service_address(address, false);
            }
            !is_own
        });
    }

    /// Lets frontends serve on that have somebody to do so in the kernel, though nobody is known.
    pub(super) fn hold_serving(&mut self, known: &Observed, desired: &Desired) {
        for (key, server) in &desired.virtual_servers {
            let Some(place) = place(key) else {
                continue;
            };
            let Some(frontend) = self.ruleset.frontend(&place) else {
                continue;
            };
            let inside = mark(&server.owner, place.protocol, Family::from(place.address));
            let inside = Some(inside).filter(|&mark| {
                let family = key.family();
                let is_local = frontend.policy == TrafficPolicy::Local;
                let may_have_one = is_local && frontend.kind == Kind::External;
                may_have_one && serves(known, &ipvs::ServiceKey::Mark { family, mark })
            });
            let endpoints = match (serves(known, key), inside) {
                (true, _) => Endpoints::Some,
                (false, Some(_)) => Endpoints::Elsewhere,
                (false, None) => continue,
            };
            if endpoints < frontend.endpoints {
                let served = Frontend {
                    endpoints,
                    inside: frontend.inside.or(inside),
                    ..frontend.clone()
                };
                self.ruleset.set_frontend(place, Some(served));
                self.held.virtual_servers.insert(*key);
            }
        }
    }
}

/// Whether new connections find somebody at the virtual server `key`.
fn serves(known: &Observed, key: &ipvs::ServiceKey) -> bool {
    let server = known.virtual_servers.get(key);
    server.is_some_and(|server| serve(&server.destinations))
}

/// The rules of a frontend while only part of the input is known: what stays of those that it had
/// `before`, if anything does. Endpoints that are missing are perhaps only not known; what is known
/// counts.
pub(super) fn kept(before: &Frontend, now: Option<&Frontend>) -> Option<Frontend> {
    match now {
        None => Some(before.clone()),
        Some(now) if now.endpoints > before.endpoints => Some(Frontend {
            endpoints: before.endpoints,
            inside: now.inside.or(before.inside),
            ..now.clone()
        }),
        Some(_) => None,
    }
}
