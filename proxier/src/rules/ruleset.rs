//! The table of a node, and what every change of it costs.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;

use super::chains::{firewall_mark, skeleton};
use super::frontend::parts;
use super::names::{
    GUARDED, HAIRPIN, HEALTH_CHECK_PORTS, INSIDE_MARKS, PINGABLE, SERVICE_ADDRESSES, inside,
};
use super::{Config, Endpoints, Frontend, Place};
use crate::nftables::{Chain, Command, Element, Key, Set, Table, Value, Verdict};
use crate::packed::pack;

mod lingering;

use lingering::Lingering;

/// The rules that a node needs, and how they differ from those it had.
///
/// A change costs what it changes: setting a frontend looks at that frontend's parts only. The order
/// of changes does not matter; the table is always the one that [`table`] gives for the same
/// frontends and addresses, and what lingers beside that ([`Ruleset::tighten_frontend`]).
#[derive(Clone, Debug)]
pub struct Ruleset {
    config: Config,
    frontends: BTreeMap<Place, Frontend>,
    /// How many frontends use a firewall mark.
    marks: BTreeMap<u32, usize>,
    /// How many frontends with endpoints an address has.
    pingable: BTreeMap<IpAddr, usize>,
    table: Table,
    /// The sum of the hashes of everything in the table.
    fingerprint: Fingerprint,
    before: Before,
    lingering: Lingering,
}

/// What a table says, in a few bytes: equal tables have equal ones in the same build of the program.
pub type Fingerprint = u64;

/// What the touched parts of the table were when changes were taken or forgotten last.
#[derive(Clone, Debug, Default)]
struct Before {
    elements: BTreeMap<(Arc<str>, Key), Option<Option<Verdict>>>,
    chains: BTreeMap<Arc<str>, Option<Chain>>,
}

/// The table for these frontends, service addresses, addresses of endpoints on this node, and
/// health-check node ports.
pub fn table<'a>(
    config: &Config,
    frontends: impl IntoIterator<Item = (&'a Place, &'a Frontend)>,
    service_addresses: impl IntoIterator<Item = IpAddr>,
    local_endpoints: impl IntoIterator<Item = IpAddr>,
    health_check_ports: impl IntoIterator<Item = u16>,
) -> Table {
    let mut rules = Ruleset::new(config.clone());
    for (&place, frontend) in frontends {
        rules.set_frontend(place, Some(frontend.clone()));
    }
    for address in service_addresses {
        rules.set_service_address(address, true);
    }
    for address in local_endpoints {
        rules.set_local_endpoint(address, true);
    }
    for port in health_check_ports {
        rules.set_health_check_port(port, true);
    }
    rules.table
}

impl Ruleset {
    /// The rules of a node without Services.
    pub fn new(config: Config) -> Self {
        let table = skeleton(&config);
        Self {
            fingerprint: fingerprint(&[&env!("CARGO_PKG_VERSION"), &table]),
            table,
            config,
            frontends: BTreeMap::new(),
            marks: BTreeMap::new(),
            pingable: BTreeMap::new(),
            before: Before::default(),
            lingering: Lingering::default(),
        }
    }

    /// The table as it should be.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Tells the table from others.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// What changed since this was called before, in an order that the kernel accepts.
    pub fn take_changes(&mut self) -> Vec<Command> {
        // Both as small tables of the touched parts, whose difference is the answer.
        let (mut old, mut new) = (Table::default(), Table::default());
        let before = std::mem::take(&mut self.before);
        for ((name, key), verdict) in before.elements {
            let Some(set) = self.table.sets.get(&name) else {
                continue;
            };
            let now = set.elements.get(&key).cloned();
            for (table, verdict) in [(&mut old, verdict), (&mut new, now)] {
                let empty = || Set::new(set.name.clone(), set.key.clone(), set.kind);
                let part = table.sets.entry(name.clone()).or_insert_with(empty);
                part.elements
                    .extend(verdict.map(|verdict| (key.clone(), verdict)));
            }
        }
        for (name, chain) in before.chains {
            new.chains
                .extend(self.table.chains.get_key_value(&name).map(clone));
            old.chains.extend(chain.map(|chain| (name, chain)));
        }
        old.difference(&new)
    }

    /// Takes the table as it is now for the one that changes are told from.
    pub fn forget_changes(&mut self) {
        self.before = Before::default();
    }

    /// Takes no more memory than has to be; for after many frontends were set.
    pub fn pack(&mut self) {
        pack(&mut self.frontends);
        pack(&mut self.pingable);
        for set in self.table.sets.values_mut() {
            pack(&mut set.elements);
        }
    }

    /// Sets or removes a frontend.
    pub fn set_frontend(&mut self, place: Place, frontend: Option<Frontend>) {
        self.put_frontend(place, frontend);
        self.release_guard(&place);
    }

