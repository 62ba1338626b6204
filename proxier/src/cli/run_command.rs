//! `ipvs-proxier run`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::{NodeFlags, StateFlags, completeness};
use crate::dataplane::linux::Linux;
use crate::follow::Fingerprint;
use crate::manifests::Loaded;
use crate::owned::StateFile;
use crate::problem::Problem;
use crate::report::NamedOp;
use crate::sync::{Applied, Input, Proxier};

/// How often the manifests are looked at.
const POLL: Duration = Duration::from_secs(1);

/// How often the kernel is read back and repaired when nothing else happens (`ipvs.syncPeriod`).
const RESYNC: Duration = Duration::from_secs(30);

/// How soon failed Ops are tried again; doubled for every further failure, up to [`RESYNC`].
const RETRY: Duration = Duration::from_secs(1);

/// Flags of `run`.
#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    state: StateFlags,

    /// Program the kernel once and exit: 0 when everything took effect, 1 otherwise.
    #[arg(long)]
    once: bool,
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let linux = Linux::open(self.node.service_addresses.into())?;
        let state_file = StateFile::new(&self.state.state_file);
        let proxier = Proxier::new(linux, self.node.config()?, state_file)?;
        let mut session = Session {
            flags: &self,
            proxier,
            reported: Vec::new(),
            unread: Vec::new(),
        };
        let mut seen = Fingerprint::of(&self.node.manifests);
        session.load()?;
        if self.once {
            let converged = session.sync()?;
            return Ok(if converged {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        let mut wait = RETRY;
        loop {
            wait = match session.sync() {
                Ok(true) => RESYNC,
                Ok(false) => next_retry(wait),
                Err(error) => {
                    tracing::error!("{error:#}");
                    next_retry(wait)
                }
            };
            let due = Instant::now() + wait;
            while Instant::now() < due {
                std::thread::sleep(POLL);
                let now = Fingerprint::of(&self.node.manifests);
                if now != seen {
                    seen = now;
                    match session.load() {
                        Ok(()) => break,
                        // The last good manifests stay in force.
                        Err(error) => tracing::error!("{error:#}"),
                    }
                }
            }
        }
    }
}

fn next_retry(last: Duration) -> Duration {
    if last >= RESYNC {
        RETRY
    } else {
        (last * 2).min(RESYNC)
    }
}

struct Session<'a> {
    flags: &'a Flags,
    proxier: Proxier<Linux>,
    /// Problems that have been logged already; each is said once while it lasts.
    reported: Vec<Problem>,
    /// Problems of the files themselves.
    unread: Vec<Problem>,
}

impl Session<'_> {
    fn load(&mut self) -> anyhow::Result<()> {
        let Loaded { events, problems } = self.flags.node.load()?;
        let input = completeness(&problems);
        if input == Input::Partial {
            tracing::warn!("some manifests cannot be read; nothing is removed until they can");
        }
        self.proxier.take(events, input);
        self.unread = problems;
        Ok(())
    }

    /// One round; whether everything took effect.
    fn sync(&mut self) -> anyhow::Result<bool> {
        let applied = self.proxier.sync()?;
        self.report_problems(&applied);
        for (op, outcome) in applied.round.ops.iter().zip(&applied.outcomes) {
            match outcome {
                Ok(()) => {
                    let named = NamedOp::new(op, &applied.round.desired, self.proxier.owned());
                    tracing::info!("{named}");
                }
                Err(failure) => tracing::error!("{failure}"),
            }
        }
        let failed = applied.failures().count();
        let changed = applied.outcomes.len() - failed;
        if changed > 0 || failed > 0 {
            tracing::info!(changed, failed, "synced");
        }
        Ok(failed == 0)
    }

    fn report_problems(&mut self, applied: &Applied) {
        let mut problems = applied.round.problems.clone();
        problems.extend(self.unread.iter().cloned());
        problems.sort();
        for problem in &problems {
            if self.reported.binary_search(problem).is_err() {
                tracing::warn!("{problem}");
            }
        }
        self.reported = problems;
    }
}
