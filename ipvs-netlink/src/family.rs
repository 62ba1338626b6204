//! Looks up the numbers of generic-netlink families.
//!
//! The number of a family is the message type of its requests. The kernel assigns it when the
//! family's module is loaded, so it can change when the module is unloaded and loaded again.

use netlink::Errno;

use crate::error::{Error, Result};
use crate::message::{find, write_header};
use crate::sys::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_ID_CTRL, IPVS_GENL_NAME,
};
use netlink::transport::Transport;

/// Returns the number of the family `name`.
///
/// If the family is not registered, the kernel first tries to load a module with the alias
/// `net-pf-16-proto-16-family-NAME`.
///
/// # Errors
/// [`netlink::Error::Refused`] with `ENOENT` if the family does not exist.
pub fn resolve(transport: &mut Transport, name: &str) -> netlink::Result<u16> {
    transport.query(
        GENL_ID_CTRL,
        &format!("looking up the generic-netlink family {name}"),
        |writer| {
            // 2 is the version of the controller family (`genl_ctrl`).
            write_header(writer, CTRL_CMD_GETFAMILY, 2);
            writer.string(CTRL_ATTR_FAMILY_NAME, name);
        },
        |message| match find(message.payload, CTRL_ATTR_FAMILY_ID)? {
            Some(attribute) => attribute.u16(),
            None => Err(netlink::Error::malformed(
                "a generic-netlink family has no number",
            )),
        },
    )
}

/// Returns the number of the IPVS family.
///
/// # Errors
/// [`Error::NoIpvs`] if the kernel has no IPVS.
pub(crate) fn resolve_ipvs(transport: &mut Transport) -> Result<u16> {
    resolve(transport, IPVS_GENL_NAME).map_err(|error| match error.errno() {
        Some(Errno::NOENT) => Error::NoIpvs,
        _ => error.into(),
    })
}
