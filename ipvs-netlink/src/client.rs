//! The paved path: IPVS as functions.

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
use crate::transport::{Answer, DUMP_TRIES, Message, NoAnswer, Transport, protocols};

/// The IPVS of the network namespace in which the client was opened.
///
/// Every call needs CAP_NET_ADMIN in the initial user namespace, reading included.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    family: u16,
    batch: Batch,
}

/// What became of a [`Change`]; a pointer wide, since there may be very many.
pub type Outcome = std::result::Result<(), Box<Error>>;

/// How many changes are encoded at a time: the transport sends as many in one datagram, and memory
/// that is used again is in the cache.
const CHANGES_AT_A_TIME: usize = crate::transport::REQUESTS_PER_SEND;

/// How long to let the kernel move its table before it is read again.
const TABLE_MOVES: Duration = Duration::from_millis(20);

impl Client {
    /// Opens a socket and looks the IPVS family up; the kernel loads its module if it can.
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

    /// Applies `changes` in order and tells of each what became of it.
    ///
    /// A failing change does not stop the following ones.
    ///
    /// # Errors
    /// When the socket fails; how far the kernel got is unknown then. What the kernel refuses is an
    /// outcome, not an error here.
    ///
    /// # Cost
    /// Two system calls per 128 changes, no allocation per change that succeeds.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        for changes in changes.chunks(CHANGES_AT_A_TIME) {
            let mut answers = self.run(changes)?;
            if answers.iter().all(is_not_found) && self.family_moved()? {
                answers = self.run(changes)?;
            }
            let outcome = |(answer, change): (Answer, &Change)| {
                answer.map_err(|no| Box::new(explain(no, change)))
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

    /// Whether the IPVS family has another number now: its module was unloaded and loaded again.
    /// Every request to a number that no family has fails with `ENOENT`.
    fn family_moved(&mut self) -> Result<bool> {
        let family = resolve_ipvs(&mut self.transport)?;
        let moved = family != self.family;
        self.family = family;
        Ok(moved)
    }

    fn one(&mut self, change: Change) -> Result<()> {
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
        self.one(Change::AddService(*service))
    }

    /// Replaces everything but the key of a virtual server.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; otherwise as [`Client::add_service`].
    pub fn set_service(&mut self, service: &Service) -> Result<()> {
        self.one(Change::SetService(*service))
    }

    /// Removes a virtual server and its destinations.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`].
    pub fn delete_service(&mut self, key: &ServiceKey) -> Result<()> {
        self.one(Change::DeleteService(*key))
    }

    /// Adds a destination.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_exists`]; [`Error::is_invalid`] for a weight or
    /// threshold out of range, an address that cannot be a server's, another family than the
    /// service's without a tunnel.
    pub fn add_destination(&mut self, key: &ServiceKey, destination: &Destination) -> Result<()> {
        self.one(Change::AddDestination(*key, *destination))
    }

    /// Replaces everything but the key of a destination.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_no_such_destination`]; [`Error::is_invalid`].
    pub fn set_destination(&mut self, key: &ServiceKey, destination: &Destination) -> Result<()> {
        self.one(Change::SetDestination(*key, *destination))
    }

    /// Removes a destination.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`]; [`Error::is_no_such_destination`].
    pub fn delete_destination(
        &mut self,
        key: &ServiceKey,
        destination: &DestinationKey,
    ) -> Result<()> {
        self.one(Change::DeleteDestination(*key, *destination))
    }

    /// One virtual server.
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
                None => Err(Error::malformed("an answer without the service")),
            },
        )
    }

    /// All virtual servers, each once, in the kernel's order. Ones that are added or removed
    /// meanwhile may be missing: the kernel does not notice.
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
            if is_each_once(&services) {
                return Ok(services);
            }
            std::thread::sleep(TABLE_MOVES);
        }
        Err(Error::DumpInterrupted { tries: DUMP_TRIES })
    }

    /// The destinations of a virtual server, newest first, which is the order that schedulers see.
    ///
    /// An unknown virtual server has none: the kernel does not tell the difference here, only in
    /// [`Client::service`].
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

    /// Every virtual server with its destinations.
    ///
    /// # Errors
    /// As [`Client::services`].
    ///
    /// # Cost
    /// As [`Client::walk`], and the memory for all of it.
    pub fn table(&mut self) -> Result<Vec<(ServiceEntry, Vec<DestinationEntry>)>> {
        let mut table = Vec::new();
        self.walk(|service, destinations| table.push((*service, destinations.to_vec())))?;
        Ok(table)
    }

    /// Shows every virtual server with its destinations to `each`, keeping one at a time.
    ///
    /// # Errors
    /// As [`Client::services`].
    ///
    /// # Cost
    /// Three system calls per virtual server: the kernel dumps the destinations of one at a time,
    /// and tells the end of a dump apart from its content.
    pub fn walk(&mut self, mut each: impl FnMut(&ServiceEntry, &[DestinationEntry])) -> Result<()> {
        let services = self.services()?;
        let mut destinations = Vec::new();
        for entry in &services {
            self.destinations_into(&entry.service.key, &mut destinations)?;
            each(entry, &destinations);
        }
        Ok(())
    }

    /// Removes all virtual servers of the namespace, whoever created them.
    ///
    /// # Errors
    /// [`Error::is_permission_denied`].
    pub fn flush(&mut self) -> Result<()> {
        self.request(IPVS_CMD_FLUSH, "removing all services", |_| {})
    }

    /// Zeroes the counters of one virtual server, or of all.
    ///
    /// # Errors
    /// [`Error::is_no_such_service`] when one is named.
    pub fn zero(&mut self, key: Option<&ServiceKey>) -> Result<()> {
        self.request(IPVS_CMD_ZERO, "zeroing counters", |writer| {
            if let Some(key) = key {
                writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key));
            }
        })
    }

    /// What the kernel says of itself.
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

    /// The timeouts of the namespace.
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

    /// Sets the timeouts of the namespace; one that is 0 stays as it is.
    ///
    /// # Errors
    /// [`Error::is_invalid`] above 2,147,483,647 ticks (8,589,934 seconds at 250 ticks a second);
    /// nothing is changed then.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<()> {
        self.request(IPVS_CMD_SET_CONFIG, "setting the timeouts", |writer| {
            write_timeouts(writer, timeouts);
        })
    }

    /// The synchronisation daemons that run; at most one of each role.
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
    /// [`Error::is_exists`] when one of its role runs; `ENODEV` for an unknown interface;
    /// [`Error::is_invalid`].
    pub fn start_daemon(&mut self, daemon: &Daemon) -> Result<()> {
        self.request(IPVS_CMD_NEW_DAEMON, "starting a daemon", |writer| {
            writer.nested(IPVS_CMD_ATTR_DAEMON, |inner| write_daemon(inner, daemon));
        })
    }

    /// Stops the synchronisation daemon of `role`.
    ///
    /// A backup that was started moments ago may make this wait for ever, in the kernel (seen on 6.1
    /// and 7.2): give it half a second.
    ///
    /// # Errors
    /// `ESRCH` when none runs.
    pub fn stop_daemon(&mut self, role: DaemonRole) -> Result<()> {
        self.request(IPVS_CMD_DEL_DAEMON, "stopping a daemon", |writer| {
            writer.nested(IPVS_CMD_ATTR_DAEMON, |inner| write_daemon_key(inner, role));
        })
    }

    /// The number that the kernel gave the IPVS family, for [`crate::message::push_change`].
    pub fn family(&self) -> u16 {
        self.family
    }

    /// The socket, to send what this type has no function for.
    pub fn transport(&mut self) -> &mut Transport {
        &mut self.transport
    }

    fn request(
        &mut self,
        command: u8,
        doing: &str,
        body: impl FnOnce(&mut Writer<'_>),
    ) -> Result<()> {
        self.transport.request(self.family, 0, doing, |writer| {
            write_header(writer, command, IPVS_GENL_VERSION);
            body(writer);
        })
    }

    fn query<T>(
        &mut self,
        command: u8,
        doing: &str,
        body: impl FnOnce(&mut Writer<'_>),
        read: impl FnOnce(Message<'_>) -> Result<T>,
    ) -> Result<T> {
        let body = |writer: &mut Writer<'_>| {
            write_header(writer, command, IPVS_GENL_VERSION);
            body(writer);
        };
        self.transport.query(self.family, doing, body, read)
    }

    /// Fills `entries`, which keeps its memory, with what `read` makes of attribute `kind`.
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
        self.transport
            .dump(self.family, doing, body, Vec::clear, entries, each)
    }
}

/// Whether no virtual server is listed twice.
///
/// A dump goes on where it stopped by counting. Since 7.1 the kernel moves its table to a larger
/// one in the background when many were added; a dump that this overtakes lists some twice and as
/// many others not at all, without a word (7.2: up to a quarter of 3,000).
fn is_each_once(services: &[ServiceEntry]) -> bool {
    let mut seen = HashSet::with_capacity(services.len());
    services.iter().all(|entry| seen.insert(entry.service.key))
}

fn is_not_found(answer: &Answer) -> bool {
    matches!(answer, Err(NoAnswer::Refused(refusal)) if refusal.errno == Errno::NOENT)
}

/// Says what was being done, and tells a missing module from other refusals.
fn explain(no: NoAnswer, change: &Change) -> Error {
    let (Change::AddService(service) | Change::SetService(service)) = change else {
        return no.doing(change);
    };
    match no {
        // The only ENOENT of these two commands (`ip_vs_add_service`, `ip_vs_edit_service`).
        NoAnswer::Refused(refusal) if refusal.errno == Errno::NOENT => Error::ModuleMissing {
            doing: change.to_string(),
            module: modules(service),
        },
        no => no.doing(change),
    }
}

fn modules(service: &Service) -> String {
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
