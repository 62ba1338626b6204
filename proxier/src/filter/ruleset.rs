//! The ruleset of a node as a value, changed frontend by frontend.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::admission::parts;
use super::chains::{firewall_mark, skeleton};
use super::config::{FilterConfig, NodeFacts};
use super::guards::Guards;
use super::names::{
    GUARDED, HAIRPIN, HEALTH_CHECK_PORTS, INSIDE_MARKS, PINGABLE, SERVICE_ADDRESSES, inside,
};
use crate::frontend::Frontend;
use crate::model::Node;
use crate::nftables::{Chain, Command, Element, Key, Set, Table, Value, Verdict, hash};
use crate::packed::pack;
use crate::plan::{Admission, Availability};

/// The packet rules that a node needs, and the commands that lead there from its last rules.
///
/// A change costs what it changes: a frontend's new admission touches that frontend's parts only.
/// The order of changes does not matter: the table depends on the present frontends and addresses
/// alone, and on the guards that still wait to be released ([`Ruleset::release`]).
#[derive(Clone, Debug)]
pub struct Ruleset {
    /// The node's main addresses.
    node_addresses: Vec<IpAddr>,
    frontends: BTreeMap<Frontend, Admission>,
    /// How many frontends use each firewall mark.
    marks: BTreeMap<u32, usize>,
    /// How many frontends with endpoints each address has.
    pingable: BTreeMap<IpAddr, usize>,
    table: Table,
    /// The sum of the hashes of all parts of the table.
    fingerprint: Fingerprint,
    before: Before,
    pub(super) guards: Guards,
}

/// A hash of a table's encoded bytes. Two tables with the same fingerprint have the same rules.
pub(crate) type Fingerprint = u64;

/// The touched parts of the table, as they were when commands were taken last.
#[derive(Clone, Debug, Default)]
struct Before {
    elements: BTreeMap<(Arc<str>, Key), Option<Element>>,
    chains: BTreeMap<Arc<str>, Option<Chain>>,
}

impl Ruleset {
    /// Returns the ruleset of `node` without Services.
    pub fn new(config: &FilterConfig, node: Option<&Node>) -> Self {
        Self::on(config, &NodeFacts::of(node))
    }

    pub(super) fn on(config: &FilterConfig, node: &NodeFacts) -> Self {
        let table = skeleton(config, node);
        let sets = table.sets.values().map(hash::set);
        let chains = table.chains.values().map(hash::chain);
        Self {
            node_addresses: node.addresses.clone(),
            fingerprint: sets.chain(chains).fold(0, Fingerprint::wrapping_add),
            table,
            frontends: BTreeMap::new(),
            marks: BTreeMap::new(),
            pingable: BTreeMap::new(),
            before: Before::default(),
            guards: Guards::default(),
        }
    }

    /// The table that the kernel should have.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The fingerprint of the table.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The admission of `frontend`.
    pub(super) fn frontend(&self, frontend: &Frontend) -> Option<&Admission> {
        self.frontends.get(frontend)
    }

    /// Returns the commands for everything changed since the last call, in an order that the kernel
    /// accepts.
    pub fn take_commands(&mut self) -> Vec<Command> {
        // The touched parts make two small tables, whose difference is the answer.
        let (mut old, mut new) = (Table::default(), Table::default());
        let before = std::mem::take(&mut self.before);
        for ((name, key), element) in before.elements {
            let Some(set) = self.table.sets.get(&name) else {
                continue;
            };
            let now = set.elements.get(&key);
            let now = now.map(|verdict| (key, verdict.clone()));
            let then = element.map(|element| (element.key, element.verdict));
            for (table, element) in [(&mut old, then), (&mut new, now)] {
                let empty = || Set::new(set.name.clone(), set.key.clone(), set.kind);
                let part = table.sets.entry(name.clone()).or_insert_with(empty);
                part.elements.extend(element);
            }
        }
        for (name, chain) in before.chains {
            new.chains
                .extend(self.table.chains.get_key_value(&name).map(clone));
            old.chains.extend(chain.map(|chain| (name, chain)));
        }
        old.difference(&new)
    }

