//! A client that lists and watches the API server.
//!
//! ```text
//!  API server ──▶ connection ──bytes──▶ body ───────────▶ object ─────▶ Message ──▶ the daemon
//!   list, watch   kube's client,        splits objects    decodes and  bounded
//!                 tokens, timeouts      as they arrive    parses one   channel
//! ```
//!
//! Responses are in Kubernetes' protobuf, or in JSON: each says which ([`Encoding`]).
//!
//! A follower per kind lists the objects once and then watches them. With HTTP/2, all share a connection; with HTTP/1.1,
//! each has its own. A list becomes one [`Update::Reset`](crate::cluster::store::Update::Reset). If the server can stream lists
//! (KEP-3157), the list arrives over the watch; otherwise it is requested. The server serves both
//! from its watch cache, so all nodes can list at the same moment. If the server rejects the
//! resource version of a list, the follower requests the newest state in pages, which old servers
//! read from etcd. Responses are split into objects as bytes arrive, and each object is parsed at
//! once, so memory never holds the text of a whole response.
//!
//! After the first list, a failure of the server removes no object: the follower retries with backoff
//! and reports the failure in [`Watch::status`]. A watch resumes at its last resource version. The
//! follower lists again only when the server no longer has that version, or may have been restored from a backup
//! ([`Continuity`](continuity::Continuity)).
//!
//! All of it runs on one thread. If the receiver falls behind, the followers stop reading.

mod backoff;
mod body;
mod connection;
mod continuity;
mod encoding;
mod events;
mod failure;
mod follower;
mod initial;
mod next;
mod object;
mod query;
mod redaction;
mod resource;
mod shared;
mod status;
mod turns;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;

use self::connection::{Connection, ReachedServers};
use self::events::EventWriter;
use self::follower::Follower;
use self::resource::{EndpointSlices, Nodes, OwnNode, ServiceCidrs, Services};
use self::shared::Shared;
use self::status::StatusBoard;
use crate::cluster::problem::Problem;
use crate::cluster::store::Event;
use crate::sources::events::{EventBook, EventTimes, Notice};

pub use self::encoding::Encoding;
pub use self::status::{FollowState, Status};

pub(crate) use self::status::{KindStatus, StatusReader};

/// The API server to follow, and the settings of the watch.
#[derive(Clone, Debug)]
pub struct WatchConfig {
    /// The API server and its credentials.
    pub server: ServerLocation,
    /// The name of our own Node; if empty, it is not followed.
    pub node_name: String,
    /// Which Nodes may be followed.
    pub nodes: NodeScope,
    /// The preferred encoding of responses.
    pub encoding: Encoding,
    /// Time limits.
    pub timeouts: Timeouts,
    /// When Events are written; `None` writes none.
    pub events: Option<EventTimes>,
}

/// Which Nodes may be followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeScope {
    /// Our own only. In a cluster of 5,000 nodes, all Nodes are 25 million objects, and each kubelet updates its Node every
    /// few minutes; an annotation of one Service must not cause that.
    #[default]
    Own,
    /// Also all others, while a Service needs their locations.
    All,
}

/// The API server's address and credentials.
///
/// If neither field is set, both come from the environment of the Pod. The address is then a cluster
/// IP, so another proxy must serve it until this one does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerLocation {
    /// A kubeconfig file (`--kubeconfig`). Its current context is used.
    pub kubeconfig: Option<PathBuf>,
    /// A URL, or `host:port` for plain HTTP, or several with commas (`--master`). Overrides the kubeconfig's address.
    /// Without https, no credential is sent.
    pub master: Option<String>,
}

/// Time limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For opening a TCP connection.
    pub connect: Duration,
    /// For a response's head, and between two pieces of a list. The API server itself ends a request after 60 s.
    pub response: Duration,
    /// For TCP acknowledgements: if none arrives within this time, the connection is closed.
    pub dead_peer: Duration,
    /// From the last data of an HTTP/2 connection to a ping.
    pub ping: Duration,
    /// For the answer to a ping.
    pub pong: Duration,
    /// Between two lines of a watch. Detects a server that acknowledges TCP segments but
    /// sends no data. The API server sends a bookmark about every minute, even if no object changes.
    pub silence: Duration,
    /// The shortest duration of a watch. Each watch requests a random duration from this to twice
    /// this, in whole seconds, and the server ends it then.
    pub watch: Duration,
    /// For reading the files of the configuration, and for a run of a credential plugin, which is ended then.
    pub plugin: Duration,
    /// The same for the first watch after a failure. The server sends a bookmark before it ends the watch, unless it has
    /// not reached the watch's version, as after the restore of a backup. Then the next request is a list.
    pub trial: Duration,
    /// How long no server may have been reached without a list after it. After a longer outage, the server may have been
    /// restored from a backup, and may have passed our version since, with other changes.
    pub outage: Duration,
}

