//! IPVS: the plan in its terms.

mod compare;
pub(crate) mod flows;
mod foreign;
mod inside_marks;
mod learn;
mod marking;
mod retire;
pub(crate) mod rules;
pub(crate) mod schedulers;
pub(crate) mod state;
mod wanted;

pub use inside_marks::InsideMarks;
pub(crate) use inside_marks::MarkChanges;
pub use wanted::{Admission, KernelParts, MarkedClients, Wanted, WantedServer};
