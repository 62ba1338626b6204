//! The addresses of a Service, and the clients that may use them.

use std::collections::HashSet;
use std::fmt::Arguments;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Ingress, ServiceSpec};
use crate::cluster::api::address::{why_unusable, why_unusable_or_link_local};
use crate::cluster::api::parser::Parser;
use crate::cluster::api::scalar::Scalar;
use crate::cluster::model::{Cidr, Family};

/// Parses the cluster IPs, at most one per family: `clusterIPs`, or `clusterIP` without a list.
pub(super) fn cluster_ips(spec: &ServiceSpec<'_>, parser: &mut Parser<'_>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(spec.cluster_ips.len());
    if spec.cluster_ips.is_empty() {
        if !spec.cluster_ip.is_blank() {
            let refuse = why_unusable_or_link_local;
            let instead = "the Service is not served";
            let address = parser.address("spec.clusterIP", &spec.cluster_ip, refuse, instead);
            addresses.extend(address);
        }
        return addresses;
    }
    // The API server keeps both fields equal. In a manifest they may differ.
    if !spec.cluster_ip.is_blank() && spec.cluster_ips.first() != Some(&spec.cluster_ip) {
        let message = "differs from spec.clusterIPs[0], which is used";
        parser.problem("spec.clusterIP", &spec.cluster_ip, message);
    }
    for (index, word) in spec.ip_families.iter().enumerate() {
        if parse_family(word).is_none() {
            let field = format_args!("spec.ipFamilies[{index}]");
            parser.problem(field, word, "is not IPv4 or IPv6; ignored");
        }
    }
    for (index, text) in spec.cluster_ips.iter().enumerate() {
        let field = format_args!("spec.clusterIPs[{index}]");
        let Some(address) = parser.address(field, text, why_unusable_or_link_local, "ignored")
        else {
            continue;
        };
        let family = Family::from(address);
        let declared = spec.ip_families.get(index).and_then(parse_family);
        if declared.is_some_and(|declared| declared != family) {
            parser.problem(
                field,
                text,
                format!("is not of spec.ipFamilies[{index}]; ignored"),
            );
        } else if addresses.iter().any(|&other| Family::from(other) == family) {
            parser.problem(field, text, "is a second address of its family; ignored");
        } else {
            addresses.push(address);
        }
    }
    addresses
}

/// Parses an entry of `ipFamilies`.
pub(crate) fn parse_family(word: &Scalar<'_>) -> Option<Family> {
    match word.as_str()? {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    }
}

/// Parses the external IPs, without duplicates.
pub(super) fn external_ips(
    wire: &[Scalar<'_>],
    cluster_ips: &[IpAddr],
    parser: &mut Parser<'_>,
) -> Vec<IpAddr> {
    let mut unique = UniqueAddresses::new(cluster_ips, why_unusable_or_link_local);
    for (index, text) in wire.iter().enumerate() {
        unique.add(format_args!("spec.externalIPs[{index}]"), text, parser);
    }
    unique.addresses
}

/// Parses the load-balancer addresses that packets still have when they reach a node.
///
/// An ingress of mode `Proxy` rewrites the destination address, and one without `ip` has only a host
/// name; both yield no address. Link-local addresses are allowed, because some clouds use them.
pub(super) fn ingress_ips(
    wire: &[Ingress<'_>],
    cluster_ips: &[IpAddr],
    parser: &mut Parser<'_>,
) -> Vec<IpAddr> {
    let mut unique = UniqueAddresses::new(cluster_ips, why_unusable);
    for (index, ingress) in wire.iter().enumerate() {
        let at = format_args!("status.loadBalancer.ingress[{index}]");
        let mode = match &ingress.ip_mode {
            Scalar::Absent => Some("VIP"),
            mode => mode.as_str(),
        };
        match mode {
            // An ingress with only a host name.
            _ if ingress.ip.is_blank() => {}
            Some("VIP") => unique.add(format_args!("{at}.ip"), &ingress.ip, parser),
            Some("Proxy") => {}
            _ => {
                let message = "is not VIP or Proxy; the ingress is left out";
                parser.problem(format_args!("{at}.ipMode"), &ingress.ip_mode, message);
            }
        }
    }
    unique.addresses
}

/// Parses addresses of a Service, without duplicates.
///
/// An address of a family without a cluster IP is ignored: the Service has no endpoints of that
/// family.
struct UniqueAddresses<'a> {
    cluster_ips: &'a [IpAddr],
    refuse: fn(IpAddr) -> Option<&'static str>,
    seen: HashSet<IpAddr>,
    addresses: Vec<IpAddr>,
}

impl<'a> UniqueAddresses<'a> {
    fn new(cluster_ips: &'a [IpAddr], refuse: fn(IpAddr) -> Option<&'static str>) -> Self {
        Self {
            cluster_ips,
            refuse,
            seen: HashSet::new(),
            addresses: Vec::new(),
        }
    }

    fn add(&mut self, field: Arguments<'_>, text: &Scalar<'_>, parser: &mut Parser<'_>) {
        let Some(address) = parser.address(field, text, self.refuse, "ignored") else {
            return;
        };
        if !self.seen.insert(address) {
            return;
        }
        let is_of = |ip: &IpAddr| Family::from(*ip) == Family::from(address);
        if self.cluster_ips.iter().any(is_of) {
            self.addresses.push(address);
        } else {
            let message = "is of a family without a cluster IP; ignored";
            parser.problem(field, address, message);
        }
    }
}

/// Parses the networks of clients that may use the load-balancer addresses.
///
/// The list applies per family, as in kube-proxy: a family without a network in the list is open to
/// every client. A network of length 0 opens its family too, so the result then has no network of
/// that family. If the list has entries but no valid one, it must not open the Service: the result
/// is then the two unspecified addresses, which no client has.
pub(super) fn source_ranges(
    wire: &[Scalar<'_>],
    load_balancer_ips: &[IpAddr],
    parser: &mut Parser<'_>,
) -> Vec<Cidr> {
    let field = "spec.loadBalancerSourceRanges";
    let mut ranges = parser.networks(field, wire);
    if ranges.is_empty() && !wire.is_empty() {
        let message = "has no valid network; all clients are rejected";
        parser.problem(field, "", message);
        let unspecified = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        return unspecified.map(|address: IpAddr| address.into()).into();
    }
    // As in kube-proxy, but who restricts one family may not expect that the other stays open.
    for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
        let has_address = load_balancer_ips
            .iter()
            .any(|&ip| Family::from(ip) == family);
        let has_range = ranges.iter().any(|range| range.family() == family);
        if has_address && !has_range && !ranges.is_empty() {
            let message = format!("has no range of {name}; all clients of {name} are permitted");
            parser.problem(field, "", message);
        }
    }
    // No networks mean that every source is accepted, so a network of length 0 needs no rules.
    for family in [Family::V4, Family::V6] {
        let is_everything = |it: &Cidr| it.family() == family && it.prefix_len() == 0;
        if ranges.iter().any(is_everything) {
            ranges.retain(|range| range.family() != family);
        }
    }
    ranges
}
