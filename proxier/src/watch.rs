//! Following a real API server.
//!
//! ```text
//!  API server ──JSON──▶ connection ──bytes──▶ json ──object──▶ resource ──▶ Message ──▶ the daemon
//!     list, watch        kube's client,       cuts objects     parses one    bounded
//!                        tokens, timeouts     out as they      into model    channel
//!                                             arrive
//! ```
//!
//! Each kind of object is listed once and watched from there on, by a [`follower`](Watch) of its own
//! over a connection of its own. A list is one [`Update::Reset`](crate::store::Update::Reset); where
//! the server can stream lists they come over the watch itself, otherwise in pages. Answers are cut
//! into objects while they arrive and each object is parsed at once, so memory does not grow with
//! the length of an answer.
//!
//! From the first list on nothing that the server does takes anything away: failures are waited out
//! and told in [`Watch::status`]. A watch goes on where it broke off; only when the server has
//! forgotten that place does a list follow.
//!
//! All of it runs on one thread. Where the receiver does not keep up, reading stops.

mod backoff;
mod connection;
mod failure;
mod follower;
mod json;
mod next;
mod query;
mod resource;
mod status;

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use self::connection::Connection;
use self::follower::{Follower, Shared};
use self::resource::{EndpointSlices, Nodes, OwnNode, ServiceCidrs, Services};
use self::status::Board;
use crate::problem::Problem;
use crate::store::Event;

pub use self::status::{Followed, State, Status};

/// What to follow, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the API server is.
    pub server: Server,
    /// The name of our own node; without one no node is followed.
    pub node_name: String,
    /// How long to wait for what.
    pub timeouts: Timeouts,
}

/// Where the API server is and how to be let in.
///
/// With neither field set, the environment of a Pod says it: the server's address is a cluster IP
/// then, which somebody else must serve until we do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// A kubeconfig file (`--kubeconfig`); its current context counts.
    pub kubeconfig: Option<PathBuf>,
    /// A URL, or `host:port` for plain HTTP (`--master`): overrides the kubeconfig's address.
    pub master: Option<String>,
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a TCP connection.
    pub connect: Duration,
    /// For the head of an answer, and for more of a list that has begun. The API server itself
    /// gives up after 60 s.
    pub answer: Duration,
    /// For a peer that is gone without a word: an established connection over which nothing comes
    /// back, not even by TCP, is given up within this time.
    pub dead_peer: Duration,
    /// For the next line of a watch, from a server that lives but does not answer. The API server
    /// sends a bookmark about every minute even where nothing happens.
    pub silence: Duration,
    /// How long the server is asked to keep up a watch: between this and twice as long, by chance.
    /// Rounded to seconds.
    pub watch: Duration,
}

/// Half-open connections are noticed within 30 s where TCP can tell, and within 150 s where it
/// cannot.
impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            dead_peer: Duration::from_secs(30),
            silence: Duration::from_secs(150),
            watch: Duration::from_secs(300),
        }
    }
}

/// What is told to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are events; boxing each would cost more than it saves"
)]
pub enum Message {
    /// The cluster changed; the first [`Reset`](crate::store::Update::Reset) of a kind is the first
    /// complete view of it.
    Event(Event),
    /// All that is wrong with objects of one kind and that no [`Event`] carries: problems of our
    /// own Node, and objects whose name cannot be read. Replaces what was said of the kind before.
    Problems {
        /// The kind, in the plural.
        kind: &'static str,
        /// In the order in which they were found; at most 100.
        problems: Vec<Problem>,
    },
}

/// Why nothing can be followed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig, a certificate or a credential cannot be used, or there is none.
    #[error("API server: {0}")]
    Configuration(String),
    /// The thread could not be started.
    #[error("starting the watch: {0}")]
    Thread(#[from] std::io::Error),
}

