//! One copy of each value that many objects have.

use std::hash::Hash;
use std::sync::Arc;

use rapidhash::{RapidHashMap, RapidHashSet};

use crate::cluster::model::{Hints, Location, ObjectName, ServicePort, SlicePort};

/// The number of values up to which unused ones are not searched.
const FEW: usize = 64;

/// The number of locations of a node that are shared. With more, each endpoint of a hostile slice would cost a long
/// search.
const MAX_LOCATIONS: usize = 16;

/// Shares equal values, so that a node's name is in memory once, however many endpoints the node has.
///
/// Values that no object has any more are dropped after as many uses as there were values.
#[derive(Debug, Default)]
pub struct Interner {
    /// Also the names of objects.
    texts: RapidHashSet<Arc<str>>,
    service_ports: RapidHashSet<Arc<[ServicePort]>>,
    slice_ports: RapidHashSet<Arc<[SlicePort]>>,
    /// Locations by the name of their node, "" if it is unknown, so that each needs one lookup.
    locations: RapidHashMap<Arc<str>, Vec<Arc<Location>>>,
    /// The number of values when unused ones were dropped last.
    kept: usize,
    /// The number of uses since then.
    uses: usize,
    /// Whether objects may have loopback addresses. Here, because the interner is the only value that all
    /// parsing functions share.
    pub(crate) permits_loopback: bool,
}

impl Interner {
    /// Returns the shared form of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        self.tidy();
        share(&mut self.texts, text)
    }

    /// Returns the shared form of an object's name.
    pub(crate) fn name(&mut self, name: ObjectName) -> ObjectName {
        self.tidy();
        name.share(|text| share(&mut self.texts, text))
    }

    /// Returns the shared form of the ports of a Service.
    pub fn service_ports(&mut self, ports: Vec<ServicePort>) -> Arc<[ServicePort]> {
        self.tidy();
        share(&mut self.service_ports, ports)
    }

    /// Returns the shared form of the ports of an EndpointSlice.
    pub fn slice_ports(&mut self, ports: Vec<SlicePort>) -> Arc<[SlicePort]> {
        self.tidy();
        share(&mut self.slice_ports, ports)
    }

    /// Returns the shared form of a location.
    pub fn location(
        &mut self,
        node: Option<&str>,
        zone: Option<&str>,
        hints: Hints,
    ) -> Arc<Location> {
        if let Some(shared) = self.known_location(node, zone, &hints) {
            return shared;
        }
        let location = Arc::new(Location {
            node: node.map(|node| self.intern(node)),
            zone: zone.map(|zone| self.intern(zone)),
            hints,
        });
        let key = self.intern(node.unwrap_or_default());
        let of_node = self.locations.entry(key).or_default();
        if of_node.len() < MAX_LOCATIONS {
            of_node.push(location.clone());
        }
        location
    }

    /// Returns the shared form of a location, if an object had it before.
    pub(crate) fn known_location(
        &self,
        node: Option<&str>,
        zone: Option<&str>,
        hints: &Hints,
    ) -> Option<Arc<Location>> {
        let of_node = self.locations.get(node.unwrap_or_default())?;
        // All have the name of the node, or none where its name is "".
        let is_it = |it: &&Arc<Location>| {
            it.zone.as_deref() == zone && it.node.is_some() == node.is_some() && it.hints == *hints
        };
        of_node.iter().find(is_it).cloned()
    }

    /// Counts a use, and drops unused values if it is time.
    fn tidy(&mut self) {
        self.uses += 1;
        if self.uses <= self.kept + FEW {
            return;
        }
        self.uses = 0;
        self.locations.retain(|_, of_node| {
            of_node.retain(is_used);
            !of_node.is_empty()
        });
        self.service_ports.retain(is_used);
        self.slice_ports.retain(is_used);
        // Last, because the others have texts.
        self.texts.retain(is_used);
        self.texts.shrink_to(2 * self.texts.len());
        let ports = self.service_ports.len() + self.slice_ports.len();
        self.kept = self.texts.len() + ports + self.locations.len();
    }
}

/// Returns the shared form of `value`.
fn share<T: Hash + Eq + ?Sized>(
    known: &mut RapidHashSet<Arc<T>>,
    value: impl AsRef<T> + Into<Arc<T>>,
) -> Arc<T> {
    if let Some(shared) = known.get(value.as_ref()) {
        return shared.clone();
    }
    let shared = value.into();
    known.insert(shared.clone());
    shared
}

fn is_used<T: ?Sized>(value: &Arc<T>) -> bool {
    Arc::strong_count(value) > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::Protocol;

    #[test]
    fn values_of_removed_objects_are_dropped() {
        let mut interner = Interner::default();
        let name = |number: usize| ObjectName::new("default", format!("web-{number}"));
        let kept: Vec<_> = (0..1_000)
            .map(|number| interner.name(name(number)))
            .collect();
        let location = interner.location(Some("a"), Some("z"), Hints::default());
        for number in 0..20_000 {
            interner.name(name(1_000 + number));
            interner.location(Some(&format!("node-{number}")), None, Hints::default());
            let port = ServicePort {
                name: interner.intern("http"),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: u16::try_from(number % 60_000).ok(),
            };
            interner.service_ports(vec![port]);
            assert!(interner.texts.len() < 4_000 && interner.locations.len() < 4_000);
            assert!(interner.service_ports.len() < 4_000);
        }
        // Those of present objects are still shared.
        for (number, kept) in kept.iter().enumerate() {
            let again = interner.name(name(number));
            assert!(std::ptr::eq(again.name(), kept.name()));
        }
        let again = interner.location(Some("a"), Some("z"), Hints::default());
        assert!(Arc::ptr_eq(&again, &location));
    }

    #[test]
    fn a_node_with_many_locations_costs_no_long_search() {
        let mut interner = Interner::default();
        let zones = (0..1_000).map(|number| format!("zone-{number}"));
        let locations: Vec<_> = zones
            .map(|zone| interner.location(Some("a"), Some(&zone), Hints::default()))
            .collect();
        assert_eq!(interner.locations["a"].len(), MAX_LOCATIONS);
        assert_eq!(locations[999].zone.as_deref(), Some("zone-999"));
    }
}
