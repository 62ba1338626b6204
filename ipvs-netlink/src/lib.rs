//! The kernel's IPVS over generic netlink.

pub mod destination;
pub mod name;
pub mod service;
pub mod stats;
