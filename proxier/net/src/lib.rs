//! The words of the network that the proxy's crates share: protocols, address families, networks.
//!
//! Plain values. They know neither Kubernetes nor the kernel.

mod cidr;
mod client_address;
mod networks;
mod protocol;
pub mod stable_hash;

pub use cidr::{Cidr, InvalidCidr};
pub use client_address::{ProxyProtocol, SourceAddress};
// The one of the kernel's messages, so that there is only one.
pub use netlink::Family;
pub use networks::{Bounds, Networks};
pub use protocol::Protocol;
