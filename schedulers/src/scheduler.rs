//! The contract.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::request::Request;
use crate::server::ServerId;
use crate::servers::Servers;

/// Chooses a server for each new connection.
///
/// Only [`Scheduler::pick`] is asked; the other methods tell what happened, and doing nothing is right
/// for a scheduler without memory. All of them are called by [`Balancer`](crate::Balancer) after the
/// change to `servers` is made, and never concurrently.
///
/// A pick changes no connection count: whoever asked says what became of it.
pub trait Scheduler: fmt::Debug + Send {
    /// The server for `request`, or nothing: the connection is refused then.
    ///
    /// What is returned must be in `servers`. The kernel's schedulers return only servers of weight
    /// above 0 that are not overloaded (exceptions are documented there); an outside one should
    /// keep to that, too.
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId>;

    /// It is going to choose among `servers` from now on, at time `at`; called once, before anything
    /// else (kernel: `init_service`).
    ///
    /// # Errors
    /// Why it cannot work with these servers.
    fn bound(&mut self, servers: &Servers, at: Duration) -> Result<(), Error> {
        let _ = (servers, at);
        Ok(())
    }

    /// `server` has been added; it is the first of the list (kernel: `add_dest`).
    fn added(&mut self, servers: &Servers, server: ServerId) {
        let _ = (servers, server);
    }

    /// `server` has been removed; in the list it followed `predecessor`, or was the first (kernel:
    /// `del_dest`).
    ///
    /// It is still in `servers`, without being listed. Afterwards it stays only while it has
    /// connections.
    fn removed(&mut self, servers: &Servers, server: ServerId, predecessor: Option<ServerId>) {
        let _ = (servers, server, predecessor);
    }

    /// The weight of `server` was set, perhaps to what it was (kernel: `upd_dest`).
    fn updated(&mut self, servers: &Servers, server: ServerId) {
        let _ = (servers, server);
    }

    /// The connection counts of `server` changed, or whether it is overloaded; it may be one that is
    /// not listed any more. The kernel tells its schedulers nothing then.
    fn counted(&mut self, servers: &Servers, server: ServerId) {
        let _ = (servers, server);
    }

    /// `server` took `latency` to answer, known at time `at`. The kernel measures nothing; dataplanes
    /// that do may tell.
    fn measured(&mut self, servers: &Servers, server: ServerId, latency: Duration, at: Duration) {
        let _ = (servers, server, latency, at);
    }
}

impl<S: Scheduler + ?Sized> Scheduler for Box<S> {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        (**self).pick(servers, request)
    }

    fn bound(&mut self, servers: &Servers, at: Duration) -> Result<(), Error> {
        (**self).bound(servers, at)
    }

    fn added(&mut self, servers: &Servers, server: ServerId) {
        (**self).added(servers, server);
    }

    fn removed(&mut self, servers: &Servers, server: ServerId, predecessor: Option<ServerId>) {
        (**self).removed(servers, server, predecessor);
    }

    fn updated(&mut self, servers: &Servers, server: ServerId) {
        (**self).updated(servers, server);
    }

    fn counted(&mut self, servers: &Servers, server: ServerId) {
        (**self).counted(servers, server);
    }

    fn measured(&mut self, servers: &Servers, server: ServerId, latency: Duration, at: Duration) {
        (**self).measured(servers, server, latency, at);
    }
}
