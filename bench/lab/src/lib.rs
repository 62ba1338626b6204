//! The kernel lab: a real kernel with IPVS, as an ordinary process, for tests and for trying things.
//!
//! ```no_run
//! # fn real_kernel() {
//! lab::test(|| {
//!     // Root, a network namespace of its own, IPVS, nf_tables; on any machine, as any user.
//!     println!("{}", lab::kernel_release());
//! });
//! # }
//! ```
//!
//! If this process is root on a kernel with IPVS, [`test()`] runs a test right here. Otherwise it
//! runs the test in a User-Mode Linux kernel with the root file system of the host. [`net`] builds
//! the networks of tests.
//!
//! ```text
//!   cost      how slow the lab is, and how long tests wait because of it
//!   harness   test(): which kernel runs a test, and its result
//!   machine   a kernel process and its jobs   ──── wire ────   guest   process 1 and its agent
//!   looks     waits until something is so
//!   kernel    finds a kernel, or builds one
//!   net       hosts, links, servers, clients
//! ```

mod cost;
pub mod guest;
mod harness;
mod held_name;
pub mod job;
pub mod kernel;
mod looks;
pub mod machine;
pub mod net;
mod netlink;
mod netns;
mod set_on_drop;
mod wire;

pub use cost::{NORMAL_SYSCALL_COST, patience, syscall_cost};
pub use harness::{kernel_release, test};
pub use looks::{await_some, await_true};
pub use set_on_drop::SetOnDrop;

/// Runs `body` in a new network namespace of the running kernel, and returns its result.
///
/// `lo` is up in it. If `body` panics, the caller panics with the same value.
///
/// # Errors
///
/// If the caller may not create namespaces.
pub fn in_fresh_network<T: Send>(body: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    netns::on_thread("fresh network", netns::enter_new, body)
}
