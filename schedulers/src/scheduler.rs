//! The trait that every scheduler implements.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::request::Request;
use crate::server::ServerId;
use crate::servers::Servers;

/// Chooses a server for each new connection.
///
/// Only [`Scheduler::pick`] is required. The other methods report changes; a scheduler without state
/// can ignore them. [`Balancer`](crate::Balancer) calls them after it has changed `servers`, and never
/// concurrently.
///
/// A pick changes no connection count: the caller counts the connection if it is established.
pub trait Scheduler: fmt::Debug + Send {
    /// Returns the server for `request`, or `None` to refuse the connection.
    ///
    /// The server must be in `servers`. The kernel's schedulers return only eligible servers (their
    /// documentation names the exceptions); a custom scheduler should do the same.
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId>;

    /// Called once, before every other method (kernel: `init_service`).
    ///
    /// From the time `at` on, the scheduler chooses among `servers`.
    ///
    /// # Errors
    /// The reason why the scheduler cannot work with these servers.
    fn bound(&mut self, servers: &Servers, at: Duration) -> Result<(), Error> {
        let _ = (servers, at);
        Ok(())
    }

    /// Called after a server was added or removed or its weight was set.
    ///
    /// For schedulers that do not need to know which of these happened: by default, [`Scheduler::added`],
    /// [`Scheduler::removed`] and [`Scheduler::updated`] call it.
    fn changed(&mut self, servers: &Servers) {
        let _ = servers;
    }

    /// Called after `server` was added at the head of the list (kernel: `add_dest`).
    fn added(&mut self, servers: &Servers, server: ServerId) {
        let _ = server;
        self.changed(servers);
    }

    /// Called after `server` was removed from the list (kernel: `del_dest`).
    ///
    /// `predecessor` is the server before it in the list, `None` if it was the first. During this call
    /// `server` exists but is not listed. Afterwards it exists only while it has connections.
    fn removed(&mut self, servers: &Servers, server: ServerId, predecessor: Option<ServerId>) {
        let _ = (server, predecessor);
        self.changed(servers);
    }

    /// Called after the weight of `server` was set, even to the same value (kernel: `upd_dest`).
    fn updated(&mut self, servers: &Servers, server: ServerId) {
        let _ = server;
        self.changed(servers);
    }

    /// Called after the connection counts or the overload mark of `server` changed.
    ///
    /// The server may be a removed one. The kernel has no such hook, because its schedulers scan.
    fn counted(&mut self, servers: &Servers, server: ServerId) {
        let _ = (servers, server);
    }

    /// Called after a measurement: at time `at`, `server` answered within `latency`.
    ///
    /// The kernel measures no latencies; only a userspace proxy can call this.
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

    fn changed(&mut self, servers: &Servers) {
        (**self).changed(servers);
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
