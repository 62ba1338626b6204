//! The daemon and the command line of ipvs-proxier.

pub mod model;
pub mod problem;
pub mod store;
