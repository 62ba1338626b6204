//! Networks for tests to live in, drawn in a few lines.
//!
//! ```no_run
//! # fn real_kernel() {
//! lab::test(|| {
//!     let mut node = lab::net::node("node-a");
//!     let ext = node.link("ext0", "203.0.113.1/24", "ext", "203.0.113.9/24");
//!     let pod = node.pod("pod1", "10.244.1.2");
//!     pod.serve_tcp(8080);
//!     let answer = ext.ask_tcp("10.244.1.2:8080");
//!     assert_eq!(answer.backend(), Some("pod1"));
//! });
//! # }
//! ```
//!
//! A [`Host`] is a network namespace. A [`Node`] is a host that others hang on: pods, other nodes,
//! clients, each at the end of a veth pair, everything routed. The node that [`node`] makes *is* the
//! calling thread's namespace, so the code under test runs on it. [`Cluster`] is a whole one, ready
//! made. All of it goes away when it is dropped.
//!
//! Set-up that fails is a panic that says what failed. Linking takes iproute2's `ip`.

mod answer;
mod client;
mod cluster;
mod host;
mod node;
mod sctp;
mod server;

pub use self::{
    answer::Answer,
    client::Connection,
    cluster::Cluster,
    host::Host,
    node::{Node, node},
};

use anyhow::Result;

/// What set-up is for: a test that has no network has no result.
#[track_caller]
fn must<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error:#}"),
    }
}
