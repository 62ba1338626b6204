//! The destinations of a virtual server, in little memory.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipvs_netlink as ipvs;

/// The destinations of a virtual server, ordered by key, each key once.
///
/// A cluster has ten times as many destinations as Services or more, and nearly all are plain: a fifth of
/// [`ipvs::Destination`]'s size is enough for them. Copies share their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destinations(DestinationsForm);

/// Equal destinations have the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DestinationsForm {
    Plain(Arc<[Plain]>),
    /// At least one is not plain.
    Any(Arc<[ipvs::Destination]>),
}

/// A destination of IPv4 as [`ipvs::Destination::new`] makes it, with a weight of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plain {
    address: Ipv4Addr,
    port: u16,
    weight: u16,
}

impl Plain {
    /// Returns the plain form of `destination`; `None` if it has none.
    fn of(destination: &ipvs::Destination) -> Option<Self> {
        let IpAddr::V4(address) = destination.key.address else {
            return None;
        };
        let plain = Self {
            address,
            port: destination.key.port,
            weight: destination.weight.try_into().ok()?,
        };
        (plain.destination() == *destination).then_some(plain)
    }

    fn key(&self) -> ipvs::DestinationKey {
        ipvs::DestinationKey {
            address: self.address.into(),
            port: self.port,
        }
    }

    fn destination(&self) -> ipvs::Destination {
        ipvs::Destination::new(self.key(), self.weight.into())
    }
}

impl Destinations {
    /// Returns the number of destinations.
    pub fn len(&self) -> usize {
        match &self.0 {
            DestinationsForm::Plain(all) => all.len(),
            DestinationsForm::Any(all) => all.len(),
        }
    }

    /// Returns whether there is no destination.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns every destination, in order.
    pub fn iter(&self) -> impl Iterator<Item = ipvs::Destination> + Clone + '_ {
        let (plain, any) = match &self.0 {
            DestinationsForm::Plain(all) => (&**all, &[][..]),
            DestinationsForm::Any(all) => (&[][..], &**all),
        };
        let plain = plain.iter().map(Plain::destination);
        plain.chain(any.iter().copied())
    }

    /// Returns the destination with this key, and its index.
    pub fn find(&self, key: &ipvs::DestinationKey) -> Option<(usize, ipvs::Destination)> {
        match &self.0 {
            DestinationsForm::Plain(all) => {
                let index = all.binary_search_by_key(key, Plain::key).ok()?;
                Some((index, all[index].destination()))
            }
            DestinationsForm::Any(all) => {
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

    /// Returns whether these are the `desired` destinations, by their memory alone.
    ///
    /// `false` proves nothing.
    pub fn are(&self, desired: &Self) -> bool {
        match (&self.0, &desired.0) {
            (DestinationsForm::Plain(own), DestinationsForm::Plain(desired)) => {
                Arc::ptr_eq(own, desired)
            }
            (DestinationsForm::Any(own), DestinationsForm::Any(desired)) => {
                Arc::ptr_eq(own, desired)
            }
            _ => false,
        }
    }

    /// Shares the memory of the desired destinations if they are equal.
    pub fn share(&mut self, desired: &Self) {
        // The pointers first: most destinations share their memory already.
        if !self.are(desired) && self == desired {
            self.clone_from(desired);
        }
    }
}

impl Default for Destinations {
    fn default() -> Self {
        Self(DestinationsForm::Plain(Arc::default()))
    }
}

impl From<Vec<ipvs::Destination>> for Destinations {
    fn from(all: Vec<ipvs::Destination>) -> Self {
        all.into_iter().collect()
    }
}

impl FromIterator<ipvs::Destination> for Destinations {
    fn from_iter<I: IntoIterator<Item = ipvs::Destination>>(all: I) -> Self {
        let mut all = all.into_iter();
        let mut plain = Vec::with_capacity(all.size_hint().0);
        let other = all.find(|destination| match Plain::of(destination) {
            Some(one) => {
                plain.push(one);
                false
            }
            None => true,
        });
        Self(match other {
            None if plain.is_empty() => return Self::default(),
            None => DestinationsForm::Plain(plain.into()),
            Some(other) => {
                let before = plain.iter().map(Plain::destination);
                DestinationsForm::Any(before.chain([other]).chain(all).collect())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn destination(socket: &str, weight: u32) -> ipvs::Destination {
        let socket: SocketAddr = socket.parse().unwrap();
        ipvs::Destination::new(socket.into(), weight)
    }

    #[test]
    fn each_form_has_the_same_destinations() {
        let plain = [
            destination("10.128.0.1:80", 0),
            destination("10.128.0.1:81", 65_535),
            destination("10.128.0.2:80", 1),
        ];
        let [first, second, third] = plain;
        let heavy = destination("10.128.0.3:80", 65_536);
        let v6 = destination("[fd00::1]:80", 1);
        let limited = ipvs::Destination {
            upper_threshold: 5,
            ..third
        };
        for (all, is_plain) in [
            (vec![], true),
            (plain.to_vec(), true),
            (vec![first, second, third, heavy], false),
            (vec![first, v6], false),
            (vec![first, limited], false),
        ] {
            let destinations = Destinations::from(all.clone());
            assert_eq!(
                matches!(destinations.0, DestinationsForm::Plain(_)),
                is_plain
            );
            assert!(destinations.iter().eq(all.iter().copied()));
            assert_eq!(destinations.len(), all.len());
            for (index, one) in all.iter().enumerate() {
                assert_eq!(destinations.find(&one.key), Some((index, *one)));
            }
            let missing = destination("10.128.0.9:9", 1).key;
            assert_eq!(destinations.find(&missing), None);
            let mut other = destinations.clone();
            other.change(|all| all.push(v6));
            assert_ne!(other, destinations);
            other.change(|all| all.pop());
            assert_eq!(other, destinations);
            // Whether those that are empty share their memory is up to the standard library.
            assert!(all.is_empty() || !other.are(&destinations));
            other.share(&destinations);
            assert!(other.are(&destinations));
        }
    }
}
