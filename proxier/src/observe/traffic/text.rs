//! The counters of virtual servers as Prometheus' text.

use std::fmt::Write as _;
use std::sync::Arc;

use ipvs_netlink as ipvs;

use super::{Displaced, HeldTraffic};
use crate::dataplane::ipvs::Owner;
use crate::observe::instruments::{Instrument, InstrumentKind, write_head};
use crate::plan::FrontendKind;

/// The size of a piece of text in bytes; the last line may exceed it.
const PIECE: usize = 64 << 10;

const ENDPOINT_LABELS: &[&str] = &[
    "namespace",
    "service",
    "port",
    "frontend",
    "address",
    "protocol",
    "endpoint",
];
/// All but the last one.
const SERVICE_LABELS: &[&str] = match ENDPOINT_LABELS {
    [service @ .., _] => service,
    [] => &[],
};

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
        "New connections, by frontend",
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
        "New connections, by endpoint",
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

/// The counters of virtual servers and endpoints at one time.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Whether only connections are known.
    has_connections_only: bool,
    servers: Vec<ServerSeries>,
    endpoints: Vec<EndpointSeries>,
}

#[derive(Debug)]
struct ServerSeries {
    labels: Box<str>,
    values: [u64; COUNTERS],
}

#[derive(Debug)]
struct EndpointSeries {
    /// The index of the virtual server.
    server: usize,
    key: ipvs::DestinationKey,
    values: [u64; COUNTERS],
}

impl Traffic {
    /// Adds a virtual server of `owner`, and its destinations.
    pub(crate) fn add(
        &mut self,
        owner: &Owner,
        server: &ipvs::ServiceEntry,
        destinations: &[ipvs::DestinationEntry],
    ) {
        let endpoint = |entry: &ipvs::DestinationEntry| EndpointSeries {
            server: self.servers.len(),
            key: entry.destination.key,
            values: values(&entry.stats),
        };
        self.endpoints.extend(destinations.iter().map(endpoint));
        self.servers.push(ServerSeries {
            labels: labels(&server.service.key, owner).into(),
            values: values(&server.stats),
        });
    }

    /// Returns the traffic of these frontends of `owners`, each with the number of its connections.
    pub(crate) fn of_connections<'a>(
        frontends: impl IntoIterator<Item = (ipvs::ServiceKey, &'a Owner, u64)>,
    ) -> Self {
        let series = |(key, owner, connections)| ServerSeries {
            labels: labels(&key, owner).into(),
            values: values(&ipvs::Stats {
                connections,
                ..ipvs::Stats::default()
            }),
        };
        Self {
            has_connections_only: true,
            servers: frontends.into_iter().map(series).collect(),
            endpoints: Vec::new(),
        }
    }

    /// Returns the number of series of a metric, by its place in [`METRICS`].
    fn series(&self, metric: usize) -> usize {
        match metric {
            // Of connections, the first metric.
            1..COUNTERS if self.has_connections_only => 0,
            0..COUNTERS => self.servers.len(),
            _ => self.endpoints.len(),
        }
    }

    /// Appends a series of a metric.
    fn write(&self, text: &mut String, metric: usize, series: usize) {
        let name = METRICS[metric].name;
        // Writing to a String cannot fail.
        let _ = if metric < COUNTERS {
            let ServerSeries { labels, values } = &self.servers[series];
            writeln!(text, "{name}{{{labels}}} {}", values[metric])
        } else {
            let EndpointSeries {
                server,
                key,
                values,
            } = &self.endpoints[series];
            let labels = &self.servers[*server].labels;
            let value = values[metric - COUNTERS];
            writeln!(text, "{name}{{{labels},endpoint=\"{key}\"}} {value}")
        };
    }
}

/// The text of a [`Traffic`], in pieces.
///
/// At 10,000 virtual servers the whole text has 10 MB, the [`Traffic`] 2 MB.
#[derive(Debug)]
pub(crate) struct TrafficText {
    traffic: Arc<HeldTraffic>,
    /// The place in [`METRICS`] of the next line.
    metric: usize,
    /// The next series of that metric.
    series: usize,
}

impl TrafficText {
    /// Returns the text of `traffic`.
    pub(crate) fn new(traffic: Arc<HeldTraffic>) -> Self {
        Self {
            traffic,
            metric: 0,
            series: 0,
        }
    }
}

impl Iterator for TrafficText {
    type Item = Result<String, Displaced>;

