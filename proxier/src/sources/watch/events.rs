//! Writes Events to the API server, one request at a time.
//!
//! The name of an Event has no node in it. Every node finds the same invalid value in a Service, so the API server rejects
//! all but the first creation (409), and a cluster of 5,000 nodes has one Event instead of 5,000.

use std::time::{Duration, SystemTime};

use http::Method;
use k8s_openapi::api::events::v1::Event;
use kube::core::{ObjectList, PartialObjectMeta};
use tokio::sync::watch;

use super::connection::{Connection, Outgoing};
use super::failure::RequestFailure;
use crate::sources::events::{EventBook, EventTimes, Notice, Regarding, Task, series};
use crate::util::clock;

/// The longest response that is read, in bytes.
const MAX_BODY: usize = 64 << 10;

/// The longest pause while no Event is due.
const IDLE: Duration = Duration::from_secs(3_600);

/// The pause before a last Event is tried again.
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// The writer of Events.
pub(super) struct EventWriter<'a> {
    connection: &'a Connection,
    node_name: &'a str,
    notices: watch::Receiver<Vec<Notice>>,
    book: EventBook,
    /// Whether the server permits to read Events, as older roles do not.
    may_look: bool,
    /// Whether the log says that the server does not permit Events.
    has_logged_refusal: bool,
}

impl<'a> EventWriter<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        node_name: &'a str,
        notices: watch::Receiver<Vec<Notice>>,
        times: EventTimes,
    ) -> Self {
        Self {
            connection,
            node_name,
            notices,
            book: EventBook::new(times, node_name),
            may_look: true,
            has_logged_refusal: false,
        }
    }

    /// Writes Events until the sender of notices is dropped, then those that are due or failed.
    pub(super) async fn run(mut self) {
        loop {
            let now = clock::since_boot();
            let due = self.book.next_due();
            let pause = due.map_or(IDLE, |due| due.saturating_sub(now));
            tokio::select! {
                // So that no Event is written about what is over.
                biased;
                changed = self.notices.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let present = self.notices.borrow_and_update();
                    self.book.set(&present, clock::since_boot());
                }
                () = tokio::time::sleep(pause) => {
                    if let Some(task) = self.book.take(clock::since_boot())
                        && let Err(failure) = self.perform(&task).await
                    {
                        // A later request writes the Event, and nothing depends on it.
                        tracing::debug!("an Event was not written: {failure}");
                        self.book.failed(&task, clock::since_boot());
                    }
                }
            }
        }
        self.book.hasten(clock::since_boot());
        while let Some(task) = self.book.take(clock::since_boot()) {
            self.insist(&task).await;
        }
    }

    /// Performs a task of a process that ends, after which there is no next count. The process waits for this for
    /// a few seconds (`Watch::finish`).
    async fn insist(&mut self, task: &Task) {
        let mut has_logged = false;
        while let Err(failure) = self.perform(task).await {
            if failure.is_rejection() {
                tracing::warn!("an Event was not written: {failure}");
                return;
            }
            if !std::mem::replace(&mut has_logged, true) {
                tracing::warn!("an Event was not written: {failure}; trying again");
            }
            tokio::time::sleep(LAST_PAUSE).await;
        }
    }

    /// Performs a task, unless the API server does not permit it.
    async fn perform(&mut self, task: &Task) -> Result<(), RequestFailure> {
        let result = match task {
            Task::Create(notice) => self.create(notice).await,
            Task::Count(notice, count) => self.count(notice, *count).await,
        };
        let Err(failure) = result else {
            return Ok(());
        };
        match failure.refusal() {
            Some(refusal) if refusal.is_withheld() => {
                self.book.refused(clock::since_boot());
                if !std::mem::replace(&mut self.has_logged_refusal, true) {
                    tracing::warn!(
                        "the API server does not permit Events, so none are written: {failure}; \
                         --events=off requests none"
                    );
                }
                Ok(())
            }
            _ => Err(failure),
        }
    }

    async fn create(&mut self, notice: &Notice) -> Result<(), RequestFailure> {
        // A look costs the server less than a creation that it rejects.
        if notice.is_common() && self.is_written(notice).await? {
            self.book.exists(notice, clock::since_boot());
            return Ok(());
        }
        let uid = match &notice.regarding {
            Regarding::Node => None,
            regarding => match self.uid(regarding).await? {
                Some(uid) => Some(uid),
                // The object was deleted, so an Event about it would help no reader.
                None => return Ok(()),
            },
        };
        let (namespace, _) = notice.event_name(self.node_name);
        let event = notice.event(self.node_name, uid.as_deref(), SystemTime::now());
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        match self.write(Method::POST, &path, &event).await {
            Ok(()) => self.book.counted(notice, 1),
            // Another node has created the common Event, or an earlier process of this node has.
            Err(failure) if is_conflict(&failure) => {
                self.book.exists(notice, clock::since_boot());
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Returns whether the server has the Event.
    async fn is_written(&mut self, notice: &Notice) -> Result<bool, RequestFailure> {
        if !self.may_look {
            return Ok(false);
        }
        let (namespace, name) = notice.event_name(self.node_name);
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}");
        let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let Err(failure) = self.connection.get(&path, accept).await else {
            return Ok(true);
        };
        match failure.refusal().map(|refusal| refusal.code) {
            Some(404) => Ok(false),
            Some(403) => {
                self.may_look = false;
                Ok(false)
            }
            _ => Err(failure),
        }
    }

    async fn count(&mut self, notice: &Notice, count: u32) -> Result<(), RequestFailure> {
        let (namespace, name) = notice.event_name(self.node_name);
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}");
        let change = series(count, SystemTime::now());
        match self.write(Method::PATCH, &path, &change).await {
            Ok(()) => self.book.counted(notice, count),
            Err(failure) if failure.refusal().is_some_and(|refusal| refusal.code == 404) => {
                self.book.expired(notice, clock::since_boot());
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    async fn write(&self, method: Method, path: &str, event: &Event) -> Result<(), RequestFailure> {
        let media_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let text = serde_json::to_vec(event)
            .map_err(|error| RequestFailure::Configuration(error.to_string()))?;
        let request = Outgoing::with_body(method, path, media_type, text);
        self.connection.send(&request).await.map(drop)
    }

    /// Returns the UID of an object; `None` if it does not exist.
    ///
    /// Lists it by name, because the role permits to list these kinds but not to get them.
    async fn uid(&self, regarding: &Regarding) -> Result<Option<String>, RequestFailure> {
        let (root, plural, name) = match regarding {
            Regarding::Node => return Ok(None),
            Regarding::Service(name) => ("/api/v1", "services", name),
            Regarding::EndpointSlice(name) => ("/apis/discovery.k8s.io/v1", "endpointslices", name),
        };
        // Names of objects need no encoding. Version 0: the server's cache answers, and a UID never
        // changes.
        let path = format!(
            "{root}/namespaces/{}/{plural}?fieldSelector=metadata.name%3D{}&resourceVersion=0",
            name.namespace(),
            name.name()
        );
        let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let mut response = self.connection.get(&path, accept).await?;
        let text = response
            .text(MAX_BODY, self.connection.response_limit())
            .await?;
        let list: ObjectList<PartialObjectMeta> = serde_json::from_slice(&text)
            .map_err(|error| RequestFailure::Malformed(error.to_string()))?;
        Ok(list.into_iter().next().and_then(|item| item.metadata.uid))
    }
}

/// Returns whether the object to create exists already.
fn is_conflict(failure: &RequestFailure) -> bool {
    failure.refusal().is_some_and(|refusal| refusal.code == 409)
}
