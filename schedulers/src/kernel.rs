//! The kernel's schedulers, one file each, written as the kernel computes.

use std::cmp::Reverse;

use crate::options::Options;
use crate::registry::Registry;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

mod cache;
mod dh;
mod fo;
mod hash;
mod lblc;
mod lblcr;
mod lc;
mod locality;
mod lots;
mod mh;
mod nq;
mod ovf;
mod rr;
mod sed;
mod sh;
mod siphash;
mod twos;
mod weighted;
mod wlc;
mod wrr;

pub use dh::Dh;
pub use fo::Fo;
pub use lblc::Lblc;
pub use lblcr::Lblcr;
pub use lc::Lc;
pub use mh::Mh;
pub use nq::Nq;
pub use ovf::Ovf;
pub use rr::Rr;
pub use sed::Sed;
pub use sh::Sh;
pub use twos::Twos;
pub use wlc::Wlc;
pub use wrr::Wrr;

/// Registers every kernel scheduler that `registry` lacks.
pub(crate) fn register(registry: &mut Registry) {
    let mut plain = |name, factory: fn(&Options) -> Box<dyn Scheduler>| {
        // A name that is taken keeps its scheduler.
        let _ = registry.register(name, factory);
    };
    plain("dh", |_| Box::new(Dh::default()));
    plain("fo", |_| Box::new(Fo));
    plain("lblc", |options| Box::new(Lblc::new(options)));
    plain("lblcr", |options| Box::new(Lblcr::new(options)));
    plain("lc", |_| Box::new(Lc));
    plain("mh", |options| Box::new(Mh::new(options)));
    plain("nq", |_| Box::new(Nq));
    plain("ovf", |_| Box::new(Ovf));
    plain("rr", |_| Box::new(Rr::default()));
    plain("sed", |_| Box::new(Sed));
    plain("sh", |options| Box::new(Sh::new(options)));
    plain("twos", |options| Box::new(Twos::new(options)));
    plain("wlc", |_| Box::new(Wlc));
    plain("wrr", |_| Box::new(Wrr::default()));
}

fn is_eligible(servers: &Servers, id: ServerId) -> bool {
    servers
        .listed(id)
        .is_some_and(|server| server.is_eligible())
}

fn first_heaviest<'a>(
    candidates: impl Iterator<Item = (ServerId, &'a Server)>,
) -> Option<ServerId> {
    // Of equal ones, `min_by_key` returns the first.
    candidates
        .min_by_key(|(_, server)| Reverse(server.weight))
        .map(|(id, _)| id)
}

/// How many bits it takes to write `number`.
fn bit_length(number: i32) -> u32 {
    i32::BITS - number.leading_zeros()
}
