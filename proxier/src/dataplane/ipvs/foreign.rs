//! Virtual servers of other programs where Services ask for frontends.
//!
//! A virtual server that the ledger lacks is adopted only if it is recognisably one of a service proxy: at a cluster IP,
//! or left by kube-proxy or by an earlier process whose ledger was lost. Whoever may create Services could otherwise take
//! over the virtual servers of kube-vip or keepalived by asking for their address and port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs_netlink::{Forwarding, ServiceKey};

use super::{Ipvs, Kernel, Wanted};
use crate::cluster::model::{Protocol, ServicePortName};
use crate::cluster::problem::Problem;
use crate::dataplane::Planned;
use crate::dataplane::ipvs::filter;
use crate::dataplane::ipvs::observed::Observed;
use crate::dataplane::ipvs::op::AddressForm;
use crate::plan::frontend::Frontend;
use crate::plan::{Desired, FrontendKind, ServiceAddresses};

/// The virtual servers that an earlier service proxy may have left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inherited {
    /// Those whose address is a service address.
    at_service_addresses: BTreeSet<ServiceKey>,
    /// Those at an address of the node, if there are traces of a service proxy. Only node ports can be theirs.
    at_node_addresses: BTreeSet<ServiceKey>,
    /// Those of an earlier process of this program whose ledger was lost. If no Service asks for them, they are deleted.
    of_lost_ledger: Vec<ServiceKey>,
    /// Those that may be of that process, or of another program.
    doubtful: Vec<ServiceKey>,
}

/// The owner of virtual servers whose Service is unknown. No Service has this name.
pub(super) fn nobody() -> ServicePortName {
    ServicePortName::from("")
}

impl<K: Kernel> Ipvs<K> {
    /// Notes which virtual servers an earlier service proxy left, at the first read of the kernel.
    ///
    /// Only then, because later the service addresses are those of this process: a foreign virtual server at one of them
    /// would count as left.
    pub(super) fn inherit(&mut self, planned: Planned<'_>) {
        if self.state.inherited.is_some() {
            return;
        }
        let is_lost = !self.ledger.is_whole() && self.has_earlier_rules();
        let recorded = match is_lost {
            true => self.recorded_in_rules(),
            false => BTreeSet::new(),
        };
        let observed = &self.state.observed;
        // Node ports have no service address. Without the ledger, any trace of kube-proxy or of an earlier process counts.
        // With it, kube-proxy alone has addresses on the device, unless they are the configured form.
        let is_form = planned.config().service_addresses == ServiceAddresses::Dummy;
        let has_traces = match self.ledger.is_whole() && !is_form {
            true => are_addresses_on_device(observed),
            false => observed.carrier.is_some() || !observed.addresses.is_empty(),
        };
        let mut inherited = Inherited::default();
        for (key, server) in observed.virtual_servers.iter() {
            let mut destinations = server.destinations.iter();
            // Ours all do.
            if is_lost && destinations.all(|it| it.forwarding == Forwarding::Masquerade) {
                let is_at_route = |address: IpAddr| {
                    observed.has_address(address) && !planned.machine.has(&address)
                };
                let is_ours = recorded.contains(&key) || key.address().is_some_and(is_at_route);
                match is_ours {
                    true => inherited.of_lost_ledger.push(key),
                    false => inherited.doubtful.push(key),
                }
            }
            let ServiceKey::Address { address, .. } = key else {
                continue;
            };
            if observed.has_address(address) {
                // A whole ledger has ours, and kube-proxy's are at addresses on its device. At an address that a route of
                // ours makes local, others are foreign: whose Service asks for one port of it may not take the others.
                let may_be_kube_proxys = is_form || has_address_on_device(observed, address);
                if may_be_kube_proxys || !self.ledger.is_whole() {
                    inherited.at_service_addresses.insert(key);
                }
            } else if has_traces && planned.machine.has(&address) {
                inherited.at_node_addresses.insert(key);
            }
        }
        self.state.inherited = Some(inherited);
    }

    /// Returns whether an earlier process wrote packet rules. To be called before this process writes any.
    fn has_earlier_rules(&mut self) -> bool {
        matches!(self.kernel.rules_generation(), Ok(Some(_)))
    }

    /// Returns the virtual servers for which an earlier process wrote packet rules.
    fn recorded_in_rules(&mut self) -> BTreeSet<ServiceKey> {
        let Some(rules) = &self.rules else {
            return BTreeSet::new();
        };
        let kernel = &mut self.kernel;
        filter::recorded(rules.filter.config(), |set| kernel.rule_elements(set)).unwrap_or_else(
            |failure| {
                tracing::warn!("the packet rules cannot replace the lost ledger: {failure}");
                BTreeSet::new()
            },
        )
    }

    /// Returns the Problem that virtual servers may be of an earlier process whose ledger was lost.
    pub(super) fn doubtful(&self) -> Option<Problem> {
        let observed = &self.state.observed.virtual_servers;
        let owned = self.ledger.owned();
        let all = &self.state.inherited.as_ref()?.doubtful;
        let left = || {
            let left = all.iter();
            left.filter(|key| observed.contains_key(key) && !owned.contains(key))
        };
        let first = left().next()?;
        let others = match left().count() - 1 {
            0 => String::new(),
            count => format!(", as {count} others"),
        };
        let message = format!(
            "may be of an earlier process, whose ledger was lost or damaged{others}; nothing of it is changed: if no other \
             program made it, delete it with ipvsadm"
        );
        Some(Problem::new("This node", "virtual servers", first, message))
    }

