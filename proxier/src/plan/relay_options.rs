//! The options of frontends that a process relays.

use super::Capabilities;
use crate::cluster::model::{Annotations, Protocol, ProxyProtocol, Service, SourceAddress};

const IDLE_TIMEOUT: &str = "metadata.annotations[ipvs-proxier.io/idle-timeout]";
const PROXY_PROTOCOL: &str = "metadata.annotations[ipvs-proxier.io/proxy-protocol]";
pub(super) const SOURCE_ADDRESS: &str = "metadata.annotations[ipvs-proxier.io/source-address]";

/// How the connections of a frontend are relayed. Without a relay, each option has its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RelayOptions {
    /// How endpoints learn the address of a TCP client.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The source address that endpoints on this node see. Others see this node's.
    pub source: SourceAddress,
    /// The idle timeout in seconds; `None` for the default of the relay.
    pub idle_timeout_secs: Option<u32>,
}

impl RelayOptions {
    /// Returns the options of `service`. Calls `report` with field, value and message of those without an
    /// effect.
    pub(super) fn of(
        service: &Service,
        annotations: &Annotations,
        capabilities: &Capabilities,
        report: &mut impl FnMut(&'static str, &str, String),
    ) -> Self {
        let Annotations {
            proxy_protocol,
            source_address,
            idle_timeout_secs,
            ..
        } = *annotations;
        let wants_client = source_address == Some(SourceAddress::Client);
        let word = |version| match version {
            ProxyProtocol::V1 => "v1",
            ProxyProtocol::V2 => "v2",
        };
        let version = proxy_protocol.map_or("", word);
        let has_tcp = || {
            service
                .ports
                .iter()
                .any(|port| port.protocol == Protocol::Tcp)
        };
        if let Some(relay) = capabilities.relay {
            if proxy_protocol.is_some() && !has_tcp() {
                let message =
                    "has no effect: the Service has no TCP port, and only TCP has such headers";
                report(PROXY_PROTOCOL, version, message.to_owned());
            }
            if wants_client && !relay.keeps_sources {
                let message = "needs a process with CAP_NET_ADMIN and a kernel with nf_tables, sockets in its rules \
                               (CONFIG_NFT_SOCKET) and policy routing; endpoints see this node's address";
                report(SOURCE_ADDRESS, "client", message.to_owned());
            }
            return Self {
                proxy_protocol,
                source: if wants_client && relay.keeps_sources {
                    SourceAddress::Client
                } else {
                    SourceAddress::Node
                },
                idle_timeout_secs,
            };
        }
        if let Some(secs) = idle_timeout_secs {
            let message = "has no effect: the kernel has one timeout for all connections of the node, \
                           and none per Service (--ipvs-tcp-timeout; with nftables conntrack.tcpEstablishedTimeout)";
            report(IDLE_TIMEOUT, &secs.to_string(), message.to_owned());
        }
        if proxy_protocol.is_some() {
            let message = "has no effect: IPVS forwards packets and adds no header; endpoints see the \
                           client's address in the packets, and must not expect one";
            report(PROXY_PROTOCOL, version, message.to_owned());
        }
        if let Some(source) = source_address {
            let word = match source {
                SourceAddress::Client => "client",
                SourceAddress::Node => "node",
            };
            let message = "has no effect: IPVS forwards packets, and endpoints see the client's address unless a \
                           rule masquerades it";
            report(SOURCE_ADDRESS, word, message.to_owned());
        }
        Self::default()
    }

    /// Returns the options of a port with this protocol.
    pub(super) fn on(self, protocol: Protocol) -> Self {
        let has_header = protocol == Protocol::Tcp;
        Self {
            proxy_protocol: self.proxy_protocol.filter(|_| has_header),
            ..self
        }
    }
}
