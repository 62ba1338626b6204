//! Lists the objects of one kind and watches them.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use tracing::Level;

use super::backoff::{Backoff, spread};
use super::body::{ListBody, WatchBody};
use super::connection::ResponseStream;
use super::continuity::Continuity;
use super::failure::{ApiRefusal, RequestFailure};
use super::initial::InitialList;
use super::next::{Next, blames_stream};
use super::object::{DecodeError, EncodedEvent, EncodedObject, EventType, Identity, ListVersion};
use super::query::{Query, Since};
use super::resource::Resource;
use super::shared::Shared;
use super::status::{Entry, FollowState};
use super::turns::Turns;
use super::{Timeouts, WatchMessage};
use crate::cluster::problem::Problem;
use crate::cluster::store::{Parsed, Update};
use crate::util::clock;
use crate::util::conditions::{Coverage, LastingConditions};

/// Lists and watches one kind.
pub(super) struct Follower<'a, R> {
    shared: &'a Shared,
    entry: &'a Entry,
    /// A field selector, used if the kind itself has none.
    fields: Option<String>,
    next: Next,
    backoff: Backoff,
    /// When the last backoff ended.
    resumed: Instant,
    /// The number of objects of the last list.
    listed: usize,
    /// The number of attempts at the current list that failed because the server's cache lags.
    lags: u32,
    /// When a streaming list failed last.
    stream_failed: Option<Instant>,
    turns: Turns,
    /// The problems that no event carries.
    problems: Vec<Problem>,
    /// `problems` as last sent, so that an unchanged list is not sent again.
    sent_problems: Vec<Problem>,
    /// The failures that were logged.
    failures: LastingConditions,
    continuity: Continuity,
    resource: PhantomData<R>,
}

/// A parsed event of a watch.
enum ParsedEvent<'a, T> {
    /// A change, and the object as it arrived.
    Change(Update<T>, EncodedObject<'a>),
    /// A bookmark's resource version.
    Progress(String),
    /// The resource version of the bookmark that ends a streaming list.
    Complete(String),
    /// An object without a name.
    Nothing,
}

impl<'a, R: Resource> Follower<'a, R> {
    /// How long to list without streaming after a streaming list failed. Then streaming is tried again,
    /// because the server may have been upgraded.
    const STREAM_RETRY: Duration = Duration::from_secs(600);
    /// A watch that ends sooner counts as failed, so that the backoff limits the rate of requests.
    const SHORTEST_WATCH: Duration = Duration::from_millis(500);
    /// The wait before an absent optional kind is requested again: between this and twice this.
    const ABSENT_RETRY: Duration = Duration::from_secs(300);
    /// The number of attempts at a list while the server's cache lags.
    ///
    /// The server itself waits 3 s before it rejects such a list (`blockTimeout` in `watch_cache.go`).
    /// If it still lags after these attempts, it was probably restored from a backup and may never reach
    /// the version.
    const MAX_LAGS: u32 = 3;
    /// The pause between these attempts, up to twice this: the `Retry-After` of such a server. The backoff may have
    /// grown to 30 s while the server was restored.
    const LAG_PAUSE: Duration = Duration::from_secs(1);
    /// The maximum number of problems that no event carries.
    const MAX_PROBLEMS: usize = 100;

    pub(super) fn new(shared: &'a Shared, entry: &'a Entry) -> Self {
        Self {
            shared,
            entry,
            fields: None,
            next: Next::List(Since::Any),
            backoff: Backoff::new(),
            resumed: Instant::now(),
            listed: 0,
            lags: 0,
            stream_failed: None,
            turns: Turns::default(),
            problems: Vec::new(),
            sent_problems: Vec::new(),
            failures: LastingConditions::default(),
            continuity: Continuity::default(),
            resource: PhantomData,
        }
    }

    /// Selects only the object called `name`.
    pub(super) fn named(mut self, name: &str) -> Self {
        self.fields = Some(format!("metadata.name={name}"));
        self
    }

