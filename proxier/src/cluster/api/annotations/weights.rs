//! The value of the annotation `weights`.

use std::sync::Arc;

use super::number;
use crate::cluster::api::address::{parse_address, parse_network};
use crate::cluster::api::metadata::is_subdomain;
use crate::cluster::api::node::is_zone;
use crate::cluster::model::{Cidr, TopologyKey, Weights};
use crate::cluster::store::Interner;

/// The maximum number of entries. Each entry is compared with every endpoint.
const MAX_ENTRIES: usize = 1_000;

/// Parses a list of entries `<key>:<weight>`.
///
/// # Errors
/// The message of a Problem. One invalid entry invalidates the list, because to apply only the other entries
/// would shift load in a way that the operator did not ask for.
pub(super) fn parse(text: &str, interner: &mut Interner) -> Result<Weights, String> {
    let (mut addresses, mut nodes, mut zones) = (Vec::new(), Vec::new(), Vec::new());
    let mut near = Vec::new();
    let mut default = None;
    for (index, entry) in text.split(',').map(str::trim).enumerate() {
        let reason = |reason: &str| format!("has an entry {} {reason}", index + 1);
        if index == MAX_ENTRIES {
            return Err(format!("has more than {MAX_ENTRIES} entries"));
        }
        let (which, weight) = entry
            // Split from the right: an IPv6 address contains colons.
            .rsplit_once(':')
            .and_then(|(which, weight)| Some((which, number::<u16>(weight)?)))
            .ok_or_else(|| reason("that does not end in a colon and a weight from 0 to 65535"))?;
        let is_duplicate = match WeightKey::parse(which, interner).map_err(reason)? {
            WeightKey::Address(network) => insert(&mut addresses, network, weight),
            WeightKey::Node(name) => insert(&mut nodes, name, weight),
            WeightKey::Zone(name) => insert(&mut zones, name, weight),
            WeightKey::Near(key) => insert(&mut near, key, weight),
            WeightKey::Other => default.replace(weight).is_some(),
        };
        if is_duplicate {
            return Err(reason("with the key of an earlier one"));
        }
    }
    // The sort is stable, so networks of one length stay in order: the result does not depend on the
    // order of the entries.
    addresses.sort_by_key(|(network, _)| std::cmp::Reverse(network.prefix_len()));
    Ok(Weights {
        addresses: addresses.into(),
        nodes: nodes.into(),
        zones: zones.into(),
        near: near.into(),
        default: default.unwrap_or(1),
    })
}

/// Parses the operator's default, in the syntax of the annotation.
impl std::str::FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &mut Interner::default())
    }
}

/// The endpoints that an entry applies to.
enum WeightKey {
    Address(Cidr),
    Node(Arc<str>),
    Zone(Arc<str>),
    Near(TopologyKey),
    Other,
}

impl WeightKey {
    fn parse(text: &str, interner: &mut Interner) -> Result<Self, &'static str> {
        match text {
            "*" => return Ok(Self::Other),
            "same-node" => return Ok(Self::Near(TopologyKey::Hostname)),
            "same-zone" => return Ok(Self::Near(TopologyKey::Zone)),
            "same-region" => return Ok(Self::Near(TopologyKey::Region)),
            _ => {}
        }
        if let Some(name) = text.strip_prefix("node=") {
            // kube-proxy lowers node names too: kubelet lowers its host's name.
            let name = name.to_lowercase();
            return match is_subdomain(&name) {
                true => Ok(Self::Node(interner.intern(&name))),
                false => Err("that does not name a node"),
            };
        }
        if let Some(name) = text.strip_prefix("zone=") {
            // The value of a label has neither character, so the entry is mistyped.
            return match is_zone(name) && !name.contains([':', '=']) {
                true => Ok(Self::Zone(interner.intern(name))),
                false => Err("that does not name a zone"),
            };
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'));
        if bare.is_none() && text.contains(':') {
            return Err("with an IPv6 address without brackets");
        }
        let bare = bare.unwrap_or(text);
        let network = match bare.contains('/') {
            true => parse_network(bare),
            false => parse_address(bare).map(Cidr::from),
        };
        network
            .map(Self::Address)
            .ok_or("whose key is not *, same-node, same-zone, same-region, node=, zone=, an address or a network")
    }
}

/// Inserts an entry in order. Returns whether the key was present already.
fn insert<K: Ord>(sorted: &mut Vec<(K, u16)>, key: K, weight: u16) -> bool {
    match sorted.binary_search_by(|(other, _)| other.cmp(&key)) {
        Ok(_) => true,
        Err(at) => {
            sorted.insert(at, (key, weight));
            false
        }
    }
}
