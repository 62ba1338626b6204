//! One processor of the host for each machine.
//!
//! User-Mode Linux with one processor is at least two host processes that run in turn. On two
//! virtual processors each hand-over may have to wake up an idle processor. A system call in the
//! guest then takes 130 to 225 microseconds instead of 23.

use std::{fs, path::Path, process, thread, time::Duration};

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::held_name::HeldName;

/// A machine's claim to a processor; dropping it ends the claim.
///
/// The claim is a name. Every process can read the names of all others in `/proc/net/unix`.
#[derive(Debug)]
pub(super) struct Claim {
    processor: usize,
    /// `None` if no name could be taken; machines of other processes may then get the same
    /// processor.
    _name: Option<HeldName>,
}

impl Claim {
    /// Claims the allowed processor with the fewest machines that run `kernel`; among equals, the
    /// one with the fewest machines.
    ///
    /// Some kernels are slower than others, and test programs boot one machine of each. A balance
    /// of machines alone could leave all slow ones on one processor.
    pub(super) fn new(kernel: &Path) -> Result<Self> {
        let allowed = allowed().context("reading the processors this process may use")?;
        let kernel = kernel.file_name().unwrap_or_default().to_string_lossy();
        if let Some(claim) = Self::named(&allowed, "lab-processor", &kernel) {
            return Ok(claim);
        }
        let index = process::id() as usize % allowed.len().max(1);
        let processor = allowed.get(index).context("no processor to run on")?;
        Ok(Self {
            processor: *processor,
            _name: None,
        })
    }

    /// Takes the first free name of the processor to claim: `prefix-processor-number-kernel`.
    fn named(allowed: &[usize], prefix: &str, kernel: &str) -> Option<Self> {
        // Without the lock, two machines may find the same processor free.
        let _lock = lock(prefix);
        let claims = claims(prefix);
        let processor = allowed.iter().copied().min_by_key(|&processor| {
            let here = claims.iter().filter(|it| it.0 == processor);
            let same = here.clone().filter(|it| it.1 == kernel).count();
            (same, here.count())
        })?;
        let name = (0..MACHINES_PER_PROCESSOR).find_map(|number| {
            HeldName::take(&format!("{prefix}-{processor}-{number}-{kernel}"))
        })?;
        Some(Self {
            processor,
            _name: Some(name),
        })
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

/// Returns the processor and the kernel of every claim whose name begins with `prefix`. None can
/// be read without `/proc`.
fn claims(prefix: &str) -> Vec<(usize, String)> {
    let sockets = fs::read("/proc/net/unix").unwrap_or_default();
    let claim = |line: &str| {
        // An abstract address is the last word of its line and begins with `@`.
        let (_, address) = line.split_once(" @")?;
        let mut parts = address
            .strip_prefix(prefix)?
            .strip_prefix('-')?
            .splitn(3, '-');
        let processor = parts.next()?.parse().ok()?;
        Some((processor, parts.nth(1)?.to_owned()))
    };
    String::from_utf8_lossy(&sockets)
        .lines()
        .filter_map(claim)
        .collect()
}

/// Waits until no other process claims a processor. `None` after a second.
fn lock(prefix: &str) -> Option<HeldName> {
    (0..1000).find_map(|_| {
        let lock = HeldName::take(&format!("{prefix}-lock"));
        if lock.is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        lock
    })
}

/// The number of machines of one kernel per processor that are counted; more machines get any
/// processor.
const MACHINES_PER_PROCESSOR: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_spread_over_the_processors() {
        let claims = claims_of("spread", &["6.1", "6.1", "6.1", "6.1"]);
        assert_eq!(processors(&claims), [2, 5, 2, 5]);
    }

    #[test]
    fn claims_of_each_kernel_spread_over_the_processors() {
        let claims = claims_of("kernels", &["6.1", "7.2", "7.2", "6.1", "6.1", "7.2"]);
        assert_eq!(processors(&claims), [2, 5, 2, 5, 2, 5]);
    }

    #[test]
    fn concurrent_claims_spread_over_the_processors() {
        let claims: Vec<Claim> = thread::scope(|scope| {
            let claim = || claims_of("race", &["6.1"]).remove(0);
            let started: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
            started.into_iter().map(|it| it.join().unwrap()).collect()
        });
        let mut processors = processors(&claims);
        processors.sort_unstable();
        assert_eq!(processors, [2, 2, 2, 2, 5, 5, 5, 5]);
    }

    #[test]
    fn a_dropped_claim_frees_its_processor() {
        let mut claims = claims_of("drop", &["6.1", "6.1"]);
        drop(claims.remove(0));
        assert_eq!(processors(&claims_of("drop", &["6.1"])), [2]);
    }

    /// Claims processor 2 or 5 for a machine of each kernel, in this order.
    fn claims_of(test: &str, kernels: &[&str]) -> Vec<Claim> {
        let prefix = format!("lab-test-{test}-{}", process::id());
        let claim = |kernel: &&str| Claim::named(&[2, 5], &prefix, kernel).unwrap();
        kernels.iter().map(claim).collect()
    }

    fn processors(claims: &[Claim]) -> Vec<usize> {
        claims.iter().map(|it| it.processor).collect()
    }

    #[test]
    fn started_threads_run_on_the_claimed_processor_only() {
        let before = allowed().unwrap();
        let claim = Claim::new(Path::new("linux")).unwrap();
        let inside = claim.run(|| allowed().unwrap()).unwrap();
        assert_eq!(inside, [claim.processor]);
        assert_eq!(allowed().unwrap(), before);
    }
}
