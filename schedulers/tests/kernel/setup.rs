//! The configuration of a virtual server.

use std::net::SocketAddr;

use anyhow::Result;
use ipvs_netlink::{Family, Protocol, Service, ServiceFlags, ServiceKey};

use crate::trace::Flags;

/// Exact enough for expirations of seconds, and most lines of a trace need no time.
pub(crate) const TICK_MS: u64 = 20;

/// The kernel's default of `lblc_expiration` and `lblcr_expiration`.
pub(crate) const DAY_SECS: u32 = 24 * 60 * 60;

/// The firewall mark of virtual servers without an address.
pub(crate) const MARK: u32 = 0x51;

/// The traffic of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// TCP connections.
    Tcp,
    /// UDP flows, which are never counted as active.
    Udp,
    /// UDP datagrams, each of which is a connection that ends at once.
    OnePacket,
}

/// The configuration of a virtual server.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The kernel's name of its scheduler.
    pub(crate) scheduler: String,
    /// The scheduler's flags.
    pub(crate) flags: Flags,
    /// `lblc_expiration` and `lblcr_expiration`.
    pub(crate) expiration_secs: u32,
    /// The traffic.
    pub(crate) traffic: Traffic,
    /// The address and port that clients connect to.
    pub(crate) frontend: SocketAddr,
    /// Whether the virtual server has a firewall mark, so that clients may use any address.
    pub(crate) by_mark: bool,
    /// The resolution of the recorded times.
    pub(crate) tick_ms: u64,
}

impl Setup {
    pub(crate) fn family(&self) -> u8 {
        if self.frontend.is_ipv4() { 4 } else { 6 }
    }

    pub(crate) fn key(&self) -> ServiceKey {
        if self.by_mark {
            return ServiceKey::Mark {
                family: Family::from(self.frontend.ip()),
                mark: MARK,
            };
        }
        ServiceKey::Address {
            protocol: match self.traffic {
                Traffic::Tcp => Protocol::Tcp,
                Traffic::Udp | Traffic::OnePacket => Protocol::Udp,
            },
            address: self.frontend.ip(),
            port: self.frontend.port(),
        }
    }

    pub(crate) fn service(&self) -> Result<Service> {
        let mut service = Service::new(self.key(), self.scheduler.parse()?);
        let flags = [
            (self.flags.fallback, ServiceFlags::SCHED1),
            (self.flags.port, ServiceFlags::SCHED2),
            (self.traffic == Traffic::OnePacket, ServiceFlags::ONE_PACKET),
        ];
        for (is_set, flag) in flags {
            if is_set {
                service.flags = service.flags | flag;
            }
        }
        Ok(service)
    }

    /// Returns the description for the trace, such as `tcp by address`.
    pub(crate) fn stimulus(&self) -> String {
        let traffic = match self.traffic {
            Traffic::Tcp => "tcp",
            Traffic::Udp => "udp",
            Traffic::OnePacket => "one-packet udp",
        };
        let by = if self.by_mark { "mark" } else { "address" };
        format!("{traffic} by {by}")
    }
}
