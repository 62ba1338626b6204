//! One processor of the host for each machine.
//!
//! User-Mode Linux with one processor is at least two host processes that run in turn. On two
//! virtual processors each hand-over may have to wake up an idle processor. A system call in the
//! guest then takes 130 to 225 microseconds instead of 23.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process, thread,
};

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A machine's claim to a processor; dropping it ends the claim.
///
/// The claim is the abstract address of a socket: other processes cannot bind the same address, and
/// the host's kernel frees it when this process dies.
#[derive(Debug)]
pub(super) struct Claim {
    processor: usize,
    /// `None` if no address could be bound; machines of other processes may then get the same
    /// processor.
    _socket: Option<UnixDatagram>,
}

impl Claim {
    /// Claims the allowed processor that the fewest machines have claimed.
    pub(super) fn new() -> Result<Self> {
        let allowed = allowed().context("reading the processors this process may use")?;
        if let Some(claim) = Self::bound(&allowed, "lab-processor") {
            return Ok(claim);
        }
        let index = process::id() as usize % allowed.len().max(1);
        let processor = allowed.get(index).context("no processor to run on")?;
        Ok(Self {
            processor: *processor,
            _socket: None,
        })
    }

    /// Binds the first free address: the first address of every processor, then the second address
    /// of every processor, and so on.
    fn bound(allowed: &[usize], prefix: &str) -> Option<Self> {
        for round in 0..MACHINES_PER_PROCESSOR {
            for &processor in allowed {
                let name = format!("{prefix}-{processor}-{round}");
                let bound = SocketAddr::from_abstract_name(name)
                    .and_then(|address| UnixDatagram::bind_addr(&address));
                if let Ok(socket) = bound {
                    return Some(Self {
                        processor,
                        _socket: Some(socket),
                    });
                }
            }
        }
        None
    }

    /// Runs `start` on a thread pinned to this processor; a process that it spawns is pinned, too.
    pub(super) fn run<T: Send>(&self, start: impl FnOnce() -> T + Send) -> Result<T> {
        let mut only = CpuSet::new();
        only.set(self.processor);
        // A child inherits the affinity of the thread that starts it. The thread is a new one, so
        // the caller keeps its own affinity.
        thread::scope(|scope| {
            let starter = thread::Builder::new()
                .name("lab-start".into())
                .spawn_scoped(scope, move || {
                    sched_setaffinity(None, &only)
                        .with_context(|| format!("moving to processor {}", self.processor))?;
                    Ok(start())
                })
                .context("starting a thread")?;
            starter
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the thread that starts the kernel panicked")))
        })
    }
}

/// Returns the processors that this thread may use.
fn allowed() -> rustix::io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&it| set.is_set(it)).collect())
}

/// The number of machines per processor that are counted; more machines get any processor.
const MACHINES_PER_PROCESSOR: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_spread_over_the_processors() {
        let prefix = format!("lab-test-spread-{}", process::id());
        let claim = || Claim::bound(&[2, 5], &prefix).unwrap();
        let claims: Vec<Claim> = (0..4).map(|_| claim()).collect();
        let processors: Vec<usize> = claims.iter().map(|it| it.processor).collect();
        assert_eq!(processors, [2, 5, 2, 5]);
    }

    #[test]
    fn a_dropped_claim_frees_its_processor() {
        let prefix = format!("lab-test-drop-{}", process::id());
        let claim = || Claim::bound(&[2, 5], &prefix).unwrap();
        let first = claim();
        let _second = claim();
        drop(first);
        assert_eq!(claim().processor, 2);
    }

    #[test]
    fn started_threads_run_on_the_claimed_processor_only() {
        let before = allowed().unwrap();
        let claim = Claim::new().unwrap();
        let inside = claim.run(|| allowed().unwrap()).unwrap();
        assert_eq!(inside, [claim.processor]);
        assert_eq!(allowed().unwrap(), before);
    }
}
