//! The traffic of Services, from the counters of IPVS or of nftables.
//!
//! ```text
//! rounds ─▶ Owners ───┐
//!                     ├─▶ Traffic ─▶ TrafficText ─▶ Prometheus' text format, in pieces
//! kernel ─▶ counters ─┘
//! ```
//!
//! The counters are read at each scrape and kept nowhere: a recorder would keep 50,000 series in memory.
//! Each series belongs to a virtual server or frontend, not to a Service. The sum of a Service would fall when one of
//! its virtual servers is deleted. Prometheus takes a fall for a restart, and would count the rest twice.

mod held;
mod text;

pub(crate) use held::{Displaced, HeldTraffic, ReadPages};
#[cfg(test)]
pub(crate) use text::METRICS;
pub(crate) use text::{Traffic, TrafficText};
