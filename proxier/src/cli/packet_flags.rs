//! Flags about packet rules.

use std::ops::RangeInclusive;

use clap::{Args, ValueEnum};

use crate::filter::{FilterConfig, LocalMode, MasqueradeBit};
use crate::model::Cidr;

/// Flags about packet rules, named as kube-proxy's where it has them.
#[derive(Args, Debug)]
pub(super) struct PacketFlags {
    /// Address ranges of Pods; every other address is outside the cluster.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    cluster_cidr: Vec<Cidr>,

    /// Masquerade all connections to cluster IPs.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    #[arg(require_equals = true, action = clap::ArgAction::Set)]
    masquerade_all: bool,

    /// Bit of the packet mark that requests masquerading: 0 to 31.
    #[arg(long, value_name = "BIT", default_value = "14", value_parser = masquerade_bit)]
    iptables_masquerade_bit: MasqueradeBit,

    /// How to recognise connections from inside the cluster.
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    detect_local_mode: DetectLocalMode,

    /// Bridge interface of the Pods, for --detect-local-mode=BridgeInterface.
    #[arg(
        long,
        value_name = "NAME",
        required_if_eq("detect_local_mode", "BridgeInterface")
    )]
    pod_bridge_interface: Option<String>,

    /// Name prefix of the Pods' interfaces, for --detect-local-mode=InterfaceNamePrefix.
    #[arg(long, value_name = "PREFIX")]
    #[arg(required_if_eq("detect_local_mode", "InterfaceNamePrefix"))]
    pod_interface_name_prefix: Option<String>,

    /// Node-port range of the API server (its flag of the same name). Masquerading never uses these
    /// source ports. kube-proxy has no such flag.
    #[arg(long, value_name = "FROM-TO", default_value = "30000-32767")]
    #[arg(value_parser = port_range)]
    service_node_port_range: RangeInclusive<u16>,

    /// Answer ping on service addresses that have endpoints. kube-proxy has no such flag.
    #[arg(long)]
    answer_ping: bool,
}

/// [`LocalMode`] as the command line spells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum DetectLocalMode {
    /// The source is in --cluster-cidr.
    #[default]
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// The source is in spec.podCIDRs of the Node object.
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// The packet comes through --pod-bridge-interface.
    BridgeInterface,
    /// The packet comes through an interface with --pod-interface-name-prefix.
    InterfaceNamePrefix,
}

fn masquerade_bit(text: &str) -> Result<MasqueradeBit, String> {
    let number = text.parse().ok();
    let bit = number.and_then(MasqueradeBit::new);
    bit.ok_or_else(|| "is not a bit number from 0 to 31".to_owned())
}

/// Parses a port range in kube-apiserver's syntax: `30000-32767`, `30000+2767`, `30000`.
fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let range = if let Some((first, last)) = text.split_once('-') {
        port(first).zip(port(last))
    } else if let Some((first, more)) = text.split_once('+') {
        let last = |first: u16| Some((first, first.checked_add(more.trim().parse().ok()?)?));
        port(first).and_then(last)
    } else {
        port(text).map(|only| (only, only))
    };
    match range {
        Some((first, last)) if first <= last => Ok(first..=last),
        _ => Err("is not a port range, such as 30000-32767".to_owned()),
    }
}

impl PacketFlags {
    pub(super) fn config(&self) -> FilterConfig {
        let name = |name: &Option<String>| name.as_deref().unwrap_or_default().into();
        FilterConfig {
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
            answer_ping: self.answer_ping,
            node_ports: self.service_node_port_range.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_have_the_syntax_of_the_api_server() {
        for (text, range) in [
            ("30000-32767", 30_000..=32_767),
            ("30000+10", 30_000..=30_010),
            ("8080", 8080..=8080),
        ] {
            assert_eq!(port_range(text), Ok(range));
        }
        for text in ["", "0-5", "9-8", "60000+6000", "70000", "http"] {
            assert!(port_range(text).is_err(), "{text}");
        }
    }
}
