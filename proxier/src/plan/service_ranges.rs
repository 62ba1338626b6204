//! The ranges of the cluster's cluster IPs.
//!
//! A packet to an address in them that no Service has would leave the node by its default route, and perhaps return. The
//! dataplanes of the kernel reject it, because its destination cannot exist. A range that may be wrong decides nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Machine, PlanConfig};
use crate::cluster::model::{Cidr, Family, ObjectName};
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
    let ranges = snapshot.service_cidrs().flat_map(|cidr| &cidr.ranges);
    let all = ranges.chain(named);
    all.filter(|range| doubt(range, snapshot, machine).is_none())
        .copied()
        .collect()
}

/// Returns a Problem for each service range that decides nothing.
pub(crate) fn problems(
    config: &PlanConfig,
    snapshot: &Snapshot,
    machine: &Machine,
) -> Vec<Problem> {
    let problem = |(object, field): (String, String), range: &Cidr, doubt: String| {
        let message = format!(
            "{doubt}; virtual servers in it are not deleted because of it, and packets to its unallocated addresses are \
             not rejected"
        );
        Problem::new(object, field, range, message)
    };
    let of_objects = snapshot.service_cidrs().flat_map(|cidr| {
        let ranges = cidr.ranges.iter().enumerate();
        ranges.filter_map(move |(index, range)| {
            let doubt = doubt(range, snapshot, machine)?;
            let object = format!("ServiceCIDR {}", cidr.name);
            let place = (object, format!("spec.cidrs[{index}]"));
            Some(problem(place, range, doubt))
        })
    });
    let named = config.service_ranges.named.iter().filter_map(|range| {
        let doubt = doubt(range, snapshot, machine)?;
        let place = ("Configuration".to_owned(), "--service-cidr".to_owned());
        Some(problem(place, range, doubt))
    });
    of_objects.chain(named).collect()
}

/// Returns why a service range must decide nothing; `None` if it may.
///
/// The API server accepts ServiceCIDRs of any size, so that a wrong one could contain the virtual servers of other
/// programs, and other machines. It allocates from at most a /12 of IPv4 if the range is a flag, and /8 is the largest
/// private network. Of IPv6 it uses 64 bits at most, and /48 is the network of a whole site. A node that rejected
/// connections to its API servers would not learn that the range was corrected.
fn doubt(range: &Cidr, snapshot: &Snapshot, machine: &Machine) -> Option<String> {
    let least = match range.family() {
        Family::V4 => 8,
        Family::V6 => 48,
    };
    if range.prefix_len() < least {
        return Some(format!("is larger than /{least}"));
    }
    let node = snapshot.node();
    let has = |address: &&IpAddr| range.contains(**address);
    let of_node = node.into_iter().flat_map(|node| &node.addresses);
    let mut addresses = machine.addresses.iter().chain(of_node);
    if let Some(address) = addresses.find(has) {
        return Some(format!("contains {address}, an address of this node"));
    }
    // The connection to the API server may lead to its Service.
    let is_service = |address: &&IpAddr| {
        let service = snapshot.service(&ObjectName::new("default", "kubernetes"));
        service.is_some_and(|service| service.cluster_ips.contains(address))
    };
    let mut connected = machine.peers.api_servers.iter().filter(has);
    let connected = connected.find(|address| !is_service(address));
    if let Some(address) = snapshot.api_servers().iter().find(has).or(connected) {
        return Some(format!("contains {address}, the address of an API server"));
    }
    let mut pods = node.into_iter().flat_map(|node| &node.pod_cidrs);
    let pods =
        pods.find(|pods| range.contains(pods.network()) || pods.contains(range.network()))?;
    Some(format!("overlaps {pods}, this node's network of Pods"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api_server::Manifest;

    use super::*;
    use crate::cluster::model::Node;
    use crate::cluster::store::{Event, Touched};
    use crate::plan::Peers;
    use crate::sources::manifests::{self, Options};

    #[test]
    fn large_ranges_and_those_of_the_node_are_doubtful() {
        let machine = Machine {
            addresses: ["172.18.0.2", "fd00:172:18::2"]
                .map(|text| text.parse().unwrap())
                .into(),
            peers: Peers {
                // The second one is that of the Service.
                api_servers: Arc::new([[172, 19, 0, 5].into(), [10, 96, 0, 1].into()].into()),
                ..Peers::default()
            },
            ..Machine::default()
        };
        let node = Node {
            name: "node".into(),
            addresses: Vec::new(),
            zone: None,
            region: None,
            pod_cidrs: vec![Cidr::parse("10.244.1.0/24").unwrap()],
            is_leaving: false,
        };
        let options = Options {
            service_cidr: Vec::new(),
            node_name: "node".into(),
            permits_loopback: false,
        };
        let kubernetes = Manifest::service("kubernetes").cluster_ip("10.96.0.1");
        let kubernetes = Manifest::documents(&[kubernetes.port("", "TCP", 443)]);
        let events = manifests::parse(&kubernetes, "test.yaml", &options).events;
        let mut snapshot = Snapshot::default();
        for event in events.into_iter().chain([Event::Node(node)]) {
            snapshot.apply(event, &mut Touched::none());
        }
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
            let found = super::doubt(&range, &snapshot, &machine);
            assert_eq!(found.as_deref(), doubt, "{range}");
        }
    }
}
