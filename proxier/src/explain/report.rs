//! The output of the commands: one format for desired and observed state.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;
use serde::Serialize;

use crate::cluster::problem::Problem;
use crate::dataplane::Failure;
use crate::dataplane::ipvs::Kernel;
use crate::dataplane::ipvs::Wanted;
use crate::dataplane::ipvs::destinations::Destinations;
use crate::dataplane::ipvs::ledger::{Drain, Ledger, Owned};
use crate::dataplane::ipvs::observed::{CountedServer, LocalAddresses};

mod comparison;
mod maps;

pub(crate) use comparison::{JsonChanges, JsonFindings, changes, findings};
pub(crate) use maps::{JsonFrontend, json_maps, maps};

/// The state of a kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelTable {
    /// Every virtual server of the network namespace, owned or foreign.
    pub virtual_servers: BTreeMap<ipvs::ServiceKey, CountedServer>,
    /// Service addresses, and foreign local routes.
    pub local: LocalAddresses,
}

impl KernelTable {
    /// Reads the state of `dataplane`. No `owned` virtual server is missing.
    ///
    /// # Errors
    /// If a part cannot be read completely.
    pub(crate) fn read(dataplane: &mut impl Kernel, owned: &Owned) -> Result<Self, Failure> {
        let mut virtual_servers = BTreeMap::new();
        dataplane.virtual_servers(&mut owned.keys(), &mut |found| {
            virtual_servers.insert(found.key, found);
        })?;
        Ok(Self {
            virtual_servers,
            local: dataplane.addresses()?,
        })
    }
}

