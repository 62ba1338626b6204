//! Networks.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::Family;

/// A network without host bits: `10.0.0.5/8` and `10.0.0.0/8` are the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(IpNetwork);

impl Cidr {
    /// Parses `address/length`, ignoring white space around it (as the API server does for source
    /// ranges).
    ///
    /// # Errors
    /// If the text is not an address, a slash and a prefix length.
    pub fn parse(text: &str) -> Result<Self, InvalidCidr> {
        let text = text.trim();
        let (_, length) = text.split_once('/').ok_or(InvalidCidr)?;
        // `IpNetwork` also parses a netmask (`10.0.0.0/255.0.0.0`), which Kubernetes rejects.
        if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidCidr);
        }
        let network: IpNetwork = text.parse().map_err(|_| InvalidCidr)?;
        Self::new(network.ip(), network.prefix())
    }

    /// Returns the network of `prefix_len` bits that contains `address`.
    ///
    /// # Errors
    /// If the family has fewer bits.
    pub fn new(address: IpAddr, prefix_len: u8) -> Result<Self, InvalidCidr> {
        let network = IpNetwork::new(address, prefix_len).map_err(|_| InvalidCidr)?;
        IpNetwork::new(network.network(), prefix_len)
            .map(Self)
            .map_err(|_| InvalidCidr)
    }

    /// Returns the network's first address.
    pub fn network(&self) -> IpAddr {
        self.0.network()
    }

    /// Returns the prefix length in bits.
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix()
    }

    /// Returns the network's family.
    pub fn family(&self) -> Family {
        self.network().into()
    }

    /// Returns whether `address` is in the network; `false` for the other family.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(address)
    }
}

/// Converts to the network that contains only the address.
impl From<IpAddr> for Cidr {
    fn from(address: IpAddr) -> Self {
        Self(address.into())
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// The error of parsing a [`Cidr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a network in CIDR form, such as 10.96.0.0/12 or fd00::/112")]
pub struct InvalidCidr;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cidr_drops_host_bits_and_needs_a_length() {
        assert_eq!(
            Cidr::parse("10.0.0.5/8").unwrap(),
            Cidr::parse(" 10.0.0.0/8 ").unwrap()
        );
        assert_eq!(Cidr::parse("fd00::1/64").unwrap().to_string(), "fd00::/64");
        for bad in [
            "10.0.0.1",
            "10.0.0.1/33",
            "10.0.0.0/255.0.0.0",
            "x/8",
            "10.0.0.0/",
            "/8",
            "",
        ] {
            assert!(Cidr::parse(bad).is_err(), "{bad}");
        }
    }
}
