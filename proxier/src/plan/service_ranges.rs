//! The ranges of the cluster's cluster IPs.
//!
//! A packet to an address in them that no Service has would leave the node by its default route, and perhaps return. The
//! dataplanes of the kernel reject it, because its destination cannot exist. A range that may be wrong decides nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Machine, PlanConfig};
use crate::cluster::model::{Cidr, Family, Node};
use crate::cluster::problem::Problem;
use crate::cluster::store::Snapshot;

/// What the operator knows of the service ranges, and whether unallocated addresses in them are rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRanges {
    /// Ranges beside those of ServiceCIDRs (`--service-cidr`).
    pub named: Vec<Cidr>,
    /// Whether packets to unallocated addresses are left alone (`--unallocated-addresses=pass`).
    pub pass: bool,
}

/// Returns the service ranges of ServiceCIDRs that are not doubtful.
pub(crate) fn plausible(snapshot: &Snapshot, machine: &Machine) -> impl Iterator<Item = Cidr> {
    let ranges = snapshot.service_cidrs().flat_map(|cidr| &cidr.ranges);
    let node = snapshot.node();
    ranges
        .filter(move |range| doubt(range, &machine.addresses, node).is_none())
        .copied()
}

/// Returns the ranges in which an address without a Service is rejected.
pub(super) fn rejecting(
    config: &PlanConfig,
    snapshot: &Snapshot,
    machine: &Machine,
) -> BTreeSet<Cidr> {
    let ServiceRanges { named, pass } = &config.service_ranges;
    if *pass {
        return BTreeSet::new();
    }
    let named = named.iter().copied();
    let named = named.filter(|range| doubt(range, &machine.addresses, snapshot.node()).is_none());
    plausible(snapshot, machine).chain(named).collect()
}

/// Returns a Problem for each service range that decides nothing.
pub(crate) fn problems(
    config: &PlanConfig,
    snapshot: &Snapshot,
    machine: &Machine,
) -> Vec<Problem> {
    let of_objects = snapshot.service_cidrs().flat_map(|cidr| {
        let ranges = cidr.ranges.iter().enumerate();
        ranges.map(move |(index, range)| {
            let object = format!("ServiceCIDR {}", cidr.name);
            (object, format!("spec.cidrs[{index}]"), range)
        })
    });
    let named = config.service_ranges.named.iter();
    let named = named.map(|range| {
        (
            "Configuration".to_owned(),
            "--service-cidr".to_owned(),
            range,
        )
    });
    let problem = |(object, field, range): (String, String, &Cidr)| {
        let doubt = doubt(range, &machine.addresses, snapshot.node())?;
        let message = format!(
            "{doubt}; virtual servers in it are not deleted because of it, and packets to its unallocated addresses are \
             not rejected"
        );
        Some(Problem::new(object, field, range, message))
    };
    of_objects.chain(named).filter_map(problem).collect()
}

/// Returns why a service range must decide nothing; `None` if it may. `machine_addresses` are those of the node's
/// interfaces.
///
/// The API server accepts ServiceCIDRs of any size, so that a wrong one could contain the virtual servers of other
/// programs, and other machines. It allocates from at most a /12 of IPv4 if the range is a flag, and /8 is the largest
/// private network. Of IPv6 it uses 64 bits at most, and /48 is the network of a whole site.
fn doubt(
    range: &Cidr,
    machine_addresses: &BTreeSet<IpAddr>,
    node: Option<&Node>,
) -> Option<String> {
    let least = match range.family() {
        Family::V4 => 8,
        Family::V6 => 48,
    };
    if range.prefix_len() < least {
        return Some(format!("is larger than /{least}"));
    }
    let of_node = node.into_iter().flat_map(|node| &node.addresses);
    let mut addresses = machine_addresses.iter().chain(of_node);
    if let Some(address) = addresses.find(|&&address| range.contains(address)) {
        return Some(format!("contains {address}, an address of this node"));
    }
    let mut pods = node.into_iter().flat_map(|node| &node.pod_cidrs);
    let pods =
        pods.find(|pods| range.contains(pods.network()) || pods.contains(range.network()))?;
    Some(format!("overlaps {pods}, this node's network of Pods"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ranges_and_those_of_the_node_are_doubtful() {
        let machine = ["172.18.0.2", "fd00:172:18::2"].map(|text| text.parse().unwrap());
        let node = Node {
            name: "node".into(),
            addresses: Vec::new(),
            zone: None,
            region: None,
            pod_cidrs: vec![Cidr::parse("10.244.1.0/24").unwrap()],
            is_leaving: false,
        };
        for (range, doubt) in [
            ("10.96.0.0/12", None),
            ("10.0.0.0/9", None),
            (
                "10.0.0.0/8",
                Some("overlaps 10.244.1.0/24, this node's network of Pods"),
            ),
            (
                "10.244.1.128/25",
                Some("overlaps 10.244.1.0/24, this node's network of Pods"),
            ),
            ("10.0.0.0/7", Some("is larger than /8")),
            ("0.0.0.0/0", Some("is larger than /8")),
            (
                "172.18.0.0/16",
                Some("contains 172.18.0.2, an address of this node"),
            ),
            ("fd00:10:96::/108", None),
            ("fd00:10:96::/48", None),
            ("fd00:10::/47", Some("is larger than /48")),
            (
                "fd00:172:18::/64",
                Some("contains fd00:172:18::2, an address of this node"),
            ),
        ] {
            let range = Cidr::parse(range).unwrap();
            let found = super::doubt(&range, &machine.into(), Some(&node));
            assert_eq!(found.as_deref(), doubt, "{range}");
        }
    }
}
