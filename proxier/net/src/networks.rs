//! A set of addresses as networks of one family.

use std::fmt::{self, Display as _};
use std::net::IpAddr;

use crate::{Cidr, Family};

/// A set of addresses of one family, as ordered and disjoint networks.
///
/// Two networks that are the halves of a larger one are merged, so equal sets are equal values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Networks {
    family: Family,
    networks: Box<[Cidr]>,
}

/// The first and the last address of a range.
pub type Bounds = (u128, u128);

impl Networks {
    /// Returns the union of the networks of `family`; ignores the other family.
    pub fn new(family: Family, networks: impl IntoIterator<Item = Cidr>) -> Self {
        let of_family = |network: &Cidr| network.family() == family;
        let mut sorted: Vec<Cidr> = networks.into_iter().filter(of_family).collect();
        // A network sorts after the larger ones that contain it.
        sorted.sort_by_key(|network| (number(network.network()), network.prefix_len()));
        let mut merged: Vec<Cidr> = Vec::with_capacity(sorted.len());
        for network in sorted {
            if merged
                .last()
                .is_some_and(|last| last.contains(network.network()))
            {
                continue;
            }
            merged.push(network);
            // Two halves that are joined may become half of a still larger network.
            while let [.., low, high] = merged[..]
                && let Some(both) = joined(low, high)
            {
                merged.truncate(merged.len() - 2);
                merged.push(both);
            }
        }
        Self {
            family,
            networks: merged.into(),
        }
    }

    /// Returns the family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Returns whether the set contains `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(address))
    }

    /// Returns the network, if there is exactly one.
    pub fn single(&self) -> Option<Cidr> {
        match self.networks[..] {
            [network] => Some(network),
            _ => None,
        }
    }

    /// Returns the set as ordered ranges with gaps between them.
    ///
    /// Adjacent networks form one range: an nftables interval ends with an element of its own, which
    /// would have the key of the next interval's start.
    pub fn ranges(&self) -> Vec<Bounds> {
        let mut ranges: Vec<Bounds> = Vec::with_capacity(self.networks.len());
        for &network in &self.networks {
            let (first, last) = bounds(network);
            match ranges.last_mut() {
                Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
                _ => ranges.push((first, last)),
            }
        }
        ranges
    }
}

/// Returns the network whose halves are `low` and `high`, if one exists.
fn joined(low: Cidr, high: Cidr) -> Option<Cidr> {
    let length = low.prefix_len().checked_sub(1)?;
    let both: Cidr = format!("{}/{length}", low.network()).parse().ok()?;
    let is_half = low.prefix_len() == high.prefix_len()
        && both.network() == low.network()
        && both.contains(high.network())
        && low != high;
    is_half.then_some(both)
}

fn bounds(network: Cidr) -> Bounds {
    let first = number(network.network());
    let bits = match network.family() {
        Family::V4 => 32,
        Family::V6 => 128,
    };
    let host = bits - u32::from(network.prefix_len());
    (
        first,
        // Without host bits the shift is 128, which `>>` cannot do.
        first | u128::MAX.checked_shr(128 - host).unwrap_or(0),
    )
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// `10.0.0.0/8`, or `{ 10.0.0.0/8, 192.0.2.1 }`.
impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(network) = self.single() {
            return write_network(f, network);
        }
        for (index, &network) in self.networks.iter().enumerate() {
            f.write_str(if index == 0 { "{ " } else { ", " })?;
            write_network(f, network)?;
        }
        f.write_str(" }")
    }
}

fn write_network(f: &mut fmt::Formatter<'_>, network: Cidr) -> fmt::Result {
    let whole = match network.family() {
        Family::V4 => 32,
        Family::V6 => 128,
    };
    if network.prefix_len() == whole {
        network.network().fmt(f)
    } else {
        network.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(family: Family, list: &[&str]) -> Networks {
        Networks::new(family, list.iter().map(|text| text.parse().unwrap()))
    }

    #[test]
    fn contained_and_adjacent_networks_are_merged() {
        let check = |list: &[&str], expected: &str| {
            assert_eq!(networks(Family::V4, list).to_string(), expected);
        };
        check(&["10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8"], "10.0.0.0/8");
        check(&["10.0.0.0/9", "10.128.0.0/9"], "10.0.0.0/8");
        check(
            &["10.0.0.128/26", "10.0.0.192/26", "10.0.0.0/25"],
            "10.0.0.0/24",
        );
        check(
            &["192.0.2.1/32", "10.0.0.0/8", "fd00::/8"],
            "{ 10.0.0.0/8, 192.0.2.1 }",
        );
        // Adjacent, but not the halves of one network.
        check(
            &["10.0.1.0/24", "10.0.2.0/24"],
            "{ 10.0.1.0/24, 10.0.2.0/24 }",
        );
        check(&["0.0.0.0/1", "128.0.0.0/1"], "0.0.0.0/0");
    }

    #[test]
    fn ranges_have_gaps_between_them() {
        let ranges = |family, list: &[&str]| networks(family, list).ranges();
        assert_eq!(
            ranges(Family::V4, &["10.0.1.0/24", "10.0.2.0/24", "10.0.4.0/32"]),
            [(0x0a00_0100, 0x0a00_02ff), (0x0a00_0400, 0x0a00_0400)]
        );
        assert_eq!(ranges(Family::V6, &["::/0"]), [(0, u128::MAX)]);
        assert_eq!(ranges(Family::V6, &["::1/128"]), [(1, 1)]);
    }
}
