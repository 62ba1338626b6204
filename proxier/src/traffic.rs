//! The traffic of Services, from the counters of IPVS.
//!
//! ```text
//! daemon ─▶ Owners ──┐
//!                    ├─▶ write ─▶ Prometheus' text format
//! kernel ─▶ Counted ─┘
//! ```
//!
//! The counters are read at each scrape and kept nowhere: a recorder would keep 50,000 series in memory.
//! Each series belongs to a virtual server, not to a Service. The sum of a Service would fall when one of
//! its virtual servers is deleted. Prometheus takes a fall for a restart, and would count the rest twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use ipvs_netlink as ipvs;

use crate::instruments::{Instrument, InstrumentKind, write_head};
use crate::model::ServicePortName;
use crate::plan::{FrontendKind, VirtualServer};

/// The names of virtual servers. The daemon writes what changed; a scrape reads a copy.
///
/// Empty while there are more virtual servers than the limit, so that a large node needs no memory for
/// series that it does not have.
#[derive(Debug)]
pub struct Owners {
    limit: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    owners: BTreeMap<ipvs::ServiceKey, Owner>,
    /// The number of planned virtual servers.
    planned: usize,
}

/// What a virtual server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    port: ServicePortName,
    kind: FrontendKind,
    destinations: usize,
}

impl From<&VirtualServer> for Owner {
    fn from(server: &VirtualServer) -> Self {
        Self {
            port: server.owner.clone(),
            kind: server.kind,
            destinations: server.destinations.len(),
        }
    }
}

impl Owners {
    /// Returns an empty table of names for at most `limit` virtual servers.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            known: Mutex::default(),
        }
    }

    /// Updates the names to the plan, which differs from that of the last call in `changed`.
    pub fn follow(
        &self,
        changed: &BTreeSet<ipvs::ServiceKey>,
        planned: &BTreeMap<ipvs::ServiceKey, VirtualServer>,
    ) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut known.planned, planned.len());
        if planned.len() > self.limit {
            known.owners = BTreeMap::new();
        } else if before > self.limit {
            let all = planned.iter().map(|(key, server)| (*key, server.into()));
            known.owners = all.collect();
        } else {
            for key in changed {
                match planned.get(key) {
                    Some(server) => known.owners.insert(*key, server.into()),
                    None => known.owners.remove(key),
                };
            }
        }
    }

    /// Returns a copy of all names.
    ///
    /// # Errors
    /// The reason why there are none: there are more virtual servers than the limit.
    pub fn read(&self) -> Result<BTreeMap<ipvs::ServiceKey, Owner>, TooMany> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.planned <= self.limit {
            true => Ok(known.owners.clone()),
            false => Err(TooMany {
                planned: known.planned,
                limit: self.limit,
            }),
        }
    }

    /// Returns whether the operator permits no names at all.
    pub fn is_off(&self) -> bool {
        self.limit == 0
    }
}

/// There are more virtual servers than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {planned} virtual servers, above --service-metrics-limit={limit}")]
pub struct TooMany {
    planned: usize,
    limit: usize,
}

/// Returns the number of planned destinations.
pub(crate) fn destinations(owners: &BTreeMap<ipvs::ServiceKey, Owner>) -> usize {
    owners.values().map(|owner| owner.destinations).sum()
}

/// A virtual server with its counters, and those of its destinations if they were read.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    /// The virtual server.
    pub(crate) key: ipvs::ServiceKey,
    /// Its counters.
    pub(crate) stats: ipvs::Stats,
    /// Its destinations.
    pub(crate) destinations: Vec<ipvs::DestinationEntry>,
}

const SERVICE_LABELS: &[&str] = &[
    "namespace",
    "service",
    "port",
    "frontend",
    "address",
    "protocol",
];
const ENDPOINT_LABELS: &[&str] = &[
    "namespace",
    "service",
    "port",
    "frontend",
    "address",
    "protocol",
    "endpoint",
];

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Instrument {
    Instrument {
        name,
        kind: InstrumentKind::Counter,
        labels,
        help,
        known: &[],
    }
}

/// The metrics of virtual servers, then the same of destinations, each in the order of [`values`].
pub(crate) const METRICS: &[Instrument] = &[
    counter(
        "ipvs_proxier_service_connections_total",
        SERVICE_LABELS,
        "Connections that IPVS scheduled, by frontend",
    ),
    counter(
        "ipvs_proxier_service_received_packets_total",
        SERVICE_LABELS,
        "Packets from clients, by frontend",
    ),
    counter(
        "ipvs_proxier_service_sent_packets_total",
        SERVICE_LABELS,
        "Packets to clients, by frontend",
    ),
    counter(
        "ipvs_proxier_service_received_bytes_total",
        SERVICE_LABELS,
        "Bytes from clients, by frontend",
    ),
    counter(
        "ipvs_proxier_service_sent_bytes_total",
        SERVICE_LABELS,
        "Bytes to clients, by frontend",
    ),
    counter(
        "ipvs_proxier_endpoint_connections_total",
        ENDPOINT_LABELS,
        "Connections that IPVS scheduled, by endpoint",
    ),
    counter(
        "ipvs_proxier_endpoint_received_packets_total",
        ENDPOINT_LABELS,
        "Packets from clients, by endpoint",
    ),
    counter(
        "ipvs_proxier_endpoint_sent_packets_total",
        ENDPOINT_LABELS,
        "Packets to clients, by endpoint",
    ),
    counter(
        "ipvs_proxier_endpoint_received_bytes_total",
        ENDPOINT_LABELS,
        "Bytes from clients, by endpoint",
    ),
    counter(
        "ipvs_proxier_endpoint_sent_bytes_total",
        ENDPOINT_LABELS,
        "Bytes to clients, by endpoint",
    ),
];

