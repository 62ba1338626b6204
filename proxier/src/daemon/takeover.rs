//! When the leftovers of kube-proxy are removed.
//!
//! ```text
//!                ┌── a sign of kube-proxy, or a write of its rules ──┐
//!                ▼                                                   │
//!  found ──▶ Watching ── unchanged for the quiet time ──▶ Removing ──▶ Done
//!                                                            │  found again
//!                                                            └──────────▶ Contested: left alone
//! ```
//!
//! The quiet time is longer than kube-proxy's sync period, within which it rewrites its rules in IPVS
//! mode. If both programs run, the rules differ at each look and stay.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::predecessor::{LeftoverClient, Leftovers, legacy, signs};

/// The pause before a second look at leftovers that were just removed.
const PAUSE: Duration = Duration::from_secs(1);

/// The number of looks at ipsets that rules still use before the log says so.
const PATIENCE: u32 = 3;

/// How much longer than the sync period the rules must remain unchanged: a sync takes time.
const MARGIN: Duration = Duration::from_secs(5);

/// Removes the leftovers of kube-proxy, and logs what lasts once.
#[derive(Debug)]
pub(crate) struct Takeover {
    client: LeftoverClient,
    /// The ports of kube-proxy's servers.
    ports: Vec<u16>,
    quiet: Duration,
    stage: Stage,
    /// When the next look is due before the next resync, in time since boot.
    due: Option<Duration>,
    logged: BTreeSet<String>,
}

/// How far the removal is.
#[derive(Debug)]
enum Stage {
    /// Nothing was found yet.
    Unseen,
    /// These leftovers are unchanged since that time.
    Watching(Leftovers, Duration),
    /// The rules were removed. The number of looks at remaining ipsets.
    Removing(u32),
    /// Everything was removed.
    Done,
    /// Another program made the rules again after their removal.
    Contested,
}

impl Takeover {
    /// Returns a removal for a kube-proxy with these ports and this sync period.
    pub(crate) fn new(client: LeftoverClient, ports: Vec<u16>, sync_period: Duration) -> Self {
        Self {
            client,
            ports,
            quiet: sync_period + MARGIN,
            stage: Stage::Unseen,
            due: None,
            logged: BTreeSet::new(),
        }
    }

    /// Returns when a look is due before the next resync, in time since boot.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Postpones the next look, because ours do not stand yet.
    pub(super) fn wait_for_resync(&mut self) {
        self.due = None;
    }

    /// Looks for leftovers at `now`, in time since boot, and removes those that may be removed.
    pub(super) fn look(&mut self, now: Duration) {
        self.due = None;
        let found = match self.client.find() {
            Ok(found) => found,
            Err(error) => return self.warn(format!("looking for leftovers of kube-proxy: {error}")),
        };
        let stage = std::mem::replace(&mut self.stage, Stage::Unseen);
        self.stage = self.next(stage, found, now);
    }

    fn next(&mut self, stage: Stage, found: Leftovers, now: Duration) -> Stage {
        match stage {
            Stage::Contested => Stage::Contested,
            Stage::Removing(_) if found.is_empty() => {
                tracing::info!("nothing of kube-proxy is left");
                Stage::Done
            }
            Stage::Done if found.is_empty() => Stage::Done,
            Stage::Unseen | Stage::Watching(..) if found.is_empty() => Stage::Unseen,
            Stage::Removing(looks) if found.rules.is_empty() => self.wait(found, looks, now),
            Stage::Removing(_) | Stage::Done => {
                self.warn(format!(
                    "{} exists again: kube-proxy, or another program, makes its rules beside this one; \
                     they stay until this program starts again; stop kube-proxy on this node",
                    found.lines().first().map_or("a leftover", |line| line)
                ));
                Stage::Contested
            }
            Stage::Unseen => self.watch(found, now),
            Stage::Watching(before, _) if before != found => self.watch(found, now),
            Stage::Watching(_, since) if now < since + self.quiet => {
                self.due = Some(since + self.quiet);
                Stage::Watching(found, since)
            }
            Stage::Watching(..) => match signs::find(&self.ports) {
                Some(sign) => {
                    self.warn(format!(
                        "kube-proxy seems to run beside this program ({sign}), so its chains and ipsets \
                         stay; stop it on this node"
                    ));
                    self.watch(found, now)
                }
                None => self.remove(found, now),
            },
        }
    }

    /// Begins the quiet time.
    fn watch(&mut self, found: Leftovers, now: Duration) -> Stage {
        self.due = Some(now + self.quiet);
        Stage::Watching(found, now)
    }

    fn remove(&mut self, found: Leftovers, now: Duration) -> Stage {
        if let Err(error) = self.client.remove(&found) {
            self.warn(format!("{error}; kube-proxy's rules stay for now"));
            return self.watch(found, now);
        }
        let removed = found.rules.lines().count();
        if removed > 0 {
            tracing::info!(
                removed,
                "removed the rules, chains and tables that kube-proxy left"
            );
        }
        for chain in &found.rules.used {
            self.warn(format!(
                "{chain} stays: a rule of another program jumps to it"
            ));
        }
        self.due = Some(now + PAUSE);
        Stage::Removing(0)
    }

    /// Removes the ipsets that are no longer used.
    fn wait(&mut self, found: Leftovers, looks: u32, now: Duration) -> Stage {
        if let Err(error) = self.client.remove(&found) {
            self.warn(format!("{error}; kube-proxy's ipsets stay for now"));
        }
        let used = found.used_sets().count();
        if used == 0 || looks < PATIENCE {
            self.due = Some(now + PAUSE);
            return Stage::Removing(looks + 1);
        }
        // Each resync looks again, after which the command may have been run.
        let commands = legacy::in_use();
        for command in &commands {
            self.warn(format!(
                "rules of iptables-legacy use {used} ipsets of kube-proxy, and this program cannot change \
                 them; run `{command}`, after which the ipsets are removed"
            ));
        }
        if commands.is_empty() {
            let names: Vec<&str> = found.used_sets().map(|set| &*set.name).collect();
            let names = names.join(", ");
            self.warn(format!(
                "rules of another program use the ipsets {names}, which stay"
            ));
        }
        Stage::Removing(looks)
    }

    /// Logs a warning, once.
    fn warn(&mut self, text: String) {
        if !self.logged.contains(&text) {
            tracing::warn!("{text}");
            self.logged.insert(text);
        }
    }
}
