//! Generic-netlink families are numbered when their module loads; this asks for the number.

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::message::{find, write_header};
use crate::sys::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_ID_CTRL, IPVS_GENL_NAME,
};
use crate::transport::Transport;

/// The number of the family `name`.
///
/// The kernel loads the family's module for this request if it can (`net-pf-16-proto-16-family-..`).
///
/// # Errors
/// [`Error::Refused`] with `ENOENT` when there is no such family.
pub fn resolve(transport: &mut Transport, name: &str) -> Result<u16> {
    transport.query(
        GENL_ID_CTRL,
        &format!("looking up the generic-netlink family {name}"),
        |writer| {
            write_header(writer, CTRL_CMD_GETFAMILY, 2);
            writer.string(CTRL_ATTR_FAMILY_NAME, name);
        },
        |message| match find(message.payload, CTRL_ATTR_FAMILY_ID)? {
            Some(attribute) => attribute.u16(),
            None => Err(Error::malformed("a family without its number")),
        },
    )
}

/// The number of the IPVS family.
///
/// # Errors
/// [`Error::NoIpvs`] when the kernel has none.
pub(crate) fn resolve_ipvs(transport: &mut Transport) -> Result<u16> {
    resolve(transport, IPVS_GENL_NAME).map_err(|error| match error.errno() {
        Some(Errno::NOENT) => Error::NoIpvs,
        _ => error,
    })
}
