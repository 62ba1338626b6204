//! The trace of one client's packets: a table of ours that chooses them, and what the kernel reports.
//!
//! The table has a chain at each hook, so that a packet is seen there even if no other program has a chain.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netlink::{Errno, Error};
use nftables::{
    Chain, Hook, Match, Relation, Rule, RulesClient, Selector, Statement, Table, Traced,
    TracedPacket, TracedVerdict, TransactionError, Value,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::listing::{ChainName, family_name};
use crate::cluster::model::{Cidr, Family, Networks, Protocol};

/// The name of the table. The kernel deletes it with the socket that made it; kernels before 5.12 do not.
pub(crate) const TABLE: &str = "ipvs-proxier-trace";

/// The begin of the names of our tables.
const OURS: &str = "ipvs-proxier";

/// The most packets of a trace. Then it ends, so that a client with many packets costs little.
const MOST_PACKETS: usize = 64;

/// The most reads of reports that are queued at the end.
const MOST_READS: usize = 4_096;

/// The most rules of a packet's course.
const MOST_RULES: usize = 8;

/// Before the chains of other programs, after the kernel has put fragments together (-400).
const FIRST: i32 = -350;
/// After connection tracking (-200).
const TRACKED: i32 = -199;
/// After all NAT and the helpers of connection tracking (300).
const LAST: i32 = 400;

const REQUESTS: [(&str, Hook); 2] = [
    ("prerouting-requests", Hook::Prerouting(FIRST)),
    ("output-requests", Hook::Output(FIRST)),
];
const ANSWERS: [(&str, Hook); 2] = [
    ("prerouting-answers", Hook::Prerouting(TRACKED)),
    ("output-answers", Hook::Output(TRACKED)),
];
const PASSED: [(&str, Hook); 3] = [
    ("input", Hook::Input(FIRST)),
    ("forward", Hook::Forward(FIRST)),
    ("postrouting", Hook::Postrouting(LAST)),
];

/// The packets that are traced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedFlow {
    pub(crate) protocol: Protocol,
    /// The client's address; `None` for all clients.
    pub(crate) client: Option<IpAddr>,
    /// Whether a process of this node is the client.
    pub(crate) is_of_node: bool,
    pub(crate) frontend: SocketAddr,
}

impl TracedFlow {
    /// Returns the table that traces the packets of the client to the frontend, and the answers.
    fn table(&self) -> Table {
        let family = Family::from(self.frontend.ip());
        let equals = |selector, value: Value| Statement::from(Match::Equals(selector, value));
        let protocol = Match::Protocol([self.protocol].into());
        let port = Value::Port(self.frontend.port());
        let address = Value::from(self.frontend.ip());
        let client = self.client.map(|client| {
            let networks = Networks::new(family, [Cidr::from(client)]);
            Match::Source(Relation::Is, networks).into()
        });
        let request = Rule::new(
            client
                .into_iter()
                .chain([
                    equals(Selector::Destination(family), address),
                    protocol.clone().into(),
                    equals(Selector::DestinationPort, port),
                    Statement::Trace,
                ])
                .collect::<Vec<_>>(),
        );
        let client = self
            .client
            .map(|client| equals(Selector::OriginalSource(family), client.into()));
        let answer = Rule::new(
            [Match::Reply.into()]
                .into_iter()
                .chain(client)
                .chain([
                    equals(Selector::OriginalDestination(family), address),
                    protocol.into(),
                    equals(Selector::OriginalDestinationPort, port),
                    Statement::Trace,
                ])
                .collect::<Vec<_>>(),
        );
        let mut table = Table::default();
        for (name, hook) in REQUESTS {
            let is_here = matches!(hook, Hook::Output(_)) || !self.is_of_node;
            let rules = is_here.then(|| request.clone());
            table.add_chain(Chain::at(name, hook, rules.into_iter().collect::<Vec<_>>()));
        }
        for (name, hook) in ANSWERS {
            table.add_chain(Chain::at(name, hook, [answer.clone()]));
        }
        for (name, hook) in PASSED {
            table.add_chain(Chain::at(name, hook, []));
        }
        table
    }
}

/// The way of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    pub(crate) is_answer: bool,
    /// When its first report was read.
    pub(crate) since: Instant,
    /// The hooks where it was seen, with its addresses there.
    pub(crate) hops: Vec<Hop>,
    /// The rules of other programs that decided about it, and one of ours that dropped it; the first ones only.
    pub(crate) rules: Vec<String>,
    /// What dropped it.
    pub(crate) dropped_by: Option<Dropping>,
}

/// A packet at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) hook: &'static str,
    pub(crate) packet: TracedPacket,
    /// The device by which it arrived, or by which it leaves.
    pub(crate) device: Option<String>,
}

/// The rule that dropped a packet, or the chain whose policy did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dropping {
    pub(crate) chain: ChainName,
    pub(crate) rule: Option<u64>,
}

/// What was seen.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) end: Instant,
    pub(crate) courses: Vec<Course>,
    /// Whether it ended early, with the last packet that it may trace.
    pub(crate) is_full: bool,
    /// Whether the kernel dropped reports.
    pub(crate) has_lost: bool,
}

