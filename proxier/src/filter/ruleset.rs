//! The ruleset of a node as a value, and its changes as commands.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::admission::parts;
use super::arp::{self, ArpFacts};
use super::chains::{firewall_mark, skeleton};
use super::config::{FilterConfig, NodeFacts};
use super::guards::Guards;
use super::input_accept;
use super::names::{
    GUARDED, HAIRPIN, HEALTH_CHECK_PORTS, INSIDE_MARKS, PINGABLE, SERVICE_ADDRESSES, inside,
};
use crate::frontend::Frontend;
use crate::model::Node;
use crate::nftables::{Chain, Command, Element, Key, Set, Table, Value, Verdict, hash};
use crate::packed::pack;
use crate::plan::{Admission, Availability, Scope};

/// The packet rules of a node, with the commands for their changes since the last write.
///
/// The cost of a change is proportional to the change: a new admission replaces only the parts of its
/// frontend. The order of changes does not matter: the table depends only on the present frontends
/// and addresses, and on the guards that are not yet released ([`Ruleset::release`]).
#[derive(Clone, Debug)]
pub struct Ruleset {
    /// The node's main addresses.
    node_addresses: Vec<IpAddr>,
    /// Whether packets for frontends get the bit that our rules in chains of other programs accept.
    marks_input: bool,
    frontends: BTreeMap<Frontend, Admission>,
    /// The number of frontends with each firewall mark.
    marks: BTreeMap<u32, usize>,
    /// The number of frontends with endpoints at each address.
    pingable: BTreeMap<IpAddr, usize>,
    table: Table,
    /// The sum of the hashes of all parts of the table.
    fingerprint: Fingerprint,
    replaced: Replaced,
    replaced_arp: Replaced,
    pub(super) guards: Guards,
    /// The facts behind the companion of family `arp`; `None` without one.
    pub(super) arp: Option<ArpFacts>,
}

/// The sum of the hashes of a table's parts.
///
/// Tables with equal fingerprints are taken for equal: with 64 bits, a false match is improbable.
pub(crate) type Fingerprint = u64;

/// The parts that changed since the last [`Ruleset::take_commands`], as they were then.
///
/// `None` is a part that did not exist.
#[derive(Clone, Debug, Default)]
struct Replaced {
    elements: BTreeMap<(Arc<str>, Key), Option<Element>>,
    chains: BTreeMap<Arc<str>, Option<Chain>>,
}

impl Replaced {
    /// Returns two tables with only the changed parts of `table`: as they were, and as they are.
    fn parts(self, table: &Table) -> (Table, Table) {
        let (mut old, mut new) = (Table::default(), Table::default());
        for ((name, key), old_element) in self.elements {
            let Some(set) = table.sets.get(&name) else {
                continue;
            };
            let new_element = set.elements.get(&key);
            let new_element = new_element.map(|verdict| (key, verdict.clone()));
            let old_element = old_element.map(|element| (element.key, element.verdict));
            for (table, element) in [(&mut old, old_element), (&mut new, new_element)] {
                let empty = || Set::new(set.name.clone(), set.key.clone(), set.kind);
                let part = table.sets.entry(name.clone()).or_insert_with(empty);
                part.elements.extend(element);
            }
        }
        for (name, old_chain) in self.chains {
            new.chains
                .extend(table.chains.get_key_value(&name).map(clone));
            old.chains.extend(old_chain.map(|chain| (name, chain)));
        }
        (old, new)
    }
}

/// Returns the hashes of a table's chains and of its sets without elements.
fn definitions(table: &Table) -> Vec<u64> {
    let sets = table.sets.values().map(hash::set);
    sets.chain(table.chains.values().map(hash::chain)).collect()
}

impl Ruleset {
    /// Returns the ruleset of `node` without Services.
    pub fn new(config: &FilterConfig, node: Option<&Node>) -> Self {
        Self::on(config, &NodeFacts::of(node))
    }

    pub(super) fn on(config: &FilterConfig, node: &NodeFacts) -> Self {
        let mut table = skeleton(config, node);
        table.arp = config.hides_arp.then(|| Box::new(arp::table(node)));
        let arp = table.arp.as_deref().map(definitions);
        let hashes = definitions(&table).into_iter();
        let hashes = hashes.chain(arp.into_iter().flatten().map(hash::in_arp));
        Self {
            node_addresses: node.addresses.clone(),
            marks_input: config.input_accept_bit.is_some(),
            fingerprint: hashes.fold(0, Fingerprint::wrapping_add),
            table,
            frontends: BTreeMap::new(),
            marks: BTreeMap::new(),
            pingable: BTreeMap::new(),
            replaced: Replaced::default(),
            replaced_arp: Replaced::default(),
            guards: Guards::default(),
            arp: config.hides_arp.then(ArpFacts::default),
        }
    }

