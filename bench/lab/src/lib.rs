//! The kernel lab.
