//! Decides when the leftovers of kube-proxy are removed.
//!
//! ```text
//!                ┌── a sign of kube-proxy, or a write of its rules ──┐
//!                ▼                                                   │
//!  Unseen ──▶ Watching ── unchanged for the quiet time ──▶ Removing ──▶ Done
//!                                                              │  found again
//!                                                              └──────────▶ Contested: left alone
//! ```
//!
//! kube-proxy in IPVS mode rewrites its rules within each sync period, and the quiet time is longer. So if
//! both programs run, the rules differ at each look and stay.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Chore, Round};
use crate::dataplane::Dataplane;
use crate::host::predecessor::{LeftoverClient, Leftovers, legacy, signs};

/// The pause before a second look at leftovers that were just removed.
const PAUSE: Duration = Duration::from_secs(1);

/// The number of looks at ipsets that rules still use before the log says so.
const PATIENCE: u32 = 3;

/// The difference between the quiet time and the sync period: a sync takes time.
const MARGIN: Duration = Duration::from_secs(5);

/// Removes the leftovers of kube-proxy, and logs each warning once.
#[derive(Debug)]
pub(crate) struct Takeover {
    client: LeftoverClient,
    /// The ports of kube-proxy's servers.
    ports: Vec<u16>,
    quiet: Duration,
    progress: TakeoverProgress,
    /// When the next look is due before the next resync, in time since boot.
    due: Option<Duration>,
    /// The warnings that were logged.
    warnings: BTreeSet<String>,
    /// Whether the log has the commands for iptables-legacy, if there is one.
    knows_legacy: bool,
}

/// How far the removal is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TakeoverProgress {
    /// Nothing was found yet.
    Unseen,
    /// These leftovers are unchanged since that time.
    Watching(Leftovers, Duration),
    /// The rules were removed. The number of looks at remaining ipsets.
    Removing(u32),
    /// Everything was removed.
    Done,
    /// Another program wrote the rules again after their removal.
    Contested,
}

/// The step after a look.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LookResult {
    /// Nothing until the next resync.
    Rest,
    /// Look again at this time.
    LookAt(Duration),
    /// Remove everything, unless there is a sign of kube-proxy.
    Remove,
    /// Destroy the ipsets that are no longer used, and look again soon.
    DestroySets,
    /// Destroy the unused ipsets, and log which rules use the remaining ones.
    ReportSets,
    /// Log that everything was removed.
    ReportEnd,
    /// Log that another program writes the rules too.
    ReportContest,
}

impl TakeoverProgress {
    /// Returns the step after a look at `now` that found `found`.
    fn advance(&mut self, found: &Leftovers, quiet: Duration, now: Duration) -> LookResult {
        // A placeholder, so that the leftovers can be moved and need not be copied.
        let (next, result) = match std::mem::replace(self, Self::Contested) {
            Self::Contested => (Self::Contested, LookResult::Rest),
            Self::Removing(_) if found.is_empty() => (Self::Done, LookResult::ReportEnd),
            Self::Done if found.is_empty() => (Self::Done, LookResult::Rest),
            Self::Unseen | Self::Watching(..) if found.is_empty() => {
                (Self::Unseen, LookResult::Rest)
            }
            // The kernel counts the uses of a removed rule until it frees the rule, so the first looks may
            // still find ipsets in use.
            Self::Removing(looks) if found.rules.is_empty() => {
                let is_stuck = looks >= PATIENCE && found.has_sets_in_use();
                match is_stuck {
                    true => (Self::Removing(looks), LookResult::ReportSets),
                    false => (Self::Removing(looks + 1), LookResult::DestroySets),
                }
            }
            Self::Removing(_) | Self::Done => (Self::Contested, LookResult::ReportContest),
            Self::Watching(before, since) if before == *found => {
                let result = match since + quiet {
                    end if now < end => LookResult::LookAt(end),
                    _ => LookResult::Remove,
                };
                (Self::Watching(before, since), result)
            }
            Self::Unseen | Self::Watching(..) => {
                let next = Self::Watching(found.clone(), now);
                (next, LookResult::LookAt(now + quiet))
            }
        };
        *self = next;
        result
    }
}

