//! Clients inside the cluster, at frontends with policy Local.

use ::nftables::{Match, Relation, Rule, Verdict};

use super::{MASQUERADE, from_networks, goto, of_device, rule};
use crate::dataplane::ipvs::filter::{FilterConfig, LocalMode, NodeFacts};

/// The devices of Pods that common network plugins make, by the beginning of their names: Calico, Amazon, Azure,
/// Cilium, Google, plugins of the CNI project (a device of each Pod, or a bridge of the node), kubenet.
///
/// Not `weave`, a bridge of all nodes.
const POD_DEVICES: [&str; 8] = ["cali", "eni", "azv", "lxc", "gke", "veth", "cni", "cbr0"];

/// Devices that lead to other machines, by the beginning of their names: links, and the tunnels of network plugins.
///
/// A plugin may give Pods of other nodes addresses in our Node's podCIDRs: Calico, and Cilium with pools of its own,
/// ignore these.
const LINKS: &str = "eth en bond wl ib vlan tunl vxlan wireguard wg flannel cilium geneve gre";

/// How clients inside the cluster are recognised.
pub(crate) struct LocalClients {
    /// Pods, whatever their node.
    pods: Vec<Match>,
    /// For Pods: return for those on this node, because answers to them pass it; masquerade others. Empty if all are on
    /// this node.
    pub(crate) elsewhere: Vec<Rule>,
}

impl LocalClients {
    pub(crate) fn on(config: &FilterConfig, node: &NodeFacts) -> Self {
        let of_this_node = from_networks(&node.pod_cidrs);
        let mut pods = of_this_node.clone();
        let networks = match &config.local_mode {
            LocalMode::ClusterCidr(networks) => &networks[..],
            LocalMode::NodeCidr => &[],
            // The operator has named the devices of this node's Pods.
            LocalMode::BridgeInterface(name) => {
                pods.push(Match::InputInterface(Relation::Is, name.clone()));
                return Self::here(pods);
            }
            LocalMode::InterfaceNamePrefix(prefix) => {
                pods.push(of_device(prefix));
                return Self::here(pods);
            }
        };
        // If the networks are known, the name of a device makes no other address inside.
        match networks.is_empty() {
            true => pods.extend(POD_DEVICES.map(of_device)),
            false => pods.extend(from_networks(networks)),
        }
        let of_links = LINKS.split(' ').map(of_device);
        let masquerade = |from: Match| rule([from.into(), goto(MASQUERADE)]);
        let mut elsewhere: Vec<Rule> = POD_DEVICES.map(of_device).map(return_for).into();
        elsewhere.extend(of_links.map(masquerade));
        elsewhere.extend(of_this_node.into_iter().map(return_for));
        elsewhere.push(rule([goto(MASQUERADE)]));
        Self { pods, elsewhere }
    }

    fn here(pods: Vec<Match>) -> Self {
        let elsewhere = Vec::new();
        Self { pods, elsewhere }
    }

    /// Returns the Pods that may be on another node.
    pub(crate) fn perhaps_elsewhere(&self) -> impl Iterator<Item = &Match> {
        let may_be = !self.elsewhere.is_empty();
        self.pods.iter().filter(move |_| may_be)
    }

    /// Returns all clients inside: Pods, and in every mode the processes of this node.
    pub(crate) fn inside(&self) -> Vec<Match> {
        let own = [Match::SourceIsLocal];
        self.pods.iter().cloned().chain(own).collect()
    }

    /// Returns for clients inside.
    pub(crate) fn return_for_inside(&self) -> Vec<Rule> {
        self.inside().into_iter().map(return_for).collect()
    }

    /// Drops connections from outside the cluster.
    ///
    /// A rejection would end the client's attempt. After a drop, the client repeats its SYN, and a load balancer that
    /// has just removed this node sends the SYN to another node.
    pub(crate) fn not_here(&self) -> Vec<Rule> {
        let mut rules = self.return_for_inside();
        rules.push(rule([Verdict::Drop.into()]));
        rules
    }
}

pub(crate) fn return_for(condition: Match) -> Rule {
    rule([condition.into(), Verdict::Return.into()])
}
