//! Answers of clients who look: asks the daemon, and reads the counters of what is visible.
//!
//! Clients take turns, and share what was read: however many look and however often, the daemon lists all Services once for
//! a census, and the kernel is asked for each counter once a second. A client that waits for its turn occupies no thread.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use ipvs_netlink as ipvs;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::assemble::{self, HeadFacts, Parts, Selection};
use super::census::Census;
use super::counters::{CounterSource, CounterTable, Counts};
use super::desk::{Desk, Question, Told};
use super::directory::{Detail, Directory};
use super::history::History;
use super::model::Overview;
use super::query::{Query, Sort};
use super::rates::Rates;
use crate::dataplane::Failure;
use crate::sources::message::Message;
use crate::util::clock;

/// How long a client waits for the daemon, which may be making a long round.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most frontends whose counters are read for one answer.
const MAX_READ: usize = 500;

/// The age up to which the counters of a frontend are shown again.
const FRESH: Duration = Duration::from_secs(1);

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
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    source: CounterSource,
    census: Census,
    has_census: bool,
    /// When the daemon was asked for the last census, in time since boot.
    asked: Option<Duration>,
    /// The counters that were read last, and when.
    recent: (Duration, CounterTable),
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
            state: Arc::new(Mutex::new(State {
                source: config.source,
                census: Census::default(),
                has_census: false,
                asked: None,
                recent: Default::default(),
                rates: Rates::default(),
                looked: Duration::ZERO,
            })),
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
            state.recent.1.clear();
        }
    }

    /// Returns the view for a query.
    pub(crate) async fn overview(self: Arc<Self>, head: HeadFacts, query: Query) -> Overview {
        let (mut detail, mut notes) = (None, Vec::new());
        if query.service.is_some() {
            let question = Question {
                needs_directory: false,
                service: query.service.clone(),
            };
            match self.ask(question).await {
                Ok(told) => detail = told.detail,
                Err(why) => notes.push(why.to_owned()),
            }
            if detail.is_none() && notes.is_empty() {
                notes.push("this node serves no port of the Service that was asked for".to_owned());
            }
        }
        let mut state = self.state.clone().lock_owned().await;
        if state.is_census_due(clock::since_boot()) {
            // A task of its own, so that a census that was begun serves others if the client leaves.
            let made = tokio::spawn(self.clone().make_census(state, query.sort)).await;
            // An error would mean a panic, which ends the process.
            let Ok((guard, note)) = made else {
                return Overview::default();
            };
            state = guard;
            notes.extend(note.map(str::to_owned));
        }
        // Reading the kernel blocks, and must not delay the answers to probes.
        let read =
            tokio::task::spawn_blocking(move || state.read(&head, detail.as_ref(), &notes, &query));
        read.await.unwrap_or_default()
    }

    /// Makes a census. Returns what clients should know if the daemon does not answer.
    async fn make_census(
        self: Arc<Self>,
        mut state: OwnedMutexGuard<State>,
        sort: Sort,
    ) -> (OwnedMutexGuard<State>, Option<&'static str>) {
        state.asked = Some(clock::since_boot());
        let question = Question {
            needs_directory: true,
            service: None,
        };
        let (directory, took) = match self.ask(question).await {
            Ok(told) => (told.directory.unwrap_or_default(), told.took),
            Err(why) => return (state, Some(why)),
        };
        // Blocks, as in [`Self::overview`].
        let counted = tokio::task::spawn_blocking(move || {
            state.count(directory, took, sort);
            state
        });
        match counted.await {
            Ok(state) => (state, None),
            // A panic ends the process.
            Err(_) => std::future::pending().await,
        }
    }

    async fn ask(&self, question: Question) -> Result<Told, &'static str> {
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
}

impl State {
    /// Returns whether the census must be made anew, and the daemon was not asked for it a moment ago.
    fn is_census_due(&self, now: Duration) -> bool {
        let is_asked = |asked: Duration| now.saturating_sub(asked) < self.census.interval();
        (!self.has_census || self.census.is_over(now)) && !self.asked.is_some_and(is_asked)
    }

