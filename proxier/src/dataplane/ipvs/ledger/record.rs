//! The records of the ledger's file, one a line.

use std::net::SocketAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::WrittenRules;
use crate::cluster::model::ServicePortName;
use crate::dataplane::ipvs::filter::Fingerprint;
use crate::dataplane::ipvs::key::LedgerKey;
use crate::dataplane::ipvs::marks::MarkKey;

/// One change of the ledger.
///
/// The names of variants and fields are the format of the file, which other versions of the daemon read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Record {
    /// A virtual server is owned.
    Own {
        server: LedgerKey,
        /// The Service port that it serves, as `namespace/name:port`.
        #[serde(serialize_with = "write_name", deserialize_with = "read_name")]
        service: ServicePortName,
    },
    /// A virtual server is deleted.
    Disown { server: LedgerKey },
    /// A destination drains.
    Drain {
        server: LedgerKey,
        destination: SocketAddr,
        /// The deadline in seconds since boot.
        until: u64,
    },
    /// A destination no longer drains.
    Drained {
        server: LedgerKey,
        destination: SocketAddr,
    },
    /// A virtual server is retired.
    Retire {
        server: LedgerKey,
        /// The deadline in seconds since boot.
        until: u64,
    },
    /// A virtual server is no longer retired.
    Unretire { server: LedgerKey },
    /// The key of the firewall marks, in hexadecimal digits.
    MarkKey { key: String },
    /// Packet rules were written.
    Rules {
        generation: u32,
        fingerprint: Fingerprint,
    },
}

impl Record {
    /// Returns the record of the key of the firewall marks.
    pub(super) fn mark_key(key: MarkKey) -> Self {
        Self::MarkKey {
            key: key.to_string(),
        }
    }

    /// Returns the record of an owned virtual server; `None` if the key is neither an address nor a mark.
    ///
    /// IPVS has no third kind, but [`ipvs::ServiceKey`] is non-exhaustive.
    pub(super) fn own(key: ipvs::ServiceKey, service: ServicePortName) -> Option<Self> {
        let server = LedgerKey::new(key)?;
        Some(Self::Own { server, service })
    }

    /// Returns the record of a destination that drains.
    pub(super) fn drain(
        key: ipvs::ServiceKey,
        destination: ipvs::DestinationKey,
        deadline: Duration,
    ) -> Option<Self> {
        Some(Self::Drain {
            server: LedgerKey::new(key)?,
            destination: (destination.address, destination.port).into(),
            until: deadline.as_secs(),
        })
    }

    /// Returns the record of a destination that no longer drains.
    pub(super) fn drained(
        key: ipvs::ServiceKey,
        destination: ipvs::DestinationKey,
    ) -> Option<Self> {
        Some(Self::Drained {
            server: LedgerKey::new(key)?,
            destination: (destination.address, destination.port).into(),
        })
    }

    /// Returns the record of a virtual server that is retired.
    pub(super) fn retire(key: ipvs::ServiceKey, deadline: Duration) -> Option<Self> {
        let (server, until) = (LedgerKey::new(key)?, deadline.as_secs());
        Some(Self::Retire { server, until })
    }

    /// Returns the record of a virtual server that is no longer retired.
    pub(super) fn unretire(key: ipvs::ServiceKey) -> Option<Self> {
        let server = LedgerKey::new(key)?;
        Some(Self::Unretire { server })
    }
}

impl From<WrittenRules> for Record {
    fn from(rules: WrittenRules) -> Self {
        Self::Rules {
            generation: rules.generation,
            fingerprint: rules.fingerprint,
        }
    }
}

fn write_name<S: Serializer>(name: &ServicePortName, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(name)
}

fn read_name<'de, D: Deserializer<'de>>(from: D) -> Result<ServicePortName, D::Error> {
    Ok(String::deserialize(from)?.as_str().into())
}
