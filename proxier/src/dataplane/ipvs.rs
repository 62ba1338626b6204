//! IPVS: the plan in its terms.

mod inside_marks;
mod wanted;

pub use inside_marks::InsideMarks;
pub(crate) use inside_marks::MarkChanges;
pub use wanted::{Admission, KernelParts, MarkedClients, Wanted, WantedServer};
