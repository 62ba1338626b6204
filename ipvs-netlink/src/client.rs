//! A client with one function per IPVS command.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use rustix::io::Errno;

use crate::attr::{Attribute, Writer};
use crate::batch::Batch;
use crate::change::Change;
use crate::daemon::{Daemon, DaemonRole};
use crate::destination::{Destination, DestinationEntry, DestinationKey};
use crate::error::{Error, Result};
use crate::family::resolve_ipvs;
use crate::message::{
    find, push_change, read_daemon, read_destination, read_info, read_service, read_timeouts,
    write_daemon, write_daemon_key, write_header, write_service_key, write_timeouts,
};
use crate::service::{Service, ServiceEntry, ServiceKey};
use crate::settings::{Info, Timeouts};
use crate::sys::{
    IPVS_CMD_ATTR_DAEMON, IPVS_CMD_ATTR_DEST, IPVS_CMD_ATTR_SERVICE, IPVS_CMD_DEL_DAEMON,
    IPVS_CMD_FLUSH, IPVS_CMD_GET_CONFIG, IPVS_CMD_GET_DAEMON, IPVS_CMD_GET_DEST, IPVS_CMD_GET_INFO,
    IPVS_CMD_GET_SERVICE, IPVS_CMD_NEW_DAEMON, IPVS_CMD_SET_CONFIG, IPVS_CMD_ZERO,
    IPVS_GENL_VERSION,
};
use crate::transport::{Answer, DUMP_TRIES, Message, RequestError, Transport, protocols};

/// A client for the IPVS of the network namespace in which it was opened.
///
/// Every function needs CAP_NET_ADMIN in the initial user namespace, the reading ones too.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    family: u16,
    batch: Batch,
}

/// The result of a [`Change`].
///
/// The error is boxed, so that the thousands of results of a large batch take 8 bytes each.
pub type Outcome = std::result::Result<(), Box<Error>>;

/// The number of changes that are encoded before they are sent.
///
/// One datagram's worth, so that the memory of the batch stays in the CPU cache.
const CHANGES_PER_BATCH: usize = crate::transport::REQUESTS_PER_SEND;

/// The delay before a service dump is repeated, for the kernel to finish resizing its table.
const RESIZE_DELAY: Duration = Duration::from_millis(20);

impl Client {
    /// Opens a socket and looks up the IPVS family; the kernel loads the module if necessary.
    ///
    /// # Errors
    /// [`Error::NoIpvs`]; [`Error::Socket`].
    pub fn open() -> Result<Self> {
        let mut transport = Transport::open(protocols::NETLINK_GENERIC)?;
        let family = resolve_ipvs(&mut transport)?;
        Ok(Self {
            transport,
            family,
            batch: Batch::new(),
        })
    }

