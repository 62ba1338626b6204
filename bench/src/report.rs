//! The common parts of the reports: tables for the terminal and for a page, charts, and the page
//! itself, which needs no other file and no script.

pub(crate) mod lines;
pub(crate) mod page;
pub(crate) mod progress;
pub(crate) mod svg;
pub(crate) mod table;
