//! One copy of each string and location that many objects have.

use std::sync::Arc;

use rapidhash::{RapidHashMap, RapidHashSet};

use crate::cluster::model::Location;

/// Shares equal strings and locations, so that a node's name is in memory once, however many
/// endpoints the node has.
#[derive(Debug, Default)]
pub struct Interner {
    /// Never shrinks: a removed node leaves its name and its locations here.
    texts: RapidHashSet<Arc<str>>,
    /// Locations by the name of their node, "" if it is unknown, so that each needs one lookup.
    locations: RapidHashMap<Arc<str>, Vec<Arc<Location>>>,
    /// Whether objects may have loopback addresses. Here, because the interner is the only value that all
    /// parsing functions share.
    pub(crate) permits_loopback: bool,
}

impl Interner {
    /// Returns the shared form of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.texts.get(text) {
            return shared.clone();
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(shared.clone());
        shared
    }

    /// Returns the shared form of a location.
    pub fn location(&mut self, node: Option<&str>, zone: Option<&str>) -> Arc<Location> {
        if let Some(shared) = self.known_location(node, zone) {
            return shared;
        }
        let shared = Arc::new(Location {
            node: node.map(|node| self.intern(node)),
            zone: zone.map(|zone| self.intern(zone)),
        });
        let key = self.intern(node.unwrap_or_default());
        self.locations.entry(key).or_default().push(shared.clone());
        shared
    }

    /// Returns the shared form of a location, if an object had it before.
    pub(crate) fn known_location(
        &self,
        node: Option<&str>,
        zone: Option<&str>,
    ) -> Option<Arc<Location>> {
        let of_node = self.locations.get(node.unwrap_or_default())?;
        // All have the name of the node, or none where its name is "".
        let is_it =
            |it: &&Arc<Location>| it.zone.as_deref() == zone && it.node.is_some() == node.is_some();
        of_node.iter().find(is_it).cloned()
    }
}
