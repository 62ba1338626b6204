//! Transactions on tables of other programs, which are written as messages.
//!
//! They name no generation, so the kernel accepts them whatever another program changed before. A rule is
//! named by its handle: the kernel refuses the handle of a rule that is gone.

use netlink::batch::Batch;
use netlink::transport::{RequestError, Transport};
use netlink::{Error, Refusal};

use crate::message::frame;
use crate::sys::*;

/// Sends the messages that `fill` adds as one transaction. Returns the kernel's first refusal, if any.
///
/// # Errors
/// Those of the socket, and of `fill`.
pub fn commit(
    transport: &mut Transport,
    fill: impl FnOnce(&mut Batch) -> Result<(), Error>,
) -> Result<Option<Refusal>, Error> {
    let mut batch = Batch::new();
    frame(&mut batch, NFNL_MSG_BATCH_BEGIN, |_| {})?;
    fill(&mut batch)?;
    // The last message before the end is acknowledged, because kernels before 6.10 do not acknowledge
    // the end itself.
    let last = batch.len() - 1;
    frame(&mut batch, NFNL_MSG_BATCH_END, |_| {})?;
    let failures = transport.run_whole(&mut batch, last)?;
    match failures.into_iter().next() {
        None => Ok(None),
        Some((_, RequestError::Refused(refusal))) => Ok(Some(refusal)),
        Some(_) => Err(Error::AnswersLost),
    }
}
