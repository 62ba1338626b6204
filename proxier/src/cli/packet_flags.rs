//! Flags about packet rules that kube-proxy does not have.

use std::ops::RangeInclusive;

use clap::Args;

use super::arp_flag::ArpFlag;
use super::dataplane_flags::DataplaneKind;
use super::foreign_chain_flags::ForeignChainFlags;
use crate::cli::config::NodeSettings;
use crate::dataplane::ipvs::filter::FilterConfig;

/// Flags about packet rules that kube-proxy does not have.
#[derive(Args, Debug)]
pub(super) struct PacketFlags {
    /// Node-port range of the API server (its flag of the same name). Masquerading never uses these
    /// source ports. kube-proxy has no such flag.
    #[arg(long, value_name = "FROM-TO", default_value = "30000-32767")]
    #[arg(value_parser = port_range)]
    service_node_port_range: RangeInclusive<u16>,

    /// Answer ping on service addresses that have endpoints. kube-proxy has no such flag.
    #[arg(long)]
    answer_ping: bool,

    /// The most virtual servers, or with the dataplane nftables frontends (a Service has one per port and address), up to
    /// which each has metrics of its own; 0 for none. kube-proxy has no such flag.
    #[arg(long, value_name = "NUMBER", default_value = "1000")]
    pub(super) service_metrics_limit: usize,

    #[command(flatten)]
    pub(super) foreign: ForeignChainFlags,

    #[command(flatten)]
    pub(super) arp: ArpFlag,
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
    /// Returns the configuration of the packet rules of this dataplane.
    ///
    /// # Errors
    /// If two settings name the same bit.
    pub(super) fn config(
        &self,
        settings: &NodeSettings,
        kind: DataplaneKind,
    ) -> anyhow::Result<FilterConfig> {
        let [input_accept_bit, forward_accept_bit] = self.foreign.accept_bits(kind);
        let masquerade_bit = Some(settings.masquerade_bit);
        anyhow::ensure!(
            ![input_accept_bit, forward_accept_bit].contains(&masquerade_bit),
            "--input-accept-bit must differ from --iptables-masquerade-bit"
        );
        Ok(FilterConfig {
            masquerade_all: settings.masquerade_all,
            masquerade_bit: settings.masquerade_bit,
            local_mode: settings.local_mode.clone(),
            answer_ping: self.answer_ping,
            input_accept_bit,
            forward_accept_bit,
            hides_arp: self.arp.hides_services(),
            node_ports: self.service_node_port_range.clone(),
            most_counted: self.service_metrics_limit,
        })
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
