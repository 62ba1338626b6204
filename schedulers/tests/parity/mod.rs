//! Compares the crate's picks with recorded picks of kernels.

pub(crate) mod frequency;
pub(crate) mod replay;
pub(crate) mod report;
