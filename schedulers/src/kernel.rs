//! The kernel's schedulers, one file each, written as the kernel computes.

use crate::options::Options;
use crate::registry::Registry;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

mod dh;
mod hash;
mod lc;
mod rr;
mod sh;

pub use dh::Dh;
pub use lc::Lc;
pub use rr::Rr;
pub use sh::Sh;

/// Registers every kernel scheduler that `registry` lacks.
pub(crate) fn register(registry: &mut Registry) {
    let mut plain = |name, factory: fn(&Options) -> Box<dyn Scheduler>| {
        // A name that is taken keeps its scheduler.
        let _ = registry.register(name, factory);
    };
    plain("dh", |_| Box::new(Dh::default()));
    plain("lc", |_| Box::new(Lc));
    plain("rr", |_| Box::new(Rr::default()));
    plain("sh", |options| Box::new(Sh::new(options)));
}

fn is_eligible(servers: &Servers, id: ServerId) -> bool {
    servers
        .listed(id)
        .is_some_and(|server| server.is_eligible())
}
