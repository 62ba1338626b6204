//! The kernel and the relay behind one trait.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;
use proxier::testing::dataplane::ipvs::Kernel as _;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::op::Op;
use relay::{Counts, EndpointPool, Listening, PoolConfig, Relay, RelayLimits, Route, Transport};
use schedulers::{Options, Thresholds};

use super::world::Balancer;

impl Balancer for Linux {
    fn apply(&mut self, op: Op) {
        for outcome in proxier::testing::dataplane::ipvs::Kernel::apply(self, &[op]) {
            outcome.unwrap();
        }
    }

    fn connections(&mut self, key: &ipvs::ServiceKey) -> Vec<(IpAddr, (u32, u32))> {
        let counted = self.virtual_server(key).unwrap().unwrap();
        let destinations = counted.server.destinations.iter();
        let counts = counted.connections.iter();
        let both = destinations.zip(counts);
        both.map(|(it, counts)| (it.key.address, (counts.active, counts.inactive)))
            .collect()
    }
}

/// A relay, and its virtual servers.
pub(crate) struct Relayed {
    relay: Relay,
    servers: BTreeMap<ipvs::ServiceKey, (Arc<EndpointPool>, Listening)>,
}

impl Relayed {
    pub(crate) fn start() -> Self {
        let limits = RelayLimits {
            workers: 2,
            ..RelayLimits::default()
        };
        Self {
            relay: Relay::start(limits).unwrap(),
            servers: BTreeMap::new(),
        }
    }

    pub(crate) fn stop(self) {
        self.relay.stop(Duration::ZERO);
    }

    fn add(&mut self, service: &ipvs::Service) {
        let ipvs::ServiceKey::Address {
            protocol,
            address,
            port,
        } = service.key
        else {
            panic!("a virtual server of the test has an address");
        };
        let transport = match protocol {
            ipvs::Protocol::Udp => Transport::Udp,
            _ => Transport::Tcp,
        };
        let pool = EndpointPool::new(&config(service), self.relay.now()).unwrap();
        let pool = Arc::new(pool);
        let route = Route::to(pool.clone());
        let listening = self.relay.open(transport, (address, port).into(), route);
        let server = (pool, listening.unwrap());
        self.servers.insert(service.key, server);
    }
}

impl Balancer for Relayed {
    fn apply(&mut self, op: Op) {
        if let Op::AddService(service) = &op {
            return self.add(service);
        }
        let now = self.relay.now();
        let (pool, listening) = self.servers.get_mut(&op.service_key().unwrap()).unwrap();
        match op {
            Op::SetService(service) => pool.configure(&config(&service), now).unwrap(),
            Op::AddDestination(_, to) => {
                let added = pool.add(socket(&to.key), to.weight, thresholds(&to));
                added.unwrap();
            }
            Op::SetDestination(_, to) => {
                let set = pool.set(socket(&to.key), to.weight, thresholds(&to));
                set.unwrap();
            }
            Op::DeleteDestination(_, key) => {
                assert_ne!(pool.remove(socket(&key)), None);
                self.relay.cut();
            }
            _ => panic!("no test needs {op}"),
        }
        self.relay.adjust(listening).unwrap();
    }

    fn connections(&mut self, key: &ipvs::ServiceKey) -> Vec<(IpAddr, (u32, u32))> {
        let (pool, _) = &self.servers[key];
        let counts = |it: Counts| (it.active, it.inactive);
        let members = pool.members().into_iter();
        members
            .map(|(address, it)| (address.ip(), counts(it.counts)))
            .collect()
    }
}

fn config(service: &ipvs::Service) -> PoolConfig {
    let is_persistent = service.flags.contains(ipvs::ServiceFlags::PERSISTENT);
    let timeout = Duration::from_secs(service.timeout_secs.into());
    PoolConfig {
        scheduler: service.scheduler.unwrap().as_str().to_owned(),
        options: Options::default(),
        affinity: is_persistent.then_some(timeout),
    }
}

fn thresholds(destination: &ipvs::Destination) -> Thresholds {
    Thresholds::new(destination.upper_threshold, destination.lower_threshold).unwrap()
}

fn socket(key: &ipvs::DestinationKey) -> SocketAddr {
    (key.address, key.port).into()
}
