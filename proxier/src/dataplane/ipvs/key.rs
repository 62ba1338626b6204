//! The key of a virtual server: that of a frontend, and that in the ledger's file.

use std::net::IpAddr;

use ipvs_netlink as ipvs;
use serde::{Deserialize, Serialize};

use crate::cluster::model::{Family, Protocol};
use crate::plan::frontend::Frontend;

impl Frontend {
    /// Returns the frontend of a virtual server.
    ///
    /// `None` for a firewall mark, and for a protocol that no Service can have. Only another program
    /// creates a virtual server with such a protocol.
    pub fn of(key: &ipvs::ServiceKey) -> Option<Self> {
        let ipvs::ServiceKey::Address {
            protocol,
            address,
            port,
        } = *key
        else {
            return None;
        };
        let number = u8::try_from(u16::from(protocol)).ok()?;
        Some(Self {
            address,
            protocol: Protocol::from_number(number)?,
            port,
        })
    }
}

impl From<Frontend> for ipvs::ServiceKey {
    fn from(frontend: Frontend) -> Self {
        Self::Address {
            protocol: u16::from(frontend.protocol.number()).into(),
            address: frontend.address,
            port: frontend.port,
        }
    }
}

/// The key of a virtual server in the ledger's file.
///
/// Not a [`Frontend`], because virtual servers of firewall marks are owned too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum LedgerKey {
    /// A virtual server with an address.
    Address {
        /// The number of the IP protocol.
        protocol: u16,
        address: IpAddr,
        port: u16,
    },
    /// A virtual server with a firewall mark.
    Mark { mark: u32, v6: bool },
}

impl LedgerKey {
    /// Returns the ledger's key for `key`; `None` for a kind of key that we never create.
    pub(crate) fn new(key: ipvs::ServiceKey) -> Option<Self> {
        match key {
            ipvs::ServiceKey::Address {
                protocol,
                address,
                port,
            } => Some(Self::Address {
                protocol: protocol.into(),
                address,
                port,
            }),
            ipvs::ServiceKey::Mark { family, mark } => Some(Self::Mark {
                mark,
                v6: family == Family::V6,
            }),
            _ => None,
        }
    }
}

impl From<LedgerKey> for ipvs::ServiceKey {
    fn from(key: LedgerKey) -> Self {
        match key {
            LedgerKey::Address {
                protocol,
                address,
                port,
            } => Self::Address {
                protocol: protocol.into(),
                address,
                port,
            },
            LedgerKey::Mark { mark, v6: false } => Self::Mark {
                family: Family::V4,
                mark,
            },
            LedgerKey::Mark { mark, v6: true } => Self::Mark {
                family: Family::V6,
                mark,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converting_a_key_and_back_returns_the_same_key() {
        let frontend = Frontend {
            address: [10, 96, 0, 1].into(),
            protocol: Protocol::Sctp,
            port: 443,
        };
        assert_eq!(Frontend::of(&frontend.into()), Some(frontend));
        assert_eq!(frontend.to_string(), "SCTP 10.96.0.1:443");
        let marks = [Family::V4, Family::V6];
        let marks = marks.map(|family| ipvs::ServiceKey::Mark { family, mark: 7 });
        for key in marks.into_iter().chain([frontend.into()]) {
            let line = serde_json::to_string(&LedgerKey::new(key)).unwrap();
            let read: LedgerKey = serde_json::from_str(&line).unwrap();
            assert_eq!(ipvs::ServiceKey::from(read), key);
        }
        assert_eq!(Frontend::of(&marks[0]), None);
    }
}
