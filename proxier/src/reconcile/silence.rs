//! Which endpoints do not answer: passive health with the counters of the dataplane.
//!
//! ```text
//! Tally, every PERIOD ─▶ Silence ─▶ Standings ─▶ planner
//! ```
//!
//! Not with connection tracking's events: an entry of a connection without an answer is destroyed two minutes after the
//! client's last SYN, and a client whose packets a NetworkPolicy drops would make every endpoint look dead. The counters
//! show within seconds that an endpoint sends nothing to anybody, and cost one request for each frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::earlier::Earlier;
use crate::cluster::model::{ObjectName, Service};
use crate::cluster::store::{Snapshot, Touched};
use crate::dataplane::Tally;
use crate::plan::{Answers, Capabilities, Standings};

/// How often the counters are read. The kernel adds to those of IPVS every 2 s, so each reading has all answers to the
/// connections of the reading before.
const PERIOD: Duration = Duration::from_secs(5);

/// The pauses of a silent endpoint: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// The endpoints of the Services with passive health.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    services: BTreeMap<ObjectName, Heard>,
    /// When the counters are read next, in time since boot.
    next: Duration,
    /// The Service that was read last. The next reading begins with the one after it.
    last: Option<ObjectName>,
    /// The silent endpoints that an earlier process knew; empty after the first look at all Services.
    earlier: Earlier<Duration>,
    revision: u64,
}

/// What was heard of the endpoints of a Service.
#[derive(Debug, Default)]
struct Heard {
    /// The number of connections without an answer that an endpoint may have in a row.
    limit: u64,
    endpoints: BTreeMap<IpAddr, Hearing>,
}

/// What was heard of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Hearing {
    /// What it got and gave until the last reading; `None` before the first.
    total: Option<Answers>,
    /// The connections between the last two readings, some of which may still be answered.
    recent: u64,
    /// The connections before, since the last answer.
    unanswered: u64,
    /// How often it was left out in a row.
    pauses: u32,
    /// Until when it is left out, in time since boot.
    until: Option<Duration>,
}

impl Silence {
    /// Returns the silent endpoints that an earlier process knew, each with the end of its pause.
    pub(crate) fn remembering(
        silent: impl IntoIterator<Item = (ObjectName, IpAddr, Duration)>,
    ) -> Self {
        Self {
            earlier: silent.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Returns a number that increases when an endpoint begins or ceases to be silent.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns all silent endpoints, also of Services that were not seen yet.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&ObjectName, IpAddr, Duration)> {
        let heard = self.services.iter().flat_map(|(name, heard)| {
            let endpoints = heard.endpoints.iter();
            endpoints.filter_map(move |(address, it)| Some((name, *address, it.until?)))
        });
        heard.chain(self.earlier.iter())
    }

    /// Returns when the counters are read next, in time since boot; `None` if no Service asks for it.
    pub(super) fn due(&self) -> Option<Duration> {
        (!self.services.is_empty()).then_some(self.next)
    }

    /// Returns the Services whose counters are due at `now`, and notes that they are read. First ends the pauses that are
    /// over, of all Services: otherwise one with many frontends would prolong the pauses of others, whose turn to be read
    /// comes later.
    ///
    /// # Cost
    /// Linear in the endpoints of Services with passive health, if the counters are due.
    pub(super) fn take_due(&mut self, now: Duration, standings: &mut Standings) -> Vec<ObjectName> {
        if self.due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.next = now + PERIOD;
        for (name, heard) in &mut self.services {
            if heard.end_pauses(now) {
                standings.set_silent(name, heard.silent());
                self.revision += 1;
            }
        }
        let names = self.services.keys();
        let later = names
            .clone()
            .filter(|name| Some(*name) > self.last.as_ref());
        let earlier = names.filter(|name| Some(*name) <= self.last.as_ref());
        later.chain(earlier).cloned().collect()
    }

    /// Learns which of the touched Services ask for passive health: none where nothing counts answers. There, an endpoint
    /// that an earlier process left out, with another dataplane, would never return.
    pub(super) fn follow(
        &mut self,
        snapshot: &Snapshot,
        (touched, capabilities): (&Touched, &Capabilities),
        standings: &mut Standings,
    ) {
        if capabilities.lacks_answers {
            self.drop_earlier();
            return;
        }
        match touched {
            Touched::Some(names) => {
                for name in names {
                    self.learn(name, snapshot, standings);
                }
            }
            Touched::All => {
                let known: Vec<ObjectName> = self.services.keys().cloned().collect();
                let all = snapshot.services().map(|service| &service.name);
                for name in known.iter().chain(all) {
                    self.learn(name, snapshot, standings);
                }
                // The rest is of Services that are gone, or have no passive health now.
                self.drop_earlier();
            }
        }
    }

    fn drop_earlier(&mut self) {
        self.revision += u64::from(self.earlier.forget());
    }

    fn learn(&mut self, name: &ObjectName, snapshot: &Snapshot, standings: &mut Standings) {
        let asks = |service: &Service| service.annotations.as_deref()?.passive_health;
        match snapshot.service(name).and_then(asks) {
            Some(limit) => {
                let heard = self.services.entry(name.clone()).or_default();
                heard.limit = limit.into();
                let earlier = self.earlier.take(name);
                if !earlier.is_empty() {
                    standings.set_silent(name, earlier.keys().copied().collect());
                    let left_out = |(address, until)| (address, Hearing::left_out(until));
                    heard.endpoints.extend(earlier.into_iter().map(left_out));
                }
            }
            None if self.services.remove(name).is_some() => {
                standings.set_silent(name, BTreeSet::new());
                self.revision += 1;
            }
            None => {}
        }
    }

    /// Learns what the endpoints of a Service got and gave until `now`.
    pub(super) fn hear(
        &mut self,
        service: &ObjectName,
        (tally, now): (Tally, Duration),
        standings: &mut Standings,
    ) {
        let Some(heard) = self.services.get_mut(service) else {
            return;
        };
        self.last = Some(service.clone());
        heard
            .endpoints
            .retain(|address, _| tally.contains_key(address));
        for (address, total) in tally {
            let hearing = heard.endpoints.entry(address).or_default();
            hearing.add(total, (heard.limit, now));
        }
        let silent = heard.silent();
        let known = standings.silent_of(service);
        self.revision += u64::from(known.map_or(!silent.is_empty(), |known| *known != silent));
        standings.set_silent(service, silent);
    }
}

impl Heard {
    /// Ends the pauses that are over at `now`. Returns whether there are some.
    fn end_pauses(&mut self, now: Duration) -> bool {
        let endpoints = self.endpoints.values_mut();
        let over = endpoints.filter(|it| it.until.is_some_and(|until| until <= now));
        let mut has_ended = false;
        for hearing in over {
            hearing.end_pause(self.limit);
            has_ended = true;
        }
        has_ended
    }

