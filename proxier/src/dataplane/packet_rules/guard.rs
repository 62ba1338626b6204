//! What rejects clients of a frontend.

use std::net::IpAddr;
use std::sync::Arc;

use ::nftables::{Chain, Key, Match, Relation, Rule, Value, Verdict};

use super::{NOT_HERE, REFUSE, rule};
use crate::cluster::model::Networks;
use crate::plan::frontend::Frontend;
use crate::plan::{Access, Availability, Scope};

/// What rejects some or all clients of a frontend.
pub(crate) struct Guarding {
    /// A jump and not a goto, because the packets of admitted clients return to the rules that decide about
    /// masquerading.
    pub(crate) verdict: Verdict,
    /// The chain of its source ranges.
    pub(crate) chain: Option<Chain>,
}

/// Returns what rejects clients of `frontend`; `None` if all may use it.
///
/// `is_served` tells whether its usable endpoints serve. `node_addresses` are the main addresses of this node.
pub(crate) fn guarding(
    frontend: &Frontend,
    access: &Access,
    is_served: bool,
    node_addresses: &[IpAddr],
) -> Option<Guarding> {
    let rejecting = match (access.scope, access.endpoints) {
        (_, Availability::Usable) if is_served => None,
        // A client outside may reach another node by a load balancer, so its packets are dropped and not refused.
        // For a client inside, no other node serves the cluster IP.
        (Scope::External | Scope::NodePort, Availability::RemoteOnly) => Some(NOT_HERE),
        _ => Some(REFUSE),
    };
    let Some(allowed) = &access.source_ranges else {
        return rejecting.map(|chain| Guarding {
            verdict: Verdict::Jump(chain.into()),
            chain: None,
        });
    };
    let pass = match rejecting {
        Some(chain) => Verdict::Goto(chain.into()),
        None => Verdict::Return,
    };
    let mut sources = vec![allowed.clone()];
    // If service addresses are on a device, the node's own connections to a frontend have the frontend's
    // address as their source. If the ranges admit the node's address, these connections are admitted too.
    if node_addresses.iter().any(|&it| allowed.contains(it)) {
        sources.push(Networks::new(frontend.family(), [frontend.address.into()]));
    }
    sources.retain(|networks| !networks.is_empty());
    let chain = ranges_chain(ranges(frontend), sources, &pass);
    Some(Guarding {
        verdict: Verdict::Jump(chain.name.clone()),
        chain: Some(chain),
    })
}

/// Returns the name of the chain that admits only certain sources to `frontend`.
pub(crate) fn ranges(frontend: &Frontend) -> Arc<str> {
    // Names may not contain colons.
    let address = frontend.address.to_string().replace(':', "_");
    let protocol = frontend.protocol.to_string().to_lowercase();
    format!("ranges-{protocol}-{address}-{}", frontend.port).into()
}

/// Returns a chain that applies `pass` to packets from `sources` and drops all others.
///
/// Each frontend with source ranges has its own chain. So a change of its ranges replaces only rules, which
/// is atomic, and not the map element, which would be missing for microseconds.
fn ranges_chain(name: Arc<str>, sources: Vec<Networks>, pass: &Verdict) -> Chain {
    let admit = |networks| {
        let from = Match::Source(Relation::Is, networks);
        rule([from.into(), pass.clone().into()])
    };
    let drop_others = rule([Verdict::Drop.into()]);
    let rules: Vec<Rule> = sources
        .into_iter()
        .map(admit)
        .chain([drop_others])
        .collect();
    Chain::new(name, rules)
}

/// Returns the key of `frontend` in sets and maps.
pub(crate) fn key_of(frontend: &Frontend) -> Key {
    Key::new([
        frontend.address.into(),
        Value::Protocol(frontend.protocol),
        Value::Port(frontend.port),
    ])
}
