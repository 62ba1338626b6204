//! Steps about packets that passed while `explain` watched.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::Asked;
use super::connection::{flow_line, ipvs_line};
use super::finding::{DROPPED, LEFT_BEHIND, LOST_ON_THE_WAY, NO_ANSWER, NO_PACKET, RESET};
use super::step::{Outcome, Seen, Step};
use crate::cluster::model::Protocol;
use crate::dataplane::conntrack::Flow;
use crate::dataplane::ipvs::connections::Connection;
use crate::host::trace::{Course, Dropping, Watched};

/// The most ways of packets that a step lists.
const MOST_WAYS: usize = 8;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// What was seen.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) watched: Watched,
    pub(crate) time: Duration,
    /// What the kernel counted meanwhile at the frontend, if it has counters.
    pub(crate) counted: Option<Counted>,
    /// The connections of each destination of the virtual server, a line each.
    pub(crate) destinations: Vec<String>,
    /// The client's connections to the frontend; `None` without IPVS.
    pub(crate) connections: Option<Vec<Connection>>,
    /// The client's tracked connections to the frontend.
    pub(crate) flows: Vec<Flow>,
}

/// New connections, packets of clients, and packets to clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) connections: u64,
    pub(crate) packets_in: u64,
    pub(crate) packets_out: u64,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate<'a> {
    Dropped(&'a Dropping),
    /// It left, or a process received it.
    Passed,
    /// It was last seen at this hook.
    Ended(&'static str),
}

fn fate(course: &Course, frontend: SocketAddr) -> Fate<'_> {
    if let Some(dropping) = &course.dropped_by {
        return Fate::Dropped(dropping);
    }
    match course.hops.last() {
        Some(hop) if hop.hook == "postrouting" => Fate::Passed,
        // IPVS takes packets for the frontend from this hook, and sends them on.
        Some(hop) if hop.hook == "input" && hop.packet.destination != frontend => Fate::Passed,
        Some(hop) => Fate::Ended(hop.hook),
        None => Fate::Passed,
    }
}

impl Live {
    /// Returns the steps.
    pub(crate) fn steps(&self, asked: &Asked) -> Vec<Step> {
        let (answers, requests): (Vec<&Course>, Vec<&Course>) =
            self.watched.courses.iter().partition(|it| it.is_answer);
        let mut steps = vec![self.requests(asked, &requests)];
        steps.extend(self.answers(asked, &requests, &answers));
        steps.extend(self.counted.map(|it| {
            let what = format!(
                "the kernel counted {} new connections, {} packets of clients and {} packets to clients meanwhile",
                it.connections, it.packets_in, it.packets_out
            );
            let because = "the counters of the virtual server, which are up to 2 s late";
            let destinations = self.destinations.clone();
            Step::new(what, because, Seen::Live).with_details(destinations)
        }));
        if let Some(connections) = &self.connections {
            let what = format!("IPVS has {} connections of the client", connections.len());
            let details = connections.iter().map(ipvs_line).collect();
            steps.push(Step::new(what, "/proc/net/ip_vs_conn", Seen::Live).with_details(details));
        }
        let what = format!(
            "connection tracking has {} connections of the client",
            self.flows.len()
        );
        let details = self.flows.iter().map(flow_line).collect();
        let step = Step::new(what, "the kernel's table of flows", Seen::Live).with_details(details);
        steps.push(self.left_behind(asked, step));
        steps
    }

    /// Adds the finding about flows to endpoints that left, which a client keeps alive by sending. TCP clients notice.
    fn left_behind(&self, asked: &Asked, step: Step) -> Step {
        let endpoints = &asked.passed.endpoints;
        let is_known = |address| endpoints.iter().any(|it| it.address == address);
        let mut left = self.flows.iter().filter(|it| {
            let is_translated = it.reply.source != it.original.destination;
            it.protocol != Protocol::Tcp && is_translated && !is_known(it.reply.source)
        });
        let Some(flow) = left.next().filter(|_| !endpoints.is_empty()) else {
            return step;
        };
        let text = format!(
            "the flow of {} leads to {}, which is no endpoint any more",
            flow.original.source, flow.reply.source
        );
        let next = format!(
            "conntrack --delete --proto {} --orig-port-dst {} --reply-src {}",
            flow.protocol.to_string().to_lowercase(),
            asked.frontend.port,
            flow.reply.source.ip()
        );
        cause(step, &LEFT_BEHIND, Outcome::Answered, text, next)
    }