/// The running watch; ends when it is dropped.
#[derive(Debug)]
pub struct Watch {
    board: Arc<Board>,
    other_nodes: watch::Sender<bool>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts to follow the API server that `config` names, and sends what it tells to `messages`.
///
/// The channel bounds how far reading may be ahead of the receiver. When the receiver is dropped,
/// the watch ends; when the watch ends, the sender is dropped.
///
/// # Errors
/// When the configuration cannot be read. A server that does not answer is no error.
pub fn start<M>(config: Config, messages: SyncSender<M>) -> Result<Watch, Error>
where
    M: From<Message> + Send + 'static,
{
    let board = Arc::new(Board::default());
    let (other_nodes, wants_other_nodes) = watch::channel(false);
    let (stop, stopped) = oneshot::channel();
    let (opened, result) = std::sync::mpsc::sync_channel(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // Name resolution and credential plugins.
        .max_blocking_threads(4)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let told = board.clone();
    let thread = std::thread::Builder::new()
        .name("watch".into())
        .spawn(move || {
            let connection = Connection::new(config.server.clone(), config.timeouts);
            let work = async {
                let is_open = connection.open().await;
                let may_go_on = is_open.is_ok();
                // The receiver waits for exactly this.
                let _ = opened.send(is_open);
                if may_go_on {
                    follow(connection, &config, &told, wants_other_nodes, messages).await;
                }
            };
            runtime.block_on(async {
                tokio::select! {
                    () = work => {}
                    _ = stopped => {}
                }
            });
            // A name that is being resolved, a plugin that hangs: nothing to wait for.
            runtime.shutdown_background();
        })?;
    let watch = Watch {
        board,
        other_nodes,
        stop: Some(stop),
        thread: Some(thread),
    };
    match result.recv() {
        Ok(Ok(())) => Ok(watch),
        Ok(Err(failure)) => Err(Error::Configuration(failure.to_string())),
        Err(_) => Err(Error::Configuration("the watch ended early".into())),
    }
}

/// Follows everything until nobody listens any more.
async fn follow<M: From<Message>>(
    connection: Connection,
    config: &Config,
    board: &Board,
    wants_other_nodes: watch::Receiver<bool>,
    messages: SyncSender<M>,
) {
    // One message is parsed ahead; the caller's channel is the queue.
    let (sender, receiver) = mpsc::channel(1);
    let shared = Shared {
        connection,
        timeouts: config.timeouts,
        messages: sender,
        interner: Mutex::default(),
    };
    let services = Follower::<Services>::new(&shared, &board.services);
    let slices = Follower::<EndpointSlices>::new(&shared, &board.endpoint_slices);
    let cidrs = Follower::<ServiceCidrs>::new(&shared, &board.service_cidrs);
    let node = Follower::<OwnNode>::new(&shared, &board.node).named(&config.node_name);
    let own_node = async {
        if config.node_name.is_empty() {
            std::future::pending::<()>().await;
        }
        node.run().await;
    };
    let other_nodes = while_wanted(wants_other_nodes, || {
        Follower::<Nodes>::new(&shared, &board.nodes)
    });
    tokio::select! {
        () = pass_on(receiver, messages) => {}
        _ = async { tokio::join!(services.run(), slices.run(), cidrs.run(), own_node, other_nodes) } => {}
    }
}

/// Follows nodes while `wanted`, and forgets them in between.
async fn while_wanted<'a>(
    mut wanted: watch::Receiver<bool>,
    follower: impl Fn() -> Follower<'a, Nodes>,
) {
    while wanted.wait_for(|&wanted| wanted).await.is_ok() {
        tokio::select! {
            () = follower().run() => {}
            _ = wanted.wait_for(|&wanted| !wanted) => follower().forget().await,
        }
    }
}

/// Hands messages to the daemon, which is no async code, and holds them back while its queue is
/// full. Ends when the daemon hung up.
async fn pass_on<M: From<Message>>(mut from: mpsc::Receiver<Message>, to: SyncSender<M>) {
    const FULL: Duration = Duration::from_millis(2);
    while let Some(message) = from.recv().await {
        let mut message = M::from(message);
        loop {
            message = match to.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Full(message)) => message,
                Err(TrySendError::Disconnected(_)) => return,
            };
            tokio::time::sleep(FULL).await;
        }
    }
}

impl Watch {
    /// Switches on or off that the places of all nodes are followed
    /// ([`Event::Nodes`]); off at the start. When it is switched off,
    /// an empty `Reset` follows.
    pub fn set_other_nodes(&self, wanted: bool) {
        self.other_nodes.send_if_modified(|is_wanted| {
            let differs = *is_wanted != wanted;
            *is_wanted = wanted;
            differs
        });
    }

    /// How things are.
    pub fn status(&self) -> Status {
        self.board.status()
    }

    /// Ends the watch and waits for its thread, which takes no notable time. No message is sent
    /// afterwards.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic in there was printed by the thread and ended the channel.
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}
