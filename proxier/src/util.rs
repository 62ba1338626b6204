//! Small tools that know nothing of Services.

pub(crate) mod clock;
pub(crate) mod conditions;
pub(crate) mod one_line;
pub(crate) mod packed;
pub(crate) mod panics;
pub(crate) mod timer;
pub(crate) mod yaml;
