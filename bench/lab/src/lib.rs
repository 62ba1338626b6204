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
//! [`test()`] runs a test where it can: right here as root on a kernel with IPVS, else inside a
//! User-Mode Linux kernel, whose root file system is the host's. [`net`] builds networks for tests
//! to live in.
//!
//! ```text
//!   cost      how slow the lab is, and how long tests wait because of it
//!   harness   test(): where to run, what became of it
//!   machine   a kernel process and the jobs in it   ──── wire ────   guest   process 1 and its agent
//!   kernel    which kernel; building one
//!   net       hosts, links, servers, clients
//! ```

mod cost;
pub mod guest;
mod harness;
pub mod job;
pub mod kernel;
pub mod machine;
pub mod net;
mod netlink;
mod netns;
mod wire;

pub use cost::{NORMAL_SYSCALL_COST, patience, syscall_cost};
pub use harness::{kernel_release, test};

/// Runs `body` on the running kernel, in a network namespace of its own with `lo` up, and gives its
/// result; panics as `body` does.
///
/// # Errors
///
/// The caller may not make namespaces.
pub fn in_fresh_network<T: Send>(body: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    netns::on_thread("fresh network", netns::enter_new, body)
}
