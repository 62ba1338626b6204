//! Listing one kind of object and watching it from there on.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::backoff::{Backoff, by_chance};
use super::connection::{Answer, Connection};
use super::failure::Failure;
use super::json::{LineCutter, ListCutter};
use super::next::{Next, blames_stream};
use super::query::{Query, Since};
use super::resource::{self, Head, Line, ListHead, Name, Resource, Version, What};
use super::status::{Entry, State};
use super::{Message, Timeouts};
use crate::problem::Problem;
use crate::store::{Interner, Parsed, Update};

/// What all followers use.
pub(super) struct Shared {
    pub(super) connection: Connection,
    pub(super) timeouts: Timeouts,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) interner: Mutex<Sharing>,
}

/// Strings that objects have in common.
#[derive(Default)]
pub(super) struct Sharing {
    interner: Interner,
    /// How many changes were read with it.
    changes: u32,
}

/// Follows one kind of object.
pub(super) struct Follower<'a, R> {
    shared: &'a Shared,
    entry: &'a Entry,
    /// Which objects, beyond the kind's own selectors.
    fields: Option<String>,
    next: Next,
    backoff: Backoff,
    /// When the last wait was over.
    resumed: Instant,
    /// When a streaming list failed.
    stream_failed: Option<Instant>,
    /// What is wrong and no event carries; and what was told of it.
    problems: Vec<Problem>,
    told_problems: Vec<Problem>,
    resource: PhantomData<R>,
}

/// What one line of a watch came to.
enum Told<T> {
    /// A change, and the resource version after it, if it could be read.
    Change(Update<T>, Option<String>),
    /// Nothing but the resource version.
    Progress(String),
    /// The same, at the end of a streaming list.
    Complete(String),
    /// An object without a name.
    Nothing,
}

impl<'a, R: Resource> Follower<'a, R> {
    /// How long pages are preferred after a streaming list failed: a server may be upgraded.
    const NO_STREAMS: Duration = Duration::from_secs(600);
    /// A watch that ends sooner is not worth the name.
    const SHORTEST_WATCH: Duration = Duration::from_millis(500);
    /// How often objects that may not be there are looked for: this to twice as long.
    const LOOK_AGAIN: Duration = Duration::from_secs(300);
    /// How many problems are kept that no event carries.
    const MAX_PROBLEMS: usize = 100;
    /// After how many changes strings are shared anew, so that old names are let go.
    const MAX_SHARING: u32 = 100_000;

    pub(super) fn new(shared: &'a Shared, entry: &'a Entry) -> Self {
        Self {
            shared,
            entry,
            fields: None,
            next: Next::List(Since::Any),
            backoff: Backoff::new(),
            resumed: Instant::now(),
            stream_failed: None,
            problems: Vec::new(),
            told_problems: Vec::new(),
            resource: PhantomData,
        }
    }

    /// Follows only the object called `name`.
    pub(super) fn named(mut self, name: &str) -> Self {
        self.fields = Some(format!("metadata.name={name}"));
        self
    }

    /// Follows for ever.
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

    /// Tells that there is nothing, and starts the status over.
    pub(super) async fn forget(mut self) {
        self.tell(Update::Reset(Vec::new())).await;
        let (kind, problems) = (R::PLURAL, Vec::new());
        self.shared.send(Message::Problems { kind, problems }).await;
        self.entry.clear();
    }

    /// Decides how to go on after `failure`, and waits.
    async fn recover(&mut self, failure: &Failure) {
        if R::IS_OPTIONAL
            && matches!(self.next, Next::List(_))
            && failure
                .refusal()
                .is_some_and(|refusal| refusal.is_withheld())
        {
            return self.do_without(failure).await;
        }
        self.next = self.next.clone().after(failure);
        let wait = self
            .backoff
            .wait(self.resumed.elapsed(), failure.retry_after());
        if self.entry.failed(failure.to_string()) {
            tracing::warn!(
                objects = R::PLURAL,
                ?wait,
                "watching the API server: {failure}"
            );
        }
        tokio::time::sleep(wait).await;
        self.resumed = Instant::now();
    }

    /// Goes on as if there were no such objects, or as they were last seen.
    async fn do_without(&mut self, failure: &Failure) {
        if !self.entry.is_synced() {
            tracing::info!(objects = R::PLURAL, "going on without: {failure}");
            self.tell(Update::Reset(Vec::new())).await;
            self.entry.listed();
        }
        self.entry.state(State::Absent);
        tokio::time::sleep(by_chance(Self::LOOK_AGAIN, 2 * Self::LOOK_AGAIN)).await;
        self.resumed = Instant::now();
    }

