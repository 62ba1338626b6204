//! Detects the features of the kernel's IPVS.
//!
//! Each feature is tried. The kernel's version does not decide: distributions backport features,
//! and a scheduler's module may not be installed.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::change::Change;
use crate::client::Client;
use crate::destination::{Destination, DestinationKey, Forwarding, Tunnel, TunnelKind};
use crate::error::{Error, Result};
use crate::message::{find, write_header, write_service_key};
use crate::name::SchedulerName;
use crate::service::{Service, ServiceKey};
use crate::settings::Info;
use crate::sys::{
    IPVS_CMD_ATTR_DEST, IPVS_CMD_ATTR_SERVICE, IPVS_CMD_GET_DEST, IPVS_CMD_GET_SERVICE,
    IPVS_DEST_ATTR_ADDR_FAMILY, IPVS_DEST_ATTR_TUN_FLAGS, IPVS_DEST_ATTR_TUN_TYPE,
    IPVS_GENL_VERSION, IPVS_SVC_ATTR_STATS64,
};
use netlink::Family;
use netlink::transport::Message;

/// The schedulers of the kernel's source tree.
pub const SCHEDULERS: [&str; 14] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos",
];

/// The lowest firewall mark that the probe uses for its virtual server.
const PROBE_MARK: u32 = 0xffff_ff00;

/// The features of a kernel's IPVS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The version and the size of the connection table.
    pub info: Info,
    /// The available schedulers among [`SCHEDULERS`]: built in, loaded or loadable.
    pub schedulers: Vec<SchedulerName>,
    /// The attributes that the kernel reports for a virtual server (`IPVS_SVC_ATTR_*`).
    pub service_attributes: BTreeSet<u16>,
    /// The attributes that the kernel reports for a destination (`IPVS_DEST_ATTR_*`).
    pub destination_attributes: BTreeSet<u16>,
}

impl Capabilities {
    /// Probes the kernel: creates virtual servers with an unused firewall mark and deletes them.
    ///
    /// Existing virtual servers are not changed. The probe uses a mark of 0xffffff00 or above, so
    /// only packets with that mark could reach its virtual server. For each scheduler the kernel
    /// tries to load the module `ip_vs_NAME`.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`]; [`Error::is_transient`]. A missing scheduler is no error.
    pub fn probe(client: &mut Client) -> Result<Self> {
        let key = free_key(client)?;
        let info = client.info()?;
        let schedulers = probe_schedulers(client, key)?;
        let rr = SchedulerName::new("rr").map_err(|_| invalid_name())?;
        let mut service = Service::new(key, rr);
        // If the kernel has no scheduler at all, the service is created without one. The kernel
        // reports the same attributes then.
        service.scheduler = schedulers.first().copied();
        client.add_service(&service)?;
        // Deleted before an error returns: the node must not keep the probe's virtual server.
        let attributes = probe_attributes(client, key);
        client.delete_service(&key)?;
        let (service_attributes, destination_attributes) = attributes?;
        Ok(Self {
            info,
            schedulers,
            service_attributes,
            destination_attributes,
        })
    }

    /// Returns whether the kernel reports 64-bit counters (Linux 4.1).
    pub fn has_64_bit_stats(&self) -> bool {
        self.service_attributes.contains(&IPVS_SVC_ATTR_STATS64)
    }

    /// Returns whether tunnels to the other address family are supported (Linux 3.18).
    pub fn has_mixed_families(&self) -> bool {
        self.destination_attributes
            .contains(&IPVS_DEST_ATTR_ADDR_FAMILY)
    }

    /// Returns whether tunnels support encapsulations other than IPIP (GUE: Linux 5.2).
    pub fn has_tunnel_kinds(&self) -> bool {
        self.destination_attributes
            .contains(&IPVS_DEST_ATTR_TUN_TYPE)
    }

    /// Returns whether tunnels support checksum flags and GRE (Linux 5.3).
    pub fn has_tunnel_flags(&self) -> bool {
        self.destination_attributes
            .contains(&IPVS_DEST_ATTR_TUN_FLAGS)
    }
}

fn invalid_name() -> Error {
    netlink::Error::malformed("SCHEDULERS has an invalid name").into()
}

/// Returns a key that no virtual server has.
fn free_key(client: &mut Client) -> Result<ServiceKey> {
    let taken: BTreeSet<ServiceKey> = client
        .services()?
        .iter()
        .map(|entry| entry.service.key)
        .collect();
    (PROBE_MARK..=u32::MAX)
        .map(|mark| ServiceKey::Mark {
            family: Family::V4,
            mark,
        })
        .find(|key| !taken.contains(key))
        .ok_or_else(|| {
            let what = "virtual servers exist for all firewall marks from 0xffffff00 on";
            netlink::Error::malformed(what).into()
        })
}

fn probe_schedulers(client: &mut Client, key: ServiceKey) -> Result<Vec<SchedulerName>> {
    let mut available = Vec::new();
    for name in SCHEDULERS {
        let name = SchedulerName::new(name).map_err(|_| invalid_name())?;
        let service = Service::new(key, name);
        let mut outcomes =
            client.apply(&[Change::AddService(service), Change::DeleteService(key)])?;
        // Only the result of the addition matters. If it fails, the deletion fails with ESRCH.
        outcomes.truncate(1);
        match outcomes.pop().unwrap_or(Ok(())) {
            Ok(()) => available.push(name),
            Err(error) if error.is_scheduler_missing() => {}
            Err(error) => return Err(*error),
        }
    }
    Ok(available)
}

fn probe_attributes(
    client: &mut Client,
    key: ServiceKey,
) -> Result<(BTreeSet<u16>, BTreeSet<u16>)> {
    // The kernel accepts only unicast and local addresses; this one is local on every node. With
    // weight 0 it gets no connections.
    let server = DestinationKey {
        address: Ipv4Addr::LOCALHOST.into(),
        port: 0,
    };
    let mut destination = Destination::new(server, 0);
    destination.forwarding = Forwarding::Tunnel;
    destination.tunnel = Tunnel {
        kind: TunnelKind::Gue,
        port: 6080,
        ..Tunnel::default()
    };
    client.add_destination(&key, &destination)?;
    let service = reported_attributes(client, IPVS_CMD_GET_SERVICE, IPVS_CMD_ATTR_SERVICE, key)?;
    let destination = reported_attributes(client, IPVS_CMD_GET_DEST, IPVS_CMD_ATTR_DEST, key)?;
    Ok((service, destination))
}

/// Returns the attributes that the kernel nests in the attribute `outer` when it dumps `command`.
fn reported_attributes(
    client: &mut Client,
    command: u8,
    outer: u16,
    key: ServiceKey,
) -> Result<BTreeSet<u16>> {
    let family = client.family();
    let mut kinds = BTreeSet::new();
    client.transport().dump(
        family,
        "probing attributes",
        |writer| {
            write_header(writer, command, IPVS_GENL_VERSION);
            writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| {
                write_service_key(inner, &key)
            });
        },
        BTreeSet::clear,
        &mut kinds,
        |kinds, message: Message<'_>| {
            if let Some(object) = find(message.payload, outer)? {
                for attribute in object.nested() {
                    kinds.insert(attribute?.kind);
                }
            }
            Ok(())
        },
    )?;
    Ok(kinds)
}
