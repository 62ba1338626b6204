//! Where objects come from: an API server, or files. Events go back to the API server.

pub(crate) mod events;
pub(crate) mod follow;
pub(crate) mod manifests;
pub(crate) mod message;
pub(crate) mod watch;
