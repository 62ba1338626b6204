//! What this kernel's IPVS knows, found by trying and not by its version.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::change::Change;
use crate::client::Client;
use crate::destination::{Destination, DestinationKey, Forwarding, Tunnel, TunnelKind};
use crate::error::{Error, Result};
use crate::message::{find, write_header, write_service_key};
use crate::name::SchedulerName;
use crate::service::{Family, Service, ServiceKey};
use crate::settings::Info;
use crate::sys::{
    IPVS_CMD_ATTR_DEST, IPVS_CMD_ATTR_SERVICE, IPVS_CMD_GET_DEST, IPVS_CMD_GET_SERVICE,
    IPVS_DEST_ATTR_ADDR_FAMILY, IPVS_DEST_ATTR_TUN_FLAGS, IPVS_DEST_ATTR_TUN_TYPE,
    IPVS_GENL_VERSION, IPVS_SVC_ATTR_STATS64,
};
use crate::transport::Message;

/// The schedulers of the kernel's own tree.
pub const SCHEDULERS: [&str; 14] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos",
];

/// The first mark that the probe tries for its own virtual server.
const PROBE_MARK: u32 = 0xffff_ff00;

/// What a kernel's IPVS knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its version and the size of its connection table.
    pub info: Info,
    /// Those of [`SCHEDULERS`] that it has or could load.
    pub schedulers: Vec<SchedulerName>,
    /// Numbers of the attributes that it reports of a virtual server (`IPVS_SVC_ATTR_*`).
    pub service_attributes: BTreeSet<u16>,
    /// Numbers of the attributes that it reports of a destination (`IPVS_DEST_ATTR_*`).
    pub destination_attributes: BTreeSet<u16>,
}

impl Capabilities {
    /// Asks the kernel, by creating virtual servers for a firewall mark that no other one uses and
    /// removing them again.
    ///
    /// Existing virtual servers are not touched. No packet reaches the probe's unless it carries a
    /// mark of 0xffffff00 or above. Trying a scheduler makes the kernel load its module if it can.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`]; [`Error::is_transient`]. A missing scheduler is no error.
    pub fn probe(client: &mut Client) -> Result<Self> {
        let key = free_key(client)?;
        let info = client.info()?;
        let schedulers = probe_schedulers(client, key)?;
        let mut service = Service::new(key, SchedulerName::new("rr").map_err(|_| unnamed())?);
        // Without a scheduler a virtual server is as good for reading attributes.
        service.scheduler = schedulers.first().copied();
        client.add_service(&service)?;
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

    /// Whether traffic is counted in 64 bits (Linux 4.1).
    pub fn has_64_bit_stats(&self) -> bool {
        self.service_attributes.contains(&IPVS_SVC_ATTR_STATS64)
    }

    /// Whether a tunnel may lead to a server of the other family (Linux 3.18).
    pub fn has_mixed_families(&self) -> bool {
        self.destination_attributes
            .contains(&IPVS_DEST_ATTR_ADDR_FAMILY)
    }

    /// Whether tunnels may use another encapsulation than IPIP (GUE: Linux 5.2).
    pub fn has_tunnel_kinds(&self) -> bool {
        self.destination_attributes
            .contains(&IPVS_DEST_ATTR_TUN_TYPE)
    }

    /// Whether tunnels have checksum flags, and so GRE (Linux 5.3).
    pub fn has_tunnel_flags(&self) -> bool {
        self.destination_attributes
            .contains(&IPVS_DEST_ATTR_TUN_FLAGS)
    }
}

fn unnamed() -> Error {
    Error::malformed("a scheduler of the kernel's tree has no valid name")
}

/// A key that no virtual server has.
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
        .ok_or(Error::malformed(
            "every mark that the probe may use is taken",
        ))
}

fn probe_schedulers(client: &mut Client, key: ServiceKey) -> Result<Vec<SchedulerName>> {
    let mut known = Vec::new();
    for name in SCHEDULERS {
        let name = SchedulerName::new(name).map_err(|_| unnamed())?;
        let service = Service::new(key, name);
        let mut outcomes =
            client.apply(&[Change::AddService(service), Change::DeleteService(key)])?;
        // The second outcome repeats the first: what was not added is not there to delete.
        outcomes.truncate(1);
        match outcomes.pop().unwrap_or(Ok(())) {
            Ok(()) => known.push(name),
            Err(error) if error.is_scheduler_missing() => {}
            Err(error) => return Err(*error),
        }
    }
    Ok(known)
}

fn probe_attributes(
    client: &mut Client,
    key: ServiceKey,
) -> Result<(BTreeSet<u16>, BTreeSet<u16>)> {
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
    let service = reported(client, IPVS_CMD_GET_SERVICE, IPVS_CMD_ATTR_SERVICE, key)?;
    let destination = reported(client, IPVS_CMD_GET_DEST, IPVS_CMD_ATTR_DEST, key)?;
    Ok((service, destination))
}

/// The attributes inside the attribute `outer` of what `command` dumps.
fn reported(
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