/// A table of virtual servers as JSON; every list is sorted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonReport {
    virtual_servers: Vec<ServerEntry>,
    /// Virtual servers that have a firewall mark instead of an address.
    firewall_marks: Vec<ServerEntry>,
    addresses: Vec<IpAddr>,
    problems: Vec<ProblemEntry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerEntry {
    #[serde(flatten)]
    key: KeyEntry,
    scheduler: String,
    flags: u32,
    persistence_timeout: u32,
    /// Whether it is retired: its Service no longer requests it, and it exists for open connections only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    retired: bool,
    destinations: Vec<DestinationEntry>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum KeyEntry {
    Address {
        protocol: String,
        address: IpAddr,
        port: u16,
    },
    Mark {
        /// 4 or 6.
        family: u8,
        mark: u32,
    },
}

#[derive(Debug, Serialize)]
struct DestinationEntry {
    address: IpAddr,
    port: u16,
    weight: u32,
    /// Whether it drains: its endpoint was removed, and it exists for open connections only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    draining: bool,
}

#[derive(Debug, Serialize)]
struct ProblemEntry {
    object: String,
    field: String,
    value: String,
    message: String,
}

impl JsonReport {
    /// Reports the desired state.
    pub(crate) fn desired(wanted: Wanted<'_>, problems: &[Problem]) -> Self {
        let mut servers: Vec<_> = wanted.iter().collect();
        servers.sort_unstable_by_key(|(key, _)| *key);
        let servers = servers.iter().map(|(key, server)| {
            let destinations = Destinations::from(server.endpoints.clone());
            (server.definition().at(*key), destinations)
        });
        let addresses = wanted.desired().addresses.keys().copied().collect();
        Self::new(servers, addresses, problems, None)
    }

    /// Reports the observed state.
    pub(crate) fn observed(observed: &KernelTable, ledger: &Ledger) -> Self {
        let servers = observed.virtual_servers.values();
        let servers = servers.map(|found| (found.service(), found.server.destinations.clone()));
        let addresses = observed.local.addresses.keys().collect();
        Self::new(servers, addresses, &[], Some(ledger))
    }

    fn new(
        servers: impl Iterator<Item = (ipvs::Service, Destinations)>,
        addresses: Vec<IpAddr>,
        problems: &[Problem],
        ledger: Option<&Ledger>,
    ) -> Self {
        let servers = servers.filter_map(|(service, all)| ServerEntry::new(&service, &all, ledger));
        let (virtual_servers, firewall_marks) =
            servers.partition(|server| matches!(server.key, KeyEntry::Address { .. }));
        Self {
            virtual_servers,
            firewall_marks,
            addresses,
            problems: problems.iter().map(ProblemEntry::from).collect(),
        }
    }
}

impl ServerEntry {
    /// Returns `None` for a kind of key that this report does not know.
    fn new(
        service: &ipvs::Service,
        destinations: &Destinations,
        ledger: Option<&Ledger>,
    ) -> Option<Self> {
        let key = match service.key {
            ipvs::ServiceKey::Address {
                protocol,
                address,
                port,
            } => KeyEntry::Address {
                protocol: protocol.to_string(),
                address,
                port,
            },
            ipvs::ServiceKey::Mark { family, mark } => KeyEntry::Mark {
                family: match family {
                    ipvs::Family::V4 => 4,
                    ipvs::Family::V6 => 6,
                },
                mark,
            },
            _ => return None,
        };
        let drain_of =
            |destination: &ipvs::DestinationKey| ledger?.drains().get(&service.key, destination);
        let destinations = destinations.iter().map(|destination| DestinationEntry {
            address: destination.key.address,
            port: destination.key.port,
            weight: destination.weight,
            draining: drain_of(&destination.key).is_some(),
        });
        Some(Self {
            key,
            scheduler: scheduler(service).to_owned(),
            flags: service.flags.bits(),
            persistence_timeout: persistence_secs(service).unwrap_or(0),
            retired: ledger.is_some_and(|ledger| ledger.retired().contains(&service.key)),
            destinations: destinations.collect(),
        })
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

/// Returns the timeout of session affinity; `None` without affinity.
///
/// The kernel's timeout field has no meaning without the flag.
fn persistence_secs(service: &ipvs::Service) -> Option<u32> {
    let is_persistent = service.flags.contains(ipvs::ServiceFlags::PERSISTENT);
    is_persistent.then_some(service.timeout_secs)
}

/// Returns `observed` as text like that of `ipvsadm -Ln`, with the names of Service ports and with
/// foreign addresses.
///
/// Says how long draining destinations and retired virtual servers may still keep their connections at
/// `now`, in time since boot.
pub(crate) fn table(observed: &KernelTable, ledger: &Ledger, now: Duration) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_table(&mut text, observed, ledger, now);
    text
}

fn write_table(
    text: &mut String,
    observed: &KernelTable,
    ledger: &Ledger,
    now: Duration,
) -> fmt::Result {
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
        let service = found.service();
        let persistence = persistence_secs(&service);
        let options = persistence.map(|seconds| format!("persistent {seconds}s"));
        let options = options.unwrap_or_default();
        let owner = ledger.owned().owner(key);
        let name = owner.map_or_else(|| "(foreign)".to_owned(), ToString::to_string);
        let scheduler = scheduler(&service);
        let retired = Remaining("retired", ledger.retired().get(key), now);
        writeln!(
            text,
            "{:<44} {scheduler:<10} {options:<18} {name}{retired}",
            key.to_string()
        )?;
        for (destination, connections) in found.destinations() {
            let drain = ledger.drains().get(key, &destination.key);
            writeln!(
                text,
                "  -> {:<39} {:<10} {:>6} {:>9} {:>9}{}",
                destination.key.to_string(),
                format!("{:?}", destination.forwarding),
                destination.weight,
                connections.active,
                connections.inactive,
                Remaining("draining", drain, now)
            )?;
        }
    }
    let local = &observed.local;
    writeln!(text, "\nService addresses ({}):", local.addresses.len())?;
    for (address, source) in local.addresses.iter() {
        match source {
            Some(source) => writeln!(text, "  {address} source {source}")?,
            None => writeln!(text, "  {address}")?,
        }
    }
    if !local.leftovers.is_empty() {
        let count = local.leftovers.len();
        writeln!(text, "\nService addresses in another form ({count}):")?;
    }
    for (address, form) in &local.leftovers {
        writeln!(text, "  {address} {form}")?;
    }
    if !local.foreign.is_empty() {
        let count = local.foreign.len();
        writeln!(text, "\nLocal addresses of other programs ({count}):")?;
    }
    for (address, how) in &local.foreign {
        writeln!(text, "  {address} {how}")?;
    }
    Ok(())
}

/// A state and the time that is left in it, as text; empty without a drain.
struct Remaining(&'static str, Option<Drain>, Duration);

impl fmt::Display for Remaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(state, Some(drain), now) = *self else {
            return Ok(());
        };
        let left = drain.deadline.saturating_sub(now).as_secs();
        write!(f, " ({state}, at most {left} s left)")
    }
}
