//! The addresses at which a server cannot listen now, as notices for Events.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::answer::Site;
use crate::cluster::model::ObjectName;
use crate::sources::events::{Notice, Regarding};

/// The present failures. The servers write them; the daemon reports them after each round.
///
/// Reasons and actions are kube-proxy's, so that alerts on them still work.
#[derive(Debug, Default)]
pub(crate) struct BindFailures {
    node_name: String,
    present: Mutex<BTreeMap<SocketAddr, Notice>>,
}

impl BindFailures {
    /// Returns no failures, of the servers on this node.
    pub(crate) fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.to_owned(),
            present: Mutex::default(),
        }
    }

    /// Returns the present failures.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        self.lock().values().cloned().collect()
    }

    /// Records that `site` cannot listen at `address`; `service` is that of a health-check port.
    pub(super) fn add(
        &self,
        site: Site,
        address: SocketAddr,
        service: Option<ObjectName>,
        error: &io::Error,
    ) {
        let note = format!("{site} cannot listen on {address}: {error}");
        let notice = match (site, service) {
            (Site::HealthPort { .. }, Some(service)) => Notice {
                regarding: Regarding::Service(service),
                // Each node has its own sockets, so the Events of two nodes differ.
                ..Notice::node(
                    "FailedToStartServiceHealthcheck",
                    "Listen",
                    &format!("node {}: {note}", self.node_name),
                )
            },
            (Site::HealthPort { .. }, None) | (Site::Local, _) => return,
            (Site::Health, _) => {
                Notice::node("FailedToStartProxierHealthcheck", "StartKubeProxy", &note)
            }
            (Site::Metrics, _) => {
                Notice::node("FailedToStartMetricServer", "StartKubeProxy", &note)
            }
        };
        self.lock().insert(address, notice);
    }

    /// Records that a server listens at `address`, or need not any more.
    pub(super) fn remove(&self, address: SocketAddr) {
        self.lock().remove(&address);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, Notice>> {
        // Each write leaves valid data.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
