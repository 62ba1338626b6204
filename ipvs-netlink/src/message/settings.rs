//! Version and timeouts on the wire: attributes of the message itself, not nested in another.

use crate::attr::Writer;
use crate::error::Result;
use crate::message::read_attributes;
use crate::settings::{Info, Timeouts};
use crate::sys::{
    IPVS_CMD_ATTR_TIMEOUT_TCP, IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, IPVS_CMD_ATTR_TIMEOUT_UDP,
    IPVS_INFO_ATTR_CONN_TAB_SIZE, IPVS_INFO_ATTR_VERSION,
};

/// Writes the timeouts.
pub fn write_timeouts(writer: &mut Writer<'_>, timeouts: &Timeouts) {
    writer.u32(IPVS_CMD_ATTR_TIMEOUT_TCP, timeouts.tcp_secs);
    writer.u32(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, timeouts.tcp_fin_secs);
    writer.u32(IPVS_CMD_ATTR_TIMEOUT_UDP, timeouts.udp_secs);
}

/// Reads the timeouts from a message's payload; one that is missing is 0.
///
/// # Errors
/// [`crate::Error::Malformed`] when an attribute is broken.
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

/// Reads the version from a message's payload; what is missing is 0.
///
/// # Errors
/// [`crate::Error::Malformed`] when an attribute is broken.
pub fn read_info(payload: &[u8]) -> Result<Info> {
    let mut info = Info {
        version: (0, 0, 0),
        connection_table_size: 0,
    };
    for attribute in read_attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
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
