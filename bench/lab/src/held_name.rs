//! Names that one process of the host holds at a time.

use std::os::{
    linux::net::SocketAddrExt,
    unix::net::{SocketAddr, UnixDatagram},
};

/// A name that no other process of the network namespace can take until this is dropped.
///
/// The name is the abstract address of a socket: the host's kernel frees it also when the process
/// dies, and lists it in `/proc/net/unix`.
#[derive(Debug)]
pub(crate) struct HeldName {
    _socket: UnixDatagram,
}

impl HeldName {
    /// Takes `name`. `None` if it is taken, or too long for an address (107 bytes).
    pub(crate) fn take(name: &str) -> Option<Self> {
        let address = SocketAddr::from_abstract_name(name).ok()?;
        let socket = UnixDatagram::bind_addr(&address).ok()?;
        Some(Self { _socket: socket })
    }
}
