//! Finds the parts of kube-proxy's nftables mode that break the documentation of Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipvs_netlink as ipvs;

use super::change::Listed;
use super::{Affected, ChangeCause, Compared, Comparison, Finding, Summary, audit, endpoint, rule};
use crate::dataplane::ipvs::WantedServer;
use crate::host::predecessor::nftables_mode::{NftablesMode, Reached};
use crate::plan::frontend::Frontend;
use crate::plan::{Endpoints, FrontendKind};

/// The frontends with the same finding, by subject, cause and present state.
type Found = BTreeMap<(Affected, ChangeCause, String), Vec<ipvs::ServiceKey>>;

impl Comparison {
    /// Returns the findings about what kube-proxy's nftables mode serves, without any change.
    ///
    /// Source ranges are not compared.
    pub(crate) fn of_nftables_mode(theirs: &NftablesMode, view: &Compared<'_>) -> Self {
        let mut found = Found::new();
        for (key, server) in view.wanted.iter() {
            if let Some(frontend) = Frontend::of(&key) {
                compare(&frontend, (key, server), theirs, view, &mut found);
            }
        }
        for frontend in theirs.frontends.keys() {
            let key = ipvs::ServiceKey::from(*frontend);
            let mut ranges = view.snapshot.service_cidrs().flat_map(|it| &it.ranges);
            let is_service = ranges.any(|range| range.contains(frontend.address));
            if is_service && !view.wanted.contains(&key) {
                let text = "is in a map of Services".to_owned();
                let finding = (Affected::NoService, ChangeCause::NoService, text);
                found.entry(finding).or_default().push(key);
            }
        }
        let findings = found
            .into_iter()
            .filter_map(|((subject, cause, found), frontends)| {
                let rule = match cause {
                    ChangeCause::InsideClients => &rule::INSIDE_CLIENTS,
                    _ => audit::rule_of(&cause)?,
                };
                Some(Finding {
                    subject,
                    frontends,
                    found,
                    rule,
                })
            });
        Self {
            differences: Vec::new(),
            findings: audit::sorted(findings.collect()),
            summary: Summary::default(),
        }
    }
}

/// Adds the findings about one frontend of the plan.
fn compare(
    frontend: &Frontend,
    (key, server): (ipvs::ServiceKey, WantedServer<'_>),
    theirs: &NftablesMode,
    view: &Compared<'_>,
    found: &mut Found,
) {
    let (plan, kind) = (server.plan, server.plan.profile.kind);
    let is_node_port = kind == FrontendKind::NodePort;
    // The addresses that serve node ports are a choice of the operator.
    if is_node_port && !theirs.has_node_ports_at(frontend.address) {
        return;
    }
    let subject = Affected::Service(server.owner().service.clone());
    let mut add = |cause, text| {
        let frontends = found.entry((subject.clone(), cause, text)).or_default();
        frontends.push(key);
    };
    let Some(reached) = theirs.reached(frontend, is_node_port) else {
        let text = "is in no map of Services or of refusals";
        return add(ChangeCause::Requested(kind), text.to_owned());
    };
    let Reached {
        all,
        outside,
        affinity_secs,
    } = reached;
    let mut because = |endpoints: Vec<SocketAddr>, server: &WantedServer<'_>, lacks: bool| {
        let mut causes = BTreeMap::<ChangeCause, Vec<SocketAddr>>::new();
        for endpoint in endpoints {
            let at = (&key, server);
            let cause = match lacks {
                true => endpoint::selected(at, endpoint.into(), view),
                false => endpoint::rejected(at, endpoint.into(), view),
            };
            causes.entry(cause).or_default().push(endpoint);
        }
        for (cause, endpoints) in causes {
            let verb = if lacks { "lacks" } else { "has" };
            let text = format!("{verb} {}: {cause}", Listed("endpoint", &endpoints));
            add(cause, text);
        }
    };
    let wanted = sockets(&plan.endpoints, true);
    because(difference(&wanted, outside), &server, true);
    because(
        difference(outside, &sockets(&plan.endpoints, false)),
        &server,
        false,
    );
    // The policy does not apply to clients inside, so no endpoint is rejected because of its node.
    let mut for_inside = server;
    for_inside.kind = None;
    let inside = plan
        .inside
        .as_ref()
        .map_or(&plan.endpoints, |it| &it.endpoints);
    let only_inside: BTreeSet<SocketAddr> = all.difference(outside).copied().collect();
    because(
        difference(&only_inside, &sockets(inside, false)),
        &for_inside,
        false,
    );
    let missing = difference(&sockets(inside, true), all);
    // The documentation lets the policy apply to all clients of node ports.
    if plan.inside.is_some() && !is_node_port && !missing.is_empty() {
        let missing = Listed("endpoint", &missing);
        let text = format!("lacks {missing} for clients inside the cluster");
        add(ChangeCause::InsideClients, text);
    }
    let affinity = plan.profile.balancing.affinity_secs.map(u64::from);
    if *affinity_secs != affinity && !all.is_empty() {
        let present = affinity_secs.map_or("none".to_owned(), |secs| format!("{secs} s"));
        add(
            ChangeCause::Affinity,
            format!("has session affinity {present}"),
        );
    }
}

/// Returns the endpoints, or only those that get new connections.
fn sockets(endpoints: &Endpoints, are_used: bool) -> BTreeSet<SocketAddr> {
    let endpoints = endpoints.iter().filter(|it| it.weight > 0 || !are_used);
    endpoints.map(|it| (it.address, it.port).into()).collect()
}

fn difference(these: &BTreeSet<SocketAddr>, those: &BTreeSet<SocketAddr>) -> Vec<SocketAddr> {
    these.difference(those).copied().collect()
}
