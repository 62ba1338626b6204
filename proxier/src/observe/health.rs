//! The health of this proxy: facts that the daemon publishes, and the verdict about them.
//!
//! ```text
//! daemon ─▶ Board ─▶ Facts ─judge─▶ HealthVerdict ─▶ /healthz, /livez, health-check ports
//!           lock                  ▲
//!                    watch ─▶ ApiView
//! ```
//!
//! Two kinds of rules decide:
//!
//! * kube-proxy's rule, which `/livez` has too: if a change waits for longer than two sync periods,
//!   rounds have stopped.
//! * Our rules, for load balancers only: the kernel refuses the plan of the whole node, or the API server
//!   rejects this node's requests, so that its view is outdated.
//!
//! By default, an API server that does not answer makes no node unhealthy. It affects all nodes at once, and
//! no endpoint changes without it. If nodes became unhealthy then, load balancers would lose all of them,
//! although all serve. A limit is for clusters in which one node may lose its way to the API server.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The limits after which a condition makes the proxy unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a change may wait for its round: two sync periods, as in kube-proxy.
    pub freshness: Duration,
    /// How long the kernel may refuse the plan of the node; `None` for ever.
    pub kernel: Option<Duration>,
    /// How long the API server may reject this node's requests; `None` for ever.
    pub api: Option<Duration>,
    /// How long the API server may send nothing, for whatever reason; `None` for ever.
    pub silence: Option<Duration>,
}

impl Limits {
    /// Returns a time from `limit` to twice `limit` that depends on the name of the node.
    ///
    /// A mistake in the roles of all nodes then makes them unhealthy one by one, so that an operator
    /// sees it before the last load balancer is empty.
    pub fn staggered(limit: Duration, node_name: &str) -> Duration {
        // Another release of Rust may give the node another share, which does no harm.
        let mut hasher = DefaultHasher::new();
        node_name.hash(&mut hasher);
        let share = u32::try_from(hasher.finish() % 1_000).unwrap_or_default();
        limit + limit.mul_f64(f64::from(share) / 1_000.0)
    }
}

/// The state of the Node object that decides about new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// The Node object was not received yet.
    #[default]
    Unknown,
    /// The node stays.
    Staying,
    /// The node is being deleted, or the cluster autoscaler is about to delete it.
    Leaving,
}

/// The facts that the daemon publishes. Times without date are since boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The Node object.
    pub node: NodeState,
    /// When the last round ended that took effect; before the first one, when the loop started.
    pub updated: Option<SystemTime>,
    /// Whether a round was made.
    pub has_round: bool,
    /// The arrival of the oldest change that no round has programmed.
    pub queued: Option<Duration>,
    /// The begin of the present round; `None` between rounds.
    pub busy: Option<Duration>,
    /// What the kernel refuses, and since when.
    pub refusal: Option<NodeRefusal>,
}

/// A refusal of the kernel that concerns the whole node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRefusal {
    /// When the first round with a refusal ended, in time since boot. All rounds since then had one.
    pub since: Duration,
    /// What the kernel refuses.
    pub what: String,
}

/// This node's view of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiView {
    /// The time since the last list, change or bookmark of the API server, for the kind of object with the
    /// longest one; `None` before the first list, or without an API server.
    pub age: Option<Duration>,
    /// The last answer, if the API server answers and rejects this node's requests.
    pub rejection: Option<String>,
}

/// The verdict about the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthVerdict {
    /// Whether rounds are made in time: kube-proxy's `healthy` of each family.
    pub is_fresh: bool,
    /// Why the proxy is unhealthy by our own rules; empty if it is healthy.
    pub reasons: Vec<String>,
    /// Why the node should get no new connections; `None` if it should.
    pub ineligible: Option<&'static str>,
}

impl HealthVerdict {
    /// Returns whether the proxy is healthy, whatever the Node object says.
    pub fn is_healthy(&self) -> bool {
        self.is_fresh && self.reasons.is_empty()
    }

    /// Returns whether the node should get new connections, as far as its Node object says.
    pub fn is_node_eligible(&self) -> bool {
        self.ineligible.is_none()
    }