/// A connection that carries nothing more is detected within 35 s by a ping, as by kube-proxy, which waits for 30 s before a
/// ping and for 15 s after it, or within 30 s by TCP if its packets are not acknowledged. A proxy between may acknowledge them,
/// so with HTTP/1.1, such a connection is detected like a server that hangs: after 150 s, more than two intervals between
/// bookmarks.
impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            response: Duration::from_secs(60),
            dead_peer: Duration::from_secs(30),
            ping: Duration::from_secs(20),
            pong: Duration::from_secs(15),
            silence: Duration::from_secs(150),
            watch: Duration::from_secs(300),
            plugin: Duration::from_secs(60),
            trial: Duration::from_secs(15),
            // The first attempts are less than a second apart, so one of them finds another server of the cluster.
            outage: Duration::from_secs(3),
        }
    }
}

/// A message to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchMessage {
    /// Objects changed. The first [`Reset`](crate::cluster::store::Update::Reset) of a kind is its first
    /// complete list.
    Event(Event),
    /// The problems of one kind that no [`Event`] carries: problems of our own Node, and objects
    /// without a readable name. Each message replaces the previous problems of the kind.
    Problems {
        /// The kind, in the plural.
        kind: &'static str,
        /// In the order of detection; at most 100.
        problems: Vec<Problem>,
    },
}

/// Why the watch could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig, a certificate or a credential is missing or invalid.
    #[error("API server: {0}")]
    Configuration(String),
    /// The thread could not be started.
    #[error("starting the watch: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running watch. Dropping it stops it.
#[derive(Debug)]
pub struct Watch {
    board: Arc<StatusBoard>,
    reached: ReachedServers,
    other_nodes: watch::Sender<bool>,
    nodes: NodeScope,
    /// The sender of notices to write as Events; `None` if no Events are written.
    notices: Option<watch::Sender<Vec<Notice>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a thread that follows the API server of `config` and sends to `messages`.
///
/// The capacity of the channel bounds how many messages are read ahead. If the receiver is dropped,
/// the watch stops. When the watch stops, it drops the sender.
///
/// # Errors
/// If the configuration cannot be read. An unreachable server is not an error, and neither is a credential plugin that
/// fails: it is run again with backoff.
pub fn start<M>(config: WatchConfig, messages: SyncSender<M>) -> Result<Watch, Error>
where
    M: From<WatchMessage> + Send + 'static,
{
    let board = Arc::new(StatusBoard::default());
    let (other_nodes, wants_other_nodes) = watch::channel(false);
    let (notices, present) = watch::channel(Vec::new());
    let (writes_events, nodes) = (config.events.is_some(), config.nodes);
    let (stop, stopped) = oneshot::channel();
    let reached = ReachedServers::default();
    let connection = Connection::new(config.server.clone(), config.timeouts, reached.clone());
    let invalid = |failure: failure::RequestFailure| Error::Configuration(failure.to_string());
    connection.check().map_err(invalid)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // These threads run name resolution; one may read the configuration, and one may wait for the daemon.
        .max_blocking_threads(4)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let thread_board = board.clone();
    let thread = std::thread::Builder::new()
        .name("watch".into())
        .spawn(move || {
            let other = (wants_other_nodes, present);
            runtime.block_on(async {
                tokio::select! {
                    () = follow(connection, &config, &thread_board, other, messages) => {}
                    _ = stopped => {}
                }
            });
            // A blocked name resolution or file must not delay the stop. A credential plugin ends with its task.
            runtime.shutdown_background();
        })?;
    Ok(Watch {
        board,
        reached,
        other_nodes,
        nodes,
        notices: writes_events.then_some(notices),
        stop: Some(stop),
        thread: Some(thread),
    })
}

/// Follows all kinds until the receiver of `messages` or the sender of notices is dropped.
async fn follow<M>(
    connection: Connection,
    config: &WatchConfig,
    board: &StatusBoard,
    (wants_other_nodes, notices): (watch::Receiver<bool>, watch::Receiver<Vec<Notice>>),
    messages: SyncSender<M>,
) where
    M: From<WatchMessage> + Send + 'static,
{
    // Capacity 1, because the caller's channel is the queue and the caller chose its size.
    let (sender, receiver) = mpsc::channel(1);
    let shared = Shared {
        connection,
        encoding: config.encoding,
        timeouts: config.timeouts,
        messages: sender,
        interner: Mutex::default(),
    };
    let services = Follower::<Services>::new(&shared, &board.services);
    let slices = Follower::<EndpointSlices>::new(&shared, &board.endpoint_slices);
    let cidrs = Follower::<ServiceCidrs>::new(&shared, &board.service_cidrs);
    let node = Follower::<OwnNode>::new(&shared, &board.node).named(&config.node_name);
    let own_node = async {
        // An empty selector would select all Nodes.
        if config.node_name.is_empty() {
            std::future::pending::<()>().await;
        }
        node.run().await;
    };
    let other_nodes = while_wanted(wants_other_nodes, || {
        Follower::<Nodes>::new(&shared, &board.nodes)
    });
    let events = async {
        if let Some(times) = config.events {
            let node_name = &config.node_name;
            EventWriter::new(&shared.connection, node_name, notices, times)
                .run()
                .await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = forward(receiver, messages) => {}
        () = events => {}
        _ = async { tokio::join!(services.run(), slices.run(), cidrs.run(), own_node, other_nodes) } => {}
    }
}

/// Follows Nodes while `wanted` is true; deletes them from the store when it becomes false.
async fn while_wanted<'a>(
    mut wanted: watch::Receiver<bool>,
    follower: impl Fn() -> Follower<'a, Nodes>,
) {
    while wanted.wait_for(|&wanted| wanted).await.is_ok() {
        // The result keeps the value locked until it is dropped.
        let unwanted = async { drop(wanted.wait_for(|&wanted| !wanted).await) };
        tokio::select! {
            () = follower().run() => {}
            () = unwanted => follower().clear().await,
        }
    }
}

/// Forwards messages to the daemon's blocking channel until its receiver is dropped.
///
/// While the channel is full, a thread of its own waits, so that this one notices a stop.
async fn forward<M>(mut from: mpsc::Receiver<WatchMessage>, to: SyncSender<M>)
where
    M: From<WatchMessage> + Send + 'static,
{
    while let Some(message) = from.recv().await {
        let is_received = match to.try_send(message.into()) {
            Ok(()) => true,
            Err(TrySendError::Disconnected(_)) => false,
            Err(TrySendError::Full(message)) => {
                let to = to.clone();
                // An error would mean a panic of the thread.
                spawn_blocking(move || to.send(message))
                    .await
                    .is_ok_and(|sent| sent.is_ok())
            }
        };
        if !is_received {
            return;
        }
    }
}

impl Watch {
    /// Starts or stops following the locations of all Nodes ([`Event::Nodes`]).
    ///
    /// They are not followed at first, and never with [`NodeScope::Own`]. A stop sends an empty `Reset`.
    pub fn set_other_nodes(&self, wanted: bool) {
        let wanted = wanted && self.nodes == NodeScope::All;
        // The daemon calls this after each event, so an unchanged value must not wake up the watch.
        self.other_nodes.send_if_modified(|is_wanted| {
            let differs = *is_wanted != wanted;
            *is_wanted = wanted;
            differs
        });
    }

