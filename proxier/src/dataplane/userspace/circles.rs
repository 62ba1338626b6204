//! Endpoints that are frontends of this relay.
//!
//! The API server accepts a Service whose endpoint is its own address, or that of another Service. The relay would
//! connect to itself for each connection, again and again. It leaves such endpoints out.

use std::collections::{BTreeMap, BTreeSet};

use ipvs_netlink as ipvs;
use rapidhash::RapidHashSet;
use relay::Counts;
use rustix::io::Errno;

use super::convert::{socket, thresholds};
use super::{Failure, Userspace, refused};
use crate::cluster::model::{ObjectName, Protocol};
use crate::cluster::problem::Problem;
use crate::dataplane::ipvs::Wanted;
use crate::dataplane::ipvs::op::Op;
use crate::plan::frontend::Frontend;

/// The maximum number of endpoints that a Problem names.
const SAMPLES: usize = 3;

/// The destinations that are left out of the pools of their virtual servers.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    by_server: BTreeMap<ipvs::ServiceKey, BTreeSet<ipvs::DestinationKey>>,
    /// Increases when the Problems about them may have changed.
    pub(super) revision: u64,
}

impl LeftOut {
    fn has(&self, server: &ipvs::ServiceKey, destination: &ipvs::DestinationKey) -> bool {
        let left_out = self.by_server.get(server);
        left_out.is_some_and(|left_out| left_out.contains(destination))
    }

    /// Adds a destination. Returns false if it is left out already.
    fn add(&mut self, server: &ipvs::ServiceKey, destination: ipvs::DestinationKey) -> bool {
        self.revision += 1;
        let left_out = self.by_server.entry(*server).or_default();
        left_out.insert(destination)
    }

    /// Removes a destination. Returns whether it was left out.
    fn remove(&mut self, server: &ipvs::ServiceKey, destination: &ipvs::DestinationKey) -> bool {
        let Some(left_out) = self.by_server.get_mut(server) else {
            return false;
        };
        let was_left_out = left_out.remove(destination);
        if left_out.is_empty() {
            self.by_server.remove(server);
        }
        self.revision += u64::from(was_left_out);
        was_left_out
    }

    /// Forgets a virtual server that is deleted.
    pub(super) fn forget(&mut self, server: &ipvs::ServiceKey) {
        self.revision += u64::from(self.by_server.remove(server).is_some());
    }

    /// Notes that the owners of these virtual servers may have changed.
    pub(super) fn note(&mut self, frontends: &BTreeSet<Frontend>) {
        let is_changed = |server| Frontend::of(server).is_none_or(|it| frontends.contains(&it));
        let is_affected = self.by_server.keys().any(is_changed);
        self.revision += u64::from(is_affected);
    }
}

impl Userspace {
    /// Adds a destination to its pool, unless it is a frontend of this relay.
    pub(super) fn add_destination(
        &mut self,
        key: &ipvs::ServiceKey,
        destination: &ipvs::Destination,
        op: &Op,
    ) -> Result<(), Failure> {
        let protocols = self.protocols(key);
        if self.is_frontend(&protocols, &destination.key) {
            return match self.left_out.add(key, destination.key) {
                true => Ok(()),
                false => Err(Failure::kernel(Errno::EXIST, op)),
            };
        }
        let pool = &self.server(key, op)?.pool;
        let (address, weight) = (socket(&destination.key), destination.weight);
        let added = pool.add(address, weight, thresholds(destination));
        added.map_err(|error| refused(&error, op))
    }

    pub(super) fn set_destination(
        &self,
        key: &ipvs::ServiceKey,
        destination: &ipvs::Destination,
        op: &Op,
    ) -> Result<(), Failure> {
        if self.left_out.has(key, &destination.key) {
            return Ok(());
        }
        let pool = &self.server(key, op)?.pool;
        let (address, weight) = (socket(&destination.key), destination.weight);
        let set = pool.set(address, weight, thresholds(destination));
        set.map_err(|error| refused(&error, op))
    }

    pub(super) fn delete_destination(
        &mut self,
        key: &ipvs::ServiceKey,
        destination: &ipvs::DestinationKey,
        op: &Op,
    ) -> Result<(), Failure> {
        if self.left_out.remove(key, destination) {
            return Ok(());
        }
        let removed = self.server(key, op)?.pool.remove(socket(destination));
        let connections = removed.ok_or_else(|| Failure::kernel(Errno::NOENT, op))?;
        // Most removed endpoints have no connections left. Then the workers need not search for any.
        if connections != Counts::default() {
            self.relay.cut();
        }
        Ok(())
    }

