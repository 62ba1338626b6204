//! For callers that write messages about tables of other programs.

pub use crate::commit::commit;
pub use crate::existing::with_elements as read_elements;
pub use crate::expression::{read_verdict, write_plain_rule};
pub use crate::message::{contents, message_type};
