//! The addresses that Services may take outside the cluster.
//!
//! Whoever may create a Service can name any address in `spec.externalIPs`, and every node then takes the connections to
//! it (CVE-2020-8554). Who may write `status.loadBalancer` can do the same.

use std::borrow::Cow;
use std::net::IpAddr;

use super::FrontendKind;
use crate::cluster::model::{Cidr, Service};
use crate::cluster::problem::Problem;

/// The ranges of addresses that Services may take; without ranges, any address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalRanges {
    /// Of `spec.externalIPs`.
    pub external_ips: Vec<Cidr>,
    /// Of `status.loadBalancer.ingress`.
    pub load_balancer_ips: Vec<Cidr>,
}

impl ExternalRanges {
    /// Returns `service` without the addresses that it may not take. Adds a Problem for each of them to `problems`.
    pub(crate) fn restrict<'a>(
        &self,
        service: &'a Service,
        problems: &mut Vec<Problem>,
    ) -> Cow<'a, Service> {
        if *self == Self::default() {
            return Cow::Borrowed(service);
        }
        let external = service.external();
        let count = problems.len();
        let mut permitted = |kind: FrontendKind, flag, ranges: &[Cidr], addresses: &[IpAddr]| {
            let is_permitted = |address: &IpAddr| {
                ranges.is_empty() || ranges.iter().any(|range| range.contains(*address))
            };
            let (permitted, others): (Vec<IpAddr>, Vec<IpAddr>) =
                addresses.iter().partition(|address| is_permitted(address));
            problems.extend(others.iter().map(|address| {
                let object = format_args!("Service {}", service.name);
                let message = format!("is outside of {flag}; nothing is programmed for it");
                Problem::new(object, kind.field(), address, message)
            }));
            permitted
        };
        let mut external_ips = permitted(
            FrontendKind::ExternalIp,
            "--external-ip-ranges",
            &self.external_ips,
            &external.external_ips,
        );
        let load_balancer_ips = permitted(
            FrontendKind::LoadBalancer,
            "--load-balancer-ip-ranges",
            &self.load_balancer_ips,
            &external.load_balancer_ips,
        );
        if problems.len() == count {
            return Cow::Borrowed(service);
        }
        // As an external IP alone, an address that is a load balancer's too would have no source ranges.
        let is_refused = |it: &IpAddr| {
            external.load_balancer_ips.contains(it) && !load_balancer_ips.contains(it)
        };
        external_ips.retain(|it| !is_refused(it));
        Cow::Owned(service.with_external(external_ips, load_balancer_ips))
    }
}
