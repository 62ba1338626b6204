//! Errors of requests to IPVS.

use netlink::Errno;

/// A [`std::result::Result`] with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request to IPVS failed.
///
/// Callers should test the predicates (`is_exists`, `is_transient`, ..), not match variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no IPVS and could not load the module.
    #[error(
        "the kernel has no IPVS and could not load the module ip_vs (kernel option CONFIG_IP_VS)"
    )]
    NoIpvs,
    /// The scheduler or persistence engine is not built in and its module could not be loaded.
    #[error("{doing}: the kernel could not load the module {module}")]
    ModuleMissing {
        /// The request, for example `adding service TCP 10.96.0.1:443`.
        doing: String,
        /// The possible modules, for example `ip_vs_wlc` or `ip_vs_wlc or ip_vs_pe_sip`.
        module: String,
    },
    /// The kernel rejected the request, or the socket failed.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
}

impl Error {
    /// Returns the errno of the kernel's answer or of the system call.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::NoIpvs => None,
            Self::ModuleMissing { .. } => Some(Errno::NOENT),
            Self::Netlink(error) => error.errno(),
        }
    }

    /// Returns whether the object already exists (`EEXIST`).
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::Netlink(error) if error.is_exists())
    }

    /// Returns whether the virtual server does not exist (`ESRCH`).
    pub fn is_no_such_service(&self) -> bool {
        self.errno() == Some(Errno::SRCH)
    }

    /// Returns whether the virtual server has no such destination (`ENOENT`).
    pub fn is_no_such_destination(&self) -> bool {
        matches!(self, Self::Netlink(error) if error.errno() == Some(Errno::NOENT))
    }

    /// Returns whether the kernel could not load the scheduler or the persistence engine.
    pub fn is_scheduler_missing(&self) -> bool {
        matches!(self, Self::ModuleMissing { .. })
    }

    /// Returns whether the caller lacks CAP_NET_ADMIN in the initial user namespace (`EPERM`).
    ///
    /// Root in another user namespace lacks it. Commands that only read need it, too.
    pub fn is_permission_denied(&self) -> bool {
        matches!(self, Self::Netlink(error) if error.is_permission_denied())
    }

    /// Returns whether the kernel lacks IPVS, the command or the address family.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::NoIpvs => true,
            Self::ModuleMissing { .. } => false,
            Self::Netlink(error) => error.is_unsupported(),
        }
    }

    /// Returns whether the kernel does not accept a value (`EINVAL`, `ERANGE`).
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Netlink(error) if error.is_invalid())
    }

    /// Returns whether a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Netlink(error) if error.is_transient())
    }
}