    /// Returns the table that the kernel should have.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the fingerprint of the table.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the admission of `frontend`; `None` if it is not desired.
    pub(super) fn frontend(&self, frontend: &Frontend) -> Option<&Admission> {
        self.frontends.get(frontend)
    }

    /// Returns the commands for the changes since the last call, in an order that the kernel accepts.
    pub fn take_commands(&mut self) -> Vec<Command> {
        // Two tables with only the changed parts: comparing the whole ones would cost their size.
        let replaced = std::mem::take(&mut self.replaced);
        let (mut old, mut new) = replaced.parts(&self.table);
        if let Some(arp) = &self.table.arp {
            let replaced = std::mem::take(&mut self.replaced_arp);
            let (old_arp, new_arp) = replaced.parts(arp);
            old.arp = Some(Box::new(old_arp));
            new.arp = Some(Box::new(new_arp));
        }
        old.difference(&new)
    }

    /// Forgets the commands for the changes so far.
    pub(super) fn forget_commands(&mut self) {
        self.replaced = Replaced::default();
        self.replaced_arp = Replaced::default();
    }

    /// Frees the memory that insertions in order of the keys left unused. Useful after many.
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
        let old = match &admission {
            Some(admission) => self.frontends.insert(frontend, admission.clone()),
            None => self.frontends.remove(&frontend),
        };
        if old == admission {
            return;
        }
        let guarded = GUARDED.of(frontend.family());
        if let Some(old) = old {
            for (set, element) in parts(&frontend, &old, &self.node_addresses).elements {
                if set == guarded {
                    // The element, and the chain to which it leads, stay as the guard.
                    self.guards.frontends.insert(frontend);
                } else {
                    self.remove_element(set, element.key);
                }
            }
            if self.marks_input && old.scope == Scope::NodePort {
                let (set, element) = input_accept::node_port(&frontend);
                self.remove_element(set, element.key);
            }
            self.count(&frontend, &old, Count::Down);
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
            if self.marks_input && admission.scope == Scope::NodePort {
                let (set, element) = input_accept::node_port(&frontend);
                self.add_element(set, element);
            }
            self.count(&frontend, &admission, Count::Up);
        }
    }

    /// Adds a service address: one that is local for Services only.
    pub fn add_service_address(&mut self, address: IpAddr) {
        let was_guarded = self.guards.addresses.remove(&address);
        let key = Key::new([address.into()]);
        self.add_element(SERVICE_ADDRESSES.of(address.into()), key.into());
        self.silence(address);
        if was_guarded {
            // As long as it was guarded, it was hidden as an external address, which it may not be now.
            self.review_arp(address);
        }
        self.hide_retired(address);
    }

    /// Removes a service address; connections to it stay rejected until [`Ruleset::release`].
    pub fn remove_service_address(&mut self, address: IpAddr) {
        if self.has_service_address(address) {
            self.guards.addresses.insert(address);
            self.hide(address);
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

    /// Counts a frontend's use of parts that frontends share, and adds or removes these parts.
    ///
    /// They are the chains of firewall marks, and the addresses that answer pings.
    fn count(&mut self, frontend: &Frontend, admission: &Admission, count: Count) {
        if let Some(mark) = admission.inside_mark {
            let key = || Key::new([Value::Mark(mark)]);
            match count.apply(&mut self.marks, mark) {
                Some(SharedPart::Add) => {
                    self.add_element(INSIDE_MARKS, key().into());
                    self.add_chain(firewall_mark(mark));
                }
                Some(SharedPart::Remove) => {
                    self.remove_element(INSIDE_MARKS, key());
                    self.remove_chain(&inside(mark));
                }
                None => {}
            }
        }
        if admission.scope == Scope::External {
            self.count_arp(count, frontend.address);
        }
        if admission.endpoints != Availability::None {
            let key = || Key::new([frontend.address.into()]);
            let set = PINGABLE.of(frontend.family());
            match count.apply(&mut self.pingable, frontend.address) {
                Some(SharedPart::Add) => self.add_element(set, key().into()),
                Some(SharedPart::Remove) => self.remove_element(set, key()),
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

    /// Subtracts the old element from the fingerprint, and keeps it for [`Ruleset::take_commands`].
    fn note_element(&mut self, set: Arc<str>, key: Key, old: Option<Element>) {
        if let Some(old) = &old {
            let removed = hash::element(&set, &old.key, old.verdict.as_ref());
            self.fingerprint = self.fingerprint.wrapping_sub(removed);
        }
        // The kernel has the element of the last write, so the first note since then counts.
        self.replaced.elements.entry((set, key)).or_insert(old);
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

    /// Does for a chain what [`Ruleset::note_element`] does for an element.
    fn note_chain(&mut self, name: Arc<str>, old: Option<Chain>) {
        if let Some(old) = &old {
            self.fingerprint = self.fingerprint.wrapping_sub(hash::chain(old));
        }
        self.replaced.chains.entry(name).or_insert(old);
    }

    pub(super) fn add_arp_element(&mut self, set: &'static str, element: Element) {
        let arp = self.table.arp.as_mut();
        let Some(set) = arp.and_then(|arp| arp.sets.get_mut(set)) else {
            return;
        };
        let Element { key, verdict } = element;
        let added = hash::element(&set.name, &key, verdict.as_ref());
        self.fingerprint = self.fingerprint.wrapping_add(hash::in_arp(added));
        let old = set.elements.insert(key.clone(), verdict);
        let old = old.map(|verdict| Element {
            key: key.clone(),
            verdict,
        });
        let set = set.name.clone();
        self.note_arp_element(set, key, old);
    }

    pub(super) fn remove_arp_element(&mut self, set: &'static str, key: Key) {
        let arp = self.table.arp.as_mut();
        let Some(set) = arp.and_then(|arp| arp.sets.get_mut(set)) else {
            return;
        };
        let old = set.elements.remove_entry(&key);
        let old = old.map(|(key, verdict)| Element { key, verdict });
        let set = set.name.clone();
        self.note_arp_element(set, key, old);
    }

    fn note_arp_element(&mut self, set: Arc<str>, key: Key, old: Option<Element>) {
        if let Some(old) = &old {
            let removed = hash::element(&set, &old.key, old.verdict.as_ref());
            self.fingerprint = self.fingerprint.wrapping_sub(hash::in_arp(removed));
        }
        let replaced = &mut self.replaced_arp.elements;
        replaced.entry((set, key)).or_insert(old);
    }

    pub(super) fn add_arp_chain(&mut self, chain: Chain) {
        let Some(arp) = self.table.arp.as_mut() else {
            return;
        };
        let name = chain.name.clone();
        let added = hash::in_arp(hash::chain(&chain));
        self.fingerprint = self.fingerprint.wrapping_add(added);
        let old = arp.chains.insert(name.clone(), chain);
        self.note_arp_chain(name, old);
    }

    pub(super) fn remove_arp_chain(&mut self, name: &Arc<str>) {
        let arp = self.table.arp.as_mut();
        if let Some(old) = arp.and_then(|arp| arp.chains.remove(name)) {
            self.note_arp_chain(name.clone(), Some(old));
        }
    }

    fn note_arp_chain(&mut self, name: Arc<str>, old: Option<Chain>) {
        if let Some(old) = &old {
            let removed = hash::in_arp(hash::chain(old));
            self.fingerprint = self.fingerprint.wrapping_sub(removed);
        }
        self.replaced_arp.chains.entry(name).or_insert(old);
    }

    /// Returns the verdict with the chain's own copy of its name.
    ///
    /// Most elements go to one of a few chains, so sharing the names saves memory.
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

/// Returns the key of an endpoint's connection to itself.
fn hairpin(address: IpAddr) -> Key {
    Key::new([address.into(), address.into()])
}

fn clone<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

/// Whether a shared part gains or loses a user.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Up,
    Down,
}

/// The change of a shared part that got its first user, or lost its last one.
pub(super) enum SharedPart {
    Add,
    Remove,
}

impl Count {
    /// Changes the number of users of `key`. Returns how the shared part must change.
    pub(super) fn apply<K: Ord>(
        self,
        users: &mut BTreeMap<K, usize>,
        key: K,
    ) -> Option<SharedPart> {
        match self {
            Self::Up => {
                let users = users.entry(key).or_default();
                *users += 1;
                (*users == 1).then_some(SharedPart::Add)
            }
            Self::Down => {
                let left = users.get(&key)?.saturating_sub(1);
                if left > 0 {
                    users.insert(key, left);
                    return None;
                }
                users.remove(&key);
                Some(SharedPart::Remove)
            }
        }
    }
}
