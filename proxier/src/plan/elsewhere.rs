//! Addresses that other machines have.
//!
//! A service address is local for all ports. If another machine has the address, this node would lose that machine:
//! an API server, a router, another node. So nothing is programmed for such an address.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{FrontendKind, Machine, Peers};
use crate::cluster::model::{EndpointSlice, Service};
use crate::cluster::problem::Problem;
use crate::cluster::store::Snapshot;

/// What shows that other machines have addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct Elsewhere {
    peers: Peers,
    /// The endpoints of `default/kubernetes`.
    api_servers: Arc<BTreeSet<IpAddr>>,
    /// The addresses of all nodes.
    nodes: Arc<BTreeMap<IpAddr, Arc<str>>>,
}

impl Elsewhere {
    pub(super) fn new(snapshot: &Snapshot, machine: &Machine) -> Self {
        Self {
            peers: machine.peers.clone(),
            api_servers: snapshot.api_servers().clone(),
            nodes: snapshot.node_addresses().clone(),
        }
    }

    /// Returns the addresses about which `self` and `other` may differ.
    ///
    /// # Cost
    /// If nothing changed since `self` was made, that of comparing five pointers.
    pub(super) fn differences(&self, other: &Self) -> BTreeSet<IpAddr> {
        let mut differences = BTreeSet::new();
        let mut add = |one: &Arc<BTreeSet<IpAddr>>, other: &Arc<BTreeSet<IpAddr>>| {
            if !Arc::ptr_eq(one, other) {
                differences.extend(one.symmetric_difference(other));
            }
        };
        add(&self.peers.next_hops, &other.peers.next_hops);
        add(&self.peers.tunnel_ends, &other.peers.tunnel_ends);
        add(&self.peers.api_servers, &other.peers.api_servers);
        add(&self.api_servers, &other.api_servers);
        if self.api_servers != other.api_servers {
            // Which Services lead to the API servers decides about these.
            differences.extend(&*self.peers.api_servers);
        }
        if !Arc::ptr_eq(&self.nodes, &other.nodes) {
            let keys = self.nodes.keys().chain(other.nodes.keys());
            differences.extend(keys.filter(|ip| self.nodes.get(ip) != other.nodes.get(ip)));
        }
        differences
    }

    /// Returns which machine has `address`, as the predicate of a sentence; `None` if no other one is known to.
    fn holder(&self, address: IpAddr, leads_to_api: bool) -> Option<String> {
        if let Some(node) = self.nodes.get(&address) {
            return Some(format!("is an address of Node {node}"));
        }
        let text = if self.api_servers.contains(&address) {
            "is the address of an API server (an endpoint of Service default/kubernetes)"
        } else if self.peers.api_servers.contains(&address) && !leads_to_api {
            "is the address to which this node's connection to the API server leads"
        } else if self.peers.next_hops.contains(&address) {
            "is the next hop of a route of this node"
        } else if self.peers.tunnel_ends.contains(&address) {
            "is the far end of a tunnel of this node"
        } else {
            return None;
        };
        Some(text.to_owned())
    }

    /// Returns `service` without the external addresses that other machines have, and these addresses.
    ///
    /// Adds a Problem for each of them to `problems`.
    pub(super) fn exclude<'a>(
        &self,
        service: &'a Service,
        slices: &[&EndpointSlice],
        is_own: impl Fn(&IpAddr) -> bool,
        problems: &mut Vec<Problem>,
    ) -> (Cow<'a, Service>, Vec<IpAddr>) {
        // The address of an API server may be that of a Service whose endpoints are the API servers. All nodes serve
        // such an address, and no other machine has it.
        let mut endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
        let is_api_server = |address: IpAddr| self.api_servers.contains(&address);
        let mut leads_to_api = None;
        let mut excluded = Vec::new();
        let external = service.external();
        let fields = [
            (FrontendKind::ExternalIp, &external.external_ips),
            (FrontendKind::LoadBalancer, &external.load_balancer_ips),
        ];
        for (kind, addresses) in fields {
            for &address in addresses.iter().filter(|address| !is_own(address)) {
                let leads_to_api = *leads_to_api.get_or_insert_with(|| {
                    endpoints.clone().next().is_some()
                        && endpoints.all(|endpoint| is_api_server(endpoint.address))
                });
                let Some(holder) = self.holder(address, leads_to_api) else {
                    continue;
                };
                excluded.push(address);
                let message = format!(
                    "{holder}: nothing is programmed for it on this node, so that connections to it reach that machine"
                );
                let object = format_args!("Service {}", service.name);
                problems.push(Problem::new(object, kind.field(), address, message));
            }
        }
        if excluded.is_empty() {
            return (Cow::Borrowed(service), excluded);
        }
        let remaining = |addresses: &[IpAddr]| {
            let remaining = addresses.iter().copied();
            remaining.filter(|it| !excluded.contains(it)).collect()
        };
        let service = service.with_external(
            remaining(&external.external_ips),
            remaining(&external.load_balancer_ips),
        );
        (Cow::Owned(service), excluded)
    }
}