    /// Returns why `/healthz` fails, by kube-proxy's rules and by ours; nothing if it does not.
    pub fn causes(&self) -> impl Iterator<Item = &str> {
        let late = (!self.is_fresh).then_some("changes wait too long for a round");
        let of_rules = late.into_iter().chain(self.ineligible);
        of_rules.chain(self.reasons.iter().map(String::as_str))
    }
}

impl Facts {
    /// Returns the verdict at `now`, in time since boot.
    pub fn judge(&self, api: &ApiView, limits: &Limits, now: Duration) -> HealthVerdict {
        // The earlier one: a round that never ends is a failure even if no change waits behind it.
        let waiting = [self.queued, self.busy].into_iter().flatten().min();
        let is_over = |since: Duration, limit| now.saturating_sub(since) >= limit;
        let mut reasons = Vec::new();
        // Otherwise a load balancer would send clients to a node that serves nothing yet.
        if !self.has_round {
            reasons.push("the node is not programmed yet".to_owned());
        }
        if let (Some(refusal), Some(limit)) = (&self.refusal, limits.kernel)
            && is_over(refusal.since, limit)
        {
            let seconds = now.saturating_sub(refusal.since).as_secs();
            reasons.push(format!("for {seconds} s, {}", refusal.what));
        }
        if let (Some(rejection), Some(age), Some(limit)) = (&api.rejection, api.age, limits.api)
            && age >= limit
        {
            let seconds = age.as_secs();
            reasons.push(format!(
                "for {seconds} s, the API server rejects this node's requests: {rejection}"
            ));
        }
        // A rejection is the better explanation.
        if let (None, Some(age), Some(limit)) = (&api.rejection, api.age, limits.silence)
            && age >= limit
        {
            let seconds = age.as_secs();
            reasons.push(format!("for {seconds} s, the API server sends nothing"));
        }
        HealthVerdict {
            is_fresh: !waiting.is_some_and(|since| is_over(since, limits.freshness)),
            reasons,
            ineligible: match self.node {
                NodeState::Staying => None,
                NodeState::Unknown => Some(
                    "this node's Node object is unknown; --hostname-override names it if the host has another name",
                ),
                NodeState::Leaving => Some(
                    "the Node is being deleted, or has the taint ToBeDeletedByClusterAutoscaler",
                ),
            },
        }
    }

    /// Notes the begin of a round at `now`.
    pub fn begin(&mut self, now: Duration) {
        self.busy = Some(now);
    }

    /// Notes a change that waits for a round.
    ///
    /// Before the first round it is not noted: the input may be incomplete for as long as the API
    /// server is down, and a restart by kubelet would not help.
    pub fn queue(&mut self, now: Duration) {
        if self.has_round && self.queued.is_none() {
            self.queued = Some(now);
        }
    }

    /// Notes the end of a round that took effect, apart from `refused` parts.
    pub fn end(&mut self, refused: Option<String>, now: Duration, wall: SystemTime) {
        self.busy = None;
        self.queued = None;
        self.has_round = true;
        self.updated = Some(wall);
        self.refuse(refused, now);
    }

    /// Notes the end of a round that failed as a whole. Its changes still wait.
    pub fn fail(&mut self, why: String, now: Duration) {
        self.busy = None;
        self.refuse(Some(why), now);
    }

    fn refuse(&mut self, what: Option<String>, now: Duration) {
        let since = self.refusal.as_ref().map_or(now, |refusal| refusal.since);
        self.refusal = what.map(|what| NodeRefusal { since, what });
    }
}

/// The facts behind a lock. Both sides hold it only for a copy, so neither waits for the other.
#[derive(Debug, Default)]
pub struct Board(Mutex<Facts>);

