//! Watches.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::answer::{PIECE_SIZE, Piece, status_object};
use crate::form::Form;
use crate::objects::{Change, Object};
use crate::selector::Selector;
use crate::{Control, Shared};

/// An accepted watch.
pub(crate) struct Watch {
    pub(crate) plural: &'static str,
    pub(crate) selector: Selector,
    pub(crate) form: Form,
    /// The revision up to which changes were sent.
    pub(crate) revision: u64,
    /// The objects that are sent as `ADDED` events first.
    pub(crate) initial: Vec<Arc<Object>>,
    /// Whether a bookmark marks the end of the initial events.
    pub(crate) marks_initial: bool,
    pub(crate) bookmarks: Option<Duration>,
    pub(crate) time: Duration,
}

impl Watch {
    /// Sends events until the time is over or the client disconnects.
    pub(crate) async fn run(
        mut self,
        shared: Arc<Shared>,
        mut control: watch::Receiver<Control>,
        client: mpsc::Sender<Piece>,
    ) {
        let (end, start) = (Instant::now() + self.time, self.revision);
        let every = self.bookmarks.unwrap_or(Duration::from_secs(86_400));
        let mut bookmarks = interval_at(Instant::now() + every, every);
        // A server that stood still does not send the missed bookmarks at once.
        bookmarks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = Vec::new();
        for object in std::mem::take(&mut self.initial) {
            // At once, because a vector that grows is copied.
            if events.capacity() == 0 {
                events.reserve(PIECE_SIZE + PIECE_SIZE / 8);
            }
            self.form.put_event(&mut events, "ADDED", &object);
            if events.len() >= PIECE_SIZE && send(&mut events, &mut control, &client).await.is_err()
            {
                return;
            }
        }
        if self.marks_initial {
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            self.put_bookmark(&mut events, annotations);
            if send(&mut events, &mut control, &client).await.is_err() {
                return;
            }
            shared.end_list();
        }
        loop {
            if !events.is_empty() && send(&mut events, &mut control, &client).await.is_err() {
                return;
            }
            let error = shared.lock().behaviour.watch_error;
            if let Some(code) = error {
                let status = status_object(code, "as the test wants it");
                let event = self.form.encoding.error(status);
                let _ = client.send(Ok(Bytes::from(event))).await;
                return;
            }
            let (changes, is_behind, newest) = {
                let objects = &shared.lock().objects;
                let changes = objects.next_changes(self.plural, self.revision);
                (
                    changes,
                    objects.is_behind(self.revision),
                    objects.revision(),
                )
            };
            if is_behind {
                let status = status_object(410, "too old resource version");
                let event = self.form.encoding.error(status);
                let _ = client.send(Ok(Bytes::from(event))).await;
                return;
            }
            if let Some(last) = changes.last() {
                self.revision = last.revision;
                for change in &changes {
                    self.put_change(&mut events, change);
                }
                continue;
            }
            self.revision = self.revision.max(newest);
            tokio::select! {
                () = sleep_until(end) => {
                    // A frozen server does not end the watch either. Cannot fail: `shared` has the sender.
                    let _ = control.wait_for(|control| !control.is_frozen).await;
                    if self.bookmarks.is_some() && newest >= start {
                        self.put_bookmark(&mut events, Value::Null);
                        // Fails if the client closes the connection, which it may do at any time.
                        let _ = send(&mut events, &mut control, &client).await;
                    }
                    return;
                }
                () = client.closed() => return,
                changed = control.changed() => if changed.is_err() { return },
                // A server that was restored from a backup has not reached the version yet.
                _ = bookmarks.tick() => if newest >= start {
                    self.put_bookmark(&mut events, Value::Null);
                },
            }
        }
    }

    /// Appends the event of a change for this watch's selectors, if it has one.
    fn put_change(&self, to: &mut Vec<u8>, change: &Change) {
        let sees = |object: &&Arc<Object>| self.selector.matches(&object.selectable);
        let before = change.old.as_ref().filter(sees);
        let after = change.new.as_ref().filter(sees);
        match (before, after) {
            (None, None) => {}
            (None, Some(new)) => self.form.put_event(to, "ADDED", new),
            (Some(_), Some(new)) => self.form.put_event(to, "MODIFIED", new),
            (Some(old), None) => {
                // A real server sends the last matching state with the version of the change.
                let old = Arc::new(old.at(change.revision));
                self.form.put_event(to, "DELETED", &old);
            }
        }
    }

    fn put_bookmark(&self, to: &mut Vec<u8>, annotations: Value) {
        let metadata = json!({
            "resourceVersion": self.revision.to_string(),
            "creationTimestamp": null,
            "annotations": annotations,
        });
        self.form.put_bookmark(to, &metadata);
    }
}

/// Sends `events` and empties them. A frozen server sends nothing until `resume`.
///
/// # Errors
/// If the client has disconnected.
async fn send(
    events: &mut Vec<u8>,
    control: &mut watch::Receiver<Control>,
    client: &mpsc::Sender<Piece>,
) -> Result<(), Disconnected> {
    let waited = control.wait_for(|control| !control.is_frozen).await;
    waited.map_err(|_| Disconnected)?;
    let piece = Bytes::from(std::mem::take(events));
    client.send(Ok(piece)).await.map_err(|_| Disconnected)
}

/// The watch has no reader any more.
struct Disconnected;
