//! Expressions as iptables-nft writes them. It cannot read a table with others.

use netlink::attr::Writer;
use nftables::sys::*;

/// Writes a match by an extension of iptables.
pub(super) fn write_match(list: &mut Writer<'_>, name: &str, revision: u32, info: &[u8]) {
    let kinds = [NFTA_MATCH_NAME, NFTA_MATCH_REV, NFTA_MATCH_INFO];
    write(list, ("match", kinds), (name, revision, info));
}

/// Writes a target that is an extension of iptables.
pub(super) fn write_target(list: &mut Writer<'_>, name: &str, revision: u32, info: &[u8]) {
    let kinds = [NFTA_TARGET_NAME, NFTA_TARGET_REV, NFTA_TARGET_INFO];
    write(list, ("target", kinds), (name, revision, info));
}

/// Writes the match that holds a comment: `struct xt_comment_info` of linux/netfilter/xt_comment.h.
pub(super) fn write_comment(list: &mut Writer<'_>, comment: &str) {
    const XT_MAX_COMMENT_LEN: usize = 256;
    let mut info = comment.as_bytes().to_vec();
    info.resize(XT_MAX_COMMENT_LEN, 0);
    write_match(list, "comment", 0, &info);
}

fn write(
    list: &mut Writer<'_>,
    (kind, [name_kind, revision_kind, info_kind]): (&str, [u16; 3]),
    (name, revision, info): (&str, u32, &[u8]),
) {
    list.nested(NFTA_LIST_ELEM, |expression| {
        expression.string(NFTA_EXPR_NAME, kind);
        expression.nested(NFTA_EXPR_DATA, |data| {
            data.string(name_kind, name);
            data.u32_be(revision_kind, revision);
            data.bytes(info_kind, info);
        });
    });
}
