//! The table of this node, which follows the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nftables::{Command, Element, Key, Match, Rule, SetKind, Statement, Table, Value, Verdict};

use super::chains;
use super::clients::Clients;
use super::names::{self, CLUSTER_IPS, HAIRPIN, HEALTH_CHECK_PORTS, PINGABLE, SERVICE_ADDRESSES};
use super::parts::{self, Parts};
use super::slots::Present;
use crate::cluster::model::Node;
use crate::dataplane::ipvs::filter::{FilterConfig, NodeFacts};
use crate::plan::frontend::Frontend;
use crate::plan::{Access, Availability, Changed, Desired, FrontendPlan, Scope};

#[cfg(test)]
mod tests;

/// Returns the table of a node that has to serve `desired`.
pub fn table(desired: &Desired, config: &FilterConfig, node: Option<&Node>) -> Table {
    ServiceTable::like(&Table::default(), desired, config, node).table
}

/// The table of this node, which remembers the slots of each frontend.
#[derive(Clone, Debug)]
pub struct ServiceTable {
    table: Table,
    node: NodeFacts,
    /// The clients inside the cluster.
    inside: Vec<Match>,
    /// Whether clients with affinity may be led to endpoints that their frontends no longer have.
    pub(super) must_forget: bool,
    /// The endpoints that serve clients outside the cluster no longer, since the last time that clients were forgotten.
    pub(super) withdrawn: BTreeMap<Frontend, BTreeSet<SocketAddr>>,
}

impl ServiceTable {
    /// Returns the table of a node without Services.
    pub fn new(config: &FilterConfig, node: Option<&Node>) -> Self {
        let node = NodeFacts::of(node);
        Self {
            table: chains::skeleton(config, &node),
            inside: Clients::on(config, &node).inside(),
            node,
            must_forget: false,
            withdrawn: BTreeMap::new(),
        }
    }

    /// Returns the table of a node that has to serve `desired`, with the order of slots that is nearest to that in
    /// `model`.
    pub fn like(
        model: &Table,
        desired: &Desired,
        config: &FilterConfig,
        node: Option<&Node>,
    ) -> Self {
        let mut rules = Self::new(config, node);
        rules.follow_like(desired, &everything(desired), Some(model));
        rules
    }

    /// Returns whether it depends on `node` as it is.
    pub fn is_on(&self, node: Option<&Node>) -> bool {
        self.node == NodeFacts::of(node)
    }

    /// Returns the table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Follows the plan, which differs from that of the last call in `changed`. Returns the commands that change the
    /// kernel's table likewise, in one transaction.
    ///
    /// A chain that a change leaves without a frontend stays until [`Self::sweep`].
    pub fn follow(&mut self, desired: &Desired, changed: &Changed) -> Vec<Command> {
        self.follow_like(desired, changed, None)
    }

    fn follow_like(
        &mut self,
        desired: &Desired,
        changed: &Changed,
        model: Option<&Table>,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        let frontends = changed.frontends.iter();
        let frontends = frontends.filter(|frontend| !frontend.needs_relay());
        for &frontend in frontends.clone() {
            let plan = desired.frontends.get(&frontend);
            self.set_frontend(frontend, plan, model, &mut commands);
        }
        for &address in &changed.addresses {
            let is_in = desired.addresses.contains_key(&address);
            let set = SERVICE_ADDRESSES.of(address.into());
            self.set_member(set, Key::new([address.into()]), is_in, &mut commands);
        }
        let addresses = frontends.map(|frontend| frontend.address);
        let addresses: BTreeSet<IpAddr> = addresses.chain(changed.addresses.clone()).collect();
        for address in addresses {
            let is_service = desired.addresses.contains_key(&address);
            let has_any = |is: fn(&Access) -> bool| is_service && has_any(desired, address, is);
            let serves = has_any(|access| access.endpoints != Availability::None);
            let is_cluster_ip = has_any(|access| access.scope == Scope::Internal);
            for (set, is_in) in [(PINGABLE, serves), (CLUSTER_IPS, is_cluster_ip)] {
                let set = set.of(address.into());
                self.set_member(set, Key::new([address.into()]), is_in, &mut commands);
            }
        }
        for &address in &changed.local_endpoints {
            let is_in = desired.local_endpoints.contains(&address);
            let key = Key::new([address.into(), address.into()]);
            self.set_member(HAIRPIN.of(address.into()), key, is_in, &mut commands);
        }
        for &port in &changed.health_checks {
            let is_in = desired.health_checks.contains_key(&port);
            let key = Key::new([Value::Port(port)]);
            self.set_member(HEALTH_CHECK_PORTS, key, is_in, &mut commands);
        }
        commands
    }

