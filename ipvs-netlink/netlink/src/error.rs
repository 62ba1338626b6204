//! Errors of netlink requests.

use std::fmt;

use rustix::io::Errno;

/// A [`std::result::Result`] with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request failed.
///
/// Callers should test the predicates (`is_exists`, `is_transient`, ..), not match variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel rejected the request.
    #[error("{doing}: {refusal}")]
    Refused {
        /// The request, for example `adding a route`.
        doing: String,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// A system call on the socket failed.
    #[error("{doing}: {source}")]
    Socket {
        /// The operation, for example `sending to the kernel`.
        doing: &'static str,
        /// The system call's error.
        source: std::io::Error,
    },
    /// The kernel dropped answers because the receive buffer was full (`ENOBUFS`).
    ///
    /// It executed the requests, but their results are unknown: read the state back.
    #[error("the kernel dropped answers because the receive buffer was full; results are unknown")]
    AnswersLost,
    /// Changes interrupted every attempt of a dump.
    #[error("changes interrupted all {tries} attempts of the dump")]
    DumpInterrupted {
        /// The number of attempts.
        tries: u32,
    },
    /// A datagram was longer than the receive buffer; its end is lost.
    #[error("a datagram of {length} bytes does not fit the receive buffer of {buffer} bytes")]
    Truncated {
        /// The length of the datagram.
        length: usize,
        /// The size of the buffer.
        buffer: usize,
    },
    /// The kernel's answer is malformed or incomplete.
    #[error("unexpected answer from the kernel: {what}")]
    Malformed {
        /// The defect.
        what: &'static str,
    },
    /// A request has an attribute of more than 65,535 bytes.
    #[error("attribute {attribute} is longer than 65535 bytes")]
    TooLong {
        /// The attribute's number.
        attribute: u16,
    },
}

/// The kernel's answer to a rejected request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The errno.
    pub errno: Errno,
    /// The text of the extended acknowledgement (`NLMSGERR_ATTR_MSG`), if any.
    pub detail: Option<Box<str>>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from(self.errno))?;
        match &self.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl Error {
    /// Returns the error for a malformed answer.
    pub const fn malformed(what: &'static str) -> Self {
        Self::Malformed { what }
    }

    pub(crate) fn socket(doing: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Socket {
            doing,
            source: errno.into(),
        }
    }

    pub(crate) fn refused(doing: impl fmt::Display, refusal: Refusal) -> Self {
        Self::Refused {
            doing: doing.to_string(),
            refusal,
        }
    }

    /// Returns the errno of the kernel's answer or of the system call.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.errno),
            Self::Socket { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// Returns whether the object already exists (`EEXIST`).
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Returns whether the caller lacks a capability, usually CAP_NET_ADMIN (`EPERM`, `EACCES`).
    pub fn is_permission_denied(&self) -> bool {
        matches!(self.errno(), Some(Errno::PERM | Errno::ACCESS))
    }

    /// Returns whether the kernel lacks the command or the address family.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(Errno::OPNOTSUPP | Errno::AFNOSUPPORT))
    }

    /// Returns whether the kernel does not accept a value (`EINVAL`, `ERANGE`).
    pub fn is_invalid(&self) -> bool {
        matches!(self.errno(), Some(Errno::INVAL | Errno::RANGE))
    }

    /// Returns whether a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::AnswersLost | Self::DumpInterrupted { .. })
            || matches!(
                self.errno(),
                Some(Errno::BUSY | Errno::INTR | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)
            )
    }
}
