//! Services as one table of nf_tables: no IPVS, no relay.
//!
//! ```text
//!  prerouting, output
//!   -110 new: guarded ─▶ source ranges, no endpoint: drop, reject, or return
//!             masqueraded, else service address ─▶ who is masqueraded: sets a bit of the mark
//!   -101 frontends: address, protocol, port ─▶ pick: draws a slot ─▶ endpoints: the same and the slot ─▶ destination NAT
//!    -99 new: translated ─▶ sticky ─▶ learn: the client's endpoint, for session affinity
//!             a service address still ─▶ refuse: unlisted ports
//!  postrouting
//!     99 the bit, or an endpoint that connects to itself ─▶ masquerade
//! ```
//!
//! Two maps have the state: `frontends`, whose verdict names the pick, and `endpoints`, whose key has a *slot*, a
//! number below the number of slots of the frontend. All frontends with equal numbers share the chain of the pick.
//! So one endpoint's change is a few elements, and no set, map or chain belongs to a Service (except the chain of
//! source ranges).
//!
//! A connection is translated once: the kernel keeps it at its endpoint until it ends. So these rules see only the
//! first packet of each connection, and a removed endpoint keeps its connections.
//!
//! [`table()`] is a pure function of the plan. [`ServiceTable::follow`] gives the commands of a change; the law is that
//! both give the same table, except for the order of slots that are drawn at random.

use crate::cluster::model::Family;

mod affinity;
mod chains;
mod clients;
mod names;
mod parts;
mod pick;
mod slots;
mod table;

use table::NodeFacts;
pub use table::{ServiceTable, table};

pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
