//! Which endpoints are new: the times behind slow start.
//!
//! ```text
//! Snapshot ─┐
//! now ──────┼─▶ Newcomers ─▶ Standings ─▶ planner
//! file ─────┘
//! ```
//!
//! A new endpoint has one step, from a small weight to the whole one. Each change of a server disturbs the schedulers of
//! all nodes, so more steps are worse for wrr and no better for others (`bench compare --scenarios start-64,..`). Each node
//! makes the step at another time, so the load of the endpoint grows smoothly in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::time::Duration;

use super::earlier::Earlier;
use crate::cluster::model::ObjectName;
use crate::cluster::store::{Snapshot, Touched};
use crate::plan::{PlanConfig, Standings, slow_start};

/// The new endpoints of all Services with slow start.
#[derive(Debug, Default)]
pub(crate) struct Newcomers {
    services: BTreeMap<ObjectName, Starts>,
    /// When the first endpoint of a Service is no longer new, in time since boot.
    due: BTreeMap<ObjectName, Duration>,
    /// What an earlier process knew; empty after the first look at all Services.
    earlier: Earlier<Start>,
    revision: u64,
}

/// The endpoints of a Service with slow start.
#[derive(Debug)]
struct Starts {
    ready: BTreeSet<IpAddr>,
    /// Those of them that are new.
    new: BTreeMap<IpAddr, Start>,
}

/// The start of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// When it is no longer new, in time since boot.
    pub(crate) until: Duration,
    /// Whether it has a smaller weight until then.
    pub(crate) is_slow: bool,
}

impl Newcomers {
    /// Returns the new endpoints that an earlier process knew.
    pub(crate) fn remembering(
        starts: impl IntoIterator<Item = (ObjectName, IpAddr, Start)>,
    ) -> Self {
        Self {
            earlier: starts.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Returns when the next endpoint is no longer new, in time since boot.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due.values().min().copied()
    }

    /// Returns a number that increases when an endpoint begins or ceases to be new.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns all new endpoints, also of Services that were not seen yet.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&ObjectName, IpAddr, Start)> {
        let seen = self.services.iter().flat_map(|(name, it)| {
            let new = it.new.iter();
            new.map(move |(address, start)| (name, *address, *start))
        });
        seen.chain(self.earlier.iter())
    }

    /// Learns of the touched Services, and of the time; notes in `standings` which endpoints have smaller weights.
    ///
    /// # Cost
    /// Proportional to the touched Services with slow start, their endpoints, and the Services with new endpoints.
    pub(super) fn update(
        &mut self,
        snapshot: &Snapshot,
        (touched, now): (&Touched, Duration),
        config: &PlanConfig,
        standings: &mut Standings,
    ) {
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        let mut names: BTreeSet<ObjectName> = due.map(|(name, _)| name.clone()).collect();
        match touched {
            Touched::Some(touched) => {
                let concerned = touched.iter().filter(|name| {
                    let service = snapshot.service(name);
                    let is_slow = service.is_some_and(|it| slow_start(it, config).is_some());
                    is_slow || self.services.contains_key(name)
                });
                names.extend(concerned.cloned());
            }
            Touched::All => {
                let slow = snapshot
                    .services()
                    .filter(|it| slow_start(it, config).is_some());
                names.extend(slow.map(|service| service.name.clone()));
                names.extend(self.services.keys().cloned());
            }
        }
        for name in names {
            let service = snapshot.service(&name);
            let window = service.and_then(|service| slow_start(service, config));
            let reduced = match window {
                Some(window) => self.look(&name, snapshot, (window, now), &config.node_name),
                None => self.forget(&name),
            };
            standings.set_new(&name, reduced);
        }
        if *touched == Touched::All {
            // The rest is of Services that are gone, or have no slow start now.
            self.revision += u64::from(self.earlier.forget());
        }
    }

    fn forget(&mut self, name: &ObjectName) -> BTreeSet<IpAddr> {
        let known = self.services.remove(name);
        self.revision += u64::from(known.is_some_and(|it| !it.new.is_empty()));
        self.due.remove(name);
        BTreeSet::new()
    }

