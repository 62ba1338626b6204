//! The definition of a virtual server without its key.

use ipvs_netlink as ipvs;

/// Scheduler, flags and affinity of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerDefinition {
    /// The scheduler; `None`: it refuses new connections.
    pub scheduler: Option<ipvs::SchedulerName>,
    /// The flags.
    pub flags: ipvs::ServiceFlags,
    /// The duration of affinity; 0 without affinity.
    pub timeout_secs: u32,
    /// The part of a client's address that decides about affinity.
    pub client_mask: ipvs::ClientMask,
    /// The persistence engine.
    pub engine: Option<ipvs::EngineName>,
}

impl ServerDefinition {
    /// Returns the definition of `service`.
    pub fn of(service: &ipvs::Service) -> Self {
        let ipvs::Service {
            key: _,
            scheduler,
            flags,
            timeout_secs,
            client_mask,
            engine,
        } = *service;
        Self {
            scheduler,
            flags,
            timeout_secs,
            client_mask,
            engine,
        }
    }

    /// Returns the virtual server `key` with this definition.
    pub fn at(&self, key: ipvs::ServiceKey) -> ipvs::Service {
        ipvs::Service {
            key,
            scheduler: self.scheduler,
            flags: self.flags,
            timeout_secs: self.timeout_secs,
            client_mask: self.client_mask,
            engine: self.engine,
        }
    }
}