    /// The same, but a guard that it needs no more lingers.
    fn put_frontend(&mut self, place: Place, frontend: Option<Frontend>) {
        let before = match &frontend {
            Some(frontend) => self.frontends.insert(place, frontend.clone()),
            None => self.frontends.remove(&place),
        };
        if before == frontend {
            return;
        }
        let guarded = GUARDED.of(place.family());
        if let Some(before) = before {
            for (set, element) in parts(&place, &before, &self.config).elements {
                if set == guarded {
                    self.lingering.guards.insert(place);
                } else {
                    self.set_element(set, element.key, None);
                }
            }
            self.count(&place, &before, Count::Down);
        }
        if let Some(frontend) = frontend {
            let parts = parts(&place, &frontend, &self.config);
            if parts.elements.iter().any(|(set, _)| *set == guarded) {
                self.release_guard(&place);
            }
            for (set, Element { key, verdict }) in parts.elements {
                let verdict = verdict.map(|verdict| self.shared(verdict));
                self.set_element(set, key, Some(verdict));
            }
            if let Some(chain) = parts.chain {
                self.add_chain(chain);
            }
            self.count(&place, &frontend, Count::Up);
        }
    }

    /// Sets whether `address` is local for the sake of services only; never for addresses that the
    /// node has anyway.
    pub fn set_service_address(&mut self, address: IpAddr, is_one: bool) {
        let key = Key::new([address.into()]);
        let set = SERVICE_ADDRESSES.of(address.into());
        self.set_element(set, key, is_one.then_some(None));
        self.release_address(&address);
    }

    /// Sets whether an endpoint on this node has `address`.
    pub fn set_local_endpoint(&mut self, address: IpAddr, is_one: bool) {
        let key = Key::new([address.into(), address.into()]);
        let set = HAIRPIN.of(address.into());
        self.set_element(set, key, is_one.then_some(None));
    }

    /// Sets whether a Service has `port` as its health-check node port.
    pub fn set_health_check_port(&mut self, port: u16, is_one: bool) {
        let key = Key::new([Value::Port(port)]);
        self.set_element(HEALTH_CHECK_PORTS, key, is_one.then_some(None));
    }

    /// Changes what frontends share: firewall marks, and addresses that answer to ping.
    fn count(&mut self, place: &Place, frontend: &Frontend, count: Count) {
        if let Some(mark) = frontend.inside
            && let Some(is_used) = count.of(&mut self.marks, mark)
        {
            let key = Key::new([Value::Mark(mark)]);
            self.set_element(INSIDE_MARKS, key, is_used.then_some(None));
            if is_used {
                self.add_chain(firewall_mark(mark));
            } else {
                self.remove_chain(&inside(mark));
            }
        }
        if frontend.endpoints != Endpoints::None
            && let Some(answers) = count.of(&mut self.pingable, place.address)
        {
            let key = Key::new([place.address.into()]);
            let set = PINGABLE.of(place.family());
            self.set_element(set, key, answers.then_some(None));
        }
    }

    /// The same with the chain's own copy of its name, which most elements have in common.
    fn shared(&self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Goto(name) => {
                let known = self.table.chains.get_key_value(&name);
                Verdict::Goto(known.map_or(name, |(known, _)| known.clone()))
            }
            other => other,
        }
    }

    fn set_element(&mut self, name: &str, key: Key, verdict: Option<Option<Verdict>>) {
        let Some(set) = self.table.sets.get_mut(name) else {
            return;
        };
        let hash = |verdict: &Option<Option<Verdict>>| match verdict.clone() {
            Some(verdict) => {
                let key = key.clone();
                fingerprint(&[&name, &Element { key, verdict }])
            }
            None => 0,
        };
        let now = hash(&verdict);
        let before = match verdict {
            Some(verdict) => set.elements.insert(key.clone(), verdict),
            None => set.elements.remove(&key),
        };
        let gone = hash(&before);
        self.fingerprint = self.fingerprint.wrapping_add(now).wrapping_sub(gone);
        let touched = (set.name.clone(), key);
        self.before.elements.entry(touched).or_insert(before);
    }

    fn add_chain(&mut self, chain: Chain) {
        let name = chain.name.clone();
        let now = fingerprint(&[&chain]);
        let before = self.table.chains.insert(name.clone(), chain);
        let gone = before.as_ref().map_or(0, |chain| fingerprint(&[chain]));
        self.fingerprint = self.fingerprint.wrapping_add(now).wrapping_sub(gone);
        self.before.chains.entry(name).or_insert(before);
    }

    fn remove_chain(&mut self, name: &Arc<str>) {
        let before = self.table.chains.remove(name);
        let gone = before.as_ref().map_or(0, |chain| fingerprint(&[chain]));
        self.fingerprint = self.fingerprint.wrapping_sub(gone);
        self.before.chains.entry(name.clone()).or_insert(before);
    }
}

fn fingerprint(parts: &[&dyn Debug]) -> Fingerprint {
    let mut hasher = DefaultHasher::new();
    for part in parts {
        format!("{part:?}").hash(&mut hasher);
    }
    hasher.finish()
}

fn clone<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

#[derive(Clone, Copy)]
enum Count {
    Up,
    Down,
}

impl Count {
    /// Counts a user of `key`; says whether it is used when that has changed.
    fn of<K: Ord>(self, users: &mut BTreeMap<K, usize>, key: K) -> Option<bool> {
        match self {
            Self::Up => {
                let users = users.entry(key).or_default();
                *users += 1;
                (*users == 1).then_some(true)
            }
            Self::Down => {
                let left = users.get(&key)?.saturating_sub(1);
                if left > 0 {
                    users.insert(key, left);
                    return None;
                }
                users.remove(&key);
                Some(false)
            }
        }
    }
}
