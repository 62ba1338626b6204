//! The daemon and the command line of ipvs-proxier.

pub mod api;
pub mod cli;
pub mod dataplane;
pub mod diff;
pub mod follow;
pub mod manifests;
pub mod model;
pub mod op;
pub mod owned;
pub mod plan;
pub mod problem;
pub mod report;
pub mod store;
pub mod sync;
