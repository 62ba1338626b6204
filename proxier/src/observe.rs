//! What an operator sees from outside: health, metrics, and the HTTP servers.

pub(crate) mod health;
pub(crate) mod instruments;
pub(crate) mod overview;
pub(crate) mod serve;
pub(crate) mod traffic;
