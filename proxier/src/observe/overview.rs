//! What an operator on call sees of this node: one model for `top`, for the page `/status` and for its twins.
//!
//! ```text
//!  daemon ── History ────────────────────────┐
//!         ── Desk: Directory, Detail ─┐      │           ┌─▶ html, csv, JSON ─▶ browser
//!  kernel ── CounterTable ────────────┴─▶ assemble ─▶ Overview
//!                                                        └─▶ JSON ─▶ `top`
//! ```
//!
//! The daemon answers only when a client asks, so the view costs nothing while nobody looks. A census of all Services is
//! made so seldom that it takes less than 0.5 % of a processor; the counters of what is visible are read once a second.

pub(crate) mod assemble;
mod census;
mod counters;
pub(crate) mod csv;
mod desk;
mod directory;
mod history;
pub(crate) mod html;
pub(crate) mod model;
mod observer;
mod query;
mod rates;
mod rotation;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod text;

pub(crate) use counters::CounterSource;
pub(crate) use desk::{Desk, Told};
pub(crate) use directory::{detail, directory};
pub(crate) use history::{Change, History, KEPT_CHANGES};
pub(crate) use observer::{Observer, ObserverConfig};
pub(crate) use query::{Query, Sort};
