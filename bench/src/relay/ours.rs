//! The relay of the userspace dataplane, without the rest of the program.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use relay::{EndpointPool, PoolConfig, Relay, RelayLimits, Route, Transport};
use schedulers::{Options, Thresholds};

use super::endpoints::{ADDRESSES, DATAGRAMS, ECHO, SOURCE};

/// Relays until the process is killed.
pub(super) fn run(address: Ipv4Addr, workers: usize) -> anyhow::Result<()> {
    let mut relay = Relay::start(RelayLimits {
        workers,
        ..RelayLimits::default()
    })?;
    let mut listening = Vec::new();
    for (transport, port) in [
        (Transport::Tcp, ECHO),
        (Transport::Tcp, SOURCE),
        (Transport::Udp, DATAGRAMS),
    ] {
        let config = PoolConfig {
            scheduler: "rr".to_owned(),
            options: Options::default(),
            affinity: None,
        };
        let pool = EndpointPool::new(&config, Duration::ZERO)?;
        for endpoint in ADDRESSES {
            pool.add((endpoint, port).into(), 1, Thresholds::default())?;
        }
        let route = Route::to(Arc::new(pool));
        let frontend = SocketAddr::V4(SocketAddrV4::new(address, port));
        listening.push(relay.open(transport, frontend, route)?);
    }
    loop {
        std::thread::park();
    }
}
