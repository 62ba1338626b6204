//! The errors of the crate.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::server::WEIGHT_MAX;

/// Why a change was rejected. A rejected change has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The weight is above [`WEIGHT_MAX`]: negative for the kernel, which returns `ERANGE`.
    Weight(u32),
    /// The lower threshold is above the upper one; the kernel returns `ERANGE`.
    Thresholds {
        /// The lower one.
        lower: u32,
        /// The upper one.
        upper: u32,
    },
    /// A server with this address and port is listed; the kernel returns `EEXIST`.
    Exists(SocketAddr),
    /// The set has no such server; the kernel returns `ENOENT`.
    NotFound,
    /// The set is full: a server's index has 32 bits.
    Full,
    /// The scheduler supports fewer servers than the set has; the kernel returns `EINVAL`.
    TooManyServers {
        /// How many servers it supports.
        limit: u32,
    },
    /// The registry has no scheduler of this name; the kernel returns `ENOENT`.
    UnknownScheduler {
        /// The requested name.
        name: String,
        /// The registered names, in alphabetical order.
        known: Vec<String>,
    },
    /// The registry already has a scheduler of this name.
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
            Self::Exists(address) => write!(f, "server {address} already exists"),
            Self::NotFound => write!(f, "no such server"),
            Self::Full => write!(f, "the set is full"),
            Self::TooManyServers { limit } => {
                write!(f, "the scheduler supports at most {limit} servers")
            }
            Self::UnknownScheduler { name, known } => {
                write!(f, "unknown scheduler {name:?}; known: {}", known.join(", "))
            }
            Self::NameTaken(name) => write!(f, "scheduler {name:?} is already registered"),
        }
    }
}

impl std::error::Error for Error {}

pub(crate) fn exists(address: IpAddr, port: u16) -> Error {
    Error::Exists(SocketAddr::new(address, port))
}
