//! Kernels' picks held against the crate's.

pub(crate) mod lots;
pub(crate) mod replay;
pub(crate) mod report;
