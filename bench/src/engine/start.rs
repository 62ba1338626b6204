//! Measures the first programming of a node, and when the API server's Service becomes usable.
//!
//! A round writes all packet rules in one transaction, then all Ops in one call, those of the API
//! server's Service first. A connection is tried after each write, so the time until the Service is
//! usable includes all rules and the whole call. It is an upper bound.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ipvs_netlink as ipvs;
use nftables::{Command, Table};
use proxier::testing::api::{self, WireObject as _};
use proxier::testing::conntrack::{Stale, Swept};
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::dataplane::{Dataplane, Failure, Outcome, Portion};
use proxier::testing::filter::FilterConfig;
use proxier::testing::ledger::LedgerFile;
use proxier::testing::marks::MarkKey;
use proxier::testing::observed::{CountedServer, LocalAddresses, ObservedServer};
use proxier::testing::op::Op;
use proxier::testing::plan::{Machine, ServiceAddresses};
use proxier::testing::split_map::SplitMap;
use proxier::testing::store::{self, Event, Interner};
use proxier::testing::sync::Proxier;
use serde::Deserialize as _;
use serde_json::json;

use super::cluster::{Cluster, NODE_ADDRESS, parse_slice};
use super::node::config;

/// The cluster IP of `default/kubernetes`.
///
/// It sorts after all other cluster IPs, so an order by address would program it last.
const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 111, 255, 254);

/// The port of the API server itself, on this node.
const API_PORT: u16 = 6443;

/// The time limit of a client's connection attempt.
const PATIENCE: Duration = Duration::from_secs(1);

/// Durations of the first programming of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// From the start of the first write to the end of the last.
    pub(crate) whole: Duration,
    /// From the start of the first write to the end of the write after which a client on this node
    /// can connect to `default/kubernetes`.
    pub(crate) api_service: Duration,
}

/// Programs `cluster` and the API server's Service, with a connection attempt after each write.
///
/// The measurement runs in the network namespace of the calling thread.
pub(crate) fn measure(cluster: Cluster) -> anyhow::Result<Start> {
    // Accepts nothing: the kernel completes the handshake, and no more is needed to see that a
    // client can connect.
    let _server = TcpListener::bind(SocketAddr::from((NODE_ADDRESS, API_PORT)))?;
    let mut interner = Interner::default();
    let mut events = cluster.events(&mut interner)?;
    events.extend(api_service(&mut interner)?);
    let config = config(Duration::ZERO)?;
    let state = super::temporary("state");
    let watched = Watched {
        linux: Linux::open(ServiceAddresses::Routes)?,
        begin: None,
        tries: Duration::ZERO,
        end: Duration::ZERO,
        usable: None,
    };
    let mut proxier =
        Proxier::new(watched, config, LedgerFile::new(&state))?.filtering(FilterConfig::default());
    proxier.receive(events);
    let applied = proxier.sync(Duration::ZERO)?;
    std::fs::remove_file(&state)?;
    let failures = applied.failures().count();
    ensure!(failures == 0, "{failures} Ops failed");
    let kernel = proxier.dataplane();
    Ok(Start {
        whole: kernel.end,
        api_service: kernel
            .usable
            .context("no client could connect to default/kubernetes")?,
    })
}

fn api_service(interner: &mut Interner) -> anyhow::Result<[Event; 2]> {
    let service = api::ServiceObject::deserialize(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {
            "clusterIP": API_SERVICE,
            "clusterIPs": [API_SERVICE],
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": API_PORT}],
        },
    }))?;
    let service = service.parse(interner).map_err(anyhow::Error::msg)?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "https", "protocol": "TCP", "port": API_PORT}],
        "endpoints": [{
            "addresses": [Ipv4Addr::from(NODE_ADDRESS)],
            "conditions": {"ready": true},
        }],
    });
    let slice = parse_slice(slice.to_string().as_bytes(), interner)?;
    Ok([
        Event::Services(store::Update::Apply(service)),
        Event::EndpointSlices(store::Update::Apply(slice)),
    ])
}

/// The running kernel, with the times of its writes.
struct Watched {
    linux: Linux,
    /// The start of the first write.
    begin: Option<Instant>,
    /// The total duration of the connection attempts, which the other durations exclude.
    tries: Duration,
    /// The end of the last write, relative to `begin`.
    end: Duration,
    /// The end of the write after which a client could connect, relative to `begin`.
    usable: Option<Duration>,
}

impl Watched {
    fn write<T>(&mut self, write: impl FnOnce(&mut Linux) -> T) -> T {
        let begin = *self.begin.get_or_insert_with(Instant::now);
        let result = write(&mut self.linux);
        self.end = begin.elapsed() - self.tries;
        if self.usable.is_none() {
            let start = Instant::now();
            let address = SocketAddr::from((API_SERVICE, 443));
            if TcpStream::connect_timeout(&address, PATIENCE).is_ok() {
                self.usable = Some(self.end);
            }
            self.tries += start.elapsed();
        }
        result
    }
}

impl Dataplane for Watched {
    fn machine(&mut self) -> Result<Machine, Failure> {
        self.linux.machine()
    }

    fn draw_mark_key(&mut self) -> Result<MarkKey, Failure> {
        self.linux.draw_mark_key()
    }

    fn virtual_servers(
        &mut self,
        known: &mut dyn Iterator<Item = ipvs::ServiceKey>,
        each: &mut dyn FnMut(CountedServer),
    ) -> Result<(), Failure> {
        self.linux.virtual_servers(known, each)
    }

    fn shows_virtual_servers(
        &mut self,
        expected: &SplitMap<ipvs::ServiceKey, ObservedServer>,
        portion: Portion,
    ) -> bool {
        self.linux.shows_virtual_servers(expected, portion)
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        self.linux.virtual_server(key)
    }

    fn addresses(&mut self) -> Result<LocalAddresses, Failure> {
        self.linux.addresses()
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        self.linux.rules_generation()
    }

    fn change_rules(
        &mut self,
        table: &Table,
        commands: &[Command],
    ) -> Result<Option<u32>, Failure> {
        self.write(|linux| linux.change_rules(table, commands))
    }

    fn replace_rules(&mut self, table: &Table) -> Result<Option<u32>, Failure> {
        self.write(|linux| linux.replace_rules(table))
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        self.write(Linux::delete_rules)
    }

    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        self.write(|linux| linux.sweep_flows(stale))
    }

    fn has_scheduler(&mut self, name: ipvs::SchedulerName) -> Result<Option<bool>, Failure> {
        self.linux.has_scheduler(name)
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        self.write(|linux| linux.apply(ops))
    }
}