/// The number of counters of each object.
const COUNTERS: usize = 5;

fn values(stats: &ipvs::Stats) -> [u64; COUNTERS] {
    [
        stats.connections,
        stats.packets_in,
        stats.packets_out,
        stats.bytes_in,
        stats.bytes_out,
    ]
}

/// Appends the counters of all virtual servers that have an owner.
pub(crate) fn write(
    text: &mut String,
    owners: &BTreeMap<ipvs::ServiceKey, Owner>,
    counted: &[Counted],
) {
    let mut servers = Vec::with_capacity(counted.len());
    let mut endpoints = Vec::new();
    for counted in counted {
        let Some(owner) = owners.get(&counted.key) else {
            continue;
        };
        let labels = labels(&counted.key, owner);
        for entry in &counted.destinations {
            let endpoint = entry.destination.key;
            let labels = format!("{labels},endpoint=\"{endpoint}\"");
            endpoints.push((labels, values(&entry.stats)));
        }
        servers.push((labels, values(&counted.stats)));
    }
    let (of_servers, of_endpoints) = METRICS.split_at(COUNTERS);
    for (metrics, series) in [(of_servers, servers), (of_endpoints, endpoints)] {
        if series.is_empty() {
            continue;
        }
        for (index, metric) in metrics.iter().enumerate() {
            write_head(text, metric);
            for (labels, values) in &series {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{}{{{labels}}} {}", metric.name, values[index]);
            }
        }
    }
}

fn labels(key: &ipvs::ServiceKey, owner: &Owner) -> String {
    let frontend = match owner.kind {
        FrontendKind::ClusterIp => "cluster_ip",
        FrontendKind::ExternalIp => "external_ip",
        FrontendKind::LoadBalancer => "load_balancer",
        FrontendKind::NodePort => "node_port",
        FrontendKind::Inside => "inside",
    };
    let (address, protocol) = match *key {
        ipvs::ServiceKey::Address {
            protocol,
            address,
            port,
        } => {
            let address = std::net::SocketAddr::new(address, port).to_string();
            (address, protocol.to_string())
        }
        ipvs::ServiceKey::Mark { mark, .. } => (format!("mark {mark}"), String::new()),
        _ => (key.to_string(), String::new()),
    };
    // Names are DNS labels, which need no escapes; an unusual one of a manifest gets them.
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "namespace=\"{}\",service=\"{}\",port=\"{}\",frontend=\"{frontend}\",address=\"{address}\",\
         protocol=\"{protocol}\"",
        escaped(&owner.port.service.namespace),
        escaped(&owner.port.service.name),
        escaped(&owner.port.port)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::ObjectName;
    use crate::plan::RelayOptions;

    #[test]
    fn a_series_names_service_frontend_and_endpoint() {
        let key = ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 0, 1].into(),
            port: 80,
        };
        let server = |key, kind| VirtualServer {
            service: ipvs::Service::new(key, "rr".parse().unwrap()),
            destinations: [].into(),
            owner: ServicePortName {
                service: ObjectName::new("ns", "web"),
                port: "http".into(),
            },
            kind,
            drain: Duration::ZERO,
            admission: None,
            relay: RelayOptions::default(),
        };
        let stats = ipvs::Stats {
            connections: 7,
            bytes_out: 1 << 40,
            ..ipvs::Stats::default()
        };
        let foreign = ipvs::ServiceKey::Mark {
            family: ipvs::Family::V4,
            mark: 9,
        };
        let counted = [key, foreign].map(|key| Counted {
            key,
            stats,
            destinations: Vec::new(),
        });
        let owners = Owners::new(1);
        let mut planned = BTreeMap::from([(key, server(key, FrontendKind::ClusterIp))]);
        owners.follow(&[key].into(), &planned);
        let mut text = String::new();
        write(&mut text, &owners.read().unwrap(), &counted);
        let labels = "{namespace=\"ns\",service=\"web\",port=\"http\",frontend=\"cluster_ip\",\
                      address=\"10.96.0.1:80\",protocol=\"TCP\"}";
        let connections = "# HELP ipvs_proxier_service_connections_total Connections that IPVS \
                           scheduled, by frontend\n\
                           # TYPE ipvs_proxier_service_connections_total counter\n";
        let line = format!("ipvs_proxier_service_connections_total{labels} 7\n");
        assert!(
            text.starts_with(&format!("{connections}{line}# HELP")),
            "{text}"
        );
        let bytes = format!("ipvs_proxier_service_sent_bytes_total{labels} 1099511627776\n");
        assert!(text.ends_with(&bytes), "{text}");
        assert_eq!(
            text.lines().count(),
            3 * COUNTERS,
            "the foreign one has no series"
        );

        planned.insert(foreign, server(foreign, FrontendKind::Inside));
        owners.follow(&[foreign].into(), &planned);
        let why = owners.read().unwrap_err().to_string();
        assert_eq!(
            why,
            "there are 2 virtual servers, above --service-metrics-limit=1"
        );
        planned.remove(&foreign);
        owners.follow(&[foreign].into(), &planned);
        assert_eq!(owners.read().unwrap().len(), 1, "the names are back");
        planned.clear();
        owners.follow(&[key].into(), &planned);
        assert_eq!(owners.read().unwrap().len(), 0);
    }
}