    /// Applies `changes` in order and returns their results in the same order.
    ///
    /// A failing change does not stop the following ones.
    ///
    /// # Errors
    /// If the socket fails. Which changes were applied is unknown then. A change that the kernel
    /// rejects is an outcome, not an error of this function.
    ///
    /// # Cost
    /// Two system calls per 128 changes; no allocation per successful change.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        for changes in changes.chunks(CHANGES_PER_BATCH) {
            let mut answers = self.run(changes)?;
            // If the module was reloaded, every request of the batch fails with ENOENT and none is
            // executed, so the batch can be repeated. ENOENT for another reason (a missing
            // destination or scheduler) leaves the family's number as it was.
            if answers.iter().all(is_not_found) && self.family_changed()? {
                answers = self.run(changes)?;
            }
            let outcome = |(answer, change): (Answer, &Change)| {
                answer.map_err(|error| Box::new(explain(error, change)))
            };
            outcomes.extend(answers.into_iter().zip(changes).map(outcome));
        }
        Ok(outcomes)
    }

    fn run(&mut self, changes: &[Change]) -> Result<Vec<Answer>> {
        self.batch.clear();
        for change in changes {
            push_change(&mut self.batch, self.family, change)?;
        }
        self.transport.run(&mut self.batch)
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

    fn apply_one(&mut self, change: Change) -> Result<()> {
        self.apply(&[change])?
            .pop()
            .unwrap_or(Ok(()))
            .map_err(|error| *error)
    }

    /// Creates a virtual server.
    ///
    /// # Errors
    /// [`Error::is_exists`]; [`Error::is_scheduler_missing`]; [`Error::is_invalid`] for an IPv6
    /// prefix outside 1 to 128; [`Error::is_permission_denied`].
    pub fn add_service(&mut self, service: &Service) -> Result<()> {
        self.apply_one(Change::AddService(*service))
    }

    /// Replaces all fields of a virtual server except its key.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; otherwise as [`Client::add_service`].
    ///
    /// # Cost
    /// Another scheduler costs an RCU grace period in the kernel: milliseconds each.
    pub fn set_service(&mut self, service: &Service) -> Result<()> {
        self.apply_one(Change::SetService(*service))
    }

    /// Deletes a virtual server and its destinations.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`].
    pub fn delete_service(&mut self, key: &ServiceKey) -> Result<()> {
        self.apply_one(Change::DeleteService(*key))
    }

    /// Adds a destination.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_exists`]; [`Error::is_invalid`] for a weight or
    /// threshold out of range, an address that is neither unicast nor local, or the other address
    /// family without a tunnel.
    pub fn add_destination(&mut self, key: &ServiceKey, destination: &Destination) -> Result<()> {
        self.apply_one(Change::AddDestination(*key, *destination))
    }

    /// Replaces all fields of a destination except its key.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_no_such_destination`]; [`Error::is_invalid`].
    pub fn set_destination(&mut self, key: &ServiceKey, destination: &Destination) -> Result<()> {
        self.apply_one(Change::SetDestination(*key, *destination))
    }

    /// Deletes a destination.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_no_such_destination`].
    pub fn delete_destination(
        &mut self,
        key: &ServiceKey,
        destination: &DestinationKey,
    ) -> Result<()> {
        self.apply_one(Change::DeleteDestination(*key, *destination))
    }

    /// Returns a virtual server.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`].
    pub fn service(&mut self, key: &ServiceKey) -> Result<ServiceEntry> {
        self.query(
            IPVS_CMD_GET_SERVICE,
            &format!("reading service {key}"),
            |writer| writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key)),
            |message| match find(message.payload, IPVS_CMD_ATTR_SERVICE)? {
                Some(attribute) => read_service(&attribute),
                None => Err(Error::malformed("the answer has no service")),
            },
        )
    }

    /// Returns all virtual servers, each once, in the kernel's order.
    ///
    /// If virtual servers are added or deleted during the dump, some may be missing: the kernel
    /// resumes by position between datagrams and never sets `NLM_F_DUMP_INTR`.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`]; [`Error::is_transient`].
    pub fn services(&mut self) -> Result<Vec<ServiceEntry>> {
        let mut services = Vec::new();
        for _ in 0..DUMP_TRIES {
            self.dump(
                IPVS_CMD_GET_SERVICE,
                "reading the services",
                |_| {},
                IPVS_CMD_ATTR_SERVICE,
                read_service,
                &mut services,
            )?;
            if has_no_duplicate(&services) {
                return Ok(services);
            }
            std::thread::sleep(RESIZE_DELAY);
        }
        Err(Error::DumpInterrupted { tries: DUMP_TRIES })
    }

    /// Returns the destinations of a virtual server, newest first.
    ///
    /// Schedulers iterate in this order. If the virtual server does not exist, the kernel returns
    /// an empty dump and no error; [`Client::service`] tells the difference.
    ///
    /// # Errors
    /// As [`Client::services`].
    pub fn destinations(&mut self, key: &ServiceKey) -> Result<Vec<DestinationEntry>> {
        let mut destinations = Vec::new();
        self.destinations_into(key, &mut destinations)?;
        Ok(destinations)
    }

    fn destinations_into(
        &mut self,
        key: &ServiceKey,
        destinations: &mut Vec<DestinationEntry>,
    ) -> Result<()> {
        self.dump(
            IPVS_CMD_GET_DEST,
            "reading the destinations",
            |writer| writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key)),
            IPVS_CMD_ATTR_DEST,
            |attribute| read_destination(attribute, key.family()),
            destinations,
        )
    }

    /// Returns all virtual servers with their destinations.
    ///
    /// # Errors
    /// As [`Client::services`].
    ///
    /// # Cost
    /// As [`Client::walk`], and the memory for the whole table.
    pub fn table(&mut self) -> Result<Vec<(ServiceEntry, Vec<DestinationEntry>)>> {
        let mut table = Vec::new();
        self.walk(|service, destinations| table.push((*service, destinations.to_vec())))?;
        Ok(table)
    }

    /// Calls `each` with every virtual server and its destinations.
    ///
    /// Only the destinations of one virtual server are in memory at a time.
    ///
    /// # Errors
    /// As [`Client::services`].
    ///
    /// # Cost
    /// Three system calls per virtual server, because the kernel has no dump of all destinations:
    /// a send, a receive for the entries and a receive for the end of the dump.
    pub fn walk(&mut self, mut each: impl FnMut(&ServiceEntry, &[DestinationEntry])) -> Result<()> {
        let services = self.services()?;
        let mut destinations = Vec::new();
        for entry in &services {
            self.destinations_into(&entry.service.key, &mut destinations)?;
            each(entry, &destinations);
        }
        Ok(())
    }

    /// Deletes all virtual servers of the namespace, including those of other programs.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`].
    pub fn flush(&mut self) -> Result<()> {
        self.request(IPVS_CMD_FLUSH, "deleting all services", |_| {})
    }

    /// Resets the counters of the virtual server `key`, or of all if it is `None`.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`] if `key` does not exist.
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
    /// [`Error::is_permission_denied`].
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
    /// [`Error::is_permission_denied`].
    pub fn timeouts(&mut self) -> Result<Timeouts> {
        self.query(
            IPVS_CMD_GET_CONFIG,
            "reading the timeouts",
            |_| {},
            |message| read_timeouts(message.payload),
        )
    }

    /// Sets the timeouts of the namespace; those that are 0 remain unchanged.
    ///
    /// # Errors
    /// [`Error::is_invalid`] if a timeout exceeds 2,147,483,647 kernel ticks (8,589,934 seconds
    /// with `CONFIG_HZ=250`). No timeout is changed then.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<()> {
        self.request(IPVS_CMD_SET_CONFIG, "setting the timeouts", |writer| {
            write_timeouts(writer, timeouts);
        })
    }

    /// Returns the running synchronisation daemons; at most one of each role.
    ///
    /// # Errors
    /// As [`Client::services`].
    pub fn daemons(&mut self) -> Result<Vec<Daemon>> {
        let mut daemons = Vec::new();
        self.dump(
            IPVS_CMD_GET_DAEMON,
            "reading the daemons",
            |_| {},
            IPVS_CMD_ATTR_DAEMON,
            read_daemon,
            &mut daemons,
        )?;
        Ok(daemons)
    }

    /// Starts a synchronisation daemon.
    ///
    /// # Errors
    /// [`Error::is_exists`] if a daemon of the same role runs; `ENODEV` if the interface does not
    /// exist; [`Error::is_invalid`], for example if a destination's address family differs from its
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

    /// Replaces the number of the family by one that is out of date, for tests: their kernels cannot
    /// unload IPVS.
    #[doc(hidden)]
    #[must_use]
    pub fn with_family(mut self, family: u16) -> Self {
        self.family = family;
        self
    }

    /// Returns the transport, for requests that this type has no function for.
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
        read: impl Fn(Message<'_>) -> Result<T>,
    ) -> Result<T> {
        let body = |writer: &mut Writer<'_>| {
            write_header(writer, command, IPVS_GENL_VERSION);
            body(writer);
        };
        self.attempt(|transport, family| transport.query(family, doing, body, &read))
    }

    /// Replaces the content of `entries` by a dump: `read` decodes each attribute `kind`.
    ///
    /// The memory of `entries` is reused.
    fn dump<T>(
        &mut self,
        command: u8,
        doing: &str,
        body: impl Fn(&mut Writer<'_>),
        kind: u16,
        read: impl Fn(&Attribute<'_>) -> Result<T>,
        entries: &mut Vec<T>,
    ) -> Result<()> {
        let body = |writer: &mut Writer<'_>| {
            write_header(writer, command, IPVS_GENL_VERSION);
            body(writer);
        };
        let each = |entries: &mut Vec<T>, message: Message<'_>| {
            if let Some(attribute) = find(message.payload, kind)? {
                entries.push(read(&attribute)?);
            }
            Ok(())
        };
        self.attempt(|transport, family| {
            transport.dump(family, doing, body, Vec::clear, entries, each)
        })
    }

    /// Calls `run` with the number of the family, and a second time if that number was out of date.
    ///
    /// A missing virtual server is `ESRCH`, so a request outside [`Client::apply`] fails with
    /// `ENOENT` only if no family has the number.
    fn attempt<T>(&mut self, mut run: impl FnMut(&mut Transport, u16) -> Result<T>) -> Result<T> {
        match run(&mut self.transport, self.family) {
            Err(error) if error.errno() == Some(Errno::NOENT) && self.family_changed()? => {
                run(&mut self.transport, self.family)
            }
            result => result,
        }
    }
}