    /// Leaves out the destinations that became frontends, and takes back those that are none any more.
    ///
    /// # Cost
    /// Linear in the destinations of all virtual servers, if any frontend changed.
    pub(super) fn follow_frontends(&mut self, changed: &RapidHashSet<Frontend>) {
        if changed.is_empty() {
            return;
        }
        let mut affected = Vec::new();
        for (key, server) in self.state.virtual_servers.iter() {
            let protocols = self.protocols(&key);
            let is_changed = |destination: &ipvs::Destination| {
                let mut frontends = frontends(&protocols, &destination.key);
                frontends.any(|frontend| changed.contains(&frontend))
            };
            let found = server.destinations.iter().filter(is_changed);
            affected.extend(found.map(|destination| (key, destination)));
        }
        for (key, destination) in affected {
            if self.settle(&key, &destination) {
                for user in self.terms.users(&key) {
                    // As in `admit`: only opening a listener can fail, and each Op of the frontend tries again.
                    let _ = self.update(&user);
                }
            }
        }
    }

    /// Makes one destination a member of its pool, or none. Returns whether that changed.
    fn settle(&mut self, key: &ipvs::ServiceKey, destination: &ipvs::Destination) -> bool {
        let is_frontend = self.is_frontend(&self.protocols(key), &destination.key);
        if is_frontend == self.left_out.has(key, &destination.key) {
            return false;
        }
        let Some(server) = self.servers.get(key) else {
            return false;
        };
        let address = socket(&destination.key);
        if !is_frontend {
            let added = server
                .pool
                .add(address, destination.weight, thresholds(destination));
            self.left_out.remove(key, &destination.key);
            return added.is_ok();
        }
        let connections = server.pool.remove(address).unwrap_or_default();
        if connections != Counts::default() {
            self.relay.cut();
        }
        self.left_out.add(key, destination.key)
    }

    /// Returns the protocols of a virtual server: with a firewall mark, those of the frontends that use it.
    fn protocols(&self, key: &ipvs::ServiceKey) -> BTreeSet<Protocol> {
        let users = self.terms.users(key);
        let frontends = users.iter().filter_map(Frontend::of);
        frontends.map(|frontend| frontend.protocol).collect()
    }

    fn is_frontend(
        &self,
        protocols: &BTreeSet<Protocol>,
        destination: &ipvs::DestinationKey,
    ) -> bool {
        let mut frontends = frontends(protocols, destination);
        frontends.any(|frontend| self.servers.contains_key(&frontend.into()))
    }

    /// Returns a Problem for each Service with endpoints that are left out.
    pub(super) fn circles(&self, wanted: Wanted<'_>) -> Vec<Problem> {
        let mut services: BTreeMap<&ObjectName, BTreeSet<ipvs::DestinationKey>> = BTreeMap::new();
        for (key, left_out) in &self.left_out.by_server {
            if let Some(server) = wanted.get(key) {
                let of_service = services.entry(&server.owner().service).or_default();
                of_service.extend(left_out);
            }
        }
        let problem = |(service, endpoints): (&ObjectName, BTreeSet<ipvs::DestinationKey>)| {
            let named = endpoints.iter().take(SAMPLES).map(ToString::to_string);
            let mut value = named.collect::<Vec<_>>().join(", ");
            if let Some(more @ 1..) = endpoints.len().checked_sub(SAMPLES) {
                value += &format!(" and {more} more");
            }
            let message = "are addresses of Services, at which this relay listens: connections would circle; these \
                           endpoints are left out";
            Problem::new(
                format_args!("Service {service}"),
                "endpoints",
                value,
                message,
            )
        };
        services.into_iter().map(problem).collect()
    }
}

/// Returns the frontends that a destination would be, one for each protocol.
fn frontends<'a>(
    protocols: &'a BTreeSet<Protocol>,
    destination: &'a ipvs::DestinationKey,
) -> impl Iterator<Item = Frontend> + 'a {
    protocols.iter().map(|&protocol| Frontend {
        address: destination.address,
        protocol,
        port: destination.port,
    })
}
