//! Encodes and decodes destinations.

use crate::destination::{
    Destination, DestinationEntry, DestinationKey, Forwarding, Tunnel, TunnelFlags,
};
use crate::message::{
    address_bytes, family_number, read_address, read_family, read_stats, required,
};
use crate::sys::{
    IPVS_DEST_ATTR_ACTIVE_CONNS, IPVS_DEST_ATTR_ADDR, IPVS_DEST_ATTR_ADDR_FAMILY,
    IPVS_DEST_ATTR_FWD_METHOD, IPVS_DEST_ATTR_INACT_CONNS, IPVS_DEST_ATTR_L_THRESH,
    IPVS_DEST_ATTR_PERSIST_CONNS, IPVS_DEST_ATTR_PORT, IPVS_DEST_ATTR_STATS,
    IPVS_DEST_ATTR_STATS64, IPVS_DEST_ATTR_TUN_FLAGS, IPVS_DEST_ATTR_TUN_PORT,
    IPVS_DEST_ATTR_TUN_TYPE, IPVS_DEST_ATTR_U_THRESH, IPVS_DEST_ATTR_WEIGHT,
};
use netlink::Family;
use netlink::attr::{Attribute, Writer};
use netlink::{Error, Result};

/// Writes the key of a destination.
///
/// The address family is always written: without it the kernel uses that of the virtual server,
/// which is wrong for a tunnel to the other family.
pub fn write_destination_key(writer: &mut Writer<'_>, key: &DestinationKey) {
    writer.u16(
        IPVS_DEST_ATTR_ADDR_FAMILY,
        family_number(key.address.into()),
    );
    writer.bytes(IPVS_DEST_ATTR_ADDR, &address_bytes(key.address));
    writer.u16_be(IPVS_DEST_ATTR_PORT, key.port);
}

/// Writes all fields of a destination.
///
/// Tunnel parameters are omitted if the destination is not a tunnel and they have the default
/// value. A change of a destination may omit them, too: the kernel then resets them to the default
/// (`ip_vs_genl_parse_dest`).
pub fn write_destination(writer: &mut Writer<'_>, destination: &Destination) {
    write_destination_key(writer, &destination.key);
    let forwarding = u8::from(destination.forwarding);
    writer.u32(IPVS_DEST_ATTR_FWD_METHOD, forwarding.into());
    writer.u32(IPVS_DEST_ATTR_WEIGHT, destination.weight);
    let Tunnel { kind, port, flags } = destination.tunnel;
    if destination.forwarding == Forwarding::Tunnel || destination.tunnel != Tunnel::default() {
        writer.u8(IPVS_DEST_ATTR_TUN_TYPE, kind.into());
        writer.u16_be(IPVS_DEST_ATTR_TUN_PORT, port);
        writer.u16(IPVS_DEST_ATTR_TUN_FLAGS, flags.bits());
    }
    writer.u32(IPVS_DEST_ATTR_U_THRESH, destination.upper_threshold);
    writer.u32(IPVS_DEST_ATTR_L_THRESH, destination.lower_threshold);
}

fn read_forwarding(attribute: &Attribute<'_>) -> Result<Forwarding> {
    // The kernel sends three bits (`IP_VS_CONN_F_FWD_MASK`).
    let number = u8::try_from(attribute.u32()?);
    let number = number.map_err(|_| Error::malformed("a forwarding method is above 255"))?;
    Ok(number.into())
}

/// Reads a destination from the value of its attribute.
///
/// `family` is the address family of the virtual server. The destination has the same family if it
/// does not name one, as on kernels before 3.18.
///
/// # Errors
/// [`netlink::Error::Malformed`] if the address or the port is missing, or an attribute is too short.
pub fn read_destination(attribute: &Attribute<'_>, family: Family) -> Result<DestinationEntry> {
    let (mut address, mut port, mut family) = (None, None, family);
    let (mut stats, mut stats64) = (None, None);
    let mut forwarding = Forwarding::default();
    let (mut weight, mut upper, mut lower) = (0, 0, 0);
    let (mut active, mut inactive, mut persistent) = (0, 0, 0);
    let mut tunnel = Tunnel::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            IPVS_DEST_ATTR_ADDR => address = Some(attribute),
            IPVS_DEST_ATTR_PORT => port = Some(attribute.u16_be()?),
            IPVS_DEST_ATTR_FWD_METHOD => forwarding = read_forwarding(&attribute)?,
            IPVS_DEST_ATTR_WEIGHT => weight = attribute.u32()?,
            IPVS_DEST_ATTR_U_THRESH => upper = attribute.u32()?,
            IPVS_DEST_ATTR_L_THRESH => lower = attribute.u32()?,
            IPVS_DEST_ATTR_ACTIVE_CONNS => active = attribute.u32()?,
            IPVS_DEST_ATTR_INACT_CONNS => inactive = attribute.u32()?,
            IPVS_DEST_ATTR_PERSIST_CONNS => persistent = attribute.u32()?,
            IPVS_DEST_ATTR_STATS => stats = Some(attribute),
            IPVS_DEST_ATTR_STATS64 => stats64 = Some(attribute),
            // 0 means the family of the virtual server.
            IPVS_DEST_ATTR_ADDR_FAMILY if attribute.u16()? != 0 => {
                family = read_family(&attribute)?;
            }
            IPVS_DEST_ATTR_TUN_TYPE => tunnel.kind = attribute.u8()?.into(),
            IPVS_DEST_ATTR_TUN_PORT => tunnel.port = attribute.u16_be()?,
            IPVS_DEST_ATTR_TUN_FLAGS => tunnel.flags = TunnelFlags::from_bits(attribute.u16()?),
            _ => {}
        }
    }
    // Decoded last: the kernel sends the family after the address.
    let address = required(address, "a destination has no address")?;
    let key = DestinationKey {
        address: read_address(&address, family)?,
        port: required(port, "a destination has no port")?,
    };
    // `STATS` has the same counters, most of them truncated to 32 bits.
    let stats = stats64.or(stats);
    Ok(DestinationEntry {
        destination: Destination {
            key,
            forwarding,
            weight,
            upper_threshold: upper,
            lower_threshold: lower,
            tunnel,
        },
        active_connections: active,
        inactive_connections: inactive,
        persistent_connections: persistent,
        stats: stats
            .map(|stats| read_stats(&stats))
            .transpose()?
            .unwrap_or_default(),
    })
}
