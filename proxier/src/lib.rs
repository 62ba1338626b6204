//! ipvs-proxier
