//! The kernel lab.

pub mod guest;
pub mod job;
pub mod kernel;
pub mod machine;
mod netlink;
mod wire;
