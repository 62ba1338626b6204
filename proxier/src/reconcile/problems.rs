//! The list of all Problems, which is made again only if one may have changed.

use std::sync::Arc;

use super::{Proxier, families, node};
use crate::cluster::problem::{Problem, ProblemList};
use crate::dataplane::Dataplane;
use crate::plan::service_ranges;

/// The list as it was last made, and the state of its sources then.
#[derive(Debug)]
pub(super) struct KnownProblems {
    sources: SourceStates,
    list: Arc<[Problem]>,
}

/// The state of the sources of Problems. Equal states give equal lists.
#[derive(Debug, PartialEq, Eq)]
struct SourceStates {
    /// Each increases with a change: of the snapshot, of the planner, of the input that no event carries, of the
    /// dataplane.
    revisions: [u64; 4],
    /// The Problems of this node, which are few.
    of_node: Vec<Problem>,
}

impl<D: Dataplane> Proxier<D> {
    /// Returns all Problems of the input, sorted. If there are too many, the last one has the number of the others.
    pub fn problems(&self) -> Vec<Problem> {
        self.make_problems(&self.problems_of_node())
    }

    /// Returns the same as [`Proxier::problems`]: the same list as at the last call, unless a Problem has changed.
    ///
    /// # Cost
    /// That of the few Problems of this node, while no object with a Problem changes.
    pub fn current_problems(&mut self) -> Arc<[Problem]> {
        let sources = SourceStates {
            revisions: [
                self.snapshot().problems_revision(),
                self.planner().problems_revision(),
                self.cluster.input.problems_revision,
                self.dataplane.problems_revision(),
            ],
            of_node: self.problems_of_node(),
        };
        let list = match self.known_problems.take() {
            Some(known) if known.sources == sources => known.list,
            known => {
                let list = self.make_problems(&sources.of_node);
                let known = known.map(|known| known.list);
                let is_known = |known: &Arc<[Problem]>| **known == *list;
                known.filter(is_known).unwrap_or_else(|| list.into())
            }
        };
        self.known_problems = Some(KnownProblems {
            sources,
            list: list.clone(),
        });
        list
    }

    fn problems_of_node(&self) -> Vec<Problem> {
        let node_name = &self.planner().config().node_name;
        let missing = node::missing(node_name, self.snapshot()).into_iter();
        let planned = self.cluster.planned();
        let of_dataplane = self.dataplane.problems_of_node(planned);
        let ranges = service_ranges::problems(planned.config(), planned.snapshot, planned.machine);
        let family = families::problem(self.machine(), self.desired()).into_iter();
        missing
            .chain(family)
            .chain(ranges)
            .chain(of_dataplane)
            .collect()
    }

    fn make_problems(&self, of_node: &[Problem]) -> Vec<Problem> {
        let mut list = ProblemList::default();
        // First, so that the objects of one user do not keep them out.
        list.extend(of_node);
        list.extend(self.cluster.input.other_problems.values().flatten());
        self.planner().list_problems(self.snapshot(), &mut list);
        list.extend(&self.dataplane.problems(self.cluster.planned()));
        list.finish()
    }
}
