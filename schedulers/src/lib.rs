//! Which server gets the next connection: the kernel's IPVS schedulers, picking exactly as the kernel
//! picks, and a place to plug in others.
//!
//! ```text
//!                        Request ──┐
//!                                  ▼
//!  add, remove, weight ──▶  Balancer  ──pick──▶ Scheduler ──▶ ServerId or nothing
//!  connection counts   ──▶  Servers   ──hooks─▶    ▲
//!                                                  │ by name
//!                                               Registry ◀── a stranger's factory
//! ```
//!
//! Everything is passed in, the time ([`Request::at`]) and the seed of random sequences
//! ([`Options::seed`]) included. A pick allocates nothing.

#![forbid(unsafe_code)]

mod balancer;
mod error;
pub mod kernel;
mod options;
mod registry;
mod request;
mod scheduler;
mod server;
mod servers;
mod thresholds;

pub use balancer::Balancer;
pub use error::Error;
pub use options::{
    Family, Flags, Flavour, Implementation, LocalityLimit, MhTable, Options, ShTable,
};
pub use registry::Registry;
pub use request::Request;
pub use scheduler::Scheduler;
pub use server::{Server, ServerId, WEIGHT_MAX};
pub use servers::{Iter, Servers};
pub use thresholds::Thresholds;
