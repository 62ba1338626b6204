//! The same picks without reading every server.
//!
//! An index is a second opinion that must never differ: `tests/equal.rs` compares it with the scan over
//! long random histories.

mod bitmap;
mod loads;
mod tournament;
mod weights;
mod wrr;

pub(super) use loads::Indexed;
pub(super) use wrr::IndexedWrr;
