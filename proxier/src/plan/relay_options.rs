//! The options of frontends that a process relays.

use super::Machine;
use crate::model::{Annotations, Protocol, ProxyProtocol, Service};

const IDLE_TIMEOUT: &str = "metadata.annotations[ipvs-proxier.io/idle-timeout]";
const PROXY_PROTOCOL: &str = "metadata.annotations[ipvs-proxier.io/proxy-protocol]";

/// How the connections of a frontend are relayed. Without a relay, each option has its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayOptions {
    /// How endpoints learn the address of a TCP client.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The idle timeout in seconds; `None` for the default of the relay.
    pub idle_timeout_secs: Option<u32>,
}

impl RelayOptions {
    /// Returns the options of `service`. Calls `report` with field, value and message of those without an
    /// effect.
    pub(super) fn of(
        service: &Service,
        annotations: &Annotations,
        machine: &Machine,
        report: &mut impl FnMut(&'static str, &str, String),
    ) -> Self {
        let Annotations {
            proxy_protocol,
            idle_timeout_secs,
            ..
        } = *annotations;
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
        if machine.is_relayed {
            if proxy_protocol.is_some() && !has_tcp() {
                let message =
                    "has no effect: the Service has no TCP port, and only TCP has such headers";
                report(PROXY_PROTOCOL, version, message.to_owned());
            }
            return Self {
                proxy_protocol,
                idle_timeout_secs,
            };
        }
        if let Some(secs) = idle_timeout_secs {
            let message = "has no effect: the kernel has one timeout for all connections of the node, \
                           and none per Service";
            report(IDLE_TIMEOUT, &secs.to_string(), message.to_owned());
        }
        if proxy_protocol.is_some() {
            let message = "has no effect: IPVS forwards packets and adds no header; endpoints see the \
                           client's address in the packets, and must not expect one";
            report(PROXY_PROTOCOL, version, message.to_owned());
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