    fn requests(&self, asked: &Asked, requests: &[&Course]) -> Step {
        let frontend = asked.frontend;
        let seconds = self.time.as_secs();
        let client = asked.packet.source.ip();
        let because =
            "the kernel's trace, by the table inet ipvs-proxier-trace, which is deleted again";
        if requests.is_empty() {
            let what = format!("no packet of the client to {frontend} came in {seconds} s");
            let next = format!("tcpdump -n -i any host {client} and port {}", frontend.port);
            let step = Step::new(what, because, Seen::Live);
            return step.finding(&NO_PACKET, Outcome::Answered, next);
        }
        let what = match self.watched.is_full {
            true => format!(
                "{} packets of the client came, and then the watch ended",
                requests.len()
            ),
            false => format!(
                "{} packets of the client came in {seconds} s",
                requests.len()
            ),
        };
        let mut details = ways(requests);
        if self.watched.has_lost {
            details.push("the kernel could not report all of them".to_owned());
        }
        let step = Step::new(what, because, Seen::Live).with_details(details);
        ended(step, "the client's packets", requests, asked)
    }

    fn answers(&self, asked: &Asked, requests: &[&Course], answers: &[&Course]) -> Option<Step> {
        let passed = requests
            .iter()
            .filter(|it| fate(it, asked.frontend.socket()) == Fate::Passed);
        let because = "the kernel's trace, by the connection tracking of the client's packets";
        if !answers.is_empty() {
            let what = format!("{} answers came back", answers.len());
            let step = Step::new(what, because, Seen::Live).with_details(ways(answers));
            let first = || answers.iter().filter_map(|it| it.hops.first());
            if first().all(|hop| hop.packet.is_reset) {
                let endpoints: BTreeSet<SocketAddr> =
                    first().map(|hop| hop.packet.source).collect();
                let text = format!(
                    "{} answers with a reset: no process listens there",
                    list(&endpoints)
                );
                return Some(cause(
                    step,
                    &RESET,
                    Outcome::Refused,
                    text,
                    READY.to_owned(),
                ));
            }
            return Some(ended(step, "the answers of endpoints", answers, asked));
        }
        let passed: Vec<_> = passed.collect();
        let waited = passed.iter().map(|it| self.watched.end - it.since).max()?;
        let to = passed.iter().filter_map(|it| it.hops.last());
        let to: BTreeSet<SocketAddr> = to.map(|hop| hop.packet.destination).collect();
        let what = format!("no answer of {} came back", list(&to));
        let step = Step::new(what, because, Seen::Live);
        Some(
            match waited >= PATIENCE && !asked.passed.endpoints.is_empty() {
                true => step.finding(&NO_ANSWER, Outcome::Dropped, READY),
                false => step,
            },
        )
    }
}

/// The command that shows endpoints' Pods.
const READY: &str = "kubectl get pod --all-namespaces --output wide";

