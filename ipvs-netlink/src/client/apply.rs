//! Changes of the table, many in one datagram.

use std::fmt;
use std::net::Ipv6Addr;

use netlink::Errno;

use crate::change::Change;
use crate::client::Client;
use crate::destination::{Destination, DestinationKey};
use crate::error::{Error, Result};
use crate::message::push_change;
use crate::name::SchedulerName;
use crate::service::{ClientMask, Protocol, Service, ServiceKey};
use netlink::transport::{Answer, RequestError};

/// The result of a [`Change`].
///
/// The error is boxed, so that the thousands of results of a large batch take 8 bytes each.
pub type Outcome = std::result::Result<(), Box<Error>>;

/// The number of changes that are encoded before they are sent.
///
/// One datagram's worth, so that the memory of the batch stays in the CPU cache.
const CHANGES_PER_BATCH: usize = netlink::transport::REQUESTS_PER_SEND;

impl Client {
    /// Applies `changes` in order and returns their results in the same order.
    ///
    /// A failing change does not stop the following ones.
    ///
    /// # Errors
    /// If the socket fails. It is unknown then which changes the kernel applied. A change that the
    /// kernel rejects is an outcome, not an error of this function.
    ///
    /// # Cost
    /// Two system calls per 128 changes; no allocation per successful change.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        for changes in changes.chunks(CHANGES_PER_BATCH) {
            let mut answers = self.run(changes)?;
            // If the module was reloaded, every request of the batch fails with ENOENT and none is
            // executed, so the batch can be repeated. ENOENT for another reason (a missing
            // destination or scheduler) leaves the family's number as it was.
            if answers.iter().all(is_not_found) && self.family_changed()? {
                answers = self.run(changes)?;
            }
            let outcome = |(answer, change): (Answer, &Change)| {
                answer.map_err(|error| Box::new(explain(error, change)))
            };
            outcomes.extend(answers.into_iter().zip(changes).map(outcome));
        }
        Ok(outcomes)
    }

    fn run(&mut self, changes: &[Change]) -> Result<Vec<Answer>> {
        self.batch.clear();
        for change in changes {
            push_change(&mut self.batch, self.family, change)?;
        }
        Ok(self.transport.run(&mut self.batch)?)
    }

    /// Creates a virtual server.
    ///
    /// # Errors
    /// [`Error::is_exists`]; [`Error::is_scheduler_missing`]; [`Error::is_invalid`] for an IPv6
    /// prefix outside 1 to 128; [`Error::is_permission_denied`].
    pub fn add_service(&mut self, service: &Service) -> Result<()> {
        self.apply_one(Change::AddService(*service))
    }

    /// Replaces all fields of a virtual server except its key.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; otherwise as [`Client::add_service`].
    ///
    /// # Cost
    /// If the scheduler changes, the kernel waits for an RCU grace period: some milliseconds.
    pub fn set_service(&mut self, service: &Service) -> Result<()> {
        self.apply_one(Change::SetService(*service))
    }

    /// Deletes a virtual server and its destinations.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`].
    pub fn delete_service(&mut self, key: &ServiceKey) -> Result<()> {
        self.apply_one(Change::DeleteService(*key))
    }

    /// Adds a destination.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_exists`]; [`Error::is_invalid`] for a weight or
    /// threshold out of range, an address that is neither unicast nor local, or the other address
    /// family without a tunnel.
    pub fn add_destination(&mut self, key: &ServiceKey, destination: &Destination) -> Result<()> {
        self.apply_one(Change::AddDestination(*key, *destination))
    }

    /// Replaces all fields of a destination except its key.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_no_such_destination`]; [`Error::is_invalid`].
    pub fn set_destination(&mut self, key: &ServiceKey, destination: &Destination) -> Result<()> {
        self.apply_one(Change::SetDestination(*key, *destination))
    }

    /// Deletes a destination.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_no_such_destination`].
    pub fn delete_destination(
        &mut self,
        key: &ServiceKey,
        destination: &DestinationKey,
    ) -> Result<()> {
        self.apply_one(Change::DeleteDestination(*key, *destination))
    }

    /// Returns whether the kernel has the scheduler `name`. The kernel loads its module if it can.
    ///
    /// Changes nothing: the request adds an IPv6 virtual server with the prefix length 0.
    /// `ip_vs_add_service` (Linux 6.1, 7.2) looks up the scheduler first (`ENOENT`), and then rejects
    /// the prefix (`EINVAL`).
    ///
    /// # Errors
    /// [`Error::is_unsupported`] if IPVS is built without IPv6; [`Error::is_permission_denied`].
    pub fn has_scheduler(&mut self, name: SchedulerName) -> Result<bool> {
        // The discard prefix of RFC 6666: no program serves it.
        let key = ServiceKey::Address {
            protocol: Protocol::Tcp,
            address: Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0).into(),
            port: 1,
        };
        let mut impossible = Service::new(key, name);
        impossible.client_mask = ClientMask::V6(0);
        match self.add_service(&impossible) {
            Err(error) if error.is_scheduler_missing() => Ok(false),
            Err(error) if error.errno() == Some(Errno::INVAL) => Ok(true),
            Err(error) => Err(error),
            // No known kernel accepts the prefix; one that does has created the virtual server.
            Ok(()) => self.delete_service(&key).map(|()| true),
        }
    }

    fn apply_one(&mut self, change: Change) -> Result<()> {
        self.apply(&[change])?
            .pop()
            .unwrap_or(Ok(()))
            .map_err(|error| *error)
    }
}

fn is_not_found(answer: &Answer) -> bool {
    matches!(answer, Err(RequestError::Refused(refusal)) if refusal.errno == Errno::NOENT)
}

/// Converts the failure of `change` to an [`Error`], with a variant for a missing module.
fn explain(error: RequestError, change: &Change) -> Error {
    let (Change::AddService(service) | Change::SetService(service)) = change else {
        return error.doing(change).into();
    };
    match error {
        // For these two commands ENOENT has no other cause (`ip_vs_add_service`,
        // `ip_vs_edit_service`); a missing virtual server is ESRCH.
        RequestError::Refused(refusal) if refusal.errno == Errno::NOENT => Error::ModuleMissing {
            doing: change.to_string(),
            module: needed_modules(service),
        },
        error => error.doing(change).into(),
    }
}

/// Returns the names of the modules that `service` needs, joined by " or ".
fn needed_modules(service: &Service) -> String {
    let module = |prefix: &str, name: &dyn fmt::Display| format!("{prefix}{name}");
    let scheduler = service
        .scheduler
        .as_ref()
        .map(|name| module("ip_vs_", name));
    let engine = service
        .engine
        .as_ref()
        .map(|name| module("ip_vs_pe_", name));
    scheduler
        .into_iter()
        .chain(engine)
        .collect::<Vec<_>>()
        .join(" or ")
}
