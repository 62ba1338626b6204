//! The charts of the HTML page.

pub(crate) mod bars;
pub(crate) mod curves;
pub(crate) mod percentiles;
pub(crate) mod ratios;
