//! A client with one function per IPVS command.
//!
//! The functions in `apply` send a [`crate::Change`]; the functions in `dump` list objects.

use netlink::Errno;

use crate::daemon::{Daemon, DaemonRole};
use crate::error::Result;
use crate::family::resolve_ipvs;
use crate::message::{
    find, read_info, read_service, read_timeouts, write_daemon, write_daemon_key, write_header,
    write_service_key, write_timeouts,
};
use crate::service::{ServiceEntry, ServiceKey};
use crate::settings::{Info, Timeouts};
use crate::sys::{
    IPVS_CMD_ATTR_DAEMON, IPVS_CMD_ATTR_SERVICE, IPVS_CMD_DEL_DAEMON, IPVS_CMD_FLUSH,
    IPVS_CMD_GET_CONFIG, IPVS_CMD_GET_INFO, IPVS_CMD_GET_SERVICE, IPVS_CMD_NEW_DAEMON,
    IPVS_CMD_SET_CONFIG, IPVS_CMD_ZERO, IPVS_GENL_VERSION,
};
use netlink::attr::Writer;
use netlink::batch::Batch;
use netlink::transport::{Message, Transport, protocols};

mod apply;
mod dump;

pub use apply::Outcome;

/// A client for the IPVS of the network namespace in which it was opened.
///
/// Every function needs CAP_NET_ADMIN in the initial user namespace, even one that only reads.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    family: u16,
    batch: Batch,
}

impl Client {
    /// Opens a socket and looks up the IPVS family; the kernel loads the module if necessary.
    ///
    /// # Errors
    /// [`crate::Error::NoIpvs`]; [`netlink::Error::Socket`].
    pub fn open() -> Result<Self> {
        let mut transport = Transport::open(protocols::NETLINK_GENERIC)?;
        let family = resolve_ipvs(&mut transport)?;
        Ok(Self {
            transport,
            family,
            batch: Batch::new(),
        })
    }

