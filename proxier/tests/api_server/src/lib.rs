//! A Kubernetes API server for tests.
//!
//! It serves HTTP on a loopback port and implements reading: lists with pages, label and field
//! selectors, watches with bookmarks and time limits, streaming lists, expired resource versions,
//! bearer tokens, JSON and protobuf. The test supplies the objects and injects failures: [`ApiServer::refuse`],
//! [`ApiServer::freeze`], [`ApiServer::compact`], [`ApiServer::configure`]. [`control_plane`] starts a real
//! server.
//!
//! ```no_run
//! use serde_json::json;
//!
//! let server = api_server::ApiServer::start();
//! server.apply(json!({"kind": "Service", "metadata": {"namespace": "a", "name": "b"}}));
//! println!("listens on {}", server.url());
//! ```

mod answer;
pub mod control_plane;
mod form;
mod manifest;
pub mod messages;
mod objects;
mod protobuf;
pub mod reader;
mod selector;
mod serve;
mod stream;
pub mod tls;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::net::unused_port;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use objects::Objects;

pub use manifest::Manifest;
pub use objects::Key;

/// A running API server. Dropping it stops it.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    scheme: Scheme,
    thread: Option<JoinHandle<()>>,
}

/// The protocol of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP.
    Plain,
    /// HTTPS, with this certificate.
    Secure(tls::Identity),
    /// HTTPS with HTTP/2, as real servers have it, and this certificate.
    Http2(tls::Identity),
}

/// The options in which real servers differ, and failures to inject.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Whether lists can be streamed (`sendInitialEvents`). If not, such a watch is rejected with
    /// status 422.
    pub streams_lists: bool,
    /// Whether streaming lists have no end: the bookmark after their objects is missing.
    pub ends_no_list: bool,
    /// The interval of bookmarks, for watches that request them. The last one is sent when the watch ends.
    pub bookmark_every: Duration,
    /// The accepted bearer tokens; `None` accepts every client. A client with a certificate needs
    /// none.
    pub tokens: Option<Vec<String>>,
    /// The HTTP status with which requests for a kind (`services`) are rejected.
    pub refused: BTreeMap<String, u16>,
    /// Whether protobuf is spoken; if not, requests for it get JSON.
    pub speaks_protobuf: bool,
    /// If set, watches end at once with an `ERROR` event of this status code.
    pub watch_error: Option<u16>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            streams_lists: true,
            ends_no_list: false,
            bookmark_every: Duration::from_secs(60),
            tokens: None,
            refused: BTreeMap::new(),
            speaks_protobuf: true,
            watch_error: None,
        }
    }
}

/// A response that a test defines.
#[derive(Clone, Debug)]
pub struct CannedResponse {
    /// The HTTP status.
    pub status: u16,
    /// Headers besides those of the HTTP framing.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the connection breaks after the body, before the end of the response.
    pub breaks_connection: bool,
}

/// A request that the server received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The time of arrival.
    pub at: Instant,
    /// The method, such as `GET`.
    pub method: String,
    /// The path, such as `/api/v1/services`.
    pub path: String,
    /// The parameters, decoded.
    pub query: BTreeMap<String, String>,
    /// Header `Authorization`.
    pub authorization: Option<String>,
    /// Header `Accept`.
    pub accept: Option<String>,
    /// Whether the client sent a certificate.
    pub has_certificate: bool,
}

impl Request {
    /// Returns whether the request is for a watch.
    pub fn is_watch(&self) -> bool {
        self.query
            .get("watch")
            .is_some_and(|value| value == "1" || value == "true")
    }

    /// Returns whether a server before Kubernetes 1.32 would use its watch cache and not etcd.
    ///
    /// These are the rules of `shouldDelegateList` (`apiserver/pkg/storage/cacher/cacher.go`, 1.31)
    /// without the feature ConsistentListFromCache. Watches and streaming lists use the cache always.
    pub fn is_served_from_cache(&self) -> bool {
        if self.is_watch() {
            return true;
        }
        let version = self.parameter("resourceVersion");
        let is_consistent = version.is_empty();
        let is_next_page = !self.parameter("continue").is_empty();
        let is_limited = !["", "0"].contains(&self.parameter("limit")) && version != "0";
        let is_exact = self.parameter("resourceVersionMatch") == "Exact";
        !(is_consistent || is_next_page || is_limited || is_exact)
    }

    /// Returns the value of a parameter, or an empty text without it.
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

/// The state that connections and watches wait on.
#[derive(Clone, Copy, Debug)]
struct Control {
    /// The newest resource version, which is the revision.
    revision: u64,
    /// How often all connections were broken. A connection closes when this increases.
    cuts: u64,
    is_listening: bool,
    is_frozen: bool,
    is_over: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    control: watch::Sender<Control>,
}

#[derive(Debug)]
struct State {
    objects: Objects,
    behaviour: Behaviour,
    /// The responses to the next requests, by path.
    canned: BTreeMap<String, Vec<Prescribed>>,
    requests: Vec<Request>,
    /// When the end of a list was last passed to its connection.
    last_list: Option<Instant>,
}

/// A response that waits for its request.
#[derive(Debug)]
struct Prescribed {
    response: CannedResponse,
    /// Whether the server freezes when it sends the response.
    freezes: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in another thread fails the test anyway, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a list is complete.
    fn end_list(&self) {
        self.lock().last_list = Some(Instant::now());
    }

