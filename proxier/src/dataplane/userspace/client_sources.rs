//! The frontends whose endpoints see clients' addresses, and the way of the answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use relay::LocalAnswers;

use crate::cluster::model::{Family, SourceAddress};
use crate::dataplane::answer_path::AnswerPath;
use crate::plan::frontend::Frontend;
use crate::plan::{Changed, Desired, Machine, RelayOptions};

/// The frontends that ask for clients' addresses, and what they need of the kernel.
#[derive(Debug)]
pub(super) struct ClientSources {
    answers: Arc<LocalAnswers>,
    frontends: BTreeSet<Frontend>,
    /// `None` without privileges.
    path: Option<AnswerPath>,
    state: PathState,
}

/// The path of answers in the kernel.
#[derive(Debug, PartialEq, Eq)]
enum PathState {
    /// Not read yet. An earlier process may have left one.
    Unknown,
    Absent,
    Present(BTreeSet<Family>),
    /// The kernel refused a part of it, for these families.
    Failed(BTreeSet<Family>),
}

impl ClientSources {
    /// Returns the state of a process without frontends. `path` is `None` without privileges.
    pub(super) fn new(path: Option<AnswerPath>) -> Self {
        Self {
            answers: Arc::default(),
            frontends: BTreeSet::new(),
            path,
            state: PathState::Unknown,
        }
    }

    /// Returns the endpoints that see clients' addresses, of a frontend with these options.
    pub(super) fn of(&self, options: &RelayOptions) -> Option<Arc<LocalAnswers>> {
        let is_shown = options.source == SourceAddress::Client && self.is_usable();
        is_shown.then(|| self.answers.clone())
    }

    /// Repairs the path of answers. Returns whether it can be used.
    pub(super) fn check(&mut self, machine: &Machine) -> bool {
        self.answers.set_own(machine.addresses.clone());
        if let PathState::Present(families) | PathState::Failed(families) = &self.state {
            self.restore(families.clone());
        }
        self.is_usable()
    }

    /// Follows a change of the plan.
    pub(super) fn follow(&mut self, desired: &Desired, changed: &Changed) {
        for address in &changed.local_endpoints {
            match desired.local_endpoints.contains(address) {
                true => self.answers.add([*address]),
                false => self.answers.remove(address),
            }
        }
        for frontend in &changed.frontends {
            let plan = desired.frontends.get(frontend);
            if plan.is_some_and(|plan| plan.profile.relay.source == SourceAddress::Client) {
                self.frontends.insert(*frontend);
            } else {
                self.frontends.remove(frontend);
            }
        }
        let families = self.frontends.iter().map(Frontend::family);
        let mut families: BTreeSet<Family> = families.collect();
        match &self.state {
            // Until a check succeeds, the plan lets no endpoint see clients' addresses
            // (`can_keep_sources`).
            PathState::Failed(_) => {}
            // The path stays until the process stops: connections that began before an annotation
            // changed need it.
            PathState::Present(present) if families.is_subset(present) => {}
            PathState::Present(present) => {
                families.extend(present);
                self.restore(families);
            }
            PathState::Absent if families.is_empty() => {}
            PathState::Unknown if families.is_empty() => self.remove(),
            PathState::Absent | PathState::Unknown => self.restore(families),
        }
    }

    /// Removes the path from the kernel.
    pub(super) fn remove(&mut self) {
        let Some(path) = &mut self.path else {
            return;
        };
        match path.remove() {
            Ok(removed) => {
                for line in removed.lines() {
                    tracing::info!("removed {line}");
                }
                self.state = PathState::Absent;
            }
            Err(failure) => tracing::warn!("{failure}; the routing of answers stays"),
        }
    }

    fn restore(&mut self, families: BTreeSet<Family>) {
        let Some(path) = &mut self.path else {
            return;
        };
        self.state = match path.restore(&families) {
            Ok(()) => PathState::Present(families),
            Err(failure) => {
                if !matches!(self.state, PathState::Failed(_)) {
                    tracing::warn!("{failure}; endpoints see this node's address");
                }
                PathState::Failed(families)
            }
        };
    }

    fn is_usable(&self) -> bool {
        self.path.is_some() && !matches!(self.state, PathState::Failed(_))
    }
}