    /// Forgets the commands since the last call: the whole table will be written.
    pub(super) fn forget_commands(&mut self) {
        self.before = Before::default();
    }

    /// Gives back memory that insertions in order left unused; for after many insertions.
    pub(super) fn pack(&mut self) {
        pack(&mut self.frontends);
        pack(&mut self.pingable);
        for set in self.table.sets.values_mut() {
            pack(&mut set.elements);
        }
    }

    /// Sets the admission of a frontend; `None` removes the frontend.
    ///
    /// A guard that the frontend no longer needs stays until it is released.
    pub fn set_frontend(&mut self, frontend: Frontend, admission: Option<Admission>) {
        let before = match &admission {
            Some(admission) => self.frontends.insert(frontend, admission.clone()),
            None => self.frontends.remove(&frontend),
        };
        if before == admission {
            return;
        }
        let guarded = GUARDED.of(frontend.family());
        if let Some(before) = before {
            for (set, element) in parts(&frontend, &before, &self.node_addresses).elements {
                if set == guarded {
                    self.guards.frontends.insert(frontend);
                } else {
                    self.remove_element(set, element.key);
                }
            }
            self.count(&frontend, &before, Count::Down);
        }
        if let Some(admission) = admission {
            let parts = parts(&frontend, &admission, &self.node_addresses);
            if parts.elements.iter().any(|(set, _)| *set == guarded) {
                self.remove_guard(&frontend);
            }
            for (set, element) in parts.elements {
                self.add_element(set, element);
            }
            if let Some(chain) = parts.chain {
                self.add_chain(chain);
            }
            self.count(&frontend, &admission, Count::Up);
        }
    }

    /// Adds an address that is local for Services only.
    pub fn add_service_address(&mut self, address: IpAddr) {
        self.guards.addresses.remove(&address);
        let key = Key::new([address.into()]);
        self.add_element(SERVICE_ADDRESSES.of(address.into()), key.into());
    }

    /// Removes a service address, as soon as it is released.
    pub fn remove_service_address(&mut self, address: IpAddr) {
        if self.has_service_address(address) {
            self.guards.addresses.insert(address);
        }
    }

    /// Adds the address of an endpoint on this node.
    pub fn add_local_endpoint(&mut self, address: IpAddr) {
        self.add_element(HAIRPIN.of(address.into()), hairpin(address).into());
    }

    /// Removes the address of an endpoint on this node.
    pub fn remove_local_endpoint(&mut self, address: IpAddr) {
        self.remove_element(HAIRPIN.of(address.into()), hairpin(address));
    }

    /// Adds the health-check node port of a Service.
    pub fn add_health_check_port(&mut self, port: u16) {
        let key = Key::new([Value::Port(port)]);
        self.add_element(HEALTH_CHECK_PORTS, key.into());
    }

    /// Removes the health-check node port of a Service.
    pub fn remove_health_check_port(&mut self, port: u16) {
        self.remove_element(HEALTH_CHECK_PORTS, Key::new([Value::Port(port)]));
    }

    pub(super) fn has_service_address(&self, address: IpAddr) -> bool {
        let key = Key::new([address.into()]);
        (self.table).has_element(SERVICE_ADDRESSES.of(address.into()), &key)
    }

