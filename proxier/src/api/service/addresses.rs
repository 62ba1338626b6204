//! The addresses of a Service, and the clients that may use them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Ingress, ServiceSpec};
use crate::api::address::{parse_network, why_unusable, why_unusable_or_link_local};
use crate::api::findings::Findings;
use crate::api::scalar::Scalar;
use crate::model::{Cidr, Family};

/// Parses the cluster IPs, at most one per family: `clusterIPs`, or `clusterIP` without a list.
pub(super) fn cluster_ips(spec: &ServiceSpec, findings: &mut Findings) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(spec.cluster_ips.len());
    if spec.cluster_ips.is_empty() {
        if !spec.cluster_ip.is_blank() {
            let instead = "the Service is not served";
            let field = "spec.clusterIP";
            addresses.extend(findings.address(
                field,
                &spec.cluster_ip,
                why_unusable_or_link_local,
                instead,
            ));
        }
        return addresses;
    }
    // The API server keeps both fields equal. In a manifest they may differ.
    if !spec.cluster_ip.is_blank() && spec.cluster_ips.first() != Some(&spec.cluster_ip) {
        let message = "differs from spec.clusterIPs[0], which is used";
        findings.add("spec.clusterIP", &spec.cluster_ip, message);
    }
    for (index, word) in spec.ip_families.iter().enumerate() {
        if parse_family(word).is_none() {
            let field = format!("spec.ipFamilies[{index}]");
            findings.add(field, word, "is not IPv4 or IPv6; ignored");
        }
    }
    for (index, text) in spec.cluster_ips.iter().enumerate() {
        let field = format!("spec.clusterIPs[{index}]");
        let Some(address) = findings.address(&field, text, why_unusable_or_link_local, "ignored")
        else {
            continue;
        };
        let family = Family::from(address);
        let declared = spec.ip_families.get(index).and_then(parse_family);
        if declared.is_some_and(|declared| declared != family) {
            findings.add(
                field,
                text,
                format!("is not of spec.ipFamilies[{index}]; ignored"),
            );
        } else if addresses.iter().any(|&other| Family::from(other) == family) {
            findings.add(field, text, "is a second address of its family; ignored");
        } else {
            addresses.push(address);
        }
    }
    addresses
}

/// Parses an entry of `ipFamilies`.
pub(crate) fn parse_family(word: &Scalar) -> Option<Family> {
    match word.as_str()? {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    }
}

/// Collects addresses of a Service without duplicates.
///
/// An address of a family without a cluster IP is ignored: the Service has no endpoints of that
/// family.
struct UniqueAddresses<'a> {
    cluster_ips: &'a [IpAddr],
    seen: HashSet<IpAddr>,
    addresses: Vec<IpAddr>,
}

impl<'a> UniqueAddresses<'a> {
    fn new(cluster_ips: &'a [IpAddr]) -> Self {
        Self {
            cluster_ips,
            seen: HashSet::new(),
            addresses: Vec::new(),
        }
    }

    fn add(&mut self, field: &str, address: IpAddr, findings: &mut Findings) {
        if !self.seen.insert(address) {
            return;
        }
        let is_of = |ip: &IpAddr| Family::from(*ip) == Family::from(address);
        if self.cluster_ips.iter().any(is_of) {
            self.addresses.push(address);
        } else {
            let message = "is of a family without a cluster IP; ignored";
            findings.add(field, address, message);
        }
    }
}

/// Parses the external IPs, without duplicates.
pub(super) fn external_ips(
    wire: &[Scalar],
    cluster_ips: &[IpAddr],
    findings: &mut Findings,
) -> Vec<IpAddr> {
    let mut unique = UniqueAddresses::new(cluster_ips);
    for (index, text) in wire.iter().enumerate() {
        let field = format!("spec.externalIPs[{index}]");
        if let Some(address) = findings.address(&field, text, why_unusable_or_link_local, "ignored")
        {
            unique.add(&field, address, findings);
        }
    }
    unique.addresses
}

/// Parses the load-balancer addresses that packets still have when they reach a node.
///
/// An ingress of mode `Proxy` rewrites the destination address, and one without `ip` has only a host
/// name; both yield no address. Link-local addresses are allowed, because some clouds use them.
pub(super) fn ingress_ips(
    wire: &[Ingress],
    cluster_ips: &[IpAddr],
    findings: &mut Findings,
) -> Vec<IpAddr> {
    let mut unique = UniqueAddresses::new(cluster_ips);
    for (index, ingress) in wire.iter().enumerate() {
        // An ingress with only a host name.
        if ingress.ip.is_blank() {
            continue;
        }
        match ingress.ip_mode.as_str() {
            None if ingress.ip_mode == Scalar::Absent => {}
            Some("VIP") => {}
            Some("Proxy") => continue,
            _ => {
                let field = format!("status.loadBalancer.ingress[{index}].ipMode");
                findings.add(
                    field,
                    &ingress.ip_mode,
                    "is not VIP or Proxy; the ingress is left out",
                );
                continue;
            }
        }
        let field = format!("status.loadBalancer.ingress[{index}].ip");
        if let Some(address) = findings.address(&field, &ingress.ip, why_unusable, "ignored") {
            unique.add(&field, address, findings);
        }
    }
    unique.addresses
}

/// Parses the networks of clients that may use the load-balancer addresses.
///
/// The list applies per family, as in kube-proxy: a family without a network in the list is open to
/// every client, and so is one with a network of length 0, which therefore yields no networks. If the
/// list has entries but no valid one, it must not open the Service: the result is then the two
/// unspecified addresses, which no client has.
pub(super) fn source_ranges(wire: &[Scalar], findings: &mut Findings) -> Vec<Cidr> {
    let mut ranges: Vec<Cidr> = Vec::new();
    let mut seen = HashSet::new();
    for (index, text) in wire.iter().enumerate() {
        match text.as_str().and_then(parse_network) {
            Some(range) => ranges.extend(seen.insert(range).then_some(range)),
            None => {
                let field = format!("spec.loadBalancerSourceRanges[{index}]");
                findings.add(field, text, "is not a network in CIDR form; ignored");
            }
        }
    }
    if ranges.is_empty() && !wire.is_empty() {
        findings.add(
            "spec.loadBalancerSourceRanges",
            "",
            "has no valid network; all clients are rejected",
        );
        return no_client();
    }
    // No networks mean that every source is accepted, so a network of length 0 needs no rules.
    for family in [Family::V4, Family::V6] {
        if ranges
            .iter()
            .any(|range| range.family() == family && range.prefix_len() == 0)
        {
            ranges.retain(|range| range.family() != family);
        }
    }
    ranges
}

fn no_client() -> Vec<Cidr> {
    let v4 = format!("{}/32", Ipv4Addr::UNSPECIFIED);
    let v6 = format!("{}/128", Ipv6Addr::UNSPECIFIED);
    [v4, v6]
        .iter()
        .filter_map(|network| parse_network(network))
        .collect()
}
