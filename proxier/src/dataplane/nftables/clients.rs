//! Clients inside the cluster.

use nftables::{Match, Relation, Rule, Verdict};

use super::names::{INSIDE_ELSEWHERE, MASQUERADE};
use crate::dataplane::ipvs::filter::{FilterConfig, LocalMode, NodeFacts};
use crate::dataplane::packet_rules::{POD_DEVICES, from_networks, goto, of_device, rule};

/// How clients inside the cluster are recognised, whatever their node.
pub(super) struct Clients {
    /// Those with an address or a device of Pods, in any of these ways.
    pub(super) pods: Vec<Match>,
    /// Whether a device of a Pod is on this node for certain.
    are_here: bool,
    /// The addresses of Pods on this node.
    of_this_node: Vec<Match>,
}

impl Clients {
    pub(super) fn on(config: &FilterConfig, node: &NodeFacts) -> Self {
        let of_this_node = from_networks(&node.pod_cidrs);
        let mut pods = of_this_node.clone();
        let mut are_here = false;
        match &config.local_mode {
            // Without networks, only the device tells a Pod.
            LocalMode::ClusterCidr(networks) if networks.is_empty() => {
                pods.extend(POD_DEVICES.map(of_device));
            }
            LocalMode::ClusterCidr(networks) => pods.extend(from_networks(networks)),
            LocalMode::NodeCidr => pods.extend(POD_DEVICES.map(of_device)),
            LocalMode::BridgeInterface(name) => {
                pods.push(Match::InputInterface(Relation::Is, name.clone()));
                are_here = true;
            }
            LocalMode::InterfaceNamePrefix(prefix) => {
                pods.push(of_device(prefix));
                are_here = true;
            }
        }
        Self {
            pods,
            are_here,
            of_this_node,
        }
    }

    /// Returns all clients inside the cluster: Pods, and processes of this node.
    pub(super) fn inside(&self) -> Vec<Match> {
        let own = [Match::SourceIsLocal];
        self.pods.iter().cloned().chain(own).collect()
    }

    /// Masquerades connections to external frontends with policy Local from this node itself and from Pods of other
    /// nodes, because the answer of an endpoint on a third node would not return through this one.
    ///
    /// Clients outside keep their addresses.
    pub(super) fn local_only(&self) -> Vec<Rule> {
        let own = rule([Match::SourceIsLocal.into(), goto(MASQUERADE)]);
        let pods = self.pods.iter().filter(|_| !self.are_here);
        let pods = pods.map(|client| rule([client.clone().into(), goto(INSIDE_ELSEWHERE)]));
        [own].into_iter().chain(pods).collect()
    }

    /// Masquerades clients inside the cluster that are not on this node.
    pub(super) fn elsewhere(&self) -> Vec<Rule> {
        let devices = POD_DEVICES.map(of_device);
        let here = devices.into_iter().chain(self.of_this_node.iter().cloned());
        let here = here.map(|client| rule([client.into(), Verdict::Return.into()]));
        here.chain([rule([goto(MASQUERADE)])]).collect()
    }

    /// Drops connections from outside the cluster.
    ///
    /// A rejection would end the client's attempt. After a drop, the client repeats its SYN, and a load balancer that
    /// has just removed this node sends the SYN to another node.
    pub(super) fn not_here(&self) -> Vec<Rule> {
        let inside = self.inside().into_iter();
        let pass = inside.map(|client| rule([client.into(), Verdict::Return.into()]));
        pass.chain([rule([Verdict::Drop.into()])]).collect()
    }
}
