//! The ranges of the cluster's cluster IPs.
//!
//! A packet to an address in them that no Service has would leave the node by its default route, and perhaps return. The
//! dataplanes of the kernel reject it, because its destination cannot exist. A range that may be wrong decides nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Machine, PlanConfig};
use crate::cluster::model::{Cidr, Family, Node, ObjectName};
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
pub(crate) fn plausible(snapshot: &Snapshot, machine: &Machine) -> BTreeSet<Cidr> {
    undoubted(&[], snapshot, machine)
}

/// Returns the ranges in which an address without a Service is rejected.
pub(super) fn rejecting(
    config: &PlanConfig,
    snapshot: &Snapshot,
    machine: &Machine,
) -> BTreeSet<Cidr> {
    let ServiceRanges { named, pass } = &config.service_ranges;
    match pass {
        true => BTreeSet::new(),
        false => undoubted(named, snapshot, machine),
    }
}

/// Returns those of these ranges and of ServiceCIDRs that are not doubtful.
fn undoubted(named: &[Cidr], snapshot: &Snapshot, machine: &Machine) -> BTreeSet<Cidr> {
    let taken = Taken::new(snapshot, machine);
    let ranges = snapshot.service_cidrs().flat_map(|cidr| &cidr.ranges);
    let all = ranges.chain(named);
    all.filter(|range| taken.doubt(range).is_none())
        .copied()
        .collect()
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
    let taken = Taken::new(snapshot, machine);
    let problem = |(object, field, range): (String, String, &Cidr)| {
        let doubt = taken.doubt(range)?;
        let message = format!(
            "{doubt}; virtual servers in it are not deleted because of it, and packets to its unallocated addresses are \
             not rejected"
        );
        Some(Problem::new(object, field, range, message))
    };
    of_objects.chain(named).filter_map(problem).collect()
}

/// Addresses that no service range can have.
struct Taken<'a> {
    /// Those of this node's interfaces.
    machine: &'a BTreeSet<IpAddr>,
    node: Option<&'a Node>,
    api_servers: Vec<IpAddr>,
}

impl<'a> Taken<'a> {
    fn new(snapshot: &'a Snapshot, machine: &'a Machine) -> Self {
        let kubernetes = snapshot.service(&ObjectName::new("default", "kubernetes"));
        let is_service = |address: &&IpAddr| {
            kubernetes.is_some_and(|service| service.cluster_ips.contains(address))
        };
        // This node's connection to the API server may lead to the Service.
        let connected = machine.peers.api_servers.iter();
        let connected = connected.filter(|address| !is_service(address));
        Self {
            machine: &machine.addresses,
            node: snapshot.node(),
            api_servers: snapshot
                .api_servers()
                .iter()
                .chain(connected)
                .copied()
                .collect(),
        }
    }

    /// Returns why a service range must decide nothing; `None` if it may.
    ///
    /// The API server accepts ServiceCIDRs of any size, so that a wrong one could contain the virtual servers of other
    /// programs, and other machines. It allocates from at most a /12 of IPv4 if the range is a flag, and /8 is the largest
    /// private network. Of IPv6 it uses 64 bits at most, and /48 is the network of a whole site. A node that rejected
    /// connections to its API servers would not learn that the range was corrected.
    fn doubt(&self, range: &Cidr) -> Option<String> {
        let least = match range.family() {
            Family::V4 => 8,
            Family::V6 => 48,
        };
        if range.prefix_len() < least {
            return Some(format!("is larger than /{least}"));
        }
        let of_node = self.node.into_iter().flat_map(|node| &node.addresses);
        let mut addresses = self.machine.iter().chain(of_node);
        if let Some(address) = addresses.find(|&&address| range.contains(address)) {
            return Some(format!("contains {address}, an address of this node"));
        }
        let mut api_servers = self.api_servers.iter();
        if let Some(address) = api_servers.find(|&&address| range.contains(address)) {
            return Some(format!("contains {address}, the address of an API server"));
        }
        let mut pods = self.node.into_iter().flat_map(|node| &node.pod_cidrs);
        let pods =
            pods.find(|pods| range.contains(pods.network()) || pods.contains(range.network()))?;
        Some(format!("overlaps {pods}, this node's network of Pods"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ranges_and_those_of_the_node_are_doubtful() {
        let machine = ["172.18.0.2", "fd00:172:18::2"].map(|text| text.parse().unwrap());
        let machine = machine.into();
        let node = Node {
            name: "node".into(),
            addresses: Vec::new(),
            zone: None,
            region: None,
            pod_cidrs: vec![Cidr::parse("10.244.1.0/24").unwrap()],
            is_leaving: false,
        };
        let taken = Taken {
            machine: &machine,
            node: Some(&node),
            api_servers: vec![[172, 19, 0, 5].into()],
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
            (
                "172.19.0.0/16",
                Some("contains 172.19.0.5, the address of an API server"),
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
            assert_eq!(taken.doubt(&range).as_deref(), doubt, "{range}");
        }
    }
}
