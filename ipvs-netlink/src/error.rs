//! What can go wrong between us and the kernel.

use std::fmt;

use rustix::io::Errno;

/// A result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why the kernel or the socket did not do what was asked.
///
/// Callers decide by the predicates (`is_exists`, `is_transient`, ..) rather than by variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel answered with an error number, and perhaps with words.
    #[error("{doing}: {refusal}")]
    Refused {
        /// What was asked, for example `adding service TCP 10.96.0.1:443 rr`.
        doing: String,
        /// The answer.
        refusal: Refusal,
    },
    /// The kernel has no IPVS, and could not load it.
    #[error("this kernel has no IPVS and could not load the module ip_vs")]
    NoIpvs,
    /// The scheduler (or persistence engine) is not built in and its module could not be loaded.
    #[error("{doing}: the kernel has no scheduler or persistence engine of that name: {module}")]
    ModuleMissing {
        /// What was asked.
        doing: String,
        /// The modules whose absence explains it, for example `ip_vs_wlc`.
        module: String,
    },
    /// The socket itself failed.
    #[error("{doing}: {source}")]
    Socket {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The kernel dropped answers because the socket's buffer was full. Requests were executed, but
    /// with unknown result: read the state back.
    #[error("the kernel dropped answers for want of buffer space; results are unknown")]
    AnswersLost,
    /// A dump was interrupted by changes each time it was tried.
    #[error("the dump was interrupted by changes {tries} times")]
    DumpInterrupted {
        /// How often it was tried.
        tries: u32,
    },
    /// A datagram was larger than the receive buffer; its end is lost.
    #[error("a datagram of {length} bytes was cut to {buffer}")]
    Truncated {
        /// Its length.
        length: usize,
        /// The buffer's.
        buffer: usize,
    },
    /// The kernel's answer cannot be understood.
    #[error("unexpected answer from the kernel: {what}")]
    Malformed {
        /// What is wrong with it.
        what: &'static str,
    },
    /// A request has an attribute that is longer than netlink can express.
    #[error("attribute {attribute} is longer than 65535 bytes")]
    TooLong {
        /// The attribute's number.
        attribute: u16,
    },
}

/// The kernel's answer to a request that it did not execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error number.
    pub errno: Errno,
    /// The words of the extended acknowledgement, where the kernel gave some.
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
    pub(crate) const fn malformed(what: &'static str) -> Self {
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

    /// The kernel's error number, if it answered with one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.errno),
            Self::ModuleMissing { .. } => Some(Errno::NOENT),
            Self::Socket { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// The object is already there: adding it again is not a failure (`EEXIST`).
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// The virtual server that was named does not exist (`ESRCH`).
    pub fn is_no_such_service(&self) -> bool {
        self.errno() == Some(Errno::SRCH)
    }

    /// The destination that was named does not exist in its virtual server (`ENOENT`).
    pub fn is_no_such_destination(&self) -> bool {
        matches!(self, Self::Refused { refusal, .. } if refusal.errno == Errno::NOENT)
    }

    /// The scheduler or persistence engine does not exist and could not be loaded.
    pub fn is_scheduler_missing(&self) -> bool {
        matches!(self, Self::ModuleMissing { .. })
    }

    /// The caller lacks CAP_NET_ADMIN in the initial user namespace (`EPERM`).
    pub fn is_permission_denied(&self) -> bool {
        matches!(self.errno(), Some(Errno::PERM | Errno::ACCESS))
    }

    /// The kernel does not know the command, or not the address family.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::NoIpvs)
            || matches!(self.errno(), Some(Errno::OPNOTSUPP | Errno::AFNOSUPPORT))
    }

    /// A value is outside what the kernel accepts (`EINVAL`, `ERANGE`).
    pub fn is_invalid(&self) -> bool {
        matches!(self.errno(), Some(Errno::INVAL | Errno::RANGE))
    }

    /// Trying again later may work.
    pub fn is_transient(&self) -> bool {
        let by_nature = matches!(self, Self::AnswersLost | Self::DumpInterrupted { .. });
        by_nature
            || matches!(
                self.errno(),
                Some(Errno::BUSY | Errno::INTR | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)
            )
    }
}
