//! Manages the kernel's IPVS over generic netlink.
//!
//! ```text
//!   Service, Destination, Daemon      plain data, no socket needed
//!            │ message                the same attributes as ipvsadm
//!            ▼
//!         Batch ── Transport ──▶ kernel     many requests in one send, an answer per failure
//!            ▲                      │
//!         Client ◀──────────────────┘       one function per command
//! ```
//!
//! All calls block and need no async runtime: the kernel executes requests inside `sendmsg(2)`, so
//! an asynchronous call would have nothing to wait for. The socket is the crate [`netlink`]'s.
//!
//! # Example
//!
//! ```no_run
//! use ipvs_netlink::{Change, Client, Destination, Protocol, Service, ServiceKey};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut ipvs = Client::open()?;
//! let key = ServiceKey::Address {
//!     protocol: Protocol::Tcp,
//!     address: "192.0.2.1".parse()?,
//!     port: 80,
//! };
//! let server = Destination::new("10.0.0.1:8080".parse::<std::net::SocketAddr>()?.into(), 1);
//! let changes =
//!     [Change::AddService(Service::new(key, "wlc".parse()?)), Change::AddDestination(key, server)];
//! for outcome in ipvs.apply(&changes)? {
//!     if let Err(error) = outcome {
//!         eprintln!("{error}");
//!     }
//! }
//! for entry in ipvs.destinations(&key)? {
//!     println!("{} has {} connections", entry.destination.key, entry.active_connections);
//! }
//! # Ok(())
//! # }
//! ```

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod capabilities;
pub mod change;
pub mod client;
pub mod daemon;
pub mod destination;
pub mod error;
pub mod family;
pub mod message;
pub mod name;
pub mod service;
pub mod settings;
pub mod stats;
pub mod sys;

pub use capabilities::Capabilities;
pub use change::Change;
pub use client::{Client, Outcome};
pub use daemon::{Daemon, DaemonRole};
pub use destination::{
    Destination, DestinationEntry, DestinationKey, Forwarding, Tunnel, TunnelFlags, TunnelKind,
};
pub use error::{Error, Result};
pub use name::{EngineName, InterfaceName, SchedulerName};
pub use netlink::{Errno, Family};
pub use service::{ClientMask, Protocol, Service, ServiceEntry, ServiceFlags, ServiceKey};
pub use settings::{Info, Timeouts};
pub use stats::Stats;
