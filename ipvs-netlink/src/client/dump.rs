//! Lists of the kernel's objects.

use std::collections::HashSet;
use std::time::Duration;

use crate::client::Client;
use crate::daemon::Daemon;
use crate::destination::DestinationEntry;
use crate::error::Result;
use crate::message::{
    find, read_daemon, read_destination, read_service, write_header, write_service_key,
};
use crate::service::{Service, ServiceEntry, ServiceKey};
use crate::sys::{
    IPVS_CMD_ATTR_DAEMON, IPVS_CMD_ATTR_DEST, IPVS_CMD_ATTR_SERVICE, IPVS_CMD_GET_DAEMON,
    IPVS_CMD_GET_DEST, IPVS_CMD_GET_SERVICE, IPVS_GENL_VERSION,
};
use netlink::attr::{Attribute, Writer};
use netlink::transport::{DUMP_TRIES, Message};

/// The delay before a service dump is repeated, for the kernel to finish resizing its table.
const RESIZE_DELAY: Duration = Duration::from_millis(20);

/// The least size of a full datagram of a dump in bytes.
///
/// A smaller dump lacks nothing, because the kernel holds its lock while it fills a datagram. It may list
/// the last virtual servers twice: to find that no further one follows, the kernel resumes by position,
/// too. The smallest datagram is `NLMSG_GOODSIZE`: a page less 320 bytes. The kernel ends it when the next
/// virtual server does not fit, which takes about 360 bytes.
const LEAST_FULL: usize = 4_096 - 320 - 512;

impl Client {
    /// Returns all virtual servers, each once, in the kernel's order.
    ///
    /// If virtual servers are added or deleted during the dump, some may be missing: the kernel
    /// resumes by position between datagrams and never sets `NLM_F_DUMP_INTR`. On Linux 6.1 this
    /// includes those of other network namespaces, because all share one table
    /// (`ip_vs_genl_dump_services`). [`Client::walk`] reads several dumps.
    ///
    /// # Errors
    /// [`crate::Error::is_permission_denied`]; [`crate::Error::is_transient`].
    pub fn services(&mut self) -> Result<Vec<ServiceEntry>> {
        let mut services = Vec::new();
        for _ in 0..DUMP_TRIES {
            self.dump_services(|entry| entry, &mut services)?;
            if has_no_duplicate(&services) {
                return Ok(services);
            }
            std::thread::sleep(RESIZE_DELAY);
        }
        Err(netlink::Error::DumpInterrupted { tries: DUMP_TRIES }.into())
    }

    /// Returns the virtual servers of one dump, in the kernel's order, without their statistics.
    ///
    /// While virtual servers are added or deleted, some may be missing or listed twice, as in each of the dumps of
    /// [`Client::services`]. [`Client::service`] shows whether one exists.
    ///
    /// # Errors
    /// [`crate::Error::is_permission_denied`]; [`crate::Error::is_transient`].
    pub fn services_once(&mut self) -> Result<Vec<Service>> {
        let mut services = Vec::new();
        self.dump_services(|entry| entry.service, &mut services)?;
        Ok(services)
    }

    /// Returns all virtual servers, each once.
    ///
    /// If a dump may lack some, others follow until two in a row list no further one, at most
    /// [`DUMP_TRIES`] in all. Then the kernel is asked for each of `known` that none of them lists.
    fn all_services(
        &mut self,
        known: impl IntoIterator<Item = ServiceKey>,
    ) -> Result<Vec<ServiceEntry>> {
        let (mut all, mut services) = (Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        let mut confirmations = 0;
        for number in 0..DUMP_TRIES {
            let bytes = self.dump_services(|entry| entry, &mut services)?;
            let before = all.len();
            all.extend(services.iter().filter(|it| seen.insert(it.service.key)));
            if number == 0 && bytes < LEAST_FULL {
                return Ok(all);
            }
            if !has_no_duplicate(&services) {
                confirmations = 0;
                std::thread::sleep(RESIZE_DELAY);
                continue;
            }
            confirmations = match all.len() > before {
                true => 0,
                false => confirmations + 1,
            };
            if confirmations == 2 {
                break;
            }
        }
        for key in known.into_iter().filter(|key| seen.insert(*key)) {
            match self.service(&key) {
                Ok(entry) => all.push(entry),
                Err(error) if error.is_no_such_service() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Replaces the content of `services` by what `keep` returns for each entry of a dump. Returns the dump's size in
    /// bytes.
    fn dump_services<T>(
        &mut self,
        keep: impl Fn(ServiceEntry) -> T,
        services: &mut Vec<T>,
    ) -> Result<usize> {
        self.dump(
            IPVS_CMD_GET_SERVICE,
            "reading the services",
            |_| {},
            IPVS_CMD_ATTR_SERVICE,
            |attribute| read_service(attribute).map(&keep),
            services,
        )
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
        )?;
        Ok(())
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
        self.walk([], |service, destinations| {
            table.push((*service, destinations.to_vec()))
        })?;
        Ok(table)
    }

    /// Calls `each` with every virtual server, once, and its destinations.
    ///
    /// Only the destinations of one virtual server are in memory at a time. Virtual servers of
    /// `known` are never missing. Another one may be if each of several dumps lacks it
    /// ([`Client::services`]); all may be `known`, and some need not exist.
    ///
    /// # Errors
    /// As [`Client::services`].
    ///
    /// # Cost
    /// Three system calls per virtual server, because the kernel has no dump of all destinations:
    /// a send, a receive for the entries and a receive for the end of the dump. Besides, three to five
    /// dumps of the virtual servers and two system calls for each of `known` that they lack; or
    /// one dump if there are only a few virtual servers.
    pub fn walk(
        &mut self,
        known: impl IntoIterator<Item = ServiceKey>,
        mut each: impl FnMut(&ServiceEntry, &[DestinationEntry]),
    ) -> Result<()> {
        let services = self.all_services(known)?;
        let mut destinations = Vec::new();
        for entry in &services {
            // If the virtual server was deleted meanwhile, the kernel answers with an empty dump.
            self.destinations_into(&entry.service.key, &mut destinations)?;
            each(entry, &destinations);
        }
        Ok(())
    }

    /// Returns the running synchronisation daemons, at most one of each role.
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

    /// Replaces the content of `entries` by a dump; `read` decodes the attribute `kind` of a
    /// message.
    ///
    /// The memory of `entries` is reused. Returns the bytes of its datagrams.
    fn dump<T>(
        &mut self,
        command: u8,
        doing: &str,
        body: impl Fn(&mut Writer<'_>),
        kind: u16,
        read: impl Fn(&Attribute<'_>) -> netlink::Result<T>,
        entries: &mut Vec<T>,
    ) -> Result<usize> {
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
