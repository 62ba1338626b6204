//! Worked examples, checked against kernels 6.1.192 and 7.2.7 when they were written down.
//!
//! A server that is added is the first of the list: after A, B, C the order is C, B, A.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "examples/play.rs"]
mod play;

#[path = "examples/dh.rs"]
mod dh;
#[path = "examples/lc.rs"]
mod lc;
#[path = "examples/rr.rs"]
mod rr;
#[path = "examples/sh.rs"]
mod sh;
