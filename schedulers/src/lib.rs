//! The kernel's IPVS schedulers, picking exactly as the kernel picks. Nothing is here yet.
