//! One copy of each profile that many virtual servers have.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::plan::Profile;

/// The number of profiles below which unused ones are not searched.
const FEW: usize = 64;

/// The profiles of the plan, each once, and some that are no longer used.
#[derive(Clone, Debug, Default)]
pub(super) struct Profiles {
    known: BTreeSet<Arc<Profile>>,
    /// The number of profiles after the last removal of unused ones.
    used: usize,
}

impl Profiles {
    /// Makes `profile` share the memory of an equal profile, if there is one.
    pub(super) fn share(&mut self, profile: &mut Arc<Profile>) {
        if let Some(known) = self.known.get(profile) {
            profile.clone_from(known);
            return;
        }
        // Edits of annotations may leave any number of unused profiles.
        if self.known.len() > 2 * self.used + FEW {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.used = self.known.len();
        }
        self.known.insert(profile.clone());
    }
}
