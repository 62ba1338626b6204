//! Where our requests deliberately differ from `ipvsadm`'s.

use ipvs_netlink::attr::{Attribute, attributes};
use ipvs_netlink::message::read_attributes;
use ipvs_netlink::sys::*;

use crate::written;

/// An attribute inside one of the message's own.
pub(crate) struct Inner<'a> {
    command: u8,
    outer: Attribute<'a>,
    inner: Attribute<'a>,
}

/// A request with its inner attributes as `revise` has them; without those that it drops.
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

/// The attribute as it is.
pub(crate) fn unchanged(attribute: &Inner<'_>) -> Option<Vec<u8>> {
    Some(attribute.inner.value.to_vec())
}

/// The attribute as we send it, if we do.
pub(crate) fn as_ours(attribute: &Inner<'_>) -> Option<Vec<u8>> {
    if is_left_out(attribute) {
        return None;
    }
    let mut value = unchanged(attribute)?;
    // `ipvsadm` reads an IPv4 address over what it read before, here the service's IPv6 address,
    // and sends all 16 bytes. The kernel looks at 4.
    let kinds = (attribute.outer.kind, attribute.inner.kind);
    if kinds == (IPVS_CMD_ATTR_DEST, IPVS_DEST_ATTR_ADDR)
        && sibling(attribute, IPVS_DEST_ATTR_ADDR_FAMILY) == [2, 0]
    {
        value[4..].fill(0);
    }
    Some(value)
}

/// What `ipvsadm` sends and we do not.
fn is_left_out(attribute: &Inner<'_>) -> bool {
    let command = attribute.command;
    match (attribute.outer.kind, attribute.inner.kind) {
        // Where a service is only named, the kernel ignores all but its key
        // (`ip_vs_genl_parse_service`).
        (
            IPVS_CMD_ATTR_SERVICE,
            IPVS_SVC_ATTR_SCHED_NAME
            | IPVS_SVC_ATTR_FLAGS
            | IPVS_SVC_ATTR_TIMEOUT
            | IPVS_SVC_ATTR_NETMASK,
        ) => !matches!(command, IPVS_CMD_NEW_SERVICE | IPVS_CMD_SET_SERVICE),
        // The same for a destination that is to be deleted (`ip_vs_genl_parse_dest`).
        (IPVS_CMD_ATTR_DEST, kind) if command == IPVS_CMD_DEL_DEST => !matches!(
            kind,
            IPVS_DEST_ATTR_ADDR_FAMILY | IPVS_DEST_ATTR_ADDR | IPVS_DEST_ATTR_PORT
        ),
        // Without tunnel parameters the kernel takes these defaults.
        (
            IPVS_CMD_ATTR_DEST,
            IPVS_DEST_ATTR_TUN_TYPE | IPVS_DEST_ATTR_TUN_PORT | IPVS_DEST_ATTR_TUN_FLAGS,
        ) => {
            let is_default = attribute.inner.value.iter().all(|byte| *byte == 0);
            is_default && sibling(attribute, IPVS_DEST_ATTR_FWD_METHOD) != [2, 0, 0, 0]
        }
        // A daemon is stopped by its role.
        (IPVS_CMD_ATTR_DAEMON, IPVS_DAEMON_ATTR_MCAST_IFN | IPVS_DAEMON_ATTR_SYNC_ID) => {
            command == IPVS_CMD_DEL_DAEMON
        }
        _ => false,
    }
}

/// The value of the attribute `kind` in the same nest.
fn sibling<'a>(attribute: &Inner<'a>, kind: u16) -> &'a [u8] {
    let mut siblings = attributes(attribute.outer.value).map(Result::unwrap);
    siblings.find(|sibling| sibling.kind == kind).unwrap().value
}
