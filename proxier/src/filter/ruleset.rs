//! The ruleset of a node as a value, and its changes as commands.

use std::collections::BTreeMap;
use std::convert::identity;
use std::net::IpAddr;
use std::sync::Arc;

use super::admission::{Parts, key};
use super::arp::{self, ArpFacts};
use super::chains::skeleton;
use super::config::{FilterConfig, NodeFacts};
use super::guards::Guards;
use super::input_accept;
use super::inside::firewall_mark;
use super::names::{
    FRONTENDS, GUARDED, HAIRPIN, HEALTH_CHECK_PORTS, INSIDE, INSIDE_HERE, INSIDE_MARKS, PINGABLE,
    SERVICE_ADDRESSES, inside,
};
use super::tracked::{Changes, TrackedTable};
use crate::dataplane::ipvs::{Admission, MarkedClients};
use crate::frontend::Frontend;
use crate::model::{Family, Node, TrafficPolicy};
use crate::packed::pack;
use crate::plan::{Availability, Scope};
use nftables::hash::{self, ElementHasher};
use nftables::{Chain, Command, Element, Key, Set, Table, Value};

/// The packet rules of a node, with the commands for their changes since the last write.
///
/// The cost of a change is proportional to the change: a new admission replaces only the parts of its
/// frontend. The order of changes has no effect: the table depends only on the present frontends and
/// addresses, and on the guards that are not released yet ([`Ruleset::release`]).
#[derive(Clone, Debug)]
pub struct Ruleset {
    /// The node's main addresses.
    node_addresses: Vec<IpAddr>,
    /// Whether packets for frontends get the bit that our rules in chains of other programs accept.
    marks_input: bool,
    /// The admissions of the frontends, except [`PLAIN`]: nearly all frontends have it, and the table shows
    /// them.
    special: BTreeMap<Frontend, Admission>,
    /// The number of frontends with each firewall mark.
    marks: BTreeMap<u32, usize>,
    /// The number of frontends with each firewall mark and endpoint on this node.
    inside_here: BTreeMap<(u32, IpAddr), usize>,
    /// The number of frontends with endpoints at each address, beside the first: nearly all addresses have
    /// one, and the table shows it.
    more_pingable: BTreeMap<IpAddr, usize>,
    table: Table,
    /// The sum of the hashes of all parts of the table.
    fingerprint: Fingerprint,
    hasher: ElementHasher,
    /// `None` if they are not recorded.
    changes: Option<Changes>,
    pub(super) guards: Guards,
    /// The facts behind the companion of family `arp`; `None` without one.
    pub(super) arp: Option<ArpFacts>,
}

/// The sum of the hashes of a table's parts.
///
/// Tables with equal fingerprints count as equal. With 64 bits, a false match is improbable. A sum, so that a
/// change of one part costs only the hashes of that part.
pub(crate) type Fingerprint = u64;

/// The admission of a cluster IP that all clients may use.
const PLAIN: Admission = Admission {
    scope: Scope::Internal,
    policy: TrafficPolicy::Cluster,
    endpoints: Availability::Usable,
    source_ranges: None,
    inside: None,
};

/// Returns the hashes of a table's chains and of its sets without elements.
fn definitions(table: &Table) -> Vec<u64> {
    let sets = table.sets.values().map(hash::set);
    sets.chain(table.chains.values().map(hash::chain)).collect()
}

impl Ruleset {
    /// Returns the ruleset of `node` without Services. It records its changes.
    pub fn new(config: &FilterConfig, node: Option<&Node>) -> Self {
        let mut rules = Self::on(config, &NodeFacts::of(node));
        rules.record();
        rules
    }

    /// Returns the ruleset of a node without Services. It does not record its changes.
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
            hasher: ElementHasher::default(),
            table,
            special: BTreeMap::new(),
            marks: BTreeMap::new(),
            inside_here: BTreeMap::new(),
            more_pingable: BTreeMap::new(),
            changes: None,
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
    pub(super) fn frontend(&self, frontend: &Frontend) -> Option<Admission> {
        let special = self.special.get(frontend).cloned();
        special.or_else(|| {
            let frontends = FRONTENDS.of(frontend.family());
            let is_plain = self.table.has_element(frontends, &key(frontend));
            is_plain.then_some(PLAIN)
        })
    }

    /// Returns whether clients inside the cluster reach other endpoints at any frontend of the family.
    pub(super) fn has_inside_clients(&self, family: Family) -> bool {
        let set = self.table.sets.get(INSIDE.of(family));
        set.is_some_and(|set| !set.is_empty())
    }

    /// Records the changes from now on, and forgets those so far.
    pub(super) fn record(&mut self) {
        self.changes = Some(Changes::default());
    }

    /// Forgets the changes, and records none until [`Ruleset::record`].
    ///
    /// The changes of a start are the whole table, and take more memory than it.
    pub(super) fn stop_recording(&mut self) {
        self.changes = None;
    }

    /// Returns whether the changes are recorded.
    pub(super) fn is_recording(&self) -> bool {
        self.changes.is_some()
    }

