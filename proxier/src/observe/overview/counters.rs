//! The counters of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::AddAssign;

use ipvs_netlink as ipvs;
use relay::EndpointState;

use super::census::Depth;
use crate::cluster::model::{Family, Protocol};
use crate::dataplane::Failure;
use crate::dataplane::conntrack::ConntrackClient;
use crate::dataplane::ipvs::linux::CounterReader;

/// The most pairs of frontend and endpoint that are kept of connection tracking. Beyond it, only frontends have counts.
const MAX_PAIRS: usize = 20_000;

/// What is counted; `None` if it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Established connections.
    pub(crate) active: Option<u64>,
    /// All others, such as closing ones and UDP flows.
    pub(crate) inactive: Option<u64>,
    /// All connections so far.
    pub(crate) total: Option<u64>,
    /// All bytes so far, in both directions.
    pub(crate) bytes: Option<u64>,
    /// New connections per second, as the kernel estimates.
    pub(crate) rate: Option<f64>,
    /// Bytes per second, as the kernel estimates.
    pub(crate) byte_rate: Option<f64>,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        fn add<T: std::ops::Add<Output = T>>(sum: &mut Option<T>, value: Option<T>) {
            *sum = match (sum.take(), value) {
                (Some(sum), Some(value)) => Some(sum + value),
                (sum, value) => sum.or(value),
            };
        }
        add(&mut self.active, other.active);
        add(&mut self.inactive, other.inactive);
        add(&mut self.total, other.total);
        add(&mut self.bytes, other.bytes);
        add(&mut self.rate, other.rate);
        add(&mut self.byte_rate, other.byte_rate);
    }
}

impl From<ipvs::Stats> for Counts {
    fn from(stats: ipvs::Stats) -> Self {
        Self {
            total: Some(stats.connections),
            bytes: Some(stats.bytes_in + stats.bytes_out),
            // More than 2^53 per second cannot be.
            rate: Some(stats.connection_rate as f64),
            byte_rate: Some((stats.byte_rate_in + stats.byte_rate_out) as f64),
            ..Self::default()
        }
    }
}

impl From<EndpointState> for Counts {
    fn from(state: EndpointState) -> Self {
        Self {
            active: Some(state.counts.active.into()),
            inactive: Some(state.counts.inactive.into()),
            total: Some(state.connections),
            ..Self::default()
        }
    }
}

/// The counts of a virtual server or frontend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServerCounts {
    /// Those of all its endpoints.
    pub(crate) all: Counts,
    /// Those of each endpoint, as far as they were read.
    pub(crate) endpoints: BTreeMap<SocketAddr, Counts>,
}

/// The counts of frontends.
pub(crate) type CounterTable = BTreeMap<ipvs::ServiceKey, ServerCounts>;

/// Where the counters are.
#[derive(Debug)]
pub(crate) enum CounterSource {
    /// In IPVS.
    Ipvs(Option<CounterReader>),
    /// In connection tracking, which only has the present connections.
    Conntrack(Option<ConntrackClient>),
    /// In the relay, so the daemon tells them.
    Relay,
}

impl CounterSource {
    /// Returns the source in the words of operators.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ipvs(_) => "IPVS",
            Self::Conntrack(_) => "connection tracking",
            Self::Relay => "the relay",
        }
    }

    /// Reads the counters of all frontends for which `is_known`. For their open connections, IPVS must read each endpoint.
    pub(crate) fn all(
        &mut self,
        depth: Depth,
        is_known: impl Fn(&ipvs::ServiceKey) -> bool,
    ) -> Result<CounterTable, Failure> {
        let mut table = CounterTable::new();
        match self {
            Self::Ipvs(_) if depth == Depth::Names => {}
            Self::Ipvs(socket) => {
                let mut reader = taken(socket, CounterReader::open)?;
                let deep = |key: &ipvs::ServiceKey| depth == Depth::Connections && is_known(key);
                reader.read(deep, |server, destinations| {
                    let key = server.service.key;
                    if is_known(&key) {
                        let mut counts = counts(server, destinations);
                        // They would be most of the memory, and are read again of what is visible.
                        counts.endpoints.clear();
                        table.insert(key, counts);
                    }
                })?;
                *socket = Some(reader);
            }
            Self::Conntrack(socket) => {
                let mut client = taken(socket, || {
                    ConntrackClient::open().map_err(Failure::netfilter_socket)
                })?;
                let mut pairs = 0;
                for family in [Family::V4, Family::V6] {
                    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                        client.each_flow(family, protocol, |flow| {
                            let key = ipvs::ServiceKey::from(flow.frontend());
                            if !flow.is_translated || !is_known(&key) {
                                return;
                            }
                            let is_active = u64::from(flow.is_established);
                            let one = Counts {
                                active: Some(is_active),
                                inactive: Some(1 - is_active),
                                ..Counts::default()
                            };
                            let server = table.entry(key).or_default();
                            server.all += one;
                            let endpoint = flow.reply.source;
                            if let Some(counts) = server.endpoints.get_mut(&endpoint) {
                                *counts += one;
                            } else if pairs < MAX_PAIRS {
                                pairs += 1;
                                server.endpoints.insert(endpoint, one);
                            }
                        })?;
                    }
                }
                *socket = Some(client);
            }
            Self::Relay => {}
        }
        Ok(table)
    }

    /// Reads the counters of these frontends and of their endpoints; of none if that would read all of them.
    pub(crate) fn some(
        &mut self,
        keys: &BTreeSet<ipvs::ServiceKey>,
    ) -> Result<CounterTable, Failure> {
        let Self::Ipvs(socket) = self else {
            return Ok(CounterTable::new());
        };
        let mut reader = taken(socket, CounterReader::open)?;
        let mut table = CounterTable::new();
        reader.read_some(keys.iter().copied(), |server, destinations| {
            table.insert(server.service.key, counts(server, destinations));
        })?;
        *socket = Some(reader);
        Ok(table)
    }
}

/// Takes the open socket, or opens one. After a failure, the next reading opens another.
fn taken<T>(
    socket: &mut Option<T>,
    open: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    socket.take().map_or_else(open, Ok)
}

/// Returns the counts of a virtual server, with those of these destinations.
fn counts(server: &ipvs::ServiceEntry, destinations: &[ipvs::DestinationEntry]) -> ServerCounts {
    let mut counts = ServerCounts {
        all: server.stats.into(),
        endpoints: BTreeMap::new(),
    };
    for entry in destinations {
        let open = Counts {
            active: Some(entry.active_connections.into()),
            inactive: Some(entry.inactive_connections.into()),
            ..Counts::default()
        };
        counts.all += open;
        let mut of_endpoint = Counts::from(entry.stats);
        of_endpoint += open;
        let key = entry.destination.key;
        counts
            .endpoints
            .insert((key.address, key.port).into(), of_endpoint);
    }
    counts
}
