//! The names of sets and chains.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::dataplane::packet_rules::{PerFamily, per_family};

/// Every frontend except node ports.
///
/// A set without verdicts, because both filter chains and NAT chains look it up, and the kernel refuses a
/// map whose target chains do not suit both (`nft_nat_validate`).
pub(super) const FRONTENDS: PerFamily = per_family!("frontends");
/// The frontends for clients outside the cluster, with the chain that decides whether a connection is
/// masqueraded. Connections to the other [`FRONTENDS`] continue in [`CLUSTER_IP`].
pub(super) const EXTERNAL_FRONTENDS: PerFamily = per_family!("external");
/// The frontends that reject some or all clients, with the chain that does so.
pub(super) const GUARDED: PerFamily = per_family!("guarded");
/// The frontends whose clients inside the cluster reach other endpoints than clients outside, with the chain
/// that sets the inside mark.
pub(super) const INSIDE: PerFamily = per_family!("inside");
/// The node ports, with `--input-drop=accept` only.
pub(super) const NODE_PORTS: PerFamily = per_family!("node-ports");
/// Each firewall mark of [`INSIDE`] with the address of each of its endpoints on this node.
///
/// By mark, because the authors of a Service choose which addresses count as endpoints of this node, and must not
/// choose it for other Services.
pub(super) const INSIDE_HERE: PerFamily = per_family!("inside-here");
/// The firewall marks of [`INSIDE`].
pub(super) const INSIDE_MARKS: &str = "inside-marks";
/// By connection, the mark that its packets had before they got a firewall mark.
pub(super) const MARKS_BEFORE: &str = "marks-before";

/// Decides about new connections that arrive.
pub(super) const NEW_INPUT: &str = "new-input";
/// Decides about new connections of this node.
pub(super) const NEW_OUTPUT: &str = "new-output";
/// Masquerades connections to external frontends with policy Cluster.
pub(super) const EXTERNAL: &str = "external";
/// Rejects packets to service addresses that IPVS left to processes of this node.
pub(super) const UNSERVED: &str = "unserved";
/// Finds the chain that sets the firewall mark of packets to the frontends in [`INSIDE`].
pub(super) const INSIDE_CHAIN: &str = "inside";
/// Returns for clients inside the cluster, and leaves packets of others as they are.
pub(super) const INSIDE_CLIENTS: &str = "inside-clients";
/// Continues packets with a firewall mark that IPVS sends to their endpoint.
pub(super) const TO_ENDPOINT: &str = "to-endpoint";
/// The same for endpoints on this node.
pub(super) const TO_ENDPOINT_HERE: &str = "to-endpoint-here";
/// Restores the mark that a packet had before its firewall mark.
pub(super) const RESTORE: &str = "restore";

/// Sets the bit by which our rules in input chains of other programs accept packets.
pub(super) const MARK_PASSING: &str = "mark-passing";
/// Clears that bit.
pub(super) const CLEAR_PASSING: &str = "clear-passing";

/// In the table of family `arp`, the addresses that this node neither claims nor uses on its links.
pub(super) const ARP_ADDRESSES: &str = "service-addresses";
/// In the table of family `arp`, each link with the chain that sets its address as the sender.
pub(super) const ARP_SENDERS: &str = "senders";
/// In the table of family `arp`, sets an address of this node as the sender.
pub(super) const OWN_SENDER: &str = "own-sender";

/// Returns the name of the chain that sets `address` as the sender of an ARP request.
pub(super) fn sender(address: Ipv4Addr) -> Arc<str> {
    format!("sender-{address}").into()
}

/// Returns the name of the chain that sets this firewall mark.
pub(super) fn inside(mark: u32) -> Arc<str> {
    format!("inside-{mark:08x}").into()
}