    fn freeze(&self) {
        self.control.send_modify(|control| control.is_frozen = true);
    }
}

impl ApiServer {
    /// Starts an empty server on an unused port of 127.0.0.1.
    ///
    /// # Panics
    /// If no socket or thread can be created.
    pub fn start() -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, unused_port())).expect("an unused port");
        Self::serve(listener, Scheme::Plain)
    }

    /// Starts an empty server with HTTPS on an unused port of 127.0.0.1.
    ///
    /// # Panics
    /// If no socket or thread can be created.
    pub fn start_secure() -> Self {
        Self::start_secure_as(tls::SERVER)
    }

    /// Starts an empty server with HTTPS and this certificate on an unused port of 127.0.0.1.
    ///
    /// # Panics
    /// If no socket or thread can be created.
    pub fn start_secure_as(server: tls::Identity) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, unused_port())).expect("an unused port");
        Self::serve(listener, Scheme::Secure(server))
    }

    /// Starts an empty server with HTTPS and HTTP/2 on an unused port of 127.0.0.1.
    ///
    /// # Panics
    /// If no socket or thread can be created.
    pub fn start_http2() -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, unused_port())).expect("an unused port");
        Self::serve(listener, Scheme::Http2(tls::SERVER))
    }

    /// Starts an empty server on a given socket.
    ///
    /// # Panics
    /// If no thread can be created.
    pub fn serve(listener: TcpListener, scheme: Scheme) -> Self {
        let address = listener.local_addr().expect("a bound socket");
        let objects = Objects::default();
        let control = Control {
            revision: objects.revision(),
            cuts: 0,
            is_listening: true,
            is_frozen: false,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                objects,
                behaviour: Behaviour::default(),
                canned: BTreeMap::new(),
                requests: Vec::new(),
                last_list: None,
            }),
            control: watch::Sender::new(control),
        });
        let state = shared.clone();
        let thread = std::thread::Builder::new()
            .name("api-server".into())
            .spawn(move || serve::run(listener, scheme, &state))
            .expect("a thread");
        Self {
            shared,
            address,
            scheme,
            thread: Some(thread),
        }
    }

    /// Returns its URL, `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        let scheme = match self.scheme {
            Scheme::Plain => "http",
            Scheme::Secure(_) | Scheme::Http2(_) => "https",
        };
        format!("{scheme}://{}", self.address)
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates or replaces `object`.
    ///
    /// # Panics
    /// If its kind is not served or it has no name; [`ApiServer::put`] accepts any value.
    pub fn apply(&self, object: impl Serialize) {
        let object = json!(object);
        let key = Key::of(&object).expect("kind and name of an object");
        self.put(key, object);
    }

    /// Creates or replaces the object `key` with any value.
    pub fn put(&self, key: Key, object: Value) {
        let revision = self.shared.lock().objects.put(key, object);
        self.publish(revision);
    }

    /// Deletes an object, if it exists.
    pub fn delete(&self, key: &Key) {
        let revision = self.shared.lock().objects.delete(key);
        self.publish(revision);
    }

    fn publish(&self, revision: u64) {
        self.shared
            .control
            .send_modify(|control| control.revision = revision);
    }

    /// Remembers at most `changes` changes. A watch that is further behind gets `410 Expired`.
    pub fn limit_history(&self, changes: usize) {
        self.shared.lock().objects.limit_history(changes);
    }

    /// Drops all history: watches and pages that need it get `410 Expired`.
    pub fn compact(&self) {
        self.shared.lock().objects.compact();
    }

    /// Sets the revision, drops all history and breaks all connections, as after the restore of a
    /// backup.
    pub fn restore(&self, revision: u64) {
        self.shared.lock().objects.restore(revision);
        self.publish(revision);
        self.break_connections();
    }

    /// Returns the newest resource version.
    pub fn revision(&self) -> u64 {
        self.shared.lock().objects.revision()
    }

    /// Changes the server's options.
    pub fn configure(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.lock().behaviour);
    }

    /// Sends `answer` to the next request for `path`. Several responses for one path are sent in order.
    pub fn respond_next(&self, path: &str, answer: CannedResponse) {
        self.prescribe(path, answer, false);
    }

    /// Does the same, and freezes when it sends `answer`. Until [`ApiServer::resume`], no later response hides
    /// what the client made of this one.
    pub fn respond_next_and_freeze(&self, path: &str, answer: CannedResponse) {
        self.prescribe(path, answer, true);
    }

    fn prescribe(&self, path: &str, response: CannedResponse, freezes: bool) {
        let mut state = self.shared.lock();
        let canned = state.canned.entry(path.to_owned()).or_default();
        canned.push(Prescribed { response, freezes });
    }

    /// Breaks all connections and accepts no new ones.
    pub fn refuse(&self) {
        self.shared.control.send_modify(|control| {
            control.is_listening = false;
            control.cuts += 1;
        });
    }

    /// Breaks all connections.
    pub fn break_connections(&self) {
        self.shared.control.send_modify(|control| control.cuts += 1);
    }

    /// Keeps connections open and accepts new ones, but sends no data.
    pub fn freeze(&self) {
        self.shared.freeze();
    }

    /// Ends [`ApiServer::refuse`] and [`ApiServer::freeze`].
    pub fn resume(&self) {
        self.shared.control.send_modify(|control| {
            control.is_listening = true;
            control.is_frozen = false;
        });
    }

    /// Returns all requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// Returns when the last list, streamed or not, was complete.
    pub fn last_list(&self) -> Option<Instant> {
        self.shared.lock().last_list
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.shared
            .control
            .send_modify(|control| control.is_over = true);
        if let Some(thread) = self.thread.take() {
            // The thread has printed its own panic.
            let _ = thread.join();
        }
    }
}
