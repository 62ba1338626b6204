//! The output of `plan` and `status`: desired and observed state in the same form.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use ipvs_netlink as ipvs;
use serde::Serialize;

use crate::dataplane::{Dataplane, Failure};
use crate::ledger::Owned;
use crate::observed::CountedServer;
use crate::op::Op;
use crate::plan::Desired;
use crate::problem::Problem;

/// The virtual servers and service addresses of a kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelTable {
    /// Every virtual server of the network namespace, owned or foreign.
    pub virtual_servers: BTreeMap<ipvs::ServiceKey, CountedServer>,
    /// The service addresses, each with its preferred source.
    pub addresses: BTreeMap<IpAddr, Option<IpAddr>>,
}

impl KernelTable {
    /// Reads the table from the kernel.
    ///
    /// # Errors
    /// If any part cannot be read completely.
    pub(crate) fn read(dataplane: &mut impl Dataplane) -> Result<Self, Failure> {
        let mut virtual_servers = BTreeMap::new();
        dataplane.virtual_servers(&mut |found| {
            virtual_servers.insert(found.server.service.key, found);
        })?;
        Ok(Self {
            virtual_servers,
            addresses: dataplane.addresses()?,
        })
    }
}

/// A table of virtual servers as JSON; every list is sorted.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonReport {
    virtual_servers: Vec<AddressEntry>,
    /// Virtual servers with a firewall mark instead of an address.
    firewall_marks: Vec<MarkEntry>,
    addresses: Vec<IpAddr>,
    problems: Vec<ProblemEntry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AddressEntry {
    protocol: String,
    address: IpAddr,
    port: u16,
    #[serde(flatten)]
    server: ServerEntry,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MarkEntry {
    /// The IP version: 4 or 6.
    family: u8,
    mark: u32,
    #[serde(flatten)]
    server: ServerEntry,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerEntry {
    scheduler: String,
    flags: u32,
    persistence_timeout: u32,
    destinations: Vec<DestinationEntry>,
}

#[derive(Debug, Serialize)]
struct DestinationEntry {
    address: IpAddr,
    port: u16,
    weight: u32,
}

#[derive(Debug, Serialize)]
struct ProblemEntry {
    object: String,
    field: String,
    value: String,
    message: String,
}

impl JsonReport {
    /// Returns the report of the desired state.
    pub(crate) fn desired(desired: &Desired, problems: &[Problem]) -> Self {
        let mut report = Self {
            addresses: desired.addresses.keys().copied().collect(),
            problems: problems.iter().map(ProblemEntry::from).collect(),
            ..Self::default()
        };
        for server in desired.virtual_servers.values() {
            report.add(&server.service, &server.destinations);
        }
        report
    }

    /// Returns the report of the observed state.
    pub(crate) fn observed(observed: &KernelTable) -> Self {
        let mut report = Self {
            addresses: observed.addresses.keys().copied().collect(),
            ..Self::default()
        };
        for CountedServer { server, .. } in observed.virtual_servers.values() {
            report.add(&server.service, &server.destinations);
        }
        report
    }

    fn add(&mut self, service: &ipvs::Service, destinations: &[ipvs::Destination]) {
        let destination = |destination: &ipvs::Destination| DestinationEntry {
            address: destination.key.address,
            port: destination.key.port,
            weight: destination.weight,
        };
        let server = ServerEntry {
            scheduler: scheduler(service).to_owned(),
            flags: service.flags.bits(),
            persistence_timeout: persistence_secs(service).unwrap_or(0),
            destinations: destinations.iter().map(destination).collect(),
        };
        match service.key {
            ipvs::ServiceKey::Address {
                protocol,
                address,
                port,
            } => self.virtual_servers.push(AddressEntry {
                protocol: protocol.to_string(),
                address,
                port,
                server,
            }),
            ipvs::ServiceKey::Mark { family, mark } => self.firewall_marks.push(MarkEntry {
                family: match family {
                    ipvs::Family::V4 => 4,
                    ipvs::Family::V6 => 6,
                },
                mark,
                server,
            }),
            // `ServiceKey` is non-exhaustive, but IPVS has no third kind of key.
            _ => {}
        }
    }
}

impl From<&Problem> for ProblemEntry {
    fn from(problem: &Problem) -> Self {
        let message = match &problem.source {
            Some(source) => format!("{} ({source})", problem.message),
            None => problem.message.clone(),
        };
        Self {
            object: problem.object.clone(),
            field: problem.field.clone(),
            value: problem.value.clone(),
            message,
        }
    }
}

fn scheduler(service: &ipvs::Service) -> &str {
    service
        .scheduler
        .as_ref()
        .map_or("none", ipvs::SchedulerName::as_str)
}

/// Returns the affinity timeout in seconds; `None` without affinity.
///
/// The kernel also returns a timeout for virtual servers without the flag; it has no effect.
fn persistence_secs(service: &ipvs::Service) -> Option<u32> {
    let is_persistent = service.flags.contains(ipvs::ServiceFlags::PERSISTENT);
    is_persistent.then_some(service.timeout_secs)
}

/// An Op with the name of its Service port: `add service TCP 10.96.0.10:53 rr (kube-system/dns:tcp)`.
pub(crate) struct NamedOp<'a> {
    op: &'a Op,
    name: Option<String>,
}

impl<'a> NamedOp<'a> {
    /// Finds the name in the desired state; for a stale virtual server, in the ledger.
    pub(crate) fn new(op: &'a Op, desired: &Desired, owned: &Owned) -> Self {
        let name = op
            .service_key()
            .and_then(|key| match desired.virtual_servers.get(&key) {
                Some(server) => Some(server.owner.to_string()),
                None => owned.name(&key).map(str::to_owned),
            });
        Self { op, name }
    }
}

impl fmt::Display for NamedOp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op.fmt(f)?;
        match &self.name {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

/// Returns the table as text, like `ipvsadm -Ln`, with Service names and foreign addresses.
pub(crate) fn table(
    observed: &KernelTable,
    owned: &Owned,
    foreign: &BTreeMap<IpAddr, String>,
) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_table(&mut text, observed, owned);
    let _ = write_foreign(&mut text, foreign);
    text
}

fn write_foreign(text: &mut String, foreign: &BTreeMap<IpAddr, String>) -> fmt::Result {
    if foreign.is_empty() {
        return Ok(());
    }
    writeln!(text, "\nForeign local addresses ({}):", foreign.len())?;
    for (address, description) in foreign {
        writeln!(text, "  {address} {description}")?;
    }
    Ok(())
}

fn write_table(text: &mut String, observed: &KernelTable, owned: &Owned) -> fmt::Result {
    writeln!(
        text,
        "{:<44} {:<10} {:<18} Service",
        "Virtual server", "Scheduler", "Options"
    )?;
    writeln!(
        text,
        "  -> {:<39} {:<10} {:>6} {:>9} {:>9}",
        "Destination", "Forward", "Weight", "Active", "Inactive"
    )?;
    for (key, found) in &observed.virtual_servers {
        let server = &found.server;
        let options = match persistence_secs(&server.service) {
            Some(seconds) => format!("persistent {seconds}s"),
            None => String::new(),
        };
        let name = owned.name(key).unwrap_or("(foreign)");
        let scheduler = scheduler(&server.service);
        writeln!(
            text,
            "{:<44} {scheduler:<10} {options:<18} {name}",
            key.to_string()
        )?;
        for (destination, connections) in found.destinations() {
            writeln!(
                text,
                "  -> {:<39} {:<10} {:>6} {:>9} {:>9}",
                destination.key.to_string(),
                format!("{:?}", destination.forwarding),
                destination.weight,
                connections.active,
                connections.inactive
            )?;
        }
    }
    writeln!(text, "\nService addresses ({}):", observed.addresses.len())?;
    for (address, source) in &observed.addresses {
        match source {
            Some(source) => writeln!(text, "  {address} source {source}")?,
            None => writeln!(text, "  {address}")?,
        }
    }
    Ok(())
}
