//! The configuration of the packet rules, and the facts of our Node that they use.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::cluster::model::{Cidr, Family, Node};
use crate::cluster::problem::Problem;

/// The configuration of the packet rules; the default is kube-proxy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterConfig {
    /// Masquerade all connections to cluster IPs (`--masquerade-all`).
    pub masquerade_all: bool,
    /// The bit of packet marks that means "masquerade" (`--iptables-masquerade-bit`).
    ///
    /// It is set on packets of Services on their way through this node, and cleared before they
    /// leave. Packets that another program marks with it are masqueraded too: the bit is
    /// kube-proxy's, and plugins set it through KUBE-MARK-MASQ.
    pub masquerade_bit: MarkBit,
    /// How clients inside the cluster are recognised (`--detect-local-mode`).
    pub local_mode: LocalMode,
    /// Whether service addresses with endpoints answer pings.
    pub answer_ping: bool,
    /// The bit of packet marks by which our rules in input chains of other programs accept packets for
    /// frontends (`--input-accept-bit`); `None` without such rules (`--input-drop=warn`).
    pub input_accept_bit: Option<MarkBit>,
    /// The same for forward chains. IPVS needs none: only the answers of endpoints pass them.
    pub forward_accept_bit: Option<MarkBit>,
    /// Whether a table of family `arp` hides load-balancer and external addresses on this node's links
    /// (`--arp=services`).
    pub hides_arp: bool,
    /// The cluster's node ports. Masquerading chooses other source ports, if there are any.
    pub node_ports: RangeInclusive<u16>,
    /// The most frontends up to which the dataplane nftables counts the connections of each (`--service-metrics-limit`).
    pub most_counted: usize,
}

impl Default for FilterConfig {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: MarkBit::MASQUERADE,
            local_mode: LocalMode::default(),
            answer_ping: false,
            input_accept_bit: None,
            forward_accept_bit: None,
            hides_arp: false,
            node_ports: 30_000..=32_767,
            most_counted: 1_000,
        }
    }
}

/// The position of a bit in packet marks, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkBit(u8);

impl MarkBit {
    /// kube-proxy's bit for "masquerade".
    pub const MASQUERADE: Self = Self(14);

    /// The default of `--input-accept-bit`. No known program uses bit 12: Istio uses lower bits, the plugin
    /// portmap 13, kube-proxy 14 and 15, Calico higher ones.
    pub const INPUT_ACCEPT: Self = Self(12);

    /// Returns the bit at `position`; `None` above 31.
    pub fn new(position: u8) -> Option<Self> {
        (position < 32).then_some(Self(position))
    }

    /// Returns the mark in which only this bit is set.
    pub fn mark(self) -> u32 {
        1 << self.0
    }
}

/// How clients inside the cluster are recognised: `--detect-local-mode` with its argument.
///
/// In every mode, processes of the node get the endpoints for clients inside the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// `ClusterCIDR`: by source addresses in these networks (`--cluster-cidr`). In a family without
    /// networks, no client is recognised.
    ClusterCidr(Vec<Cidr>),
    /// `NodeCIDR`: by source addresses in the pod networks of our Node.
    NodeCidr,
    /// `BridgeInterface`: by this input interface (`--pod-bridge-interface`).
    BridgeInterface(Arc<str>),
    /// `InterfaceNamePrefix`: by the start of the input interface's name
    /// (`--pod-interface-name-prefix`).
    InterfaceNamePrefix(Arc<str>),
}

impl Default for LocalMode {
    fn default() -> Self {
        Self::ClusterCidr(Vec::new())
    }
}

/// The facts of our Node object on which the rules depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// The main addresses, at most one per family. The node's own connections to service addresses
    /// have them as their source.
    pub(crate) addresses: Vec<IpAddr>,
    /// The networks of the node's Pods.
    pub(crate) pod_cidrs: Vec<Cidr>,
}

impl NodeFacts {
    pub(crate) fn of(node: Option<&Node>) -> Self {
        let Some(node) = node else {
            return Self::default();
        };
        let families = [Family::V4, Family::V6].into_iter();
        Self {
            addresses: families.filter_map(|family| node.address(family)).collect(),
            pod_cidrs: node.pod_cidrs.clone(),
        }
    }
}

/// Returns a Problem for each family in which Services have policy Local and Pods cannot be recognised by their
/// addresses. `is_needed` tells whether they must be recognised in a family.
pub(crate) fn unknown_pods(
    config: &FilterConfig,
    node: &NodeFacts,
    is_needed: impl Fn(Family) -> bool,
) -> Vec<Problem> {
    let of_cluster: &[Cidr] = match &config.local_mode {
        LocalMode::ClusterCidr(networks) => networks,
        LocalMode::NodeCidr => &[],
        LocalMode::BridgeInterface(_) | LocalMode::InterfaceNamePrefix(_) => return Vec::new(),
    };
    let mut problems = Vec::new();
    let is_of_node = |network: &Cidr| {
        let mut addresses = node.addresses.iter();
        addresses.any(|&address| Family::from(address) == network.family())
    };
    if let Some(first) = of_cluster.first()
        && !node.addresses.is_empty()
        && !of_cluster.iter().any(is_of_node)
    {
        let message = "has no network of a family that this node's addresses have: no connection is recognised as one \
                       of a Pod, except those of the Node's podCIDRs";
        let value = format!("{first}");
        problems.push(Problem::new(
            "Configuration",
            "clusterCIDR",
            value,
            message.to_owned(),
        ));
    }
    for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
        let mut known = of_cluster.iter().chain(&node.pod_cidrs);
        let is_known = known.any(|network| network.family() == family);
        if !is_known && is_needed(family) {
            let instead = "at Services with externalTrafficPolicy Local, Pods may count as clients outside, \
                           which reach only endpoints on this node";
            let (field, message) = match config.local_mode {
                LocalMode::NodeCidr => (
                    "detectLocalMode",
                    "is NodeCIDR, and the Node has no podCIDRs",
                ),
                _ => ("clusterCIDR", "is not set, and the Node has no podCIDRs"),
            };
            let message = format!("{message} of {name}: {instead}");
            problems.push(Problem::new("Configuration", field, "", message));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_another_family_than_the_nodes_are_a_problem() {
        let node = NodeFacts {
            addresses: vec!["10.0.0.1".parse().unwrap()],
            pod_cidrs: Vec::new(),
        };
        let problems = |networks: &[&str], node: &NodeFacts| {
            let networks = networks.iter().map(|text| Cidr::parse(text).unwrap());
            let config = FilterConfig {
                local_mode: LocalMode::ClusterCidr(networks.collect()),
                ..FilterConfig::default()
            };
            unknown_pods(&config, node, |_| false).len()
        };
        assert_eq!(problems(&["fd00:244::/56"], &node), 1);
        assert_eq!(problems(&["fd00:244::/56", "10.244.0.0/16"], &node), 0);
        assert_eq!(problems(&[], &node), 0);
        // The Node is unknown.
        assert_eq!(problems(&["fd00:244::/56"], &NodeFacts::default()), 0);
    }
}