    /// Makes a census of what the daemon told in the time `took`.
    fn count(&mut self, directory: Directory, took: Duration, sort: Sort) {
        let began = Instant::now();
        let mut census = Census::new(directory, clock::since_boot());
        let known = census.keys();
        let table = self.source.all(sort.into(), |key| known.contains(key));
        census.failure = table.as_ref().err().map(ToString::to_string);
        census.count(table.unwrap_or_default());
        census.cost = began.elapsed() + took;
        self.census = census;
        self.has_census = true;
    }

    /// Reads what is visible, and returns the view.
    fn read(
        &mut self,
        head: &HeadFacts,
        detail: Option<&Detail>,
        notes: &[String],
        query: &Query,
    ) -> Overview {
        let now = clock::since_boot();
        self.looked = now;
        self.census.order(query.sort);
        let Self {
            source,
            census,
            recent,
            rates,
            ..
        } = self;
        let problems = &head.past.problems;
        let selection = assemble::select(census, problems, query);
        let mut visible = CounterTable::new();
        if now.saturating_sub(recent.0) >= FRESH {
            *recent = (now, CounterTable::new());
        }
        let failure = match read_visible(source, census, &selection, detail, (recent, rates)) {
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
            detail,
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
    ((read_at, recent), rates): (&mut (Duration, CounterTable), &mut Rates),
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
    let missing = keys.iter().copied().filter(|key| !recent.contains_key(key));
    let missing: BTreeSet<ipvs::ServiceKey> = missing.collect();
    if !missing.is_empty() {
        recent.append(&mut source.some(&missing)?);
    }
    let read = keys
        .iter()
        .filter_map(|key| Some((*key, recent.get(key)?.clone())));
    let mut read: CounterTable = read.collect();
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
    rates.follow(&mut read, *read_at);
    read.append(&mut seen);
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::{Receiver, sync_channel};

    use tokio::task::{spawn_blocking, yield_now};
    use tokio::time::{sleep, timeout};

    use super::super::tests::head;
    use super::*;

    /// Returns an observer of a relay, and what it sends to the daemon.
    fn observer(desk: &Arc<Desk>) -> (Arc<Observer>, Receiver<Message>) {
        let (daemon, inquiries) = sync_channel(1_000);
        let observer = Observer::new(ObserverConfig {
            node: "node-a".into(),
            dataplane: "userspace",
            history: Arc::default(),
            desk: desk.clone(),
            daemon,
            source: CounterSource::Relay,
        });
        (Arc::new(observer), inquiries)
    }

    #[test]
    fn clients_who_look_at_once_share_one_census_and_wait_without_a_thread() {
        let desk = Arc::<Desk>::default();
        let (observer, inquiries) = observer(&desk);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let look = || tokio::spawn(observer.clone().overview(head(&[]), Query::default()));
            // The first one leaves when it has asked.
            let first = look();
            while inquiries.try_recv().is_err() {
                yield_now().await;
            }
            first.abort();
            let clients: Vec<_> = (0..100).map(|_| look()).collect();
            let directories = Cell::new(0);
            let told = |question: &Question| {
                directories.set(directories.get() + u32::from(question.needs_directory));
                Told {
                    directory: question.needs_directory.then(Directory::default),
                    ..Told::default()
                }
            };
            for client in clients {
                while !client.is_finished() {
                    desk.answer(told);
                    sleep(Duration::from_millis(1)).await;
                }
                assert!(client.await.unwrap().head.notes.is_empty());
            }
            assert_eq!(directories.get(), 1);

            // While the kernel is read for one of them.
            let reading = observer.state.clone().lock_owned().await;
            let clients: Vec<_> = (0..10).map(|_| look()).collect();
            yield_now().await;
            let scrape = timeout(Duration::from_secs(60), spawn_blocking(|| ()));
            scrape.await.unwrap().unwrap();
            assert!(clients.iter().all(|client| !client.is_finished()));
            drop(reading);
        });
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_asked_again_after_a_while() {
        let desk = Arc::<Desk>::default();
        let (observer, _inquiries) = observer(&desk);
        let state = observer.state.clone();
        let mut state = state.try_lock_owned().unwrap();
        let second = Duration::from_secs(1);
        assert!(state.is_census_due(100 * second));
        state.asked = Some(100 * second);
        assert!(!state.is_census_due(101 * second));
        assert!(state.is_census_due(102 * second));
    }
}
