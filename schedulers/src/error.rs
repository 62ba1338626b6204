//! What is refused.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::server::WEIGHT_MAX;

/// Why a change was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A weight above [`WEIGHT_MAX`]: negative for the kernel, which answers `ERANGE`.
    Weight(u32),
    /// The lower threshold is above the upper one; the kernel answers `ERANGE`.
    Thresholds {
        /// The lower one.
        lower: u32,
        /// The upper one.
        upper: u32,
    },
    /// A server with this address and port is in the set; the kernel answers `EEXIST`.
    Exists(SocketAddr),
    /// No such server is in the set; the kernel answers `ENOENT`.
    NotFound,
    /// The set cannot hold more servers than an index of 32 bits can tell apart.
    Full,
    /// A scheduler cannot work with so many servers; the kernel answers `EINVAL`.
    TooManyServers {
        /// How many it could take.
        limit: u32,
    },
    /// The registry has no scheduler of this name; the kernel answers `ENOENT`.
    UnknownScheduler {
        /// The name.
        name: String,
        /// The names there are, in alphabetical order.
        known: Vec<String>,
    },
    /// The registry has a scheduler of this name.
    NameTaken(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight(weight) => write!(f, "weight {weight} is above {WEIGHT_MAX}"),
            Self::Thresholds { lower, upper } => {
                write!(
                    f,
                    "lower threshold {lower} is above upper threshold {upper}"
                )
            }
            Self::Exists(address) => write!(f, "server {address} exists"),
            Self::NotFound => write!(f, "no such server"),
            Self::Full => write!(f, "too many servers"),
            Self::TooManyServers { limit } => {
                write!(f, "the scheduler takes at most {limit} servers")
            }
            Self::UnknownScheduler { name, known } => {
                write!(f, "no scheduler {name:?}; there are {}", known.join(", "))
            }
            Self::NameTaken(name) => write!(f, "scheduler {name:?} exists"),
        }
    }
}

impl std::error::Error for Error {}

pub(crate) fn exists(address: IpAddr, port: u16) -> Error {
    Error::Exists(SocketAddr::new(address, port))
}