    /// Follows the kind. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            let ended = match self.next.clone() {
                Next::List(since) if self.may_stream() => self.stream(&since).await,
                Next::List(since) => self.list(&since).await,
                Next::Watch(version) => self.watch(&version).await,
            };
            if let Err(failure) = ended {
                self.recover(&failure).await;
            }
        }
    }

    /// Sends an empty list and resets the status.
    pub(super) async fn clear(mut self) {
        self.send(Update::Reset(Vec::new())).await;
        let (kind, problems) = (R::PLURAL, Vec::new());
        self.shared
            .send(WatchMessage::Problems { kind, problems })
            .await;
        self.entry.clear();
    }

    /// Chooses the request that follows `failure`, and waits for the backoff.
    async fn recover(&mut self, failure: &RequestFailure) {
        // Only a rejected list shows that the kind is absent. A rejected watch is retried.
        if R::IS_OPTIONAL
            && matches!(self.next, Next::List(_))
            && failure
                .refusal()
                .is_some_and(|refusal| refusal.is_withheld())
            && self.continuity.withhold()
        {
            return self.continue_without(failure).await;
        }
        let is_behind = failure.refusal().is_some_and(ApiRefusal::is_too_new);
        self.lags += u32::from(is_behind);
        if !is_behind || !self.may_catch_up() {
            self.next = self.next.clone().after(failure);
        }
        let asked = (self.turns).fail(failure, self.shared.connection.servers());
        let calm = self.resumed.elapsed();
        let wait = if is_behind && self.lags <= Self::MAX_LAGS + 1 {
            spread(Self::LAG_PAUSE)
        } else {
            self.backoff.wait(failure.reach(), calm, asked)
        };
        self.continuity.fail(failure, Instant::now());
        (self.entry).record_failure(failure.to_string(), failure.is_rejection());
        (self.failures).add(
            Coverage::All,
            Level::WARN,
            "failures to watch the API server",
            format_args!("watching {}: {failure}; trying again", R::PLURAL),
            clock::since_boot(),
        );
        tokio::time::sleep(wait).await;
        self.resumed = Instant::now();
        let outage = self.shared.timeouts.outage;
        if self.continuity.is_broken(outage, self.resumed) {
            self.next = self.next.clone().listed();
        }
    }

    /// Returns whether to repeat the list because the server's cache probably lags behind etcd.
    ///
    /// After a restart of an API server, the caches of the others may lag for seconds. If all nodes
    /// requested the newest list at that moment, etcd would have to serve them all.
    fn may_catch_up(&self) -> bool {
        matches!(self.next, Next::List(Since::Seen(_))) && self.lags <= Self::MAX_LAGS
    }

    /// Continues without an optional kind: with no objects, or with those that were listed before.
    async fn continue_without(&mut self, failure: &RequestFailure) {
        if !self.entry.is_synced() {
            tracing::info!(objects = R::PLURAL, "continuing without them: {failure}");
            self.send(Update::Reset(Vec::new())).await;
            self.entry.record_list();
        }
        self.entry.set_state(FollowState::Absent);
        tokio::time::sleep(spread(Self::ABSENT_RETRY)).await;
        self.resumed = Instant::now();
    }

    fn may_stream(&self) -> bool {
        self.stream_failed
            .is_none_or(|failed| failed.elapsed() > Self::STREAM_RETRY)
    }

    fn query(&self) -> Query {
        Query::new::<R>(self.fields.as_deref())
    }

    /// Requests a list of all objects, page by page if the server splits it.
    async fn list(&mut self, since: &Since) -> Result<(), RequestFailure> {
        self.entry.set_state(FollowState::Listing);
        // The list has all objects, so it finds all present problems again.
        self.problems.clear();
        let mut objects = InitialList::after(self.listed);
        let mut query = self.query().list(since);
        loop {
            let head = self.page(&query, &mut objects).await?;
            match head.r#continue.filter(|token| !token.is_empty()) {
                Some(token) => query = self.query().page(&token),
                None => {
                    return (self.complete(objects.finish(), head.resource_version)).await;
                }
            }
        }
    }

    /// Requests one page of a list.
    async fn page(
        &mut self,
        query: &Query,
        objects: &mut InitialList<R::Object>,
    ) -> Result<ListVersion, RequestFailure> {
        let accept = self.shared.accept::<R>().list;
        let bound = self.shared.timeouts.response;
        let mut answer = self.shared.connection.get(query.as_str(), accept).await?;
        self.continuity.reach();
        self.turns.answers(answer.server());
        let mut body = ListBody::new(answer.encoding());
        while let Some(piece) = answer.next(bound).await? {
            body.push(&piece, |object| objects.add(self.read(object)))?;
        }
        self.entry.record_contact();
        body.finish()
    }

    /// Lists all objects over a watch, and continues with the changes of that watch.
    async fn stream(&mut self, since: &Since) -> Result<(), RequestFailure> {
        self.entry.set_state(FollowState::Listing);
        self.problems.clear();
        let query = self
            .query()
            .stream(since, spread(self.shared.timeouts.watch));
        let result = match self.open(&query).await {
            Ok(answer) => {
                let initial = InitialList::after(self.listed);
                self.consume(answer, Some(initial)).await
            }
            Err(failure) => Err(failure),
        };
        // `next` becomes `Watch` when the list is complete, so a later failure is a failure of the watch.
        if let (Next::List(_), Err(failure)) = (&self.next, &result)
            && blames_stream(failure)
        {
            self.stream_failed = Some(Instant::now());
            let text = "the streaming list failed, listing without streaming";
            tracing::info!(objects = R::PLURAL, "{text}: {failure}");
            if failure
                .refusal()
                .is_some_and(|refusal| refusal.is_invalid())
            {
                // The server rejects streaming lists, so the next request differs and needs no backoff.
                return Ok(());
            }
        }
        result
    }

    /// Watches the changes after `version` until the server ends the watch.
    async fn watch(&mut self, version: &str) -> Result<(), RequestFailure> {
        let started = Instant::now();
        let query = self.query().watch(version, self.watch_time());
        let answer = self.open(&query).await?;
        self.entry.set_state(FollowState::Watching);
        self.consume(answer, None).await?;
        if started.elapsed() < Self::SHORTEST_WATCH {
            return Err(RequestFailure::Cut("the watch ended at once".into()));
        }
        if self.continuity.is_doubtful() && started.elapsed() >= self.shared.timeouts.trial {
            let text = "no event and no bookmark since the last failure, listing";
            tracing::debug!(objects = R::PLURAL, version, "{text}");
            self.next = self.next.clone().listed();
            // A cache that merely lags would have caught up during this watch.
            self.lags = Self::MAX_LAGS;
        }
        Ok(())
    }

    /// Returns the duration of the next watch.
    fn watch_time(&self) -> Duration {
        let Timeouts { trial, watch, .. } = self.shared.timeouts;
        spread(if self.continuity.is_doubtful() {
            trial
        } else {
            watch
        })
    }

    async fn open(&mut self, query: &Query) -> Result<ResponseStream, RequestFailure> {
        let accept = self.shared.accept::<R>().watch;
        let answer = self.shared.connection.get(query.as_str(), accept).await?;
        self.continuity.reach();
        self.turns.answers(answer.server());
        Ok(answer)
    }

    /// Reads a watch to its end. `initial` holds the objects of a streaming list until it is complete.
    async fn consume(
        &mut self,
        mut answer: ResponseStream,
        mut initial: Option<InitialList<R::Object>>,
    ) -> Result<(), RequestFailure> {
        let mut body = WatchBody::new(answer.encoding());
        loop {
            // A list arrives without pauses; a watch may be silent until the next bookmark.
            let bound = match initial {
                Some(_) => self.shared.timeouts.response,
                None => self.shared.timeouts.silence,
            };
            let Some(piece) = answer.next(bound).await? else {
                break;
            };
            self.entry.record_contact();
            let mut rest = &*piece;
            while let Some(event) = body.next(&mut rest)? {
                let Some(list) = &mut initial else {
                    self.follow(event).await?;
                    continue;
                };
                if let Some(version) = self.add_initial(event, list)?
                    && let Some(list) = initial.take()
                {
                    self.complete(list.finish(), version).await?;
                    self.entry.set_state(FollowState::Watching);
                }
            }
            if let Some(list) = &mut initial {
                list.check(bound)?;
            }
        }
        match initial {
            Some(_) => Err(RequestFailure::Cut("a streaming list ended early".into())),
            None => Ok(()),
        }
    }

    /// Adds the object of one event of a streaming list. Returns the list's resource version if the
    /// event ends it.
    fn add_initial(
        &mut self,
        event: EncodedEvent<'_>,
        list: &mut InitialList<R::Object>,
    ) -> Result<Option<String>, RequestFailure> {
        match self.parse_event(event)? {
            ParsedEvent::Change(change, _) => list.apply(change),
            ParsedEvent::Complete(version) => return Ok(Some(version)),
            // A server that streams lists sends no other bookmark before their end.
            ParsedEvent::Progress(_) => return Err(InitialList::<R::Object>::endless()),
            ParsedEvent::Nothing => {}
        }
        Ok(None)
    }

    /// Sends the change of one event of a watch.
    async fn follow(&mut self, event: EncodedEvent<'_>) -> Result<(), RequestFailure> {
        match self.parse_event(event)? {
            ParsedEvent::Change(change, object) => {
                let version = object.version();
                let version = version.as_ref().map_or("", Identity::version).to_owned();
                // A deletion has the version of the object in old servers.
                if !matches!(change, Update::Delete(_)) {
                    self.next.check(&version)?;
                }
                self.entry.record_change();
                self.send(change).await;
                // After the change was sent: a watch that resumes must not skip it.
                self.advance(version);
            }
            ParsedEvent::Progress(version) | ParsedEvent::Complete(version) => {
                self.next.check(&version)?;
                self.advance(version);
            }
            ParsedEvent::Nothing => self.send_problems().await,
        }
        Ok(())
    }

    /// Parses one event of a watch.
    fn parse_event<'e>(
        &mut self,
        event: EncodedEvent<'e>,
    ) -> Result<ParsedEvent<'e, R::Object>, RequestFailure> {
        let malformed = |what: &str, error: DecodeError| {
            RequestFailure::Malformed(format!("{what} of a watch: {error}"))
        };
        let (event_type, object) = event
            .split()
            .map_err(|error| malformed("an event", error))?;
        Ok(match event_type {
            EventType::Added | EventType::Modified => match self.read(object) {
                Some(parsed) => ParsedEvent::Change(Update::Apply(parsed), object),
                None => ParsedEvent::Nothing,
            },
            EventType::Deleted => {
                // Only the name is needed, so an object with malformed content can be deleted.
                let name = object.name();
                let name = name.map_err(|error| malformed("a deletion", error))?;
                // A use of the interner, which therefore drops values of deleted objects from time to time.
                let name = self.shared.with_interner(|interner| interner.name(name));
                ParsedEvent::Change(Update::Delete(name), object)
            }
            EventType::Bookmark => {
                let bookmark = object.version();
                let bookmark = bookmark.map_err(|error| malformed("a bookmark", error))?;
                let version = bookmark.version().to_owned();
                if bookmark.ends_initial_events() {
                    ParsedEvent::Complete(version)
                } else {
                    ParsedEvent::Progress(version)
                }
            }
            EventType::Error => return Err(RequestFailure::refused_midway(object)),
        })
    }

    /// Parses one object. If its name is unreadable, records a problem and returns `None`.
    fn read(&mut self, object: EncodedObject<'_>) -> Option<Parsed<R::Object>> {
        let read = self
            .shared
            .with_interner(|interner| object.read::<R>(interner));
        match read {
            Ok(parsed) => Some(parsed),
            Err(problem) => {
                if self.problems.len() < Self::MAX_PROBLEMS {
                    self.problems.push(problem);
                }
                None
            }
        }
    }

    /// Sends the complete list as of `version`. Fails if an older one was known.
    async fn complete(
        &mut self,
        objects: Vec<Parsed<R::Object>>,
        version: String,
    ) -> Result<(), RequestFailure> {
        self.next.check(&version)?;
        tracing::debug!(
            objects = R::PLURAL,
            count = objects.len(),
            version,
            "listed"
        );
        self.listed = objects.len();
        self.send(Update::Reset(objects)).await;
        self.entry.record_list();
        self.lags = 0;
        self.advance(version);
        Ok(())
    }

    /// Records that all changes up to `version` were sent, which the server has therefore.
    fn advance(&mut self, version: String) {
        if self.continuity.confirm() {
            self.failures.end(clock::since_boot());
        }
        // With an empty version, the next watch would start at any state of the server, and changes would be
        // lost.
        if !version.is_empty() {
            self.next = Next::Watch(version);
        }
    }

    async fn send(&mut self, change: Update<R::Object>) {
        if let Some(event) = R::event(change, &mut self.problems) {
            self.shared.send(WatchMessage::Event(event)).await;
        }
        self.send_problems().await;
    }

    async fn send_problems(&mut self) {
        if self.problems != self.sent_problems {
            self.sent_problems.clone_from(&self.problems);
            let problems = self.problems.clone();
            let kind = R::PLURAL;
            self.shared
                .send(WatchMessage::Problems { kind, problems })
                .await;
        }
    }
}
