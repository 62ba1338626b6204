//! Every command and every errno on a real kernel.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "kernel/batches.rs"]
mod batches;
#[path = "kernel/daemons.rs"]
mod daemons;
#[path = "kernel/destinations.rs"]
mod destinations;
#[path = "kernel/dumps.rs"]
mod dumps;
#[path = "kernel/malformed.rs"]
mod malformed;
#[path = "kernel/namespace.rs"]
mod namespace;
#[path = "kernel/services.rs"]
mod services;

use std::net::SocketAddr;

use ipvs_netlink::{Client, Destination, Errno, Error, Family, Protocol, Service, ServiceKey};

/// Returns a client for the test's own network namespace.
fn client() -> Client {
    Client::open().unwrap()
}

fn tcp(frontend: &str) -> ServiceKey {
    let frontend: SocketAddr = frontend.parse().unwrap();
    ServiceKey::Address {
        protocol: Protocol::Tcp,
        address: frontend.ip(),
        port: frontend.port(),
    }
}

fn mark(family: Family, mark: u32) -> ServiceKey {
    ServiceKey::Mark { family, mark }
}

fn service(key: ServiceKey, scheduler: &str) -> Service {
    Service::new(key, scheduler.parse().unwrap())
}

fn server(address: &str, weight: u32) -> Destination {
    let address: SocketAddr = address.parse().unwrap();
    Destination::new(address.into(), weight)
}

/// Returns the errno of the kernel's answer; `None` for a success.
fn errno<T: std::fmt::Debug>(result: Result<T, impl Into<Error>>) -> Option<Errno> {
    match result {
        Ok(_) => None,
        Err(error) => {
            let error = error.into();
            let errno = error.errno();
            Some(errno.unwrap_or_else(|| panic!("an error without errno: {error}")))
        }
    }
}