/// Returns whether no virtual server is listed twice.
///
/// A duplicate shows that another virtual server is missing. Since Linux 7.1 the kernel moves the
/// services to a larger table in the background after many were added. A dump resumes by position.
/// If the table is resized during the dump, it lists some services twice and omits as many others,
/// without an error (measured on 7.2: up to a quarter of 3,000).
fn has_no_duplicate(services: &[ServiceEntry]) -> bool {
    let mut seen = HashSet::with_capacity(services.len());
    services.iter().all(|entry| seen.insert(entry.service.key))
}

fn is_not_found(answer: &Answer) -> bool {
    matches!(answer, Err(RequestError::Refused(refusal)) if refusal.errno == Errno::NOENT)
}

/// Converts the failure of `change` to an [`Error`], with a variant for a missing module.
fn explain(error: RequestError, change: &Change) -> Error {
    let (Change::AddService(service) | Change::SetService(service)) = change else {
        return error.doing(change);
    };
    match error {
        // For these two commands ENOENT has no other cause (`ip_vs_add_service`,
        // `ip_vs_edit_service`); a missing virtual server is ESRCH.
        RequestError::Refused(refusal) if refusal.errno == Errno::NOENT => Error::ModuleMissing {
            doing: change.to_string(),
            module: needed_modules(service),
        },
        error => error.doing(change),
    }
}

/// Returns the names of the modules that `service` needs, joined by " or ".
fn needed_modules(service: &Service) -> String {
    let module = |prefix: &str, name: &dyn fmt::Display| format!("{prefix}{name}");
    let scheduler = service
        .scheduler
        .as_ref()
        .map(|name| module("ip_vs_", name));
    let engine = service
        .engine
        .as_ref()
        .map(|name| module("ip_vs_pe_", name));
    scheduler
        .into_iter()
        .chain(engine)
        .collect::<Vec<_>>()
        .join(" or ")
}
