//! The kernel's schedulers, one file each, written as the kernel computes.

use crate::options::Options;
use crate::registry::Registry;
use crate::scheduler::Scheduler;

mod lc;
mod rr;

pub use lc::Lc;
pub use rr::Rr;

/// Registers every kernel scheduler that `registry` lacks.
pub(crate) fn register(registry: &mut Registry) {
    let mut plain = |name, factory: fn(&Options) -> Box<dyn Scheduler>| {
        // A name that is taken keeps its scheduler.
        let _ = registry.register(name, factory);
    };
    plain("lc", |_| Box::new(Lc));
    plain("rr", |_| Box::new(Rr::default()));
}
