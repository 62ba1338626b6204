//! Worked examples, checked against kernels 6.1.192 and 7.2.7 when they were written.
//!
//! A new server becomes the first of the list: after A, B, C are added, the order is C, B, A.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "examples/play.rs"]
mod play;

#[path = "examples/dh.rs"]
mod dh;
#[path = "examples/fo.rs"]
mod fo;
#[path = "examples/lblc.rs"]
mod lblc;
#[path = "examples/lblcr.rs"]
mod lblcr;
#[path = "examples/lc.rs"]
mod lc;
#[path = "examples/mh.rs"]
mod mh;
#[path = "examples/nq.rs"]
mod nq;
#[path = "examples/ovf.rs"]
mod ovf;
#[path = "examples/rr.rs"]
mod rr;
#[path = "examples/sed.rs"]
mod sed;
#[path = "examples/sh.rs"]
mod sh;
#[path = "examples/wlc.rs"]
mod wlc;
#[path = "examples/wrr.rs"]
mod wrr;