impl Takeover {
    /// Returns a removal for a kube-proxy with these ports and this sync period.
    pub(crate) fn new(client: LeftoverClient, ports: Vec<u16>, sync_period: Duration) -> Self {
        Self {
            client,
            ports,
            quiet: sync_period + MARGIN,
            progress: TakeoverProgress::Unseen,
            due: None,
            warnings: BTreeSet::new(),
            knows_legacy: false,
        }
    }

    /// Looks for leftovers at `now`, in time since boot, and removes those that may be removed.
    fn look(&mut self, now: Duration) {
        let found = match self.client.find() {
            Ok(found) => found,
            Err(error) => {
                self.due = None;
                return self.warn(format!("looking for leftovers of kube-proxy: {error}"));
            }
        };
        let result = self.progress.advance(&found, self.quiet, now);
        self.due = match result {
            LookResult::LookAt(at) => Some(at),
            LookResult::Remove => Some(self.remove(found, now)),
            LookResult::DestroySets => {
                self.destroy_sets(&found);
                Some(now + PAUSE)
            }
            LookResult::ReportSets => {
                self.destroy_sets(&found);
                self.report_sets(&found);
                None
            }
            LookResult::ReportContest => {
                self.report_contest(&found);
                None
            }
            LookResult::ReportEnd => {
                tracing::info!("nothing of kube-proxy is left");
                self.report_legacy();
                None
            }
            LookResult::Rest => {
                self.report_legacy();
                None
            }
        };
    }

    /// Removes the leftovers, unless there is a sign of kube-proxy. Returns when to look again.
    fn remove(&mut self, found: Leftovers, now: Duration) -> Duration {
        let refusal = match signs::find(&self.ports) {
            // It would write its rules again within its sync period, so a removal would only
            // disturb traffic.
            Some(sign) => format!(
                "kube-proxy seems to run beside this program ({sign}), so its chains and ipsets stay; stop \
                 it on this node"
            ),
            None => match self.client.remove(&found) {
                Ok(()) => {
                    self.report_removal(&found);
                    self.progress = TakeoverProgress::Removing(0);
                    return now + PAUSE;
                }
                Err(error) => format!("{error}; kube-proxy's rules stay for now"),
            },
        };
        self.warn(refusal);
        self.progress = TakeoverProgress::Watching(found, now);
        now + self.quiet
    }

    fn destroy_sets(&mut self, found: &Leftovers) {
        if let Err(error) = self.client.remove(found) {
            self.warn(format!("{error}; kube-proxy's ipsets stay for now"));
        }
    }

    fn report_removal(&mut self, found: &Leftovers) {
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
    }

    /// Logs which rules use the remaining ipsets. Each resync looks again.
    fn report_sets(&mut self, found: &Leftovers) {
        let used: Vec<&str> = found.used_sets().map(|set| &*set.name).collect();
        self.knows_legacy = true;
        let commands = legacy::programs_with(legacy::IPVS_MODE);
        for command in &commands {
            self.warn(format!(
                "rules of iptables-legacy use {} ipsets of kube-proxy, and this program cannot change them; \
                 run `{command}`, after which the ipsets are removed",
                used.len()
            ));
        }
        if commands.is_empty() {
            let names = used.join(", ");
            self.warn(format!(
                "rules of another program use the ipsets {names}, which stay"
            ));
        }
    }

    /// Logs the commands for chains that the iptables mode may have left in iptables-legacy.
    fn report_legacy(&mut self) {
        if std::mem::replace(&mut self.knows_legacy, true) {
            return;
        }
        for command in legacy::programs_with(legacy::IPTABLES_MODE) {
            self.warn(format!(
                "iptables-legacy has the tables mangle, nat and filter, which this program can neither read \
                 nor change; if kube-proxy's iptables mode used them, run `{command}`; without its chains it \
                 changes nothing"
            ));
        }
    }

