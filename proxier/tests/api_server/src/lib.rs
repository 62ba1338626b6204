//! A Kubernetes API server for tests.
//!
//! It speaks HTTP on a loopback port and does what the real one does for readers: lists with pages
//! and label and field selectors, watches with bookmarks and time limits, streaming lists, expired
//! resource versions, bearer tokens. Objects come from the test, which also says how the server is
//! to fail: [`ApiServer::refuse`], [`ApiServer::freeze`], [`ApiServer::compact`],
//! [`ApiServer::behave`].
//!
//! ```no_run
//! use serde_json::json;
//!
//! let server = api_server::ApiServer::start();
//! server.apply(json!({"kind": "Service", "metadata": {"namespace": "a", "name": "b"}}));
//! println!("listens on {}", server.url());
//! ```

mod answer;
mod objects;
mod selector;
mod serve;
mod stream;
pub mod tls;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;

use objects::Objects;

pub use objects::Key;

/// A running API server; ends when it is dropped.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    control: Arc<watch::Sender<Control>>,
    address: SocketAddr,
    scheme: Scheme,
    thread: Option<JoinHandle<()>>,
}

/// Whether connections are secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP.
    Plain,
    /// HTTPS, with the certificates of [`tls`].
    Secure,
}

/// How the server behaves, as far as real ones differ or fail.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Whether lists can be streamed (`sendInitialEvents`); otherwise such a watch is refused with
    /// 422, as by servers before 1.34.
    pub streams_lists: bool,
    /// How often a watch that asked for bookmarks gets one.
    pub bookmark_every: Duration,
    /// The bearer tokens that are let in; `None` lets everybody in. A client with a certificate
    /// needs none.
    pub tokens: Option<Vec<String>>,
    /// Kinds that are refused, by their name in the plural (`services`), with this HTTP status.
    pub refused: BTreeMap<String, u16>,
    /// Watches end at once with an `ERROR` event of this status code.
    pub watch_error: Option<u16>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            streams_lists: true,
            bookmark_every: Duration::from_secs(60),
            tokens: None,
            refused: BTreeMap::new(),
            watch_error: None,
        }
    }
}

/// An answer that a test prescribes.
#[derive(Clone, Debug)]
pub struct Canned {
    /// The HTTP status.
    pub status: u16,
    /// Headers besides those that hold the message together.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
    /// Whether the connection breaks after the body instead of ending it.
    pub breaks_off: bool,
}

/// A request that the server received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When.
    pub at: Instant,
    /// The path, such as `/api/v1/services`.
    pub path: String,
    /// The parameters, decoded.
    pub query: BTreeMap<String, String>,
    /// Header `Authorization`.
    pub authorization: Option<String>,
    /// Header `Accept`.
    pub accept: Option<String>,
    /// Whether the client showed a certificate.
    pub has_certificate: bool,
}

impl Request {
    /// Whether it asks for a watch.
    pub fn is_watch(&self) -> bool {
        self.query
            .get("watch")
            .is_some_and(|value| value == "1" || value == "true")
    }

    /// A parameter's value, empty where it is missing.
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

/// What connections and watches look at to know what to do.
#[derive(Clone, Copy, Debug)]
struct Control {
    /// The newest resource version.
    revision: u64,
    /// Connections from before the last cut are closed.
    cuts: u64,
    is_listening: bool,
    is_frozen: bool,
    is_over: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    objects: Objects,
    behaviour: Behaviour,
    canned: BTreeMap<String, Vec<Canned>>,
    requests: Vec<Request>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that failed elsewhere says so itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApiServer {
    /// Starts an empty server on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When no socket or thread is to be had.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        Self::serve(listener, Scheme::Plain)
    }

    /// The same with HTTPS.
    ///
    /// # Panics
    /// When no socket or thread is to be had.
    pub fn start_secure() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        Self::serve(listener, Scheme::Secure)
    }

    /// Starts an empty server on a given socket.
    ///
    /// # Panics
    /// When no thread is to be had.
    pub fn serve(listener: TcpListener, scheme: Scheme) -> Self {
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                objects: Objects::default(),
                behaviour: Behaviour::default(),
                canned: BTreeMap::new(),
                requests: Vec::new(),
            }),
        });
        let control = Control {
            revision: shared.lock().objects.revision(),
            cuts: 0,
            is_listening: true,
            is_frozen: false,
            is_over: false,
        };
        let (control, watched) = watch::channel(control);
        let state = shared.clone();
        let thread = std::thread::Builder::new()
            .name("api-server".into())
            .spawn(move || serve::run(listener, scheme, &state, &watched))
            .expect("a thread");
        Self {
            shared,
            control: Arc::new(control),
            address,
            scheme,
            thread: Some(thread),
        }
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        let scheme = match self.scheme {
            Scheme::Plain => "http",
            Scheme::Secure => "https",
        };
        format!("{scheme}://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates `object`, or replaces the one of its kind and name.
    ///
    /// # Panics
    /// When its kind is unknown here or it has no name; [`ApiServer::put`] takes anything.
    pub fn apply(&self, object: Value) {
        let key = Key::of(&object).expect("kind and name of an object");
        self.put(key, object);
    }

    /// Creates or replaces what is kept under `key`, whatever it looks like.
    pub fn put(&self, key: Key, object: Value) {
        let revision = self.shared.lock().objects.put(key, object);
        self.publish(revision);
    }

    /// Deletes an object; does nothing when there is none.
    pub fn delete(&self, key: &Key) {
        let revision = self.shared.lock().objects.delete(key);
        self.publish(revision);
    }

    fn publish(&self, revision: u64) {
        self.control
            .send_modify(|control| control.revision = revision);
    }

    /// Forgets all history: watches and pages that need it get `410 Expired`.
    pub fn compact(&self) {
        self.shared.lock().objects.compact();
    }

    /// Jumps ahead or back to `revision`, forgets all history and breaks all connections, as after a
    /// restored backup.
    pub fn restore(&self, revision: u64) {
        self.shared.lock().objects.restore(revision);
        self.publish(revision);
        self.cut();
    }

    /// The newest resource version.
    pub fn revision(&self) -> u64 {
        self.shared.lock().objects.revision()
    }

    /// Changes how the server behaves.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.lock().behaviour);
    }

    /// Answers the next request for `path` so. Several for one path are used in order.
    pub fn answer_next(&self, path: &str, answer: Canned) {
        let mut state = self.shared.lock();
        state
            .canned
            .entry(path.to_owned())
            .or_default()
            .push(answer);
    }

    /// An outage: all connections break and none is accepted.
    pub fn refuse(&self) {
        self.control.send_modify(|control| {
            control.is_listening = false;
            control.cuts += 1;
        });
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        self.control.send_modify(|control| control.cuts += 1);
    }

    /// Keeps connections open, and accepts more, but sends not a byte.
    pub fn freeze(&self) {
        self.control.send_modify(|control| control.is_frozen = true);
    }

    /// Ends what [`ApiServer::refuse`] or [`ApiServer::freeze`] began.
    pub fn resume(&self) {
        self.control.send_modify(|control| {
            control.is_listening = true;
            control.is_frozen = false;
        });
    }

    /// All requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.control.send_modify(|control| control.is_over = true);
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}
