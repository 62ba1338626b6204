//! What the operator chose, and what that means on this node.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::model::{Cidr, Family, Node};
use crate::rules::{self, DetectLocal, MasqueradeBit};

/// What the operator chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Masquerade all connections to cluster IPs (`--masquerade-all`).
    pub masquerade_all: bool,
    /// The bit of packet marks that means "masquerade" (`--iptables-masquerade-bit`).
    pub masquerade_bit: MasqueradeBit,
    /// How clients inside the cluster are told from others (`--detect-local-mode`).
    pub local_mode: LocalMode,
    /// Whether service addresses with endpoints answer to ping.
    pub answer_ping: bool,
    /// The ports that the cluster uses as node ports.
    pub node_ports: RangeInclusive<u16>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: MasqueradeBit::default(),
            local_mode: LocalMode::default(),
            answer_ping: false,
            node_ports: rules::Config::default().node_ports,
        }
    }
}

/// `--detect-local-mode` and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// `ClusterCIDR`: by source addresses in these networks (`--cluster-cidr`).
    ClusterCidr(Vec<Cidr>),
    /// `NodeCIDR`: by source addresses in the networks of our Node's pods.
    NodeCidr,
    /// `BridgeInterface`: by this interface (`--pod-bridge-interface`).
    BridgeInterface(Arc<str>),
    /// `InterfaceNamePrefix`: by interfaces whose names begin so (`--pod-interface-name-prefix`).
    InterfaceNamePrefix(Arc<str>),
}

/// kube-proxy's: nobody is recognised where no network is named.
impl Default for LocalMode {
    fn default() -> Self {
        Self::ClusterCidr(Vec::new())
    }
}

impl Config {
    /// What the rules are made by on this node.
    pub(super) fn on(&self, node: Option<&Node>) -> rules::Config {
        let main_address = |family| node.and_then(|node| node.address(family));
        rules::Config {
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.masquerade_bit,
            detect_local: match &self.local_mode {
                LocalMode::ClusterCidr(networks) => DetectLocal::Networks(networks.clone()),
                LocalMode::NodeCidr => {
                    DetectLocal::Networks(node.map_or_else(Vec::new, |it| it.pod_cidrs.clone()))
                }
                LocalMode::BridgeInterface(name) => DetectLocal::Bridge(name.clone()),
                LocalMode::InterfaceNamePrefix(prefix) => {
                    DetectLocal::InterfacePrefix(prefix.clone())
                }
            },
            answer_ping: self.answer_ping,
            node_ports: self.node_ports.clone(),
            node_addresses: [Family::V4, Family::V6]
                .into_iter()
                .filter_map(main_address)
                .collect(),
        }
    }
}