    /// Looks at the endpoints of a Service with slow start; returns those with smaller weights.
    fn look(
        &mut self,
        name: &ObjectName,
        snapshot: &Snapshot,
        (window, now): (Duration, Duration),
        node: &str,
    ) -> BTreeSet<IpAddr> {
        let endpoints = snapshot.slices(name).flat_map(|slice| &slice.endpoints);
        let ready = endpoints.filter(|endpoint| endpoint.is_ready);
        let ready: BTreeSet<IpAddr> = ready.map(|endpoint| endpoint.address).collect();
        let earlier = &mut self.earlier;
        let known = self.services.entry(name.clone()).or_insert_with(|| Starts {
            // At first sight all are old: the Service did without slow start, or this process starts.
            ready: ready.clone(),
            new: earlier.take(name),
        });
        let mut new = known.new.clone();
        new.retain(|address, start| start.until > now && ready.contains(address));
        let until = now + step(window, name, node);
        let start = Start {
            // Whole, so that the endpoints of many Services, which tenants start when they like, share one round per second.
            until: Duration::from_secs(until.as_secs() + 1),
            is_slow: true,
        };
        new.extend(
            ready
                .difference(&known.ready)
                .map(|address| (*address, start)),
        );
        // Otherwise few old endpoints would get the load of all. Then they stay as they are, so that no weight shrinks later.
        if new.len() * 2 > ready.len() {
            new.values_mut().for_each(|start| start.is_slow = false);
        }
        self.revision += u64::from(new != known.new);
        match new.values().map(|start| start.until).min() {
            Some(first) => self.due.insert(name.clone(), first),
            None => self.due.remove(name),
        };
        *known = Starts { ready, new };
        let slow = known.new.iter().filter(|(_, start)| start.is_slow);
        slow.map(|(address, _)| *address).collect()
    }
}

