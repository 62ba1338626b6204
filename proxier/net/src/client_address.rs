//! How endpoints of a relay learn the addresses of clients.

/// A version of the PROXY protocol: a header before a client's first byte, with the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyProtocol {
    /// A line of text.
    V1,
    /// A binary header.
    V2,
}

/// The source address of a relay's connections to endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceAddress {
    /// The address of this node.
    #[default]
    Node,
    /// The address of the client.
    Client,
}