    /// Returns the endpoints that are left out.
    fn silent(&self) -> BTreeSet<IpAddr> {
        let silent = self.endpoints.iter().filter(|(_, it)| it.until.is_some());
        silent.map(|(address, _)| *address).collect()
    }
}

impl Hearing {
    /// Returns an endpoint that is left out.
    fn left_out(until: Duration) -> Self {
        Self {
            pauses: 1,
            until: Some(until),
            ..Self::default()
        }
    }

    fn add(&mut self, total: Answers, (limit, now): (u64, Duration)) {
        let Some(before) = self.total.replace(total) else {
            return;
        };
        // A virtual server that was deleted took its counts along.
        let is_answer = total.packets != before.packets;
        let connections = total.connections.saturating_sub(before.connections);
        if is_answer {
            // Whose answer it is, is unknown. An endpoint that was just asked and is idle now is not silent.
            *self = Self {
                total: Some(total),
                ..Self::default()
            };
            return;
        }
        self.unanswered += std::mem::replace(&mut self.recent, connections);
        if self.until.is_none() && self.unanswered >= limit {
            let (first, longest) = PAUSES;
            let pause = first * 2_u32.pow(self.pauses.min(5));
            self.until = Some(now + pause.min(longest));
            self.pauses += 1;
        }
    }

