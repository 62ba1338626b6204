//! Finds out whether kube-proxy serves the node again with the objects that this program created.

use std::collections::BTreeSet;

use crate::cluster::model::Family;
use crate::dataplane::ipvs::observed::LocalAddresses;
use crate::dataplane::ipvs::op::AddressForm;
use crate::host::predecessor::Leftovers;
use crate::host::predecessor::signs::Sign;

/// The default ports of kube-proxy's servers.
pub(super) const PORTS: [u16; 2] = [10_256, 10_249];

/// The progress of a kube-proxy in IPVS mode that starts on the node of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Successor {
    /// There is none.
    Missing,
    /// It has started, but does not serve each family yet.
    Coming,
    /// It serves. The virtual servers and the addresses of the carrier are its own.
    Serving,
}

/// Returns the progress of kube-proxy.
///
/// `local` was read for routes on `lo`, so that all other service addresses are leftovers. kube-proxy writes
/// the rules that use its ipsets at the end of its first sync. So it serves a family if rules use an ipset of
/// that family and the carrier has addresses. Before that, it already listens at its ports and reports
/// itself healthy.
pub(super) fn find(local: &LocalAddresses, found: &Leftovers, sign: Option<Sign>) -> Successor {
    let on_carrier: BTreeSet<Family> = (local.leftovers.iter())
        .filter(|(_, form)| *form == AddressForm::Address)
        .map(|&(address, _)| address.into())
        .collect();
    let leftovers = local.leftovers.iter().map(|&(address, _)| address);
    let addresses = leftovers.chain(local.addresses.keys());
    let needed: BTreeSet<Family> = addresses.map(Family::from).collect();
    let with_rules: BTreeSet<Family> = found.families_in_use().collect();
    let served: BTreeSet<Family> = &on_carrier & &with_rules;
    let is_other_mode = found.are_of_other_modes();
    match sign {
        _ if needed.is_empty() => Successor::Missing,
        _ if needed == served => Successor::Serving,
        _ if !served.is_empty() => Successor::Coming,
        Some(_) if !is_other_mode => Successor::Coming,
        _ => Successor::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::ChainName;
    use crate::host::ipset::IpSet;

    const FOUR: &str = "10.96.0.1";
    const SIX: &str = "fd00::1";

    fn local(routes: &[&str], on_carrier: &[&str]) -> LocalAddresses {
        let forms = [
            (routes, AddressForm::Route(73)),
            (on_carrier, AddressForm::Address),
        ];
        let entries = forms.iter().flat_map(|(addresses, form)| {
            addresses
                .iter()
                .map(|address| (address.parse().unwrap(), *form))
        });
        LocalAddresses {
            leftovers: entries.collect(),
            ..LocalAddresses::default()
        }
    }

    fn sets(names: &[(&str, u32)]) -> Leftovers {
        let set = |&(name, references): &(&str, u32)| IpSet {
            name: name.to_owned(),
            references,
        };
        Leftovers {
            sets: names.iter().map(set).collect(),
            ..Leftovers::default()
        }
    }

    fn chain(name: &str) -> Leftovers {
        let mut found = Leftovers::default();
        found.rules.chains.insert(ChainName {
            family: "ip",
            table: "nat".into(),
            name: name.into(),
        });
        found
    }

    #[test]
    fn a_kube_proxy_serves_when_it_has_each_family() {
        let both = [("KUBE-CLUSTER-IP", 1), ("KUBE-6-CLUSTER-IP", 1)];
        let first = [("KUBE-CLUSTER-IP", 1), ("KUBE-6-CLUSTER-IP", 0)];
        let begun = [("KUBE-CLUSTER-IP", 0)];
        let sign = Some(Sign::Listener(10_256));
        let ours = [FOUR, SIX];
        use Successor::{Coming, Missing, Serving};
        for (routes, on_carrier, found, sign, expected) in [
            (&ours[..], &[][..], sets(&[]), None, Missing),
            (&ours, &[], sets(&[]), sign, Coming),
            (&ours, &[], sets(&begun), sign, Coming),
            (&ours, &[], chain("KUBE-SERVICES"), sign, Coming),
            (&ours, &[FOUR], sets(&begun), sign, Coming),
            (&ours, &[FOUR], sets(&first), None, Coming),
            (&ours, &[FOUR, SIX], sets(&first), sign, Coming),
            (&ours, &[FOUR, SIX], sets(&both), sign, Serving),
            (&[FOUR], &[FOUR], sets(&both), None, Serving),
            (&[], &[FOUR], sets(&both), None, Serving),
            // Rules of iptables-legacy that an operator left.
            (&ours, &[], sets(&both), None, Missing),
            (&ours, &[], chain("KUBE-PROXY-CANARY"), sign, Missing),
            (&[], &[], sets(&[]), sign, Missing),
        ] {
            let local = local(routes, on_carrier);
            assert_eq!(
                find(&local, &found, sign),
                expected,
                "{local:?} {found:?} {sign:?}"
            );
        }
    }
}
