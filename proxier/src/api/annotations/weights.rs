//! The value of the annotation `weights`.

use std::sync::Arc;

use super::number;
use crate::api::address::{parse_address, parse_network};
use crate::api::metadata::is_subdomain;
use crate::api::node::is_zone;
use crate::model::{Cidr, Weights};
use crate::store::Interner;

/// How many entries are read: each is looked at for every endpoint.
const MAX_ENTRIES: usize = 1_000;

/// Reads a list of entries `<which>:<weight>`.
///
/// # Errors
/// What is wrong, to be put behind the value; one bad entry spoils the list, because the rest of it
/// would shift the load in a way that nobody asked for.
pub(super) fn parse(text: &str, interner: &mut Interner) -> Result<Weights, String> {
    let (mut addresses, mut nodes, mut zones) = (Vec::new(), Vec::new(), Vec::new());
    let mut default = None;
    for (index, entry) in text.split(',').map(str::trim).enumerate() {
        let reason = |reason: &str| format!("has an entry {} {reason}", index + 1);
        if index == MAX_ENTRIES {
            return Err(format!("has more than {MAX_ENTRIES} entries"));
        }
        let (which, weight) = entry
            .rsplit_once(':')
            .and_then(|(which, weight)| Some((which, number::<u16>(weight)?)))
            .ok_or_else(|| reason("that does not end in a colon and a weight from 0 to 65535"))?;
        let is_second = match Which::parse(which, interner).map_err(reason)? {
            Which::Address(network) => insert(&mut addresses, network, weight),
            Which::Node(name) => insert(&mut nodes, name, weight),
            Which::Zone(name) => insert(&mut zones, name, weight),
            Which::Other => default.replace(weight).is_some(),
        };
        if is_second {
            return Err(reason("for the same as an earlier one"));
        }
    }
    addresses.sort_by_key(|(network, _)| std::cmp::Reverse(network.prefix_len()));
    Ok(Weights {
        addresses: addresses.into(),
        nodes: nodes.into(),
        zones: zones.into(),
        default: default.unwrap_or(1),
    })
}

/// The endpoints that an entry is about.
enum Which {
    Address(Cidr),
    Node(Arc<str>),
    Zone(Arc<str>),
    Other,
}

impl Which {
    fn parse(text: &str, interner: &mut Interner) -> Result<Self, &'static str> {
        if text == "*" {
            return Ok(Self::Other);
        }
        if let Some(name) = text.strip_prefix("node=") {
            // Nodes are called in lower case everywhere else too.
            let name = name.to_lowercase();
            return match is_subdomain(&name) {
                true => Ok(Self::Node(interner.intern(&name))),
                false => Err("that does not name a node"),
            };
        }
        if let Some(name) = text.strip_prefix("zone=") {
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
            .ok_or("that is not about *, a node=, a zone=, an address or a network")
    }
}

/// Puts an entry in order; answers whether there was one already.
fn insert<K: Ord>(sorted: &mut Vec<(K, u16)>, key: K, weight: u16) -> bool {
    match sorted.binary_search_by(|(other, _)| other.cmp(&key)) {
        Ok(_) => true,
        Err(at) => {
            sorted.insert(at, (key, weight));
            false
        }
    }
}
