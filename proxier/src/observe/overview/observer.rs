//! Answers of clients who look: asks the daemon, and reads the counters of what is visible.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipvs_netlink as ipvs;

use super::assemble::{self, HeadFacts, Parts, Selection};
use super::census::Census;
use super::counters::{CounterSource, CounterTable, Counts};
use super::desk::{Desk, Question, Told};
use super::directory::Detail;
use super::history::History;
use super::model::Overview;
use super::query::Query;
use super::rates::Rates;
use crate::dataplane::Failure;
use crate::sources::message::Message;
use crate::util::clock;

/// How long a client waits for the daemon, which may be making a long round.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most frontends whose counters are read for one answer.
const MAX_READ: usize = 500;

/// The time without a client after which the last census is forgotten.
const IDLE: Duration = Duration::from_secs(60);

/// The values that an [`Observer`] needs.
#[derive(Debug)]
pub(crate) struct ObserverConfig {
    /// The name of the node.
    pub(crate) node: Arc<str>,
    /// The dataplane, as `--dataplane` names it.
    pub(crate) dataplane: &'static str,
    /// What rounds did.
    pub(crate) history: Arc<History>,
    /// The questions to the daemon.
    pub(crate) desk: Arc<Desk>,
    /// Wakes the daemon.
    pub(crate) daemon: SyncSender<Message>,
    /// The counters.
    pub(crate) source: CounterSource,
}

/// Answers clients who look at this node.
#[derive(Debug)]
pub(crate) struct Observer {
    node: Arc<str>,
    dataplane: &'static str,
    history: Arc<History>,
    desk: Arc<Desk>,
    daemon: SyncSender<Message>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    source: CounterSource,
    census: Census,
    has_census: bool,
    rates: Rates,
    /// When a client looked last, in time since boot.
    looked: Duration,
}

impl Observer {
    /// Returns an observer that has seen nothing yet.
    pub(crate) fn new(config: ObserverConfig) -> Self {
        Self {
            node: config.node,
            dataplane: config.dataplane,
            history: config.history,
            desk: config.desk,
            daemon: config.daemon,
            state: Mutex::new(State {
                source: config.source,
                census: Census::default(),
                has_census: false,
                rates: Rates::default(),
                looked: Duration::ZERO,
            }),
        }
    }