impl Board {
    /// Returns a copy of the facts.
    pub fn read(&self) -> Facts {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes the facts.
    pub fn change(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        freshness: secs(60),
        kernel: Some(secs(60)),
        api: Some(secs(1_800)),
        silence: None,
    };

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Returns the facts of a node that made its first round at time 100.
    fn programmed() -> Facts {
        let mut facts = Facts {
            node: NodeState::Staying,
            ..Facts::default()
        };
        facts.begin(secs(99));
        facts.end(None, secs(100), SystemTime::UNIX_EPOCH);
        facts
    }

    fn judge(facts: &Facts, now: u64) -> HealthVerdict {
        facts.judge(&ApiView::default(), &LIMITS, secs(now))
    }

    #[test]
    fn a_node_without_a_round_is_alive_but_not_healthy() {
        let mut facts = Facts::default();
        facts.queue(secs(1));
        let verdict = judge(&facts, 1_000);
        assert!(verdict.is_fresh && !verdict.is_healthy() && !verdict.is_node_eligible());
    }

    #[test]
    fn a_change_may_wait_for_less_than_two_sync_periods() {
        let mut facts = programmed();
        assert!(judge(&facts, 100_000).is_healthy(), "nothing waits");
        facts.queue(secs(200));
        facts.queue(secs(259));
        assert!(judge(&facts, 259).is_fresh);
        assert!(!judge(&facts, 260).is_fresh, "the oldest change counts");
        facts.begin(secs(261));
        assert!(!judge(&facts, 261).is_fresh);
        facts.end(None, secs(262), SystemTime::UNIX_EPOCH);
        assert!(judge(&facts, 100_000).is_fresh);
    }

    #[test]
    fn a_round_that_never_ends_is_found_without_a_change() {
        let mut facts = programmed();
        facts.begin(secs(200));
        assert!(judge(&facts, 259).is_fresh);
        assert!(!judge(&facts, 260).is_fresh);
    }

    #[test]
    fn a_refusal_counts_from_its_first_round_and_ends_with_the_first_without() {
        let mut facts = programmed();
        facts.fail("reading fails".to_owned(), secs(200));
        facts.end(
            Some("it refuses".to_owned()),
            secs(230),
            SystemTime::UNIX_EPOCH,
        );
        assert!(judge(&facts, 259).is_healthy());
        assert_eq!(judge(&facts, 260).reasons, ["for 60 s, it refuses"]);
        assert!(judge(&facts, 260).is_fresh, "a restart would not help");
        let never = Limits {
            kernel: None,
            ..LIMITS
        };
        let api = ApiView::default();
        assert!(facts.judge(&api, &never, secs(9_999)).is_healthy());
        facts.end(None, secs(261), SystemTime::UNIX_EPOCH);
        assert!(judge(&facts, 9_999).is_healthy());
    }

    #[test]
    fn a_server_that_rejects_makes_a_node_unhealthy_and_one_that_is_silent_does_not() {
        let facts = programmed();
        let mut api = ApiView {
            age: Some(secs(1_800)),
            rejection: Some("403".to_owned()),
        };
        assert!(!facts.judge(&api, &LIMITS, secs(200)).is_healthy());
        api.age = Some(secs(1_799));
        assert!(facts.judge(&api, &LIMITS, secs(200)).is_healthy());
        let silent = ApiView {
            age: Some(secs(1_000_000)),
            rejection: None,
        };
        assert!(facts.judge(&silent, &LIMITS, secs(200)).is_healthy());
    }

    #[test]
    fn a_silent_server_makes_a_node_unhealthy_after_the_limit_for_it() {
        let facts = programmed();
        let limits = Limits {
            silence: Some(secs(600)),
            ..LIMITS
        };
        let verdict = |age, rejection: Option<&str>| {
            let api = ApiView {
                age: Some(secs(age)),
                rejection: rejection.map(str::to_owned),
            };
            facts.judge(&api, &limits, secs(200)).reasons
        };
        assert_eq!(verdict(599, None), [""; 0]);
        assert_eq!(
            verdict(600, None),
            ["for 600 s, the API server sends nothing"]
        );
        assert_eq!(
            verdict(600, Some("403")),
            [""; 0],
            "the limit of rejections is longer"
        );
    }

    #[test]
    fn a_limit_is_spread_over_its_own_length() {
        let times: Vec<_> = (0..100)
            .map(|node| Limits::staggered(secs(1_800), &format!("node-{node}")).as_secs())
            .collect();
        assert!(times.iter().all(|time| (1_800..3_600).contains(time)));
        let early = times.iter().filter(|&&time| time < 2_700).count();
        assert!(
            (30..=70).contains(&early),
            "{early} of 100 in the first half"
        );
    }

    #[test]
    fn a_node_is_eligible_if_it_is_known_and_stays() {
        let eligible = |node| {
            let facts = Facts {
                node,
                ..programmed()
            };
            judge(&facts, 100).is_node_eligible()
        };
        assert!(eligible(NodeState::Staying));
        assert!(!eligible(NodeState::Leaving) && !eligible(NodeState::Unknown));
    }
}
