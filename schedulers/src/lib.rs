//! Which server gets the next connection: the kernel's IPVS schedulers, picking exactly as the
//! kernel picks, and a place to plug in others.
//!
//! ```text
//!                        Request ──┐
//!                                  ▼
//!  add, remove, weight ──▶  Balancer  ──pick──▶ Scheduler ──▶ ServerId or nothing
//!  connection counts   ──▶  Servers   ──hooks─▶    ▲
//!                                                  │ by name
//!                                               Registry ◀── a stranger's factory
//! ```
//!
//! Everything is passed in, the time ([`Request::at`]) and the seed of random sequences
//! ([`Options::seed`]) included. A pick allocates nothing, except that lblc and lblcr allocate when
//! they meet more addresses than ever before.
//!
//! # The schedulers
//!
//! *Eligible* servers have a weight above 0 and are not marked overloaded; *first* is the newest,
//! since the kernel adds at the head of its list; *load* is [`Server::overhead`], about 256 per
//! active connection. n servers.
//!
//! | name | who is picked | pick | change of a count | when to use it |
//! |---|---|---|---|---|
//! | [`rr`](kernel::Rr) | the next eligible one | O(1) | – | equal servers, equal connections |
//! | [`wrr`](kernel::Wrr) | in turn, in rounds for falling weights | O(1) | O(1) | unequal servers, equal connections |
//! | [`lc`](kernel::Lc) | least load | O(1) | O(log n) | equal servers, unequal connections, one balancer |
//! | [`wlc`](kernel::Wlc) | least load / weight | O(1) | O(log n) | unequal servers and connections, one balancer |
//! | [`sed`](kernel::Sed) | least (active + 1) / weight | O(1) | O(log n) | very unequal servers, few connections; not UDP |
//! | [`nq`](kernel::Nq) | the first idle one, else as sed | O(1) | O(log n) | as sed, nobody waits while a server idles; not UDP |
//! | [`lblc`](kernel::Lblc) | who had the dialled address, unless overrun; else as wlc | O(1), O(n) | – | many addresses under one firewall mark: caches |
//! | [`lblcr`](kernel::Lblcr) | least load of the address's set, which grows and shrinks | O(set), O(n) | – | as lblc, when one address is too much for one server |
//! | [`sh`](kernel::Sh) | by hash of the client, 256 slots by weight | O(1) | – | sessions; few changes |
//! | [`dh`](kernel::Dh) | by hash of the dialled address, 256 slots | O(1) | – | many addresses under one firewall mark |
//! | [`mh`](kernel::Mh) | by hash of the client, Maglev table of 4093 | O(1) | – | sessions; several balancers that agree |
//! | [`fo`](kernel::Fo) | greatest weight | O(n) | – | a main server and stand-ins |
//! | [`ovf`](kernel::Ovf) | greatest weight whose active ≤ weight | O(n) | – | filling servers one after the other; not UDP |
//! | [`twos`](kernel::Twos) | less loaded of two drawn by weight | O(n) | – | many balancers, each seeing its own connections |
//!
//! Ties go to the first. "O(1), O(n)": while the remembered server will do, and otherwise. Of
//! `wrr`, amortised: an overloaded server costs a step per cycle. sh, dh and mh fill their tables
//! again, and wrr finds its levels again, when servers or weights change.
//!
//! What a pick costs on your machine says `cargo bench -p schedulers`; what it may cost in
//! instructions is the gate `tests/instructions.rs`. On a virtual Xeon of 2.5 GHz with 2048
//! servers: rr 7 ns, sh and dh 8 ns, wrr 9 ns, mh 15 ns; lc 46 ns, wlc, sed and nq 82 to 86 ns *with*
//! the count of the new connection, 75 to 150 times less than the scan, and with 16384 servers at
//! most 1.6 times what it is with 256.
//!
//! *Memory*: 110 bytes per server for the set; besides, 40 for lc, wlc, sed and nq, 25 for wrr,
//! none for others, when n is just a power of two, and up to twice that when it is just above one.
//! Tables: dh 2 kB, sh 2 kB, mh 33 kB, lblc and lblcr 25 kB and some 70 bytes per address.
//! `tests/allocations.rs` measures it.
//!
//! # Two implementations
//!
//! lc, wlc, sed, nq and wrr scan the list in the kernel. Here that is [`Implementation::Plain`];
//! the default is [`Implementation::Indexed`], which picks the same: a tournament tree over the
//! loads, and for wrr the set of those whose weight the round asks for. `tests/equal.rs` compares
//! them over random histories of all changes there are, among them counts that overflow the
//! kernel's 32 bits.
//!
//! # Which kernel
//!
//! Read and recorded: Linux 6.1.192 and 7.2. Picks differ between kernels only by what [`Options`]
//! names:
//!
//! | what | kernels | option |
//! |---|---|---|
//! | load is 256 × active + inactive; thresholds looked at after the fact | before 6.1.183; 6.12 as released | [`Flavour::Classic`] |
//! | load is 256 × active + all; thresholds with a hysteresis | 6.1.183 and later, 7.2 | [`Flavour::Total`] |
//! | lblc and lblcr remember any number of addresses | before 6.1.191 | [`LocalityLimit::Unbounded`] |
//! | size of sh's and mh's tables | as configured | [`ShTable`], [`MhTable`] |
//!
//! Kernels before 4.18 hash differently (sh, dh) and have no mh; twos came with 5.13. mh on kernels
//! of 32 bits uses another hash. Neither is here. twos draws lots, so its picks can be compared by
//! frequency and by what given lots lead to, not one by one.
//!
//! # Edges
//!
//! | what | then |
//! |---|---|
//! | a name that the registry does not have | [`Error::UnknownScheduler`], with the names there are |
//! | no servers, all weights 0, all overloaded | no pick; the connection is refused |
//! | a weight above [`WEIGHT_MAX`], as `u32::MAX` | [`Error::Weight`], nothing changes; the kernel's weights are signed |
//! | weight [`WEIGHT_MAX`] | works; the plain wrr, as the kernel, may take billions of steps for one pick |
//! | so many connections that the load overflows | as the kernel: wlc then prefers that server, lc compares without a sign |
//! | 65535 servers | work; mh needs as many slots, see [`kernel::Mh`] |
//! | a server that is removed and added again while it has connections | is the same server with the same counts |
//!
//! # A scheduler of your own
//!
//! Implement [`Scheduler`], register it by a name ([`Registry::register`]), and it is at hand
//! wherever schedulers are named. `examples/outsider.rs` does it with peak EWMA and real
//! connections.

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
