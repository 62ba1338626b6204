//! Tests of `proxier::testing::watch` against an HTTP server on loopback.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod certificates;
mod credentials;
mod events;
mod follower;
mod frozen;
mod half_open;
#[path = "../survival/http.rs"]
mod http;
mod lists;
mod objects;
mod oldest;
mod outages;
mod plugins;
mod program;
mod real_server;
mod recorded;
mod refusals;
mod restored;
mod secrets;
mod servers;
mod watches;