    fn may_stream(&self) -> bool {
        self.stream_failed
            .is_none_or(|failed| failed.elapsed() > Self::NO_STREAMS)
    }

    fn query(&self) -> Query {
        Query::new::<R>(self.fields.as_deref())
    }

    /// Fetches all objects in pages.
    async fn list(&mut self, since: &Since) -> Result<(), Failure> {
        self.entry.state(State::Listing);
        self.problems.clear();
        let mut objects = Vec::new();
        let mut query = self.query().list(since);
        loop {
            let head = self.page(&query, &mut objects).await?;
            match head.r#continue.filter(|token| !token.is_empty()) {
                Some(token) => query = self.query().page(&token),
                None => {
                    self.complete(objects, head.resource_version).await;
                    return Ok(());
                }
            }
        }
    }

    /// Fetches one page.
    async fn page(
        &mut self,
        query: &Query,
        objects: &mut Vec<Parsed<R::Object>>,
    ) -> Result<resource::ListVersion, Failure> {
        let (_, accept) = R::ACCEPT;
        let bound = self.shared.timeouts.answer;
        let mut answer = self.shared.connection.get(query.as_str(), accept).await?;
        let mut cutter = ListCutter::default();
        while let Some(bytes) = answer.next(bound).await? {
            cutter
                .push(&bytes, |json| objects.extend(self.read(json)))
                .map_err(|error| Failure::Malformed(error.to_string()))?;
        }
        self.entry.heard();
        let envelope = cutter.finish();
        let envelope = envelope.map_err(|error| Failure::Malformed(error.to_string()))?;
        let list: ListHead = serde_json::from_slice(&envelope)
            .map_err(|error| Failure::Malformed(format!("a list: {error}")))?;
        Ok(list.metadata)
    }

    /// Fetches all objects over a watch, and goes on watching.
    async fn stream(&mut self, since: &Since) -> Result<(), Failure> {
        self.entry.state(State::Listing);
        self.problems.clear();
        let query = self.query().stream(since, self.watch_time());
        let result = match self.open(&query).await {
            Ok(answer) => self.consume(answer, Some(Vec::new())).await,
            Err(failure) => Err(failure),
        };
        if let (Next::List(_), Err(failure)) = (&self.next, &result)
            && blames_stream(failure)
        {
            self.stream_failed = Some(Instant::now());
            let text = "streaming lists fail, going on with pages";
            tracing::info!(objects = R::PLURAL, "{text}: {failure}");
            if failure
                .refusal()
                .is_some_and(|refusal| refusal.is_invalid())
            {
                return Ok(());
            }
        }
        result
    }

    /// Watches from `version` on until the server ends the watch.
    async fn watch(&mut self, version: &str) -> Result<(), Failure> {
        let started = Instant::now();
        let query = self.query().watch(version, self.watch_time());
        let answer = self.open(&query).await?;
        self.entry.state(State::Watching);
        self.consume(answer, None).await?;
        match started.elapsed() < Self::SHORTEST_WATCH {
            true => Err(Failure::Cut("the watch ended at once".into())),
            false => Ok(()),
        }
    }

    /// How long the server is asked to watch: spread, so that not all nodes come back at once.
    fn watch_time(&self) -> Duration {
        let shortest = self.shared.timeouts.watch;
        by_chance(shortest, 2 * shortest)
    }

    async fn open(&self, query: &Query) -> Result<Answer, Failure> {
        let (accept, _) = R::ACCEPT;
        self.shared.connection.get(query.as_str(), accept).await
    }

    /// Reads a watch to its end. While a streaming list is incomplete its objects are `gathered`.
    async fn consume(
        &mut self,
        mut answer: Answer,
        mut gathered: Option<Vec<Parsed<R::Object>>>,
    ) -> Result<(), Failure> {
        let mut cutter = LineCutter::default();
        loop {
            let bound = match gathered {
                Some(_) => self.shared.timeouts.answer,
                None => self.shared.timeouts.silence,
            };
            let Some(bytes) = answer.next(bound).await? else {
                break;
            };
            self.entry.heard();
            cutter
                .push(&bytes)
                .map_err(|error| Failure::Malformed(error.to_string()))?;
            while let Some(line) = cutter.next() {
                let told = self.line(line)?;
                match (told, &mut gathered) {
                    (Told::Change(change, _), Some(gathered)) => gather(gathered, change),
                    (Told::Change(change, version), None) => {
                        self.entry.changed();
                        self.tell(change).await;
                        self.advance(version);
                    }
                    (Told::Complete(version), Some(objects)) => {
                        let objects = std::mem::take(objects);
                        gathered = None;
                        self.complete(objects, version).await;
                        self.entry.state(State::Watching);
                    }
                    (Told::Progress(version) | Told::Complete(version), None) => {
                        self.advance(Some(version));
                    }
                    (Told::Nothing, None) => self.tell_problems().await,
                    (Told::Progress(_) | Told::Nothing, Some(_)) => {}
                }
            }
        }
        match gathered {
            Some(_) => Err(Failure::Cut("a streaming list ended early".into())),
            None => Ok(()),
        }
    }

    /// Reads one line of a watch.
    fn line(&mut self, line: &[u8]) -> Result<Told<R::Object>, Failure> {
        let malformed =
            |what: &str, error| Failure::Malformed(format!("{what} of a watch: {error}"));
        let Line { what, object } =
            serde_json::from_slice(line).map_err(|error| malformed("a line", error))?;
        let json = object.get().as_bytes();
        let head = serde_json::from_slice::<Head<Version>>(json);
        match what {
            What::Added | What::Modified => Ok(match self.read(json) {
                Some(parsed) => {
                    let version = head.ok().map(|head| head.metadata.resource_version);
                    Told::Change(Update::Apply(parsed), version)
                }
                None => Told::Nothing,
            }),
            What::Deleted => {
                let gone: Head<Name> =
                    serde_json::from_slice(json).map_err(|error| malformed("a deletion", error))?;
                let version = head.ok().map(|head| head.metadata.resource_version);
                let name = self
                    .shared
                    .with_interner(|interner| gone.metadata.object_name(interner));
                Ok(Told::Change(Update::Delete(name), version))
            }
            What::Bookmark => {
                let version = head
                    .map_err(|error| malformed("a bookmark", error))?
                    .metadata;
                Ok(match version.ends_initial_events() {
                    true => Told::Complete(version.resource_version),
                    false => Told::Progress(version.resource_version),
                })
            }
            What::Error => Err(Failure::refused_midway(json)),
        }
    }

    /// Reads one object; `None` when it has no name, which is a problem then.
    fn read(&mut self, json: &[u8]) -> Option<Parsed<R::Object>> {
        let read = self
            .shared
            .with_interner(|interner| resource::read::<R>(json, interner));
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

    /// All objects are known, as of `version`.
    async fn complete(&mut self, objects: Vec<Parsed<R::Object>>, version: String) {
        tracing::debug!(
            objects = R::PLURAL,
            count = objects.len(),
            version,
            "listed"
        );
        self.tell(Update::Reset(objects)).await;
        self.entry.listed();
        self.advance(Some(version));
    }

    /// Everything up to `version` was told.
    fn advance(&mut self, version: Option<String>) {
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.next = Next::Watch(version);
        }
    }

    async fn tell(&mut self, change: Update<R::Object>) {
        self.shared.renew_interner(Self::MAX_SHARING);
        if let Some(event) = R::event(change, &mut self.problems) {
            self.shared.send(Message::Event(event)).await;
        }
        self.tell_problems().await;
    }

    async fn tell_problems(&mut self) {
        if self.problems != self.told_problems {
            self.told_problems.clone_from(&self.problems);
            let problems = self.problems.clone();
            let kind = R::PLURAL;
            self.shared.send(Message::Problems { kind, problems }).await;
        }
    }
}

impl Shared {
    fn with_interner<T>(&self, work: impl FnOnce(&mut Interner) -> T) -> T {
        let mut sharing = self.interner.lock().unwrap_or_else(PoisonError::into_inner);
        sharing.changes = sharing.changes.saturating_add(1);
        work(&mut sharing.interner)
    }

    /// Lets go of strings after `most` uses; objects keep those that they hold.
    fn renew_interner(&self, most: u32) {
        let mut sharing = self.interner.lock().unwrap_or_else(PoisonError::into_inner);
        if sharing.changes > most {
            *sharing = Sharing::default();
        }
    }

    async fn send(&self, message: Message) {
        if self.messages.send(message).await.is_err() {
            // Nobody listens: whoever runs us is about to end us.
            std::future::pending::<()>().await;
        }
    }
}

/// Takes a change into a list that is not complete yet.
fn gather<T>(objects: &mut Vec<Parsed<T>>, change: Update<T>) {
    match change {
        // One that is told twice counts as it was told last.
        Update::Apply(parsed) => objects.push(parsed),
        Update::Delete(name) => objects.retain(|parsed| parsed.name != name),
        Update::Reset(all) => *objects = all,
        Update::Merge(some) => objects.extend(some),
    }
}
