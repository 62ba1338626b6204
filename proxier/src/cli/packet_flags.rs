//! Which packets are masqueraded.

use clap::{Args, ValueEnum};

use crate::model::Cidr;
use crate::packets::{Config, LocalMode};
use crate::rules::MasqueradeBit;

/// Flags about packet rules; names and meaning are kube-proxy's.
#[derive(Args, Debug)]
pub(super) struct PacketFlags {
    /// The ranges that Pods have; anything else is outside the cluster.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    cluster_cidr: Vec<Cidr>,

    /// Masquerade all connections to cluster IPs.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    #[arg(require_equals = true, action = clap::ArgAction::Set)]
    masquerade_all: bool,

    /// The bit of packet marks that means masquerade: 0 to 31.
    #[arg(long, value_name = "BIT", default_value = "14", value_parser = masquerade_bit)]
    iptables_masquerade_bit: MasqueradeBit,

    /// How connections from inside the cluster are recognised.
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    detect_local_mode: DetectLocalMode,

    /// The interface that Pods are behind, for --detect-local-mode=BridgeInterface.
    #[arg(
        long,
        value_name = "NAME",
        required_if_eq("detect_local_mode", "BridgeInterface")
    )]
    pod_bridge_interface: Option<String>,

    /// How the names of the Pods' interfaces begin, for --detect-local-mode=InterfaceNamePrefix.
    #[arg(long, value_name = "PREFIX")]
    #[arg(required_if_eq("detect_local_mode", "InterfaceNamePrefix"))]
    pod_interface_name_prefix: Option<String>,
}

/// [`LocalMode`] as the command line spells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum DetectLocalMode {
    /// By --cluster-cidr.
    #[default]
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// By the Pod networks of our Node object.
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// By --pod-bridge-interface.
    BridgeInterface,
    /// By --pod-interface-name-prefix.
    InterfaceNamePrefix,
}

fn masquerade_bit(text: &str) -> Result<MasqueradeBit, String> {
    let place = text.parse().ok();
    let bit = place.and_then(MasqueradeBit::new);
    bit.ok_or_else(|| "a mark has bits 0 to 31".to_owned())
}

impl PacketFlags {
    pub(super) fn config(&self) -> Config {
        let name = |name: &Option<String>| name.as_deref().unwrap_or_default().into();
        Config {
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.iptables_masquerade_bit,
            local_mode: match self.detect_local_mode {
                DetectLocalMode::ClusterCidr => LocalMode::ClusterCidr(self.cluster_cidr.clone()),
                DetectLocalMode::NodeCidr => LocalMode::NodeCidr,
                DetectLocalMode::BridgeInterface => {
                    LocalMode::BridgeInterface(name(&self.pod_bridge_interface))
                }
                DetectLocalMode::InterfaceNamePrefix => {
                    LocalMode::InterfaceNamePrefix(name(&self.pod_interface_name_prefix))
                }
            },
            ..Config::default()
        }
    }
}
