//! The names of the EndpointSlices of each Service.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::ObjectName;
use crate::packed::pack;

/// The names of slices by their Service, in order of names, so that plans do not depend on the order of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlicesOf(BTreeMap<ObjectName, Names>);

/// Names in the namespace of the Service; never none.
///
/// Nearly all Services have one slice for each address family, and one slice needs no memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    One(Arc<str>),
    Many(Box<[Arc<str>]>),
}

impl Names {
    fn all(&self) -> &[Arc<str>] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
    }
}

impl SlicesOf {
    /// Returns the slices of `service`.
    pub(super) fn names(&self, service: &ObjectName) -> impl Iterator<Item = ObjectName> {
        let found = self.0.get_key_value(service);
        found.into_iter().flat_map(|(service, names)| {
            let name = |name: &Arc<str>| ObjectName::new(service.namespace(), name);
            names.all().iter().map(name)
        })
    }

    /// Adds a slice, which is in the namespace of its Service.
    pub(super) fn add(&mut self, service: ObjectName, slice: &ObjectName) {
        let mut names = match self.0.get(&service) {
            Some(names) => names.all().to_vec(),
            None => Vec::new(),
        };
        if let Err(at) = names.binary_search_by(|name| (**name).cmp(slice.name())) {
            names.insert(at, slice.name().into());
        }
        self.set(service, names);
    }

    /// Removes a slice.
    pub(super) fn remove(&mut self, service: &ObjectName, slice: &ObjectName) {
        let Some(names) = self.0.get(service) else {
            return;
        };
        let others = names.all().iter().filter(|&name| **name != *slice.name());
        let others = others.cloned().collect();
        self.set(service.clone(), others);
    }

    fn set(&mut self, service: ObjectName, names: Vec<Arc<str>>) {
        match <[Arc<str>; 1]>::try_from(names) {
            Ok([name]) => {
                self.0.insert(service, Names::One(name));
            }
            Err(names) if names.is_empty() => {
                self.0.remove(&service);
            }
            Err(names) => {
                self.0.insert(service, Names::Many(names.into()));
            }
        }
    }

    /// Frees the memory that insertions in order of the keys left unused.
    pub(super) fn pack(&mut self) {
        pack(&mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_its_slices_in_order_of_names() {
        let service = ObjectName::new("default", "web");
        let slice = |name: &str| ObjectName::new("default", name);
        let mut slices_of = SlicesOf::default();
        let expect = |slices_of: &SlicesOf, names: &[&str]| {
            let found: Vec<ObjectName> = slices_of.names(&service).collect();
            let wanted: Vec<ObjectName> = names.iter().copied().map(slice).collect();
            assert_eq!(found, wanted);
        };
        for name in ["web-b", "web-c", "web-a", "web-b"] {
            slices_of.add(service.clone(), &slice(name));
        }
        expect(&slices_of, &["web-a", "web-b", "web-c"]);
        for name in ["web-b", "web-b", "web-a"] {
            slices_of.remove(&service, &slice(name));
        }
        expect(&slices_of, &["web-c"]);
        assert!(matches!(slices_of.0[&service], Names::One(_)));
        slices_of.remove(&service, &slice("web-c"));
        assert_eq!(slices_of, SlicesOf::default());
    }
}
