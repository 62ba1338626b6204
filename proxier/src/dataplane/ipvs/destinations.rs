//! The destinations of a virtual server as observed.

use std::sync::Arc;

use ipvs_netlink as ipvs;

use crate::plan::{Endpoints, SelectedEndpoint};

/// The destinations of a virtual server, ordered by key, each key once.
///
/// Nearly all are as the plan wants them, and then they are the plan's endpoints. Copies share their memory.
#[derive(Clone, Debug)]
pub struct Destinations(Form);

#[derive(Clone, Debug)]
enum Form {
    /// Each as [`planned`] makes it.
    Planned(Endpoints),
    Any(Arc<[ipvs::Destination]>),
}

/// Returns the destination of an endpoint.
pub fn planned(endpoint: &SelectedEndpoint) -> ipvs::Destination {
    ipvs::Destination {
        upper_threshold: endpoint.most_connections.into(),
        ..ipvs::Destination::new(key_of(endpoint), endpoint.weight.into())
    }
}

/// Returns the key of the destination of an endpoint.
pub(crate) fn key_of(endpoint: &SelectedEndpoint) -> ipvs::DestinationKey {
    ipvs::DestinationKey {
        address: endpoint.address,
        port: endpoint.port,
    }
}

impl Destinations {
    /// Returns the number of destinations.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Planned(all) => all.len(),
            Form::Any(all) => all.len(),
        }
    }

    /// Returns whether there is no destination.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns every destination, in order.
    pub fn iter(&self) -> impl Iterator<Item = ipvs::Destination> + Clone + '_ {
        let (of_plan, any) = match &self.0 {
            Form::Planned(all) => (&**all, &[][..]),
            Form::Any(all) => (&[][..], &**all),
        };
        of_plan.iter().map(planned).chain(any.iter().copied())
    }

    /// Returns the destination with this key, and its index.
    pub fn find(&self, key: &ipvs::DestinationKey) -> Option<(usize, ipvs::Destination)> {
        match &self.0 {
            Form::Planned(all) => {
                let index = all.binary_search_by_key(key, key_of).ok()?;
                Some((index, planned(&all[index])))
            }
            Form::Any(all) => {
                let index = all.binary_search_by_key(key, |it| it.key).ok()?;
                Some((index, all[index]))
            }
        }
    }

    /// Changes these destinations. Others that share their memory stay as they are.
    pub fn change<T>(&mut self, work: impl FnOnce(&mut Vec<ipvs::Destination>) -> T) -> T {
        let mut all: Vec<_> = self.iter().collect();
        let result = work(&mut all);
        *self = all.into();
        result
    }

    /// Returns whether these share the memory of the plan's `endpoints`; then they equal them.
    pub fn share(&self, endpoints: &Endpoints) -> bool {
        matches!(&self.0, Form::Planned(own) if Arc::ptr_eq(own, endpoints))
    }

    /// Returns whether these are the plan's `endpoints`.
    pub fn are(&self, endpoints: &Endpoints) -> bool {
        // The pointers first: most destinations share their memory already.
        self.share(endpoints) || self.iter().eq(endpoints.iter().map(planned))
    }

    /// Shares the memory of the plan's `endpoints`, if these destinations are equal.
    pub fn settle(&mut self, endpoints: &Endpoints) {
        if !self.share(endpoints) && self.are(endpoints) {
            *self = endpoints.clone().into();
        }
    }
}

impl PartialEq for Destinations {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Destinations {}

impl Default for Destinations {
    fn default() -> Self {
        Self(Form::Any(Arc::default()))
    }
}

impl From<Endpoints> for Destinations {
    fn from(endpoints: Endpoints) -> Self {
        Self(Form::Planned(endpoints))
    }
}

impl From<Vec<ipvs::Destination>> for Destinations {
    fn from(all: Vec<ipvs::Destination>) -> Self {
        Self(Form::Any(all.into()))
    }
}

impl FromIterator<ipvs::Destination> for Destinations {
    fn from_iter<I: IntoIterator<Item = ipvs::Destination>>(all: I) -> Self {
        Self(Form::Any(all.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(last: u8, weight: u16) -> SelectedEndpoint {
        SelectedEndpoint {
            address: [10, 128, 0, last].into(),
            port: 80,
            weight,
            most_connections: 7,
        }
    }

    #[test]
    fn each_form_has_the_same_destinations() {
        let endpoints: Endpoints = [endpoint(1, 0), endpoint(2, 65_535)].into();
        let planned_form = Destinations::from(endpoints.clone());
        let mut read: Destinations = endpoints.iter().map(planned).collect();
        assert_eq!(read, planned_form);
        assert!(!read.share(&endpoints) && read.are(&endpoints));
        for (index, endpoint) in endpoints.iter().enumerate() {
            let found = Some((index, planned(endpoint)));
            assert_eq!(read.find(&key_of(endpoint)), found);
            assert_eq!(planned_form.find(&key_of(endpoint)), found);
        }
        assert_eq!(planned_form.find(&key_of(&endpoint(9, 1))), None);
        read.settle(&endpoints);
        assert!(read.share(&endpoints));
        read.change(|all| all[0].upper_threshold = 5);
        read.settle(&endpoints);
        assert!(!read.are(&endpoints));
        assert_ne!(read, planned_form);
    }
}
