//! Rejects new connections to addresses of the service ranges that no Service has.
//!
//! Destination NAT and IPVS have run before these chains, so a packet that was for such an address from the beginning, and
//! still is, has no Service, not even one of another proxy (label `service.kubernetes.io/service-proxy-name`). It would
//! leave by the default route. An endpoint may have an address in a range that overlaps a network outside.

use std::collections::BTreeSet;

use ::nftables::{Chain, Hook, Match, Selector, Verdict};

use super::{FAMILIES, Part, REFUSE, SERVICE_ADDRESSES, goto, rule, within};
use crate::cluster::model::{Cidr, Networks};

const UNALLOCATED: &str = "unallocated";

/// Returns the chains; none without ranges, so that no packet passes another hook.
pub(in crate::dataplane) fn unallocated(ranges: &BTreeSet<Cidr>) -> Vec<Part> {
    if ranges.is_empty() {
        return Vec::new();
    }
    let of_family = |family| Networks::new(family, ranges.iter().copied());
    let networks = FAMILIES
        .map(of_family)
        .into_iter()
        .filter(|it| !it.is_empty());
    let to_ranges: Vec<_> = networks
        .map(|networks| {
            let was_to = Match::OriginalDestination(networks.clone());
            let to = Match::Destination(networks);
            let (to, was_to) = (to.into(), was_to.into());
            rule([Match::New.into(), to, was_to, goto(UNALLOCATED)])
        })
        .collect();
    let allocated = FAMILIES.map(|family| {
        let original = [Selector::OriginalDestination(family)];
        let to = within(original, SERVICE_ADDRESSES.of(family));
        rule([to, Verdict::Return.into()])
    });
    // Such as that of a local DNS cache.
    let local = rule([Match::DestinationIsLocal.into(), Verdict::Return.into()]);
    let refuse = rule([goto(REFUSE)]);
    // With other programs' filters, so that theirs may drop.
    [
        Chain::at("unallocated-forward", Hook::Forward(0), to_ranges.clone()),
        Chain::at("unallocated-output", Hook::Output(0), to_ranges),
        Chain::new(
            UNALLOCATED,
            allocated
                .into_iter()
                .chain([local, refuse])
                .collect::<Vec<_>>(),
        ),
    ]
    .map(Part::Chain)
    .into()
}
