//! The kernel's schedulers, one file each, with the kernel's arithmetic.

use std::cmp::Reverse;

use crate::kernel::indexed::{Indexed, IndexedWrr};
use crate::options::{Implementation, Options};
use crate::registry::Registry;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

mod cache;
mod dh;
mod fo;
mod hash;
mod indexed;
mod lblc;
mod lblcr;
mod lc;
mod locality;
mod mh;
mod nq;
mod ovf;
mod random;
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

/// Registers the kernel's schedulers.
pub(crate) fn register(registry: &mut Registry) {
    let mut plain = |name, factory: Factory| {
        // Never fails: `registry` is empty, and every name below occurs once.
        let _ = registry.register(name, factory);
    };
    plain("dh", |_| Box::new(Dh::default()));
    plain("fo", |_| Box::new(Fo));
    plain("lblc", |options| Box::new(Lblc::new(options)));
    plain("lblcr", |options| Box::new(Lblcr::new(options)));
    plain("mh", |options| Box::new(Mh::new(options)));
    plain("ovf", |_| Box::new(Ovf));
    plain("rr", |_| Box::new(Rr::default()));
    plain("sh", |options| Box::new(Sh::new(options)));
    plain("twos", |options| Box::new(Twos::new(options)));

    let mut either = |name, plain: Factory, indexed: Factory| {
        let factory = move |options: &Options| match options.implementation {
            Implementation::Plain => plain(options),
            Implementation::Indexed => indexed(options),
        };
        let _ = registry.register(name, factory);
    };
    either("lc", boxed::<Lc>, boxed::<Indexed<Lc>>);
    either("nq", boxed::<Nq>, boxed::<Indexed<Nq>>);
    either("sed", boxed::<Sed>, boxed::<Indexed<Sed>>);
    either("wlc", boxed::<Wlc>, boxed::<Indexed<Wlc>>);
    either("wrr", boxed::<Wrr>, boxed::<IndexedWrr>);
}

type Factory = fn(&Options) -> Box<dyn Scheduler>;

fn boxed<S: Scheduler + Default + 'static>(_: &Options) -> Box<dyn Scheduler> {
    Box::new(S::default())
}

fn is_eligible(servers: &Servers, id: ServerId) -> bool {
    servers
        .listed(id)
        .is_some_and(|server| server.is_eligible())
}

fn first_heaviest<'a>(
    candidates: impl Iterator<Item = (ServerId, &'a Server)>,
) -> Option<ServerId> {
    // `min_by_key` returns the first of equal elements.
    candidates
        .min_by_key(|(_, server)| Reverse(server.weight))
        .map(|(id, _)| id)
}

/// Returns the number of bits that `number` needs: the kernel's `fls`.
fn bit_length(number: i32) -> u32 {
    i32::BITS - number.leading_zeros()
}
