//! Encodes and decodes synchronisation daemons.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::daemon::{Daemon, DaemonRole};
use crate::message::required;
use crate::name::Name;
use crate::sys::{
    IPVS_DAEMON_ATTR_MCAST_GROUP, IPVS_DAEMON_ATTR_MCAST_GROUP6, IPVS_DAEMON_ATTR_MCAST_IFN,
    IPVS_DAEMON_ATTR_MCAST_PORT, IPVS_DAEMON_ATTR_MCAST_TTL, IPVS_DAEMON_ATTR_STATE,
    IPVS_DAEMON_ATTR_SYNC_ID, IPVS_DAEMON_ATTR_SYNC_MAXLEN,
};
use netlink::attr::{Attribute, Writer};
use netlink::{Error, Result};

/// Writes the key of a daemon: its role.
pub fn write_daemon_key(writer: &mut Writer<'_>, role: DaemonRole) {
    writer.u32(IPVS_DAEMON_ATTR_STATE, role.into());
}

/// Writes all fields of a daemon; fields that are `None` are left to the kernel's defaults.
pub fn write_daemon(writer: &mut Writer<'_>, daemon: &Daemon) {
    write_daemon_key(writer, daemon.role);
    writer.string(IPVS_DAEMON_ATTR_MCAST_IFN, daemon.interface.as_str());
    writer.u32(IPVS_DAEMON_ATTR_SYNC_ID, daemon.sync_id);
    if let Some(length) = daemon.max_length {
        writer.u16(IPVS_DAEMON_ATTR_SYNC_MAXLEN, length);
    }
    if let Some(port) = daemon.port {
        // In host byte order, unlike all other ports of the interface.
        writer.u16(IPVS_DAEMON_ATTR_MCAST_PORT, port);
    }
    if let Some(ttl) = daemon.ttl {
        writer.u8(IPVS_DAEMON_ATTR_MCAST_TTL, ttl);
    }
    match daemon.group {
        Some(IpAddr::V4(group)) => writer.bytes(IPVS_DAEMON_ATTR_MCAST_GROUP, &group.octets()),
        Some(IpAddr::V6(group)) => writer.bytes(IPVS_DAEMON_ATTR_MCAST_GROUP6, &group.octets()),
        None => {}
    }
}

/// Reads a daemon from the value of its attribute.
///
/// # Errors
/// [`Error::Malformed`] if the state or the interface is missing, or an attribute is too short.
pub fn read_daemon(attribute: &Attribute<'_>) -> Result<Daemon> {
    let (mut role, mut interface) = (None, None);
    let (mut sync_id, mut max_length, mut group, mut port, mut ttl) = (0, None, None, None, None);
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            IPVS_DAEMON_ATTR_STATE => role = Some(attribute.u32()?.into()),
            IPVS_DAEMON_ATTR_MCAST_IFN => interface = Some(attribute.string()?),
            IPVS_DAEMON_ATTR_SYNC_ID => sync_id = attribute.u32()?,
            IPVS_DAEMON_ATTR_SYNC_MAXLEN => max_length = Some(attribute.u16()?),
            IPVS_DAEMON_ATTR_MCAST_GROUP => {
                group = Some(Ipv4Addr::from(attribute.array::<4>()?).into());
            }
            IPVS_DAEMON_ATTR_MCAST_GROUP6 => {
                group = Some(Ipv6Addr::from(attribute.array::<16>()?).into());
            }
            IPVS_DAEMON_ATTR_MCAST_PORT => port = Some(attribute.u16()?),
            IPVS_DAEMON_ATTR_MCAST_TTL => ttl = Some(attribute.u8()?),
            _ => {}
        }
    }
    let interface = required(interface, "a daemon has no interface")?;
    Ok(Daemon {
        role: required(role, "a daemon has no state")?,
        interface: Name::new(interface)
            .map_err(|_| Error::malformed("the interface name of a daemon is invalid"))?,
        sync_id,
        max_length,
        group,
        port,
        ttl,
    })
}
