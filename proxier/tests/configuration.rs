//! Flags and configuration files, compared with the real kube-proxy where its binary is.
//!
//! `KUBEBUILDER_ASSETS` names the directory of `kube-proxy`; see `ARCHITECTURE.md`, Testing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "configuration/documentation.rs"]
mod documentation;
#[path = "configuration/files.rs"]
mod files;
#[path = "configuration/flags.rs"]
mod flags;
#[path = "configuration/programs.rs"]
mod programs;
#[path = "configuration/run.rs"]
mod run;