    /// Ends its pause. It is tried again with one connection, not with those that it still got in the pause.
    fn end_pause(&mut self, limit: u64) {
        self.until = None;
        self.recent = 0;
        self.unanswered = limit.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use api_server::Manifest;

    use super::*;
    use crate::sources::manifests::{self, Options};

    /// Returns for each reading whether the endpoint is left out after it.
    fn left_out(limit: u64, readings: &[(u64, u64)]) -> String {
        let mut hearing = Hearing {
            total: Some(Answers::default()),
            ..Hearing::default()
        };
        let times = (1..).map(|number| PERIOD * number);
        let each = readings
            .iter()
            .zip(times)
            .map(|(&(connections, packets), now)| {
                if hearing.until.is_some_and(|until| until <= now) {
                    hearing.end_pause(limit);
                }
                hearing.add(
                    Answers {
                        connections,
                        packets,
                    },
                    (limit, now),
                );
                if hearing.until.is_some() { 'x' } else { '.' }
            });
        each.collect()
    }

    #[test]
    fn an_endpoint_that_answers_nobody_is_left_out_longer_each_time() {
        // Connections of the last period may still be answered.
        assert_eq!(left_out(3, &[(3, 0), (3, 0), (3, 0)]), ".xx");
        assert_eq!(
            left_out(3, &[(2, 0), (2, 0), (2, 0), (3, 0), (3, 0)]),
            "....x"
        );
        // An answer to any client counts.
        assert_eq!(left_out(3, &[(2, 0), (9, 1), (9, 2), (99, 3)]), "....");
        assert_eq!(left_out(1, &[(5, 9), (5, 9), (5, 9)]), "...");
        // Without connections nothing is known.
        assert_eq!(left_out(1, &[(0, 0), (0, 0)]), "..");
        // Back for one connection after 10 s, then 20 s.
        let silent = [
            (3, 0),
            (3, 0),
            (3, 0),
            (3, 0),
            (4, 0),
            (4, 0),
            (4, 0),
            (4, 0),
            (4, 0),
            (4, 0),
        ];
        assert_eq!(left_out(3, &silent), ".xx..xxxx.");
        // It answers an old connection while it is left out.
        assert_eq!(left_out(3, &[(3, 0), (3, 0), (3, 1), (3, 1)]), ".x..");
        // A deleted virtual server.
        assert_eq!(left_out(3, &[(9, 9), (0, 0), (2, 0), (2, 0)]), "....");
    }

    /// Returns a snapshot with Services of these names, each with passive health after one connection.
    fn snapshot(names: &[&str]) -> Snapshot {
        let services = names.iter().map(|name| {
            Manifest::service(name)
                .annotation("ipvs-proxier.io/passive-health", "1")
                .cluster_ip("10.96.0.1")
                .port("", "TCP", 80)
        });
        let options = Options {
            service_cidr: Vec::new(),
            node_name: "here".into(),
            permits_loopback: false,
        };
        let text = Manifest::documents(&services.collect::<Vec<_>>());
        let mut snapshot = Snapshot::default();
        for event in manifests::parse(&text, "test.yaml", &options).events {
            snapshot.apply(event, &mut Touched::none());
        }
        snapshot
    }

    fn service(name: &str) -> ObjectName {
        ObjectName::new("default", name)
    }

    fn silent(standings: &Standings, name: &str) -> usize {
        standings.silent_of(&service(name)).map_or(0, BTreeSet::len)
    }

    const ENDPOINT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    /// Returns what an earlier process knew: a silent endpoint of each of these Services until this second.
    fn remembering(silent: &[(&str, u64)]) -> Silence {
        Silence::remembering(
            silent
                .iter()
                .map(|(name, until)| (service(name), ENDPOINT, Duration::from_secs(*until))),
        )
    }

    #[test]
    fn a_pause_ends_in_time_though_nothing_is_read_and_the_next_is_longer() {
        let mut silence = remembering(&[("a", 9), ("b", 100)]);
        let (mut standings, capabilities) = (Standings::default(), Capabilities::default());
        let all = (&Touched::All, &capabilities);
        silence.follow(&snapshot(&["a", "b"]), all, &mut standings);
        let counts = |standings: &Standings| (silent(standings, "a"), silent(standings, "b"));
        for (secs, expected) in [(5, (1, 1)), (10, (0, 1)), (15, (0, 1))] {
            let revision = silence.revision();
            silence.take_due(Duration::from_secs(secs), &mut standings);
            assert_eq!(counts(&standings), expected, "at {secs} s");
            assert_eq!(silence.revision() > revision, secs == 10, "at {secs} s");
        }
        for (secs, connections) in [(20, 0), (25, 1), (30, 1)] {
            let answers = Answers {
                connections,
                packets: 0,
            };
            let now = Duration::from_secs(secs);
            let tally = Tally::from_iter([(ENDPOINT, answers)]);
            silence.hear(&service("a"), (tally, now), &mut standings);
        }
        assert_eq!(counts(&standings), (1, 1));
        let mut all = silence.all();
        let until = all.find_map(|(name, _, until)| (*name == service("a")).then_some(until));
        assert_eq!(until, Some(Duration::from_secs(30 + 20)));
    }

    #[test]
    fn where_nothing_counts_answers_no_endpoint_is_left_out() {
        let mut silence = remembering(&[("a", 100)]);
        let mut standings = Standings::default();
        let capabilities = Capabilities {
            lacks_answers: true,
            ..Capabilities::default()
        };
        let all = (&Touched::All, &capabilities);
        silence.follow(&snapshot(&["a"]), all, &mut standings);
        assert_eq!(silent(&standings, "a"), 0);
        assert_eq!(silence.due(), None);
        // The file is written without it.
        assert_eq!((silence.all().count(), silence.revision()), (0, 1));
    }

    #[test]
    fn what_an_earlier_process_knew_of_services_that_are_gone_is_forgotten() {
        let mut silence = remembering(&[("a", 100), ("gone", 100)]);
        let capabilities = Capabilities::default();
        let all = (&Touched::All, &capabilities);
        silence.follow(&snapshot(&["a"]), all, &mut Standings::default());
        let names: Vec<_> = silence.all().map(|(name, ..)| name.clone()).collect();
        assert_eq!((names, silence.revision()), (vec![service("a")], 1));
    }
}
