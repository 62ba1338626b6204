//! What the kernel's table serves, for `status`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ::nftables::{RulesClient, Value};

use super::affinity::frontend;
use super::names::ENDPOINTS;
use super::slots::OUTSIDE;
use super::{TABLE, parts};
use crate::cluster::model::Protocol;
use crate::dataplane::Failure;
use crate::dataplane::conntrack::ConntrackClient;
use crate::dataplane::packet_rules::FAMILIES;
use crate::plan::frontend::Frontend;

/// The frontends of the kernel's table, with their endpoints.
pub(crate) type Served = BTreeMap<Frontend, BTreeMap<SocketAddr, ServedEndpoint>>;

/// What an endpoint gets at a frontend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServedEndpoint {
    /// Its slots for clients inside the cluster, or for all clients.
    pub(crate) slots: usize,
    /// Its slots for clients outside the cluster, if they have others.
    pub(crate) outside_slots: usize,
    /// Its tracked connections and flows.
    pub(crate) connections: usize,
}

/// Reads the frontends of the kernel's table, also endpoints without slots that keep connections; `None` if there is no
/// table.
///
/// # Cost
/// A dump of the endpoints, and one of the tracked connections for each family and protocol.
///
/// # Errors
/// If the kernel cannot be read.
pub(crate) fn served() -> Result<Option<Served>, Failure> {
    let mut served = served_slots()?;
    if let Some(served) = &mut served {
        count_connections(served)?;
    }
    Ok(served)
}

/// Reads the frontends of the kernel's table and the slots of their endpoints only; `None` if there is no table.
///
/// # Cost
/// A dump of the endpoints.
///
/// # Errors
/// If the kernel cannot be read.
pub(crate) fn served_slots() -> Result<Option<Served>, Failure> {
    let mut client = RulesClient::open(TABLE).map_err(Failure::netfilter_socket)?;
    if !client.exists()? {
        return Ok(None);
    }
    let mut served = Served::new();
    for family in FAMILIES {
        let mut sets = parts::sets(family);
        let Some(set) = sets.find(|set| *set.name == *ENDPOINTS.of(family)) else {
            continue;
        };
        for (key, endpoint) in client.read_elements(&set)?.targets() {
            let (Some(frontend), Some(Value::Mark(slot))) = (frontend(key), key.parts().last())
            else {
                continue;
            };
            let endpoint = served.entry(frontend).or_default().entry(endpoint);
            let endpoint = endpoint.or_default();
            if slot < OUTSIDE {
                endpoint.slots += 1;
            } else {
                endpoint.outside_slots += 1;
            }
        }
    }
    Ok(Some(served))
}

fn count_connections(served: &mut Served) -> Result<(), Failure> {
    let mut flows = ConntrackClient::open().map_err(Failure::netfilter_socket)?;
    for family in FAMILIES {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            flows.each_flow(family, protocol, |flow| {
                if let Some(endpoints) = served.get_mut(&flow.frontend()) {
                    endpoints.entry(flow.reply.source).or_default().connections += 1;
                }
            })?;
        }
    }
    Ok(())
}