    /// Returns the commands that delete the chains to which no frontend leads.
    ///
    /// They belong in another transaction than the one that removed the last frontend: before Linux 6.2 the kernel
    /// counts a deleted element as a user of its chain until that transaction is complete.
    pub fn sweep(&mut self) -> Vec<Command> {
        let mut used = BTreeSet::new();
        let maps = self.table.sets.values();
        for set in maps.filter(|set| set.kind == SetKind::Verdicts) {
            for element in set.elements() {
                if let Some(Verdict::Goto(chain) | Verdict::Jump(chain)) = element.verdict {
                    used.insert(chain);
                }
            }
        }
        // A chain in use leads to others, and these lead to picks.
        let mut reached: Vec<Arc<str>> = used.iter().cloned().collect();
        while let Some(name) = reached.pop() {
            let rules = self.table.chains.get(&name).map(|chain| &chain.rules);
            let statements = rules.into_iter().flatten().flat_map(Rule::statements);
            for statement in statements {
                if let Statement::Verdict(Verdict::Goto(chain)) = statement
                    && used.insert(chain.clone())
                {
                    reached.push(chain.clone());
                }
            }
        }
        let chains = self.table.chains.values();
        let shared = chains.filter(|chain| names::is_shared(&chain.name));
        let mut unused = Table::default();
        for chain in shared.filter(|chain| !used.contains(&chain.name)) {
            unused.add_chain(chain.clone());
        }
        let commands = unused.difference(&Table::default());
        let apply = |command| self.table.apply(command);
        commands.iter().for_each(apply);
        commands
    }

    /// Gives a frontend the rules of its plan, or removes it.
    fn set_frontend(
        &mut self,
        frontend: Frontend,
        plan: Option<&FrontendPlan>,
        model: Option<&Table>,
        commands: &mut Vec<Command>,
    ) {
        let present = Present::of(&self.table, &frontend);
        let of_model = model.map(|model| Present::of(model, &frontend));
        let before = parts::present(&self.table, &frontend, &present);
        let after = match plan {
            Some(plan) => {
                let node = parts::Node {
                    addresses: &self.node.addresses,
                    inside: &self.inside,
                };
                Parts::of(&frontend, plan, node, of_model.as_ref().unwrap_or(&present))
            }
            None => Parts::none(frontend.family()),
        };
        if parts::is_sticky(&after.own, &frontend) {
            let slots = Present::of(&after.own, &frontend);
            // Also if affinity begins: it may have ended a moment ago, when the frontend had other endpoints.
            self.must_forget |= !parts::is_sticky(&before, &frontend) || !present.is_within(&slots);
            // An endpoint that still serves clients inside is gone for clients outside.
            let is_split = plan.is_some_and(|plan| plan.inside.is_some());
            let outside = if is_split {
                &slots.outside
            } else {
                &slots.first
            };
            let outside: BTreeSet<&SocketAddr> = outside.iter().collect();
            let had = of_model.as_ref().unwrap_or(&present).for_outside().iter();
            let mut withdrawn = had.filter(|it| !outside.contains(it)).peekable();
            if withdrawn.peek().is_some() {
                self.must_forget = true;
                let all = self.withdrawn.entry(frontend).or_default();
                all.extend(withdrawn);
            }
        }
        let first = commands.len();
        // Before the elements that lead to them.
        for chain in after.shared {
            if !self.table.chains.contains_key(&chain.name) {
                let mut new = Table::default();
                new.add_chain(chain);
                commands.extend(new.creation());
            }
        }
        commands.extend(before.difference(&after.own));
        for command in &commands[first..] {
            self.table.apply(command);
        }
    }

    fn set_member(&mut self, set: &str, key: Key, is_in: bool, commands: &mut Vec<Command>) {
        let Some((name, members)) = self.table.sets.get_key_value(set) else {
            return;
        };
        if members.contains(&key) == is_in {
            return;
        }
        let command = if is_in {
            Command::AddElement(name.clone(), Element::from(key))
        } else {
            Command::DeleteElement(name.clone(), key)
        };
        self.table.apply(&command);
        commands.push(command);
    }
}

/// Returns the changes from no plan to `desired`.
fn everything(desired: &Desired) -> Changed {
    Changed {
        frontends: desired.frontends.keys().copied().collect(),
        addresses: desired.addresses.keys().copied().collect(),
        local_endpoints: desired.local_endpoints.clone(),
        health_checks: desired.health_checks.keys().copied().collect(),
        before: Desired::default(),
    }
}

/// Returns whether `is` holds for any frontend at `address`.
fn has_any(desired: &Desired, address: IpAddr, is: fn(&Access) -> bool) -> bool {
    let mut there = desired.frontends.range(Frontend::range_at(address));
    there.any(|(_, plan)| is(&plan.profile.access))
}
