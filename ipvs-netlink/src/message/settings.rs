//! Encodes and decodes timeouts and version.
//!
//! Their attributes are at the top level of the message, not nested in another attribute.

use crate::message::read_attributes;
use crate::settings::{Info, Timeouts};
use crate::sys::{
    IPVS_CMD_ATTR_TIMEOUT_TCP, IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, IPVS_CMD_ATTR_TIMEOUT_UDP,
    IPVS_INFO_ATTR_CONN_TAB_SIZE, IPVS_INFO_ATTR_VERSION,
};
use netlink::Result;
use netlink::attr::Writer;

/// Writes the timeouts; the kernel ignores a timeout of 0 (`ip_vs_set_timeout`).
pub fn write_timeouts(writer: &mut Writer<'_>, timeouts: &Timeouts) {
    writer.u32(IPVS_CMD_ATTR_TIMEOUT_TCP, timeouts.tcp_secs);
    writer.u32(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, timeouts.tcp_fin_secs);
    writer.u32(IPVS_CMD_ATTR_TIMEOUT_UDP, timeouts.udp_secs);
}

/// Reads the timeouts from a message's payload; missing ones are 0.
///
/// # Errors
/// [`netlink::Error::Malformed`] if an attribute is malformed.
pub fn read_timeouts(payload: &[u8]) -> Result<Timeouts> {
    let mut timeouts = Timeouts::default();
    for attribute in read_attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
            IPVS_CMD_ATTR_TIMEOUT_TCP => timeouts.tcp_secs = attribute.u32()?,
            IPVS_CMD_ATTR_TIMEOUT_TCP_FIN => timeouts.tcp_fin_secs = attribute.u32()?,
            IPVS_CMD_ATTR_TIMEOUT_UDP => timeouts.udp_secs = attribute.u32()?,
            _ => {}
        }
    }
    Ok(timeouts)
}

/// Reads the version and table size from a message's payload; missing values are 0.
///
/// # Errors
/// [`netlink::Error::Malformed`] if an attribute is malformed.
pub fn read_info(payload: &[u8]) -> Result<Info> {
    let mut info = Info {
        version: (0, 0, 0),
        connection_table_size: 0,
    };
    for attribute in read_attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
            // `IP_VS_VERSION_CODE`: 0x010201 is 1.2.1.
            IPVS_INFO_ATTR_VERSION => {
                let [_, major, minor, patch] = attribute.u32()?.to_be_bytes();
                info.version = (major, minor, patch);
            }
            IPVS_INFO_ATTR_CONN_TAB_SIZE => info.connection_table_size = attribute.u32()?,
            _ => {}
        }
    }
    Ok(info)
}
