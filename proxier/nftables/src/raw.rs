//! For callers that write messages about tables of other programs.

pub use crate::commit::commit;
pub use crate::expression::{read_verdict, write_plain_rule};
pub use crate::message::{contents, message_type};