    /// Excludes the frontends among `keys` at which another program has a virtual server. Returns whether there are any.
    pub(super) fn exclude_foreign(
        &mut self,
        planned: Planned<'_>,
        keys: impl Iterator<Item = ServiceKey>,
    ) -> bool {
        let found = keys.filter(|key| self.is_foreign(planned, key));
        let found: Vec<Frontend> = found.filter_map(|key| Frontend::of(&key)).collect();
        self.capabilities.foreign.extend(&found);
        !found.is_empty()
    }

    /// Does the same for all frontends, and includes those again whose foreign virtual server is gone. Returns whether
    /// the plan must be made again.
    pub(super) fn exclude_all_foreign(&mut self, planned: Planned<'_>) -> bool {
        let observed = &self.state.observed.virtual_servers;
        let foreign = &mut self.capabilities.foreign;
        let before = foreign.len();
        foreign.retain(|frontend| observed.contains_key(&ServiceKey::from(*frontend)));
        let has_less = foreign.len() < before;
        let frontends = planned.desired().frontends.keys();
        let keys = frontends.map(|frontend| (*frontend).into());
        self.exclude_foreign(planned, keys) || has_less
    }

    /// Records the virtual servers of an earlier process whose ledger was lost, so that this round deletes those that no
    /// Service asks for: the endpoint's address may be another tenant's by now.
    ///
    /// Not before the Node is known, because the plan may lack node ports until then.
    pub(super) fn own_lost(&mut self, planned: Planned<'_>) {
        let (Some(inherited), Some(_)) = (&mut self.state.inherited, planned.snapshot.node())
        else {
            return;
        };
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let mut lost = std::mem::take(&mut inherited.of_lost_ledger);
        lost.retain(|key| !wanted.contains(key) && !self.ledger.owned().contains(key));
        if self.doubtful().is_none() {
            self.ledger.complete();
        }
        let Some(first) = lost.first() else {
            return;
        };
        let count = lost.len();
        tracing::warn!(
            "the ledger was lost or damaged: {count} virtual servers that no Service asks for, for example {first}, \
             count as this program's, because its packet rules exist; they are deleted"
        );
        for key in lost {
            self.ledger.own(key, &nobody());
        }
    }

    /// Records the virtual servers that kube-proxy left, so that they drain: those at addresses on its device, and those of
    /// node ports of `desired`.
    ///
    /// One on the device that no Service asks for is deleted, as kube-proxy would.
    pub(crate) fn own_inherited(&mut self, desired: &Desired) {
        let observed = &self.state.observed;
        let is_of_kube_proxy = observed.carrier.is_some_and(|carrier| !carrier.is_ours);
        let Some(inherited) = self.state.inherited.as_mut().filter(|_| is_of_kube_proxy) else {
            return;
        };
        let plans = desired.frontends.iter();
        let node_ports: BTreeMap<(Protocol, u16), &ServicePortName> = plans
            .filter(|(_, plan)| plan.profile.kind == FrontendKind::NodePort)
            .map(|(frontend, plan)| ((frontend.protocol, frontend.port), &plan.owner))
            .collect();
        // No Service has this name, so nothing delays the deletion.
        let nobody = ServicePortName::from("");
        let on_device = std::mem::take(&mut inherited.at_service_addresses).into_iter();
        let is_on_device = |address| has_address_on_device(observed, address);
        for key in on_device.filter(|key| key.address().is_some_and(is_on_device)) {
            let plan = Frontend::of(&key).and_then(|it| desired.frontends.get(&it));
            self.ledger
                .own(key, plan.map_or(&nobody, |plan| &plan.owner));
        }
        // kube-proxy serves node ports at all addresses by default, and the plan perhaps at some.
        for key in std::mem::take(&mut inherited.at_node_addresses) {
            if let Some(it) = Frontend::of(&key)
                && let Some(owner) = node_ports.get(&(it.protocol, it.port))
            {
                self.ledger.own(key, owner);
            }
        }
    }

    /// Returns whether the kernel has a virtual server of another program at this desired frontend.
    fn is_foreign(&self, planned: Planned<'_>, key: &ServiceKey) -> bool {
        if self.ledger.owned().contains(key) {
            return false;
        }
        let observed = &self.state.observed;
        if !observed.virtual_servers.contains_key(key) {
            return false;
        }
        let Some(frontend) = Frontend::of(key) else {
            return false;
        };
        let Some(plan) = planned.desired().frontends.get(&frontend) else {
            return false;
        };
        if plan.profile.kind == FrontendKind::ClusterIp {
            return false;
        }
        let address = frontend.address;
        let is_node_port = plan.profile.kind == FrontendKind::NodePort;
        let is_inherited = (self.state.inherited.as_ref()).is_some_and(|inherited| {
            let is_node_port_left = is_node_port && inherited.at_node_addresses.contains(key);
            is_node_port_left || inherited.at_service_addresses.contains(key)
        });
        // kube-proxy may run until now, and have created it since the first read.
        let is_of_kube_proxy = match is_node_port {
            true => are_addresses_on_device(observed),
            false => has_address_on_device(observed, address),
        };
        if is_inherited || is_of_kube_proxy {
            return false;
        }
        let territory = self.territory(planned);
        !territory.ours.iter().any(|range| range.contains(address))
    }
}

/// Returns whether `kube-ipvs0` has `address` on it, though the configured form is routes.
fn has_address_on_device(observed: &Observed, address: IpAddr) -> bool {
    (observed.leftovers).contains(&(address, AddressForm::Address))
}

/// Returns whether `kube-ipvs0` has addresses on it, though the configured form is routes.
fn are_addresses_on_device(observed: &Observed) -> bool {
    let mut leftovers = observed.leftovers.iter();
    leftovers.any(|(_, form)| *form == AddressForm::Address)
}