    /// Returns a virtual server.
    ///
    /// # Errors
    /// [`crate::Error::is_no_such_service`].
    pub fn service(&mut self, key: &ServiceKey) -> Result<ServiceEntry> {
        self.query(
            IPVS_CMD_GET_SERVICE,
            &format!("reading service {key}"),
            |writer| writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key)),
            |message| match find(message.payload, IPVS_CMD_ATTR_SERVICE)? {
                Some(attribute) => read_service(&attribute),
                None => Err(netlink::Error::malformed("the answer has no service")),
            },
        )
    }

    /// Deletes all virtual servers of the namespace, including those of other programs.
    ///
    /// # Errors
    /// [`crate::Error::is_permission_denied`].
    pub fn flush(&mut self) -> Result<()> {
        self.request(IPVS_CMD_FLUSH, "deleting all services", |_| {})
    }

    /// Resets the counters of the virtual server `key`, or of all if it is `None`.
    ///
    /// # Errors
    /// [`crate::Error::is_no_such_service`] if `key` does not exist.
    pub fn zero(&mut self, key: Option<&ServiceKey>) -> Result<()> {
        self.request(IPVS_CMD_ZERO, "resetting counters", |writer| {
            if let Some(key) = key {
                writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key));
            }
        })
    }

    /// Returns the version of IPVS and the size of its connection table.
    ///
    /// # Errors
    /// [`crate::Error::is_permission_denied`].
    pub fn info(&mut self) -> Result<Info> {
        self.query(
            IPVS_CMD_GET_INFO,
            "reading the version",
            |_| {},
            |message| read_info(message.payload),
        )
    }

    /// Returns the timeouts of the namespace.
    ///
    /// # Errors
    /// [`crate::Error::is_permission_denied`].
    pub fn timeouts(&mut self) -> Result<Timeouts> {
        self.query(
            IPVS_CMD_GET_CONFIG,
            "reading the timeouts",
            |_| {},
            |message| read_timeouts(message.payload),
        )
    }

    /// Sets the timeouts of the namespace; a timeout of 0 remains unchanged.
    ///
    /// # Errors
    /// [`crate::Error::is_invalid`] if a timeout exceeds 2,147,483,647 kernel ticks (8,589,934 seconds
    /// with `CONFIG_HZ=250`). No timeout is changed then.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<()> {
        self.request(IPVS_CMD_SET_CONFIG, "setting the timeouts", |writer| {
            write_timeouts(writer, timeouts);
        })
    }

    /// Starts a synchronisation daemon.
    ///
    /// # Errors
    /// [`crate::Error::is_exists`] if a daemon of the same role runs; `ENODEV` if the interface does not
    /// exist; [`crate::Error::is_invalid`], for example if a destination's address family differs from its
    /// virtual server's.
    pub fn start_daemon(&mut self, daemon: &Daemon) -> Result<()> {
        self.request(IPVS_CMD_NEW_DAEMON, "starting a daemon", |writer| {
            writer.nested(IPVS_CMD_ATTR_DAEMON, |inner| write_daemon(inner, daemon));
        })
    }

    /// Stops the synchronisation daemon of `role`.
    ///
    /// Wait half a second after starting a backup daemon: otherwise this call may block in the
    /// kernel forever (observed on 6.1 and 7.2).
    ///
    /// # Errors
    /// `ESRCH` if no daemon of this role runs.
    pub fn stop_daemon(&mut self, role: DaemonRole) -> Result<()> {
        self.request(IPVS_CMD_DEL_DAEMON, "stopping a daemon", |writer| {
            writer.nested(IPVS_CMD_ATTR_DAEMON, |inner| write_daemon_key(inner, role));
        })
    }

    /// Returns the number of the IPVS family, for [`crate::message::push_change`].
    pub fn family(&self) -> u16 {
        self.family
    }

    /// Returns the client with another family number, as if the module had been loaded again.
    ///
    /// For tests: IPVS is built into the lab's kernels, so they cannot reload it.
    #[doc(hidden)]
    #[must_use]
    pub fn with_family(mut self, family: u16) -> Self {
        self.family = family;
        self
    }

    /// Returns the transport, for requests without a function of this type.
    pub fn transport(&mut self) -> &mut Transport {
        &mut self.transport
    }

    fn request(&mut self, command: u8, doing: &str, body: impl Fn(&mut Writer<'_>)) -> Result<()> {
        self.attempt(|transport, family| {
            transport.request(family, 0, doing, |writer| {
                write_header(writer, command, IPVS_GENL_VERSION);
                body(writer);
            })
        })
    }

    fn query<T>(
        &mut self,
        command: u8,
        doing: &str,
        body: impl Fn(&mut Writer<'_>),
        read: impl Fn(Message<'_>) -> netlink::Result<T>,
    ) -> Result<T> {
        let body = |writer: &mut Writer<'_>| {
            write_header(writer, command, IPVS_GENL_VERSION);
            body(writer);
        };
        self.attempt(|transport, family| transport.query(family, doing, body, &read))
    }

    /// Looks up the number of the IPVS family again and returns whether it changed.
    ///
    /// It changes when the module is unloaded and loaded again. A request with a number that no
    /// family has fails with `ENOENT` (`genl_rcv_msg`).
    fn family_changed(&mut self) -> Result<bool> {
        let family = resolve_ipvs(&mut self.transport)?;
        let has_changed = family != self.family;
        self.family = family;
        Ok(has_changed)
    }

    /// Calls `run` with the number of the family, and again if that number was out of date.
    ///
    /// A missing virtual server is `ESRCH`, so a request outside [`Client::apply`] fails with
    /// `ENOENT` only if no family has the number.
    fn attempt<T>(
        &mut self,
        mut run: impl FnMut(&mut Transport, u16) -> netlink::Result<T>,
    ) -> Result<T> {
        let mut result = run(&mut self.transport, self.family);
        let is_not_found = |error: &netlink::Error| error.errno() == Some(Errno::NOENT);
        if result.as_ref().is_err_and(is_not_found) && self.family_changed()? {
            result = run(&mut self.transport, self.family);
        }
        Ok(result?)
    }
}
