//! The learned endpoints of clients with session affinity.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use nftables::{Key, RulesClient, TransactionError, Value};

use super::names::AFFINITY;
use super::order::Served;
use super::slots::Present;
use super::{ServiceTable, chains};
use crate::dataplane::packet_rules::FAMILIES;
use crate::plan::Desired;
use crate::plan::frontend::Frontend;

impl ServiceTable {
    /// If an endpoint left a frontend with session affinity, for all clients or for those outside the cluster, makes the
    /// kernel forget its clients: until then they are sent to it.
    ///
    /// # Cost
    /// A dump of all clients of frontends with session affinity.
    ///
    /// # Errors
    /// Those of the kernel. The next call tries again.
    pub fn forget_removed(
        &mut self,
        desired: &Desired,
        client: &mut RulesClient,
    ) -> Result<(), TransactionError> {
        if !self.must_forget {
            return Ok(());
        }
        let sets = chains::sets().sets;
        // The clients of a frontend follow each other seldom, so each frontend is read once. It may have a thousand slots.
        let mut serving = BTreeMap::<Frontend, BTreeSet<SocketAddr>>::new();
        let endpoints = |frontend: &Frontend| {
            let plan = desired.frontends.get(frontend);
            let slots = plan.map(|plan| Served::of(frontend, plan).slots);
            slots.iter().flat_map(Present::endpoints).collect()
        };
        for family in FAMILIES {
            let Some(map) = sets.get(AFFINITY.of(family)) else {
                continue;
            };
            client.forget(map, |key, endpoint| {
                frontend(key).is_some_and(|frontend| {
                    let serving = serving.entry(frontend);
                    let serving = serving.or_insert_with(|| endpoints(&frontend));
                    let withdrawn = self.withdrawn.get(&frontend);
                    !serving.contains(&endpoint)
                        || withdrawn.is_some_and(|it| it.contains(&endpoint))
                })
            })?;
        }
        self.must_forget = false;
        self.withdrawn.clear();
        Ok(())
    }
}

/// Returns the frontend in the key of a client.
pub(crate) fn frontend(key: &Key) -> Option<Frontend> {
    let mut parts = key.parts();
    let address = match parts.next()? {
        Value::V4(address) => IpAddr::from(address),
        Value::V6(address) => address.into(),
        _ => return None,
    };
    match (parts.next()?, parts.next()?) {
        (Value::Protocol(protocol), Value::Port(port)) => Some(Frontend {
            address,
            protocol,
            port,
        }),
        _ => None,
    }
}
