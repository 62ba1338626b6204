//! A watch with a receiver of its messages.

use std::fmt::Debug;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use api_server::ApiServer;
use proxier::testing::problem::Problem;
use proxier::testing::store::{Event, Parsed, Update};
use proxier::testing::watch::{
    self, Encoding, NodeScope, ServerLocation, Status, Timeouts, Watch, WatchConfig, WatchMessage,
};

/// The time limit of the next message. It is long because other tests may occupy both cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A watch and its messages.
pub(crate) struct Follower {
    pub(crate) watch: Watch,
    pub(crate) messages: Receiver<WatchMessage>,
}

impl Follower {
    pub(crate) fn start(server: &ApiServer) -> Self {
        Self::with(config(server))
    }

    pub(crate) fn with(config: WatchConfig) -> Self {
        let (sender, messages) = sync_channel(4);
        let watch = watch::start(config, sender).unwrap();
        Self { watch, messages }
    }

    pub(crate) fn status(&self) -> Status {
        self.watch.status()
    }

    /// Returns what `pick` returns for the first message it accepts; drops the messages before.
    pub(crate) fn next<T>(&self, what: &str, pick: impl Fn(WatchMessage) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(message) => {
                    if let Some(picked) = pick(message) {
                        return picked;
                    }
                }
                Err(error) => panic!("no {what}: {error}; {:#?}", self.status()),
            }
        }
    }

    /// Returns the next update of Services, as [`brief`] text.
    pub(crate) fn services(&self) -> String {
        self.next("change of Services", |message| match message {
            WatchMessage::Event(Event::Services(change)) => Some(brief(&change)),
            _ => None,
        })
    }

    pub(crate) fn slices(&self) -> String {
        self.next("change of EndpointSlices", |message| match message {
            WatchMessage::Event(Event::EndpointSlices(change)) => Some(brief(&change)),
            _ => None,
        })
    }

    pub(crate) fn cidrs(&self) -> String {
        self.next("change of ServiceCIDRs", |message| match message {
            WatchMessage::Event(Event::ServiceCidrs(change)) => Some(brief(&change)),
            _ => None,
        })
    }

    pub(crate) fn nodes(&self) -> String {
        self.next("change of Nodes", |message| match message {
            WatchMessage::Event(Event::Nodes(change)) => Some(brief(&change)),
            _ => None,
        })
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        self.next("problems", |message| match message {
            WatchMessage::Problems { problems, .. } => Some(problems),
            WatchMessage::Event(_) => None,
        })
    }

    /// Skips messages until all kinds are listed and none arrives for a second.
    pub(crate) fn drain(&self) {
        self.until("synced", |status| {
            status.is_synced() && status.service_cidrs.is_synced() && status.node.is_synced()
        });
        while let Ok(_message) = self.messages.recv_timeout(Duration::from_secs(1)) {}
    }

    /// Asserts that no message arrives for 300 ms.
    pub(crate) fn assert_silent(&self) {
        if let Ok(message) = self.messages.recv_timeout(Duration::from_millis(300)) {
            panic!("{message:?}");
        }
    }

    /// Waits until the status satisfies `is_so`, and returns it.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        until(
            what,
            || Some(self.status()).filter(&is_so),
            || self.status(),
        )
    }
}

/// Polls `look` until it returns a value. If it never does, panics with the text of `shown`.
pub(crate) fn until<T, D: Debug>(
    what: &str,
    look: impl Fn() -> Option<T>,
    shown: impl Fn() -> D,
) -> T {
    let seen = lab::await_some(Duration::from_millis(5), look);
    seen.unwrap_or_else(|| panic!("never {what}: {:#?}", shown()))
}

pub(crate) fn config(server: &ApiServer) -> WatchConfig {
    WatchConfig {
        server: ServerLocation {
            kubeconfig: None,
            master: Some(server.url()),
        },
        node_name: "us".into(),
        nodes: NodeScope::All,
        encoding: Encoding::Protobuf,
        timeouts: Timeouts::default(),
        events: None,
    }
}

/// Returns an update as text: `reset [a/b, a/c?]`, `apply a/b` or `delete a/b`. An object without
/// content is marked with `?`, and an object with problems with `!`.
pub(crate) fn brief<T>(change: &Update<T>) -> String {
    let name = |parsed: &Parsed<T>| {
        let mut text = parsed.name.to_string();
        text.extend(parsed.object.is_none().then_some('?'));
        text.extend((!parsed.problems.is_empty()).then_some('!'));
        text
    };
    let names = |list: &[Parsed<T>]| list.iter().map(name).collect::<Vec<_>>().join(", ");
    match change {
        Update::Apply(parsed) => format!("apply {}", name(parsed)),
        Update::Delete(gone) => format!("delete {gone}"),
        Update::Reset(all) => format!("reset [{}]", names(all)),
        Update::Merge(some) => format!("merge [{}]", names(some)),
    }
}
