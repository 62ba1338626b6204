//! For callers that write messages about tables of other programs.

pub use super::commit::commit;
pub use super::expression::{read_verdict, write_plain_rule};
pub use super::message::{contents, message_type};