/// Returns how long an endpoint of this Service is new at this node: between half of `window` and all of it.
///
/// Endpoints that start together make their steps together, so that the scheduler of a node is disturbed once.
fn step(window: Duration, service: &ObjectName, node: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    (service, node).hash(&mut hasher);
    let part = (hasher.finish() >> 32) as f64 / 2_f64.powi(32);
    window.mul_f64((1.0 + part) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::manifests::{self, Options};

    /// The window of the Service `default/web`.
    const WINDOW: Duration = Duration::from_secs(60);

    /// Returns the Service with ready endpoints at these last bytes of addresses.
    fn snapshot(ready: &[u8]) -> Snapshot {
        let endpoints = ready
            .iter()
            .map(|byte| format!("{{addresses: [10.0.0.{byte}]}}"));
        let endpoints = endpoints.collect::<Vec<_>>().join(", ");
        let manifest = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default, annotations: \
             {{ipvs-proxier.io/slow-start: 60s, ipvs-proxier.io/scheduler: wrr}}}}\n\
             spec: {{clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{{port: 80}}]}}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: web-1, namespace: default, labels: {{kubernetes.io/service-name: web}}}}\n\
             addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{endpoints}]\n"
        );
        let options = Options {
            service_cidr: Vec::new(),
            node_name: "here".into(),
            permits_loopback: false,
        };
        let loaded = manifests::parse(&manifest, "test.yaml", &options);
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        let mut snapshot = Snapshot::default();
        for event in loaded.events {
            snapshot.apply(event, &mut Touched::none());
        }
        snapshot
    }

    fn web() -> ObjectName {
        ObjectName::new("default", "web")
    }

    fn look(newcomers: &mut Newcomers, secs: u64, ready: &[u8]) -> Vec<u8> {
        let mut touched = Touched::none();
        touched.add([&web()]);
        let now = (&touched, Duration::from_secs(secs));
        let mut standings = Standings::default();
        newcomers.update(
            &snapshot(ready),
            now,
            &PlanConfig::default(),
            &mut standings,
        );
        let last = |address: &IpAddr| match address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        };
        let new = standings.new_of(&web()).into_iter().flatten();
        new.map(last).collect()
    }

    #[test]
    fn an_endpoint_is_new_beside_at_least_as_many_old_ones() {
        type Looks<'a> = &'a [(u64, &'a [u8], &'a [u8])];
        let cases: [(&str, Looks<'_>); 8] = [
            ("at first sight all are old", &[(0, &[1, 2], &[])]),
            (
                "one more",
                &[(0, &[1], &[]), (1, &[1, 2], &[2]), (61, &[1, 2], &[])],
            ),
            (
                "all are new",
                &[
                    (0, &[], &[]),
                    (1, &[1], &[]),
                    (2, &[1, 2], &[]),
                    (3, &[1, 2, 3], &[]),
                ],
            ),
            (
                "more than half",
                &[
                    (0, &[1], &[]),
                    (1, &[1, 2], &[2]),
                    (2, &[1, 2, 3], &[]),
                    (9, &[1, 2, 3], &[]),
                ],
            ),
            (
                "after all grew old",
                &[(0, &[], &[]), (1, &[1], &[]), (99, &[1, 2], &[2])],
            ),
            (
                "the old one leaves",
                &[(0, &[1], &[]), (1, &[1, 2], &[2]), (2, &[2], &[])],
            ),
            (
                "it leaves and returns",
                &[
                    (0, &[1], &[]),
                    (1, &[1, 2], &[2]),
                    (2, &[1], &[]),
                    (70, &[1, 2], &[2]),
                ],
            ),
            (
                "a rollout",
                &[
                    (0, &[1, 2], &[]),
                    (1, &[1, 2, 3], &[3]),
                    (2, &[2, 3], &[3]),
                    (70, &[2, 3, 4], &[4]),
                ],
            ),
        ];
        for (case, looks) in cases {
            let mut newcomers = Newcomers::default();
            for &(secs, ready, reduced) in looks {
                assert_eq!(
                    look(&mut newcomers, secs, ready),
                    reduced,
                    "{case} at {secs} s"
                );
            }
        }
    }

    #[test]
    fn a_step_is_due_in_the_second_half_of_the_window_at_another_time_on_each_node() {
        let mut newcomers = Newcomers::default();
        look(&mut newcomers, 0, &[1]);
        assert_eq!(newcomers.due(), None);
        look(&mut newcomers, 1, &[1, 2]);
        let due = newcomers.due().unwrap();
        assert!(
            (Duration::from_secs(31)..=Duration::from_secs(61)).contains(&due),
            "{due:?}"
        );
        assert_eq!(due.subsec_nanos(), 0, "{due:?}");
        let steps = (0..100).map(|node| step(WINDOW, &web(), &format!("node-{node}")).as_secs());
        let distinct: BTreeSet<u64> = steps.collect();
        assert!(
            distinct.len() > 20 && distinct.iter().all(|it| (30..60).contains(it)),
            "{distinct:?}"
        );
    }

    #[test]
    fn a_restart_keeps_what_is_new() {
        let mut before = Newcomers::default();
        look(&mut before, 0, &[1, 2]);
        look(&mut before, 1, &[1, 2, 3]);
        let kept: Vec<_> = before
            .all()
            .map(|(name, address, start)| (name.clone(), address, start))
            .collect();
        let mut after = Newcomers::remembering(kept);
        assert_eq!(look(&mut after, 2, &[1, 2, 3]), [3]);
        assert_eq!(after.due(), before.due());
        assert!(look(&mut after, 62, &[1, 2, 3]).is_empty());
        assert_eq!(after.due(), None);
    }

    #[test]
    fn what_an_earlier_process_knew_of_services_that_are_gone_is_forgotten() {
        let start = Start {
            until: WINDOW,
            is_slow: true,
        };
        let names = [web(), ObjectName::new("default", "gone")];
        let address = IpAddr::from([10, 0, 0, 2]);
        let mut newcomers = Newcomers::remembering(names.map(|name| (name, address, start)));
        let all = (&Touched::All, Duration::ZERO);
        let config = PlanConfig::default();
        newcomers.update(&snapshot(&[1, 2]), all, &config, &mut Standings::default());
        let names: Vec<_> = newcomers.all().map(|(name, ..)| name.clone()).collect();
        assert_eq!(names, [web()]);
        // The file is written without it.
        assert_eq!(newcomers.revision(), 1);
    }
}