/// Traces the packets of a flow for this time, or until enough were seen.
///
/// # Errors
/// If the table cannot be made, or the socket fails. The table is gone in any case.
pub(crate) fn watch(flow: &TracedFlow, time: Duration) -> anyhow::Result<Watched> {
    let mut reports = nftables::Trace::open()?;
    let mut rules = RulesClient::open(TABLE)?;
    rules
        .replace_owned(&flow.table())
        .map_err(|error| match is_of_other(&error) {
            true => {
                anyhow::anyhow!("another `explain --watch` traces on this node; wait for its end")
            }
            false => error.into(),
        })?;
    let mut watched = Watching::default();
    let collected = watched.collect(&mut reports, time);
    // Kernels before 5.12 keep the table.
    rules.delete()?;
    collected?;
    // The last packets may have been on their way when the time was over.
    watched.drain(&mut reports)?;
    Ok(Watched {
        end: Instant::now(),
        is_full: watched.courses.is_full(),
        courses: watched.courses.all,
        has_lost: watched.has_lost,
    })
}

/// Deletes a table that a process left which was killed. Returns whether there was one.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn remove_left() -> Result<bool, TransactionError> {
    let mut rules = RulesClient::open(TABLE)?;
    if !rules.exists()? {
        return Ok(false);
    }
    match rules.delete() {
        // It goes with the process that made it.
        Err(error) if is_of_other(&error) => Ok(false),
        other => other.map(|()| true),
    }
}

fn is_of_other(error: &TransactionError) -> bool {
    matches!(error, TransactionError::Refused { refusal, .. } if refusal.errno == Errno::PERM)
}

/// What has been seen so far.
#[derive(Debug, Default)]
struct Watching {
    courses: Courses,
    has_lost: bool,
}

impl Watching {
    /// Reads reports until the time is over, or until enough packets were seen.
    fn collect(&mut self, reports: &mut nftables::Trace, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        while !self.courses.is_full() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wait(reports, left)?;
            self.read(reports)?;
        }
        Ok(())
    }

    /// Reads what is queued.
    fn drain(&mut self, reports: &mut nftables::Trace) -> Result<(), Error> {
        for _ in 0..MOST_READS {
            if !self.read(reports)? {
                break;
            }
        }
        Ok(())
    }

    fn read(&mut self, reports: &mut nftables::Trace) -> Result<bool, Error> {
        match reports.read(|traced| self.courses.add(traced)) {
            Err(Error::AnswersLost) => {
                self.has_lost = true;
                Ok(true)
            }
            other => other,
        }
    }
}

/// Waits until a report is queued, for at most this time.
fn wait(reports: &nftables::Trace, most: Duration) -> Result<(), Error> {
    let most = Timespec {
        tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: most.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(reports, PollFlags::IN)], Some(&most)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::Socket {
            doing: "waiting for the trace",
            source: errno.into(),
        }),
    }
}

/// The courses that follow from reports.
#[derive(Debug, Default)]
struct Courses {
    all: Vec<Course>,
    /// The present course of each number.
    by_id: BTreeMap<u32, usize>,
}

impl Courses {
    fn is_full(&self) -> bool {
        self.all.len() >= MOST_PACKETS
    }

    fn add(&mut self, traced: Traced) {
        let is_ours = traced.table == TABLE;
        let begins = |chains: [(&str, Hook); 2]| {
            is_ours && traced.rule.is_some() && chains.iter().any(|(name, _)| *name == traced.chain)
        };
        let is_answer = begins(ANSWERS);
        // Requests of a process pass the chains for answers too: those are no new packets.
        if is_answer || begins(REQUESTS) {
            if self.is_full() {
                self.by_id.remove(&traced.id);
                return;
            }
            self.by_id.insert(traced.id, self.all.len());
            self.all.push(Course {
                is_answer,
                since: Instant::now(),
                hops: Vec::new(),
                rules: Vec::new(),
                dropped_by: None,
            });
        }
        let index = self.by_id.get(&traced.id);
        let Some(course) = index.and_then(|index| self.all.get_mut(*index)) else {
            return;
        };
        if is_ours {
            course.pass(&traced);
        } else {
            course.note(traced);
        }
    }
}

impl Course {
    /// Adds the hook of one of our chains.
    fn pass(&mut self, traced: &Traced) {
        let hook = ["prerouting", "input", "forward", "output", "postrouting"]
            .into_iter()
            .find(|hook| traced.chain.starts_with(hook));
        let (Some(hook), Some(packet)) = (hook, traced.packet) else {
            return;
        };
        let is_known = |last: &Hop| last.hook == hook && last.packet == packet;
        if self.hops.last().is_some_and(is_known) {
            return;
        }
        let device = match hook {
            "prerouting" | "input" => traced.input,
            _ => traced.output,
        };
        self.hops.push(Hop {
            hook,
            packet,
            device: device.and_then(device_name),
        });
    }

    /// Adds what a rule of another table did.
    fn note(&mut self, traced: Traced) {
        let chain = ChainName {
            family: family_name(traced.family),
            table: traced.table,
            name: traced.chain,
        };
        let verdict = match &traced.verdict {
            TracedVerdict::Accept => "accepts".to_owned(),
            TracedVerdict::Drop => "drops".to_owned(),
            TracedVerdict::Chain(name) => format!("sends it to chain {name}"),
            TracedVerdict::Continue | TracedVerdict::Other => "takes it".to_owned(),
        };
        // Ours are told by the other steps.
        let is_foreign = !chain.table.starts_with(OURS) || traced.verdict == TracedVerdict::Drop;
        if let Some(rule) = traced.rule
            && is_foreign
            && traced.verdict != TracedVerdict::Continue
            && self.rules.len() < MOST_RULES
        {
            self.rules.push(format!("rule {rule} of {chain} {verdict}"));
        }
        if traced.verdict == TracedVerdict::Drop {
            let rule = traced.rule;
            self.dropped_by = Some(Dropping { chain, rule });
        }
    }
}

/// Returns the name of a device, if it still exists.
fn device_name(index: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(index).ok()?;
    name.into_string().ok()
}