    /// Returns the commands for the recorded changes, in an order that the kernel accepts, and forgets the
    /// changes.
    pub fn take_commands(&mut self) -> Vec<Command> {
        let Some(Changes { inet, arp }) = self.changes.as_mut().map(std::mem::take) else {
            return Vec::new();
        };
        let (mut old, mut new) = inet.parts(&self.table);
        if let Some(table) = &self.table.arp {
            let (old_arp, new_arp) = arp.parts(table);
            old.arp = Some(Box::new(old_arp));
            new.arp = Some(Box::new(new_arp));
        }
        old.difference(&new)
    }

    /// Frees the memory that many insertions in order of the keys left unused.
    pub(super) fn pack(&mut self) {
        pack(&mut self.special);
        pack(&mut self.more_pingable);
        self.table.sets.values_mut().for_each(Set::pack);
    }

    /// Sets the admission of a frontend; `None` removes the frontend.
    ///
    /// A guard that the frontend no longer needs stays until it is released.
    pub fn set_frontend(&mut self, frontend: Frontend, admission: Option<Admission>) {
        let old = self.frontend(&frontend);
        if old == admission {
            return;
        }
        match admission.clone().filter(|admission| *admission != PLAIN) {
            Some(special) => self.special.insert(frontend, special),
            None => self.special.remove(&frontend),
        };
        let guarded = GUARDED.of(frontend.family());
        if let Some(old) = old {
            for (set, element) in self.parts(&frontend, &old).elements {
                if set == guarded {
                    // The element, and the chain to which it leads, stay as the guard.
                    self.guards.frontends.insert(frontend);
                } else {
                    self.remove_element(set, element.key);
                }
            }
            self.count(&frontend, &old, Count::Down);
        }
        if let Some(admission) = admission {
            let parts = self.parts(&frontend, &admission);
            // Its own element replaces the one of an old guard; otherwise the old guard stays until release.
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

    /// Returns the parts of the table that only `frontend` uses.
    fn parts(&self, frontend: &Frontend, admission: &Admission) -> Parts {
        let mut parts = Parts::of(frontend, admission, &self.node_addresses);
        if self.marks_input && admission.scope == Scope::NodePort {
            parts.elements.push(input_accept::node_port(frontend));
        }
        parts
    }

    /// Adds a service address.
    pub fn add_service_address(&mut self, address: IpAddr) {
        let was_guarded = self.guards.addresses.remove(&address);
        let key = Key::new([address.into()]);
        self.add_element(SERVICE_ADDRESSES.of(address.into()), key.into());
        self.silence(address);
        if was_guarded {
            // While it was guarded, it was hidden as an external address. It may be a cluster IP now.
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
    /// These parts are the chains of inside marks, the addresses that answer pings, and hidden addresses.
    fn count(&mut self, frontend: &Frontend, admission: &Admission, count: Count) {
        if let Some(MarkedClients { mark, here }) = &admission.inside {
            let mark = *mark;
            for &address in here {
                let set = INSIDE_HERE.of(address.into());
                let key = Key::new([address.into(), Value::Mark(mark)]);
                match count.apply(&mut self.inside_here, (mark, address)) {
                    Some(SharedPart::Add) => self.add_element(set, key.into()),
                    Some(SharedPart::Remove) => self.remove_element(set, key),
                    None => {}
                }
            }
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
            self.count_pingable(frontend.address, count);
        }
    }

    /// Counts a frontend with endpoints at `address`.
    fn count_pingable(&mut self, address: IpAddr, count: Count) {
        let set = PINGABLE.of(address.into());
        let key = Key::new([address.into()]);
        match count {
            Count::Up if !self.table.has_element(set, &key) => self.add_element(set, key.into()),
            Count::Down if !self.more_pingable.contains_key(&address) => {
                self.remove_element(set, key);
            }
            Count::Up | Count::Down => drop(count.apply(&mut self.more_pingable, address)),
        }
    }

    pub(super) fn add_element(&mut self, set: &'static str, element: Element) {
        self.inet().add_element(set, element);
    }

    pub(super) fn remove_element(&mut self, set: &'static str, key: Key) {
        self.inet().remove_element(set, key);
    }

    pub(super) fn add_chain(&mut self, chain: Chain) {
        self.inet().add_chain(chain);
    }

    pub(super) fn remove_chain(&mut self, name: &Arc<str>) {
        self.inet().remove_chain(name);
    }

    /// Opens the table of family `inet` for changes.
    fn inet(&mut self) -> TrackedTable<'_> {
        TrackedTable {
            table: &mut self.table,
            replaced: self.changes.as_mut().map(|changes| &mut changes.inet),
            fingerprint: &mut self.fingerprint,
            hasher: &mut self.hasher,
            in_family: identity,
        }
    }

    /// Opens the table of family `arp` for changes, if there is one.
    pub(super) fn arp_table(&mut self) -> Option<TrackedTable<'_>> {
        Some(TrackedTable {
            table: self.table.arp.as_deref_mut()?,
            replaced: self.changes.as_mut().map(|changes| &mut changes.arp),
            fingerprint: &mut self.fingerprint,
            hasher: &mut self.hasher,
            in_family: hash::in_arp,
        })
    }
}

/// Returns the key of an endpoint's connection to itself.
fn hairpin(address: IpAddr) -> Key {
    Key::new([address.into(), address.into()])
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
