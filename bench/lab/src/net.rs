//! Networks for tests.
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
//! A [`Host`] is a network namespace. A [`Node`] is a host with links to others: pods, other nodes,
//! clients, each at the end of a veth pair, with routes between all of them. [`node()`] returns the
//! calling thread's namespace, so the code under test runs on that node. [`Cluster`] is a complete
//! network. Dropping a value deletes its part of the network.
//!
//! A function that cannot set up its part panics with the reason. Links need `ip` of iproute2.

mod answer;
mod client;
mod cluster;
mod host;
mod node;
mod port;
mod sctp;
mod server;
mod wait;

pub use self::{
    answer::Answer,
    client::{Connection, UdpClient, ask_sctp, ask_tcp, ask_tcp_within, ask_udp, ask_udp_within},
    cluster::Cluster,
    host::Host,
    node::{Node, node},
    port::unused_port,
    wait::{PatientStream, connect_within, poll_within, receive_within},
};

use anyhow::Result;

/// Returns the value, or panics with the error: a test without its network has no result.
#[track_caller]
fn must<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error:#}"),
    }
}