    /// Changes what frontends share: firewall marks, and addresses that answer pings.
    fn count(&mut self, frontend: &Frontend, admission: &Admission, count: Count) {
        if let Some(mark) = admission.inside_mark {
            let key = || Key::new([Value::Mark(mark)]);
            match count.of(&mut self.marks, mark) {
                Some(Use::First) => {
                    self.add_element(INSIDE_MARKS, key().into());
                    self.add_chain(firewall_mark(mark));
                }
                Some(Use::Last) => {
                    self.remove_element(INSIDE_MARKS, key());
                    self.remove_chain(&inside(mark));
                }
                None => {}
            }
        }
        if admission.endpoints != Availability::None {
            let key = || Key::new([frontend.address.into()]);
            let set = PINGABLE.of(frontend.family());
            match count.of(&mut self.pingable, frontend.address) {
                Some(Use::First) => self.add_element(set, key().into()),
                Some(Use::Last) => self.remove_element(set, key()),
                None => {}
            }
        }
    }

    pub(super) fn add_element(&mut self, set: &'static str, element: Element) {
        let verdict = element
            .verdict
            .map(|verdict| self.with_shared_name(verdict));
        let Some(set) = self.table.sets.get_mut(set) else {
            return;
        };
        let added = hash::element(&set.name, &element.key, verdict.as_ref());
        self.fingerprint = self.fingerprint.wrapping_add(added);
        let old = set.elements.insert(element.key.clone(), verdict);
        let old = old.map(|verdict| Element {
            key: element.key.clone(),
            verdict,
        });
        let set = set.name.clone();
        self.note_element(set, element.key, old);
    }

    pub(super) fn remove_element(&mut self, set: &'static str, key: Key) {
        let Some(set) = self.table.sets.get_mut(set) else {
            return;
        };
        let old = set.elements.remove_entry(&key);
        let old = old.map(|(key, verdict)| Element { key, verdict });
        let set = set.name.clone();
        self.note_element(set, key, old);
    }

    /// Subtracts the old element from the fingerprint, and keeps it for the next commands.
    fn note_element(&mut self, set: Arc<str>, key: Key, old: Option<Element>) {
        if let Some(old) = &old {
            let removed = hash::element(&set, &old.key, old.verdict.as_ref());
            self.fingerprint = self.fingerprint.wrapping_sub(removed);
        }
        self.before.elements.entry((set, key)).or_insert(old);
    }

    pub(super) fn add_chain(&mut self, chain: Chain) {
        let name = chain.name.clone();
        self.fingerprint = self.fingerprint.wrapping_add(hash::chain(&chain));
        let old = self.table.chains.insert(name.clone(), chain);
        self.note_chain(name, old);
    }

    pub(super) fn remove_chain(&mut self, name: &Arc<str>) {
        if let Some(old) = self.table.chains.remove(name) {
            self.note_chain(name.clone(), Some(old));
        }
    }

    fn note_chain(&mut self, name: Arc<str>, old: Option<Chain>) {
        if let Some(old) = &old {
            self.fingerprint = self.fingerprint.wrapping_sub(hash::chain(old));
        }
        self.before.chains.entry(name).or_insert(old);
    }

    /// Returns the same verdict with the chain's own copy of its name: most elements share it.
    fn with_shared_name(&self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Goto(name) => {
                let known = self.table.chains.get_key_value(&name);
                Verdict::Goto(known.map_or(name, |(known, _)| known.clone()))
            }
            other => other,
        }
    }
}

fn hairpin(address: IpAddr) -> Key {
    Key::new([address.into(), address.into()])
}

fn clone<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

#[derive(Clone, Copy)]
enum Count {
    Up,
    Down,
}

/// A user that makes a difference to a shared part.
enum Use {
    First,
    Last,
}

impl Count {
    /// Counts a user of `key` up or down. Returns whether it is the first, or was the last.
    fn of<K: Ord>(self, users: &mut BTreeMap<K, usize>, key: K) -> Option<Use> {
        match self {
            Self::Up => {
                let users = users.entry(key).or_default();
                *users += 1;
                (*users == 1).then_some(Use::First)
            }
            Self::Down => {
                let left = users.get(&key)?.saturating_sub(1);
                if left > 0 {
                    users.insert(key, left);
                    return None;
                }
                users.remove(&key);
                Some(Use::Last)
            }
        }
    }
}
