//! When the API server's Service can be used on a node that starts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ipvs_netlink as ipvs;
use proxier::api;
use proxier::conntrack::{Stale, Swept};
use proxier::dataplane::linux::Linux;
use proxier::dataplane::{Dataplane, Failure, Outcome};
use proxier::nftables::{Command, Table};
use proxier::observed::Found;
use proxier::op::Op;
use proxier::packets;
use proxier::plan::{Machine, ServiceAddresses};
use proxier::rules::Surplus;
use proxier::state_file::StateFile;
use proxier::store::{self, Event, Interner};
use proxier::sync::{Input, Proxier};
use serde_json::json;

use super::cluster::{Cluster, NODE_ADDRESS, parse_slice};
use super::node::config;

/// The cluster IP of `default/kubernetes`: behind all others in every order but ours.
const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 111, 255, 254);

/// Where the API server itself listens: on this node.
const API_PORT: u16 = 6443;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the first programming of a node takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// From the first write to the kernel until the last has taken effect.
    pub(crate) whole: Duration,
    /// From the first write until after the one that lets a client on this node connect to
    /// `default/kubernetes`.
    pub(crate) api_service: Duration,
}

/// Programs `cluster` and the API server's Service into the kernel, in the network namespace of the
/// calling thread, where a client tries to connect after each write.
pub(crate) fn measure(cluster: Cluster) -> anyhow::Result<Start> {
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
    let mut proxier = Proxier::new(watched, config, StateFile::new(&state))?
        .filtering(packets::Config::default());
    proxier.take(events, Input::Whole);
    let applied = proxier.sync(Duration::ZERO)?;
    std::fs::remove_file(&state)?;
    let failures = applied.failures().count();
    ensure!(failures == 0, "{failures} operations failed");
    let kernel = proxier.dataplane();
    Ok(Start {
        whole: kernel.end,
        api_service: kernel.usable.context("nobody could connect")?,
    })
}

fn api_service(interner: &mut Interner) -> anyhow::Result<[Event; 2]> {
    let service: api::Service = serde_json::from_value(json!({
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
        Event::Services(store::Change::Apply(service)),
        Event::EndpointSlices(store::Change::Apply(slice)),
    ])
}

/// A kernel that notes when it was written to, and what for. The tries to connect do not count.
struct Watched {
    linux: Linux,
    /// When it was written to first.
    begin: Option<Instant>,
    /// How long the tries took.
    tries: Duration,
    /// The end of the last write, since `begin`.
    end: Duration,
    /// The end of the write after which a client could connect.
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

    fn virtual_servers(&mut self, each: &mut dyn FnMut(Found)) -> Result<(), Failure> {
        self.linux.virtual_servers(each)
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<Found>, Failure> {
        self.linux.virtual_server(key)
    }

    fn addresses(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, Failure> {
        self.linux.addresses()
    }

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        self.linux.rules_generation()
    }

    fn change_rules(
        &mut self,
        table: &Table,
        changes: &[Command],
        surplus: &Surplus,
    ) -> Result<Option<u32>, Failure> {
        self.write(|linux| linux.change_rules(table, changes, surplus))
    }

    fn replace_rules(&mut self, table: &Table, surplus: &Surplus) -> Result<Option<u32>, Failure> {
        self.write(|linux| linux.replace_rules(table, surplus))
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        self.write(Linux::delete_rules)
    }

    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        self.write(|linux| linux.sweep_flows(stale))
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        self.write(|linux| linux.apply(ops))
    }
}
