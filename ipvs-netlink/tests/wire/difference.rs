//! The deliberate differences between our requests and `ipvsadm`'s.

use ipvs_netlink::message::read_attributes;
use ipvs_netlink::sys::*;
use netlink::attr::{Attribute, attributes};

use crate::written;

/// An attribute nested in a top-level attribute of a request.
pub(crate) struct Inner<'a> {
    command: u8,
    outer: Attribute<'a>,
    inner: Attribute<'a>,
}

/// Returns `request` with the value of each nested attribute replaced by `revise`.
///
/// An attribute is removed if `revise` returns `None`.
pub(crate) fn rewritten(request: &[u8], revise: impl Fn(&Inner<'_>) -> Option<Vec<u8>>) -> Vec<u8> {
    let command = request[0];
    written(|writer| {
        writer.header(&request[..4]);
        for outer in read_attributes(request).unwrap().map(Result::unwrap) {
            if outer.kind > IPVS_CMD_ATTR_DAEMON {
                writer.bytes(outer.kind, outer.value);
                continue;
            }
            writer.nested(outer.kind, |writer| {
                for inner in outer.nested().map(Result::unwrap) {
                    let revised = revise(&Inner {
                        command,
                        outer,
                        inner,
                    });
                    if let Some(value) = revised {
                        writer.bytes(inner.kind, &value);
                    }
                }
            });
        }
    })
}

/// Returns the value of the attribute.
pub(crate) fn unchanged(attribute: &Inner<'_>) -> Option<Vec<u8>> {
    Some(attribute.inner.value.to_vec())
}

/// Returns the value that we send; `None` if we omit the attribute.
pub(crate) fn as_ours(attribute: &Inner<'_>) -> Option<Vec<u8>> {
    if is_omitted(attribute) {
        return None;
    }
    let mut value = unchanged(attribute)?;
    // `ipvsadm` parses an IPv4 address into the first 4 bytes of a buffer that still contains the
    // virtual server's IPv6 address, and sends all 16. The kernel uses only the first 4.
    let kinds = (attribute.outer.kind, attribute.inner.kind);
    if kinds == (IPVS_CMD_ATTR_DEST, IPVS_DEST_ATTR_ADDR)
        && sibling(attribute, IPVS_DEST_ATTR_ADDR_FAMILY) == [2, 0]
    {
        value[4..].fill(0);
    }
    Some(value)
}

/// Returns whether we omit an attribute that `ipvsadm` sends.
fn is_omitted(attribute: &Inner<'_>) -> bool {
    let command = attribute.command;
    match (attribute.outer.kind, attribute.inner.kind) {
        // In commands other than NEW and SET the kernel ignores everything but the service's key
        // (`ip_vs_genl_parse_service`).
        (
            IPVS_CMD_ATTR_SERVICE,
            IPVS_SVC_ATTR_SCHED_NAME
            | IPVS_SVC_ATTR_FLAGS
            | IPVS_SVC_ATTR_TIMEOUT
            | IPVS_SVC_ATTR_NETMASK,
        ) => !matches!(command, IPVS_CMD_NEW_SERVICE | IPVS_CMD_SET_SERVICE),
        // To delete a destination the kernel reads only its key (`ip_vs_genl_parse_dest`).
        (IPVS_CMD_ATTR_DEST, kind) if command == IPVS_CMD_DEL_DEST => !matches!(
            kind,
            IPVS_DEST_ATTR_ADDR_FAMILY | IPVS_DEST_ATTR_ADDR | IPVS_DEST_ATTR_PORT
        ),
        // The kernel's defaults for tunnel parameters are zero.
        (
            IPVS_CMD_ATTR_DEST,
            IPVS_DEST_ATTR_TUN_TYPE | IPVS_DEST_ATTR_TUN_PORT | IPVS_DEST_ATTR_TUN_FLAGS,
        ) => {
            let is_default = attribute.inner.value.iter().all(|byte| *byte == 0);
            is_default && sibling(attribute, IPVS_DEST_ATTR_FWD_METHOD) != [2, 0, 0, 0]
        }
        // To stop a daemon the kernel reads only its role.
        (IPVS_CMD_ATTR_DAEMON, IPVS_DAEMON_ATTR_MCAST_IFN | IPVS_DAEMON_ATTR_SYNC_ID) => {
            command == IPVS_CMD_DEL_DAEMON
        }
        _ => false,
    }
}

/// Returns the value of the attribute `kind` next to `attribute`.
fn sibling<'a>(attribute: &Inner<'a>, kind: u16) -> &'a [u8] {
    let mut siblings = attributes(attribute.outer.value).map(Result::unwrap);
    siblings.find(|sibling| sibling.kind == kind).unwrap().value
}
