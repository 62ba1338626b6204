//! The same picks as the scan, without reading every server.
//!
//! `tests/equal.rs` compares every index with its scan over long random histories.

mod bitmap;
mod loads;
mod tournament;
mod weights;
mod wrr;

pub(super) use loads::Indexed;
pub(super) use wrr::IndexedWrr;
