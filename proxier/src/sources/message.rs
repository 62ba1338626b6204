//! What threads that listen tell the daemon.

use nftables::Tampering;

use super::manifests::Loaded;
use super::watch;
use crate::cluster::problem::Problem;
use crate::cluster::store::Event;

/// Capacity of the message queue; senders block when it is full.
pub(crate) const QUEUE_LENGTH: usize = 1_024;

/// A message to the daemon.
#[derive(Debug)]
pub enum Message {
    /// An event of the API server.
    Event(Event),
    /// The objects of the manifests.
    Manifests(Loaded),
    /// The present Problems of a kind that no event carries. They replace the earlier ones of this kind.
    Problems {
        /// The kind, in the plural.
        kind: &'static str,
        /// The Problems.
        problems: Vec<Problem>,
    },
    /// The machine's own addresses changed.
    MachineChanged,
    /// Another program changed local routes or the carrier.
    AddressesChanged,
    /// Another program changed our packet rules, or a chain that can drop packets of Services.
    RulesChanged(Tampering),
    /// A client asks what the daemon knows.
    Inquiry,
    /// Stop requested. The kernel keeps its state and continues to serve.
    Stop,
}

impl From<watch::WatchMessage> for Message {
    fn from(message: watch::WatchMessage) -> Self {
        match message {
            watch::WatchMessage::Event(event) => Self::Event(event),
            watch::WatchMessage::Problems { kind, problems } => Self::Problems { kind, problems },
        }
    }
}
