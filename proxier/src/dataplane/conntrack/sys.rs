//! Numbers of `linux/netfilter/nfnetlink_conntrack.h`, spelled as there.

pub(super) const NFNL_SUBSYS_CTNETLINK: u16 = 1;
pub(super) const IPCTNL_MSG_CT_GET: u16 = 1;
pub(super) const IPCTNL_MSG_CT_DELETE: u16 = 2;
pub(super) const IPCTNL_MSG_CT_GET_STATS: u16 = 5;

pub(super) const AF_INET: u8 = 2;
pub(super) const AF_INET6: u8 = 10;

pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
pub(super) const CTA_STATUS: u16 = 3;
pub(super) const CTA_PROTOINFO: u16 = 4;
pub(super) const CTA_TIMEOUT: u16 = 7;
pub(super) const CTA_ID: u16 = 12;
pub(super) const CTA_ZONE: u16 = 18;
pub(super) const CTA_FILTER: u16 = 25;

pub(super) const CTA_TUPLE_IP: u16 = 1;
pub(super) const CTA_TUPLE_PROTO: u16 = 2;

pub(super) const CTA_IP_V4_SRC: u16 = 1;
pub(super) const CTA_IP_V4_DST: u16 = 2;
pub(super) const CTA_IP_V6_SRC: u16 = 3;
pub(super) const CTA_IP_V6_DST: u16 = 4;

pub(super) const CTA_PROTO_NUM: u16 = 1;
pub(super) const CTA_PROTO_SRC_PORT: u16 = 2;
pub(super) const CTA_PROTO_DST_PORT: u16 = 3;

pub(super) const CTA_PROTOINFO_TCP: u16 = 1;
pub(super) const CTA_PROTOINFO_TCP_STATE: u16 = 1;

pub(super) const CTA_FILTER_ORIG_FLAGS: u16 = 1;
/// Of `net/netfilter/nf_internals.h`. Kernels before 5.8 ignore the filter and list all flows.
pub(super) const CTA_FILTER_F_CTA_IP_SRC: u32 = 1 << 0;
pub(super) const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
pub(super) const CTA_FILTER_F_CTA_PROTO_SRC_PORT: u32 = 1 << 4;

/// Of `linux/netfilter/nf_conntrack_common.h`.
pub(super) const IPS_SEEN_REPLY: u32 = 1 << 1;
pub(super) const IPS_DST_NAT: u32 = 1 << 5;

/// Of `linux/netfilter/nf_conntrack_tcp.h`.
pub(super) const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