    fn next(&mut self) -> Option<Self::Item> {
        let traffic = match self.traffic.get() {
            Ok(traffic) => traffic,
            Err(displaced) => return Some(Err(displaced)),
        };
        let mut text = String::new();
        while text.len() < PIECE
            && let Some(metric) = METRICS.get(self.metric)
        {
            if self.series == traffic.series(self.metric) {
                self.metric += 1;
                self.series = 0;
                continue;
            }
            if self.series == 0 {
                write_head(&mut text, metric);
            }
            traffic.write(&mut text, self.metric, self.series);
            self.series += 1;
        }
        (!text.is_empty()).then_some(Ok(text))
    }
}

fn labels(key: &ipvs::ServiceKey, owner: &Owner) -> String {
    let frontend = match owner.kind {
        Some(FrontendKind::ClusterIp) => "cluster_ip",
        Some(FrontendKind::ExternalIp) => "external_ip",
        Some(FrontendKind::LoadBalancer) => "load_balancer",
        Some(FrontendKind::NodePort) => "node_port",
        None => "inside",
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
        escaped(owner.port.service.namespace()),
        escaped(owner.port.service.name()),
        escaped(&owner.port.port)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::{ObjectName, ServicePortName};
    use crate::observe::traffic::ReadPages;

    fn entry(last: u8, connections: u64) -> ipvs::ServiceEntry {
        let key = ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 0, last].into(),
            port: 80,
        };
        ipvs::ServiceEntry {
            service: ipvs::Service::new(key, "rr".parse().unwrap()),
            stats: ipvs::Stats {
                connections,
                bytes_out: 1 << 40,
                ..ipvs::Stats::default()
            },
        }
    }

    fn owner() -> Owner {
        Owner {
            port: ServicePortName {
                service: ObjectName::new("ns", "web"),
                port: "http".into(),
            },
            kind: Some(FrontendKind::ClusterIp),
            destinations: 0,
        }
    }

    fn text(traffic: Traffic) -> String {
        let page = ReadPages::default().add(traffic);
        TrafficText::new(page).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn a_series_names_service_frontend_and_endpoint() {
        let mut traffic = Traffic::default();
        traffic.add(&owner(), &entry(1, 7), &[]);
        let labels = "namespace=\"ns\",service=\"web\",port=\"http\",frontend=\"cluster_ip\",\
                      address=\"10.96.0.1:80\",protocol=\"TCP\"";
        let text_of_servers = text(traffic);
        let connections = "# HELP ipvs_proxier_service_connections_total New connections, by frontend\n\
                           # TYPE ipvs_proxier_service_connections_total counter\n";
        let line = format!("ipvs_proxier_service_connections_total{{{labels}}} 7\n");
        let begin = format!("{connections}{line}# HELP");
        assert!(text_of_servers.starts_with(&begin), "{text_of_servers}");
        let bytes = format!("ipvs_proxier_service_sent_bytes_total{{{labels}}} 1099511627776\n");
        assert!(text_of_servers.ends_with(&bytes), "{text_of_servers}");
        assert_eq!(text_of_servers.lines().count(), 3 * COUNTERS);

        // Without IPVS, the other counters are unknown and not 0.
        let only = Traffic::of_connections([(entry(1, 0).service.key, &owner(), 7)]);
        assert_eq!(text(only), format!("{connections}{line}"));

        let mut traffic = Traffic::default();
        traffic.add(&owner(), &entry(2, 0), &[]);
        let address: std::net::SocketAddr = "10.244.0.1:8080".parse().unwrap();
        let destination = ipvs::DestinationEntry {
            destination: ipvs::Destination::new(address.into(), 1),
            active_connections: 0,
            inactive_connections: 0,
            persistent_connections: 0,
            stats: ipvs::Stats::default(),
        };
        traffic.add(&owner(), &entry(1, 7), &[destination]);
        let text = text(traffic);
        let line = format!(
            "ipvs_proxier_endpoint_sent_bytes_total{{{labels},endpoint=\"10.244.0.1:8080\"}} 0\n"
        );
        assert!(text.ends_with(&line), "{text}");
        assert_eq!(text.lines().count(), (4 + 3) * COUNTERS);
    }

    #[test]
    fn pieces_are_small_and_have_whole_lines() {
        let mut traffic = Traffic::default();
        for number in 0..2_000 {
            traffic.add(&owner(), &entry(1, number), &[]);
        }
        let mut lines = 0;
        for piece in TrafficText::new(ReadPages::default().add(traffic)) {
            let piece = piece.unwrap();
            assert!(piece.len() < PIECE + 1_000 && piece.ends_with('\n'));
            lines += piece.lines().count();
        }
        assert_eq!(lines, COUNTERS * (2 + 2_000));
        assert_eq!(text(Traffic::default()), "");
    }
}