/// Adds the finding about packets that are dropped, or that end.
fn ended(step: Step, packets: &str, courses: &[&Course], asked: &Asked) -> Step {
    let frontend = asked.frontend.socket();
    let fates = || courses.iter().map(|it| fate(it, frontend));
    let of_all = |is: &dyn Fn(&Fate<'_>) -> bool, outcome| match fates().all(|it| is(&it)) {
        true => outcome,
        false => Outcome::Answered,
    };
    let dropping = fates().find_map(|it| match it {
        Fate::Dropped(dropping) => Some(dropping),
        _ => None,
    });
    if let Some(dropping) = dropping {
        let by = match dropping.rule {
            Some(rule) => format!("rule {rule} of {}", dropping.chain),
            None => format!("the policy of {}", dropping.chain),
        };
        let outcome = of_all(&|it| matches!(it, Fate::Dropped(_)), Outcome::Dropped);
        let next = format!("nft --handle list {}", dropping.chain.listed());
        return cause(
            step,
            &DROPPED,
            outcome,
            format!("{by} drops {packets}"),
            next,
        );
    }
    let hook = fates().find_map(|it| match it {
        Fate::Ended(hook) => Some(hook),
        _ => None,
    });
    let Some(hook) = hook.filter(|_| !asked.passed.endpoints.is_empty()) else {
        return step;
    };
    let what = match hook {
        "prerouting" => "routing, reverse path filtering or forwarding",
        "input" => "IPVS",
        _ => "a later rule or routing",
    };
    let outcome = of_all(&|it| matches!(it, Fate::Ended(_)), Outcome::Dropped);
    let text = format!("{packets} end after the hook {hook}, by {what}");
    cause(
        step,
        &LOST_ON_THE_WAY,
        outcome,
        text,
        "nstat --zeros".to_owned(),
    )
}

/// Adds a finding with a text of its own.
fn cause(
    mut step: Step,
    kind: &super::finding::Kind,
    outcome: Outcome,
    text: String,
    next: String,
) -> Step {
    step.finding = Some(super::step::Finding::new(kind, outcome, text, next));
    step
}

/// Returns a line for each way that packets took, and for each rule that decided about them.
fn ways(courses: &[&Course]) -> Vec<String> {
    let mut counted = BTreeMap::<Vec<String>, usize>::new();
    for course in courses {
        *counted.entry(way(course)).or_default() += 1;
    }
    let more = counted.len().saturating_sub(MOST_WAYS);
    let mut lines = Vec::new();
    for (mut way, count) in counted.into_iter().take(MOST_WAYS) {
        let rules = way.split_off(1);
        lines.extend(way.into_iter().map(|way| format!("{count} x {way}")));
        lines.extend(rules.into_iter().map(|rule| format!("  {rule}")));
    }
    if more > 0 {
        lines.push(format!("{more} other ways"));
    }
    lines
}

/// Returns the hooks of a packet as a line, without the client's port, and a line for each rule.
fn way(course: &Course) -> Vec<String> {
    let mut line = String::new();
    let mut known: Option<(IpAddr, IpAddr)> = None;
    let from = |it: SocketAddr| match course.is_answer {
        true => it.to_string(),
        false => it.ip().to_string(),
    };
    let to = |it: SocketAddr| match course.is_answer {
        true => it.ip().to_string(),
        false => it.to_string(),
    };
    for hop in &course.hops {
        let (source, destination) = (hop.packet.source, hop.packet.destination);
        if known.is_none() {
            line = format!("{} to {}:", from(source), to(destination));
        }
        line += &format!(" {}", hop.hook);
        if let Some((known_source, known_destination)) = known {
            if known_source != source.ip() {
                line += &format!(" from {}", from(source));
            }
            if known_destination != destination.ip() {
                line += &format!(" to {}", to(destination));
            }
        }
        known = Some((source.ip(), destination.ip()));
        if let Some(device) = hop
            .device
            .as_ref()
            .filter(|_| matches!(hop.hook, "prerouting" | "postrouting"))
        {
            line += &format!(" by {device}");
        }
        line.push(',');
    }
    let mut lines = vec![line.trim_end_matches(',').to_owned()];
    lines.extend(course.rules.iter().cloned());
    lines
}

/// The most addresses in a text.
const MOST_NAMED: usize = 4;

fn list(sockets: &BTreeSet<SocketAddr>) -> String {
    let named: Vec<String> = sockets
        .iter()
        .take(MOST_NAMED)
        .map(ToString::to_string)
        .collect();
    let more = match sockets.len() > MOST_NAMED {
        true => ", ..",
        false => "",
    };
    named.join(", ") + more
}