    fn report_contest(&mut self, found: &Leftovers) {
        let lines = found.lines();
        let first = lines.first().map_or("a rule", |line| line);
        self.warn(format!(
            "{first} exists again: kube-proxy or another program writes its rules again; they stay until \
             this program restarts; stop kube-proxy on this node"
        ));
    }

    /// Logs a warning, once.
    fn warn(&mut self, text: String) {
        if !self.warnings.contains(&text) {
            tracing::warn!("{text}");
            self.warnings.insert(text);
        }
    }
}

impl<D: Dataplane> Chore<D> for Takeover {
    fn due(&self) -> Option<Duration> {
        self.due
    }

    fn after(&mut self, round: &Round<'_, D>) {
        if round.result.is_err() || !round.is_due(self.due) {
            return;
        }
        if round.has_succeeded() && round.proxier.dataplane().has_written_rules() {
            self.look(round.now);
        } else {
            // Without our rules or virtual servers, kube-proxy's leftovers may still serve the node. The next resync
            // looks again.
            self.due = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::TableName;
    use crate::host::ipset::IpSet;

    const QUIET: Duration = Duration::from_secs(35);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Leftovers with a table, and with an ipset that this number of rules use.
    fn leftovers(has_table: bool, set: Option<u32>) -> Leftovers {
        let mut leftovers = Leftovers::default();
        if has_table {
            leftovers.rules.tables.insert(TableName {
                family: "ip",
                name: "kube-proxy".into(),
            });
        }
        leftovers.sets.extend(set.map(|references| IpSet {
            name: "KUBE-CLUSTER-IP".into(),
            references,
        }));
        leftovers
    }

    #[test]
    fn leftovers_are_removed_only_after_they_did_not_change_for_the_quiet_time() {
        let mut progress = TakeoverProgress::Unseen;
        let first = leftovers(true, Some(1));
        let mut look = |found: &Leftovers, at| progress.advance(found, QUIET, secs(at));
        assert_eq!(look(&Leftovers::default(), 0), LookResult::Rest);
        assert_eq!(look(&first, 10), LookResult::LookAt(secs(45)));
        assert_eq!(look(&first, 40), LookResult::LookAt(secs(45)));
        // kube-proxy wrote: the time begins again.
        let second = leftovers(true, Some(2));
        assert_eq!(look(&second, 45), LookResult::LookAt(secs(80)));
        assert_eq!(look(&second, 80), LookResult::Remove);
    }

    #[test]
    fn ipsets_that_other_rules_use_are_reported_and_looked_at_again() {
        let mut progress = TakeoverProgress::Removing(0);
        let used = leftovers(false, Some(1));
        for _ in 0..PATIENCE {
            assert_eq!(
                progress.advance(&used, QUIET, secs(1)),
                LookResult::DestroySets
            );
        }
        for _ in 0..2 {
            assert_eq!(
                progress.advance(&used, QUIET, secs(9)),
                LookResult::ReportSets
            );
        }
        let unused = leftovers(false, Some(0));
        assert_eq!(
            progress.advance(&unused, QUIET, secs(30)),
            LookResult::DestroySets
        );
        let none = Leftovers::default();
        assert_eq!(
            progress.advance(&none, QUIET, secs(31)),
            LookResult::ReportEnd
        );
        assert_eq!(progress.advance(&none, QUIET, secs(60)), LookResult::Rest);
    }

    #[test]
    fn rules_that_return_are_left_alone_for_good() {
        for removed in [TakeoverProgress::Removing(1), TakeoverProgress::Done] {
            let mut progress = removed;
            let found = leftovers(true, None);
            assert_eq!(
                progress.advance(&found, QUIET, secs(1)),
                LookResult::ReportContest
            );
            for at in [2, 100, 1_000] {
                assert_eq!(progress.advance(&found, QUIET, secs(at)), LookResult::Rest);
            }
        }
    }
}
