//! The cluster as this node knows it: objects, their form on the wire, the last known state of all.

pub(crate) mod api;
pub(crate) mod model;
pub(crate) mod problem;
pub(crate) mod store;
