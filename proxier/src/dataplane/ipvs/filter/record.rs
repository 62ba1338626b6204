//! Our table in the kernel as a record of the virtual servers for which an earlier process wrote it.
//!
//! The rules of a frontend are written before its virtual server exists, and go after it. So if the ledger was lost, the
//! table still tells which frontends and firewall marks were ours.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink::ServiceKey;

use super::chains::sets;
use super::config::FilterConfig;
use super::names::*;
use crate::dataplane::Failure;
use crate::dataplane::packet_rules::FAMILIES;
use crate::plan::frontend::Frontend;
use nftables::{Key, Set, Value};

/// Returns the virtual servers of the frontends and firewall marks in our table. `read` reads the elements of one of its
/// sets.
///
/// # Errors
/// Those of `read`.
pub(crate) fn recorded(
    config: &FilterConfig,
    mut read: impl FnMut(&Set) -> Result<Set, Failure>,
) -> Result<BTreeSet<ServiceKey>, Failure> {
    let table = sets(config);
    let names = [FRONTENDS, EXTERNAL_FRONTENDS].map(|name| FAMILIES.map(|family| name.of(family)));
    let mut found = BTreeSet::new();
    for name in names.as_flattened().iter().chain([&INSIDE_MARKS]) {
        if let Some(set) = table.sets.get(*name) {
            let keys = read(set)?;
            found.extend(keys.elements().flat_map(|element| servers(&element.key)));
        }
    }
    Ok(found)
}

/// Returns the virtual servers to which an element belongs; a firewall mark does not tell its family.
fn servers(key: &Key) -> Vec<ServiceKey> {
    let parts: Vec<Value> = key.parts().collect();
    let frontend = |address: IpAddr, protocol, port| {
        let frontend = Frontend {
            address,
            protocol,
            port,
        };
        vec![frontend.into()]
    };
    match parts[..] {
        [
            Value::V4(address),
            Value::Protocol(protocol),
            Value::Port(port),
        ] => frontend(address.into(), protocol, port),
        [
            Value::V6(address),
            Value::Protocol(protocol),
            Value::Port(port),
        ] => frontend(address.into(), protocol, port),
        [Value::Mark(mark)] => FAMILIES
            .map(|family| ServiceKey::Mark { family, mark })
            .into(),
        _ => Vec::new(),
    }
}
