//! The kernel's IPVS schedulers, which pick the same servers as the kernel, and a trait for new ones.
//!
//! ```text
//!                        Request ──┐
//!                                  ▼
//!  add, remove, weight ──▶  Balancer  ──pick──▶ Scheduler ──▶ Some(ServerId) or None
//!  connection counts   ──▶  Servers   ──hooks─▶    ▲
//!                                                  │ built by name
//!                                               Registry ◀── register("name", factory)
//! ```
//!
//! The crate does no I/O and reads no clock and no random source: the caller passes the time
//! ([`Request::at`]) and the seed ([`Options::seed`]). A pick does not allocate, except that lblc and
//! lblcr allocate when they remember more addresses than ever before.
//!
//! # The schedulers
//!
//! * *Eligible*: a server with a weight above 0 that is not marked overloaded.
//! * *First*: the newest server, because the kernel adds at the head of its list.
//! * *Load*: [`Server::overhead`], about 256 per active connection.
//! * *Frontend address*: the address that the client connects to ([`Request::destination`]). It
//!   varies only if one virtual server stands for many addresses (a firewall mark).
//!
//! The column *pick* is the cost of a pick among n servers, *count* the cost of a change of a connection
//! count. "O(1), O(n)" means O(1) while the remembered server is used, else O(n).
//!
//! | name | picks | pick | count | when to use it |
//! |---|---|---|---|---|
//! | [`rr`](kernel::Rr) | the next eligible server | O(1) | – | equal servers, equal connections |
//! | [`wrr`](kernel::Wrr) | servers in turn, heavier ones in more rounds | O(1) amortised | O(1) | unequal servers, equal connections |
//! | [`lc`](kernel::Lc) | the least load | O(1) | O(log n) | equal servers, unequal connections, one balancer |
//! | [`wlc`](kernel::Wlc) | the least load / weight | O(1) | O(log n) | unequal servers and connections, one balancer |
//! | [`sed`](kernel::Sed) | the least (active + 1) / weight | O(1) | O(log n) | very unequal servers, few connections; not UDP |
//! | [`nq`](kernel::Nq) | the first idle server, else as sed | O(1) | O(log n) | as sed, if no connection may wait while a server is idle; not UDP |
//! | [`lblc`](kernel::Lblc) | the last server of the frontend address, unless overrun; else as wlc | O(1), O(n) | – | many addresses under one firewall mark: caches |
//! | [`lblcr`](kernel::Lblcr) | the least load in the set of the frontend address, which grows and shrinks | O(set), O(n) | – | as lblc, if one address needs more than one server |
//! | [`sh`](kernel::Sh) | by a hash of the client, 256 slots shared by weight | O(1) | – | sessions; few changes |
//! | [`dh`](kernel::Dh) | by a hash of the frontend address, 256 slots | O(1) | – | many addresses under one firewall mark |
//! | [`mh`](kernel::Mh) | by a hash of the client, Maglev table of 4093 slots | O(1) | – | sessions; several balancers that must agree |
//! | [`fo`](kernel::Fo) | the greatest weight | O(n) | – | a main server and stand-ins |
//! | [`ovf`](kernel::Ovf) | the greatest weight whose active ≤ weight | O(n) | – | servers to be filled one after the other; not UDP |
//! | [`twos`](kernel::Twos) | the less loaded of two servers drawn by weight | O(n) | – | many balancers, each of which sees only its own connections |
//!
//! The first server wins a tie. An overloaded server costs wrr one step per cycle. When servers or
//! weights change, sh, dh and mh fill their tables again, and wrr computes its levels again.
//!
//! `cargo bench -p schedulers` measures a pick on your machine. The test `tests/instructions.rs` limits
//! its instructions. On a virtual Xeon of 2.5 GHz with 2048 servers: rr 7 ns, sh and dh 8 ns, wrr 9 ns,
//! mh 15 ns; lc 46 ns, wlc, sed and nq 82 to 86 ns *including* the update for the new connection, 75 to
//! 150 times less than the scan. With 16384 servers a pick takes at most 1.6 times as long as with 256.
//!
//! *Memory*: the set takes 110 bytes per server. In addition lc, wlc, sed and nq take 40 bytes per
//! server, wrr 25, the others none. These numbers hold if the number of servers is a power of two; just
//! above a power of two they are up to twice as high. Tables: dh 2 kB, sh 2 kB, mh 33 kB, lblc and lblcr
//! 25 kB plus about 70 bytes per address. `tests/allocations.rs` measures all of them.
//!
//! # Two implementations
//!
//! In the kernel, lc, wlc, sed, nq and wrr scan the list. [`Implementation::Plain`] scans, too. The
//! default, [`Implementation::Indexed`], picks the same servers faster: by a tournament tree over the
//! loads, and for wrr by a bitmap of the servers in the current round. `tests/equal.rs` compares both
//! over random histories of every kind of change, including counts that overflow the kernel's 32 bits.
//!
//! # Which kernel
//!
//! The source of Linux 6.1.192 and 7.2 was read, and picks of both were recorded. Picks of different
//! kernels differ only in what [`Options`] names:
//!
//! | what | kernels | option |
//! |---|---|---|
//! | load is 256 × active + inactive; the overload mark is checked with `>=` | before 6.1.183; 6.12 as released | [`Flavour::Classic`] |
//! | load is 256 × active + all; the overload mark has a hysteresis | 6.1.183 and later, 7.2 | [`Flavour::Total`] |
//! | lblc and lblcr remember any number of addresses | before 6.1.191 | [`LocalityLimit::Unbounded`] |
//! | size of the tables of sh and mh | as configured | [`ShTable`], [`MhTable`] |
//!
//! Not implemented: kernels before 4.18, which hash differently (sh, dh) and have no mh; and the hash of
//! mh on 32-bit kernels. twos exists since 5.13. It draws random numbers, so tests compare the frequency
//! of its picks, and its picks for given random numbers, but no recorded sequence of picks.
//!
//! # Edge cases
//!
//! | case | result |
//! |---|---|
//! | a name that the registry does not have | [`Error::UnknownScheduler`], with the registered names |
//! | no servers, all weights 0, all overloaded | no pick; the connection is refused |
//! | a weight above [`WEIGHT_MAX`], such as `u32::MAX` | [`Error::Weight`], nothing changes; the kernel's weights are signed |
//! | weight [`WEIGHT_MAX`] | allowed; the plain wrr, like the kernel, may take billions of steps for one pick |
//! | so many connections that the load overflows | as in the kernel: wlc then prefers that server; lc compares unsigned loads |
//! | 65535 servers | allowed; mh needs as many slots, see [`kernel::Mh`] |
//! | a server is removed and added again while it has connections | it is the same server with the same counts |
//!
//! # A scheduler of your own
//!
//! Implement [`Scheduler`] and register it under a name ([`Registry::register`]). Then it can be built
//! by name, as the kernel's schedulers. `examples/custom.rs` does this with peak EWMA and real
//! connections.
//!
//! The README of the crate compares the schedulers by simulation.

#![forbid(unsafe_code)]

mod balancer;
mod error;
pub mod kernel;
mod options;
mod registry;
mod request;
mod scheduler;
mod server;
mod servers;
mod thresholds;

pub use balancer::Balancer;
pub use error::Error;
pub use options::{
    Family, Flags, Flavour, Implementation, LocalityLimit, MhTable, Options, ShTable,
};
pub use registry::Registry;
pub use request::Request;
pub use scheduler::Scheduler;
pub use server::{Server, ServerId, WEIGHT_MAX};
pub use servers::{Iter, Servers};
pub use thresholds::Thresholds;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