    /// Returns the name of the node.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Returns the dataplane, as `--dataplane` names it.
    pub(crate) fn dataplane(&self) -> &'static str {
        self.dataplane
    }

    /// Returns what rounds did.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Forgets the last census if nobody has looked for a while.
    ///
    /// Does not wait for a client who looks: the thread also answers probes.
    pub(crate) fn upkeep(&self) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        if state.has_census && state.looked + IDLE <= clock::since_boot() {
            state.census = Census::default();
            state.has_census = false;
        }
    }

    /// Returns the view for a query.
    pub(crate) async fn overview(self: Arc<Self>, head: HeadFacts, query: Query) -> Overview {
        let question = Question {
            needs_directory: self.is_census_due(),
            service: query.service.clone(),
        };
        let (told, mut notes) = match self.ask(question).await {
            Ok(told) => (told, Vec::new()),
            Err(why) => (Told::default(), vec![why.to_owned()]),
        };
        if query.service.is_some() && told.detail.is_none() && notes.is_empty() {
            notes.push("this node serves no port of the Service that was asked for".to_owned());
        }
        // Reading the kernel blocks, and must not delay the answers to probes.
        let read = tokio::task::spawn_blocking(move || self.read(&head, told, &notes, &query));
        // An error would mean a panic, which ends the process.
        read.await.unwrap_or_default()
    }

    /// Returns whether the census must be made anew. While another client reads one, that one serves both.
    fn is_census_due(&self) -> bool {
        let state = self.state.try_lock();
        state.is_ok_and(|state| !state.has_census || state.census.is_over(clock::since_boot()))
    }

    async fn ask(&self, question: Question) -> Result<Told, &'static str> {
        if !question.needs_directory && question.service.is_none() {
            return Ok(Told::default());
        }
        let told = self.desk.ask(question);
        let told =
            told.ok_or("too many clients ask the daemon; what it knows is missing or old")?;
        // If the queue is full, the daemon answers after its next round.
        let _ = self.daemon.try_send(Message::Inquiry);
        let told = tokio::time::timeout(PATIENCE, told).await;
        let told = told.ok().and_then(Result::ok);
        told.ok_or(
            "the daemon is busy with a round for more than 2 s; what it knows is missing or old",
        )
    }

    /// Makes a census if one is due, reads what is visible, and returns the view.
    fn read(&self, head: &HeadFacts, told: Told, notes: &[String], query: &Query) -> Overview {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State {
            source,
            census,
            has_census,
            rates,
            looked,
        } = &mut *state;
        let now = clock::since_boot();
        *looked = now;
        if let Some(directory) = told.directory
            // Another client may have made one in the meantime.
            && (!*has_census || census.is_over(now))
        {
            let began = Instant::now();
            *census = Census::new(directory, now);
            *has_census = true;
            let known = census.keys();
            let table = source.all(query.sort.into(), |key| known.contains(key));
            census.failure = table.as_ref().err().map(ToString::to_string);
            census.count(table.unwrap_or_default());
            census.cost = began.elapsed() + told.took;
        }
        census.order(query.sort);
        let problems = &head.past.problems;
        let selection = assemble::select(census, problems, query);
        let mut visible = CounterTable::new();
        let read = read_visible(source, census, &selection, told.detail.as_ref(), rates, now);
        let failure = match read {
            Ok(table) => {
                visible = table;
                None
            }
            Err(failure) => Some(format!("the counters cannot be read: {failure}")),
        };
        let notes: Vec<String> = notes.iter().cloned().chain(failure).collect();
        let parts = Parts {
            head,
            census,
            detail: told.detail.as_ref(),
            visible: &visible,
            notes: &notes,
            source: source.name(),
            now,
        };
        assemble::overview(parts, &selection, query)
    }
}

/// Returns the counters of the Service ports of `selection` and of `detail`, with their rates.
fn read_visible(
    source: &mut CounterSource,
    census: &Census,
    selection: &Selection<'_>,
    detail: Option<&Detail>,
    rates: &mut Rates,
    now: Duration,
) -> Result<CounterTable, Failure> {
    let of_detail = || detail.into_iter().flat_map(|detail| &detail.frontends);
    let rows = selection
        .rows
        .iter()
        .flat_map(|row| &row.known.entry.frontends);
    let keys = of_detail().map(|frontend| frontend.key);
    let keys = keys.chain(rows.flat_map(|frontend| frontend.keys()));
    let keys: BTreeSet<ipvs::ServiceKey> = keys.take(MAX_READ).collect();
    // As old as the census. Its time counts, so that a rate is not between two looks at the same numbers.
    let mut seen = CounterTable::new();
    for key in &keys {
        if let Some(counts) = census.table.get(key) {
            seen.insert(*key, counts.clone());
        }
    }
    let mut read = source.some(&keys)?;
    for frontend in of_detail() {
        for endpoint in &frontend.endpoints {
            if let Some(counts) = endpoint.relayed {
                let server = read.entry(frontend.key).or_default();
                server.endpoints.insert(endpoint.address, counts);
            }
        }
        if let Some(server) = read.get_mut(&frontend.key)
            && frontend.endpoints.iter().any(|it| it.relayed.is_some())
        {
            server.all = Counts::default();
            server.endpoints.values().for_each(|it| server.all += *it);
        }
    }
    seen.retain(|key, _| !read.contains_key(key));
    rates.follow(&mut seen, census.at);
    rates.follow(&mut read, now);
    read.append(&mut seen);
    Ok(read)
}
