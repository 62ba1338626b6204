//! Explains the plan and its differences from the kernel, as text and JSON.

pub(crate) mod report;
pub(crate) mod shadow;
pub(crate) mod way;