    /// Returns which Nodes may be followed.
    pub fn nodes(&self) -> NodeScope {
        self.nodes
    }

    /// Returns whether Events are written.
    pub fn writes_events(&self) -> bool {
        self.notices.is_some()
    }

    /// Replaces the notices that are written as Events. Never blocks.
    ///
    /// Uses only the first 500 of `notices`.
    pub fn report(&self, notices: impl Iterator<Item = Notice>) {
        let Some(sender) = &self.notices else {
            return;
        };
        let notices: Vec<Notice> = notices.take(EventBook::MAX_NOTICES).collect();
        sender.send_if_modified(|known| {
            let differs = *known != notices;
            *known = notices;
            differs
        });
    }

    /// Returns the addresses to which the last connections to the API server led.
    pub fn reached_servers(&self) -> Arc<BTreeSet<IpAddr>> {
        self.reached.addresses()
    }

    /// Returns the status of each follower.
    pub fn status(&self) -> Status {
        self.board.status()
    }

    /// Returns whether the list with this node's Node was sent. The Node may not exist.
    pub fn has_sent_node(&self) -> bool {
        self.board.node.is_synced()
    }

    /// Returns a reader of the status for other threads.
    pub fn status_reader(&self) -> StatusReader {
        StatusReader(self.board.clone())
    }

    /// Stops the watch and waits for its thread, which ends within milliseconds. No message is sent
    /// afterwards, except one that waits for room in the channel.
    pub fn stop(mut self) {
        self.end();
    }

    /// Writes the reported Events that are due, for at most `limit`, and stops.
    pub(crate) fn finish(mut self, limit: Duration) {
        // Without this sender, the writer ends after the last Event, and with it the thread.
        if self.notices.take().is_none() {
            return;
        }
        let end = Instant::now() + limit;
        let is_writing = |thread: &JoinHandle<()>| !thread.is_finished();
        while self.thread.as_ref().is_some_and(is_writing) {
            if Instant::now() >= end {
                tracing::warn!("the API server did not take the last Events within {limit:?}");
                return;
            }
            // Polled, because a `JoinHandle` cannot be joined with a time limit.
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // An error would mean a panic of the thread, but `exit_on_panic` ends the process before.
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}
