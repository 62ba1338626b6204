//! From IPVS' terms to those of the relay.

use std::net::SocketAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;
use relay::{Handling, PoolConfig, Transport};
use schedulers::{Family, Flags, Options, Thresholds};

use crate::cluster::model::Protocol;
use crate::plan::RelayOptions;

pub(super) fn pool_config(service: &ipvs::Service) -> PoolConfig {
    let has = |flag| service.flags.contains(flag);
    let scheduler = service
        .scheduler
        .as_ref()
        .map_or("rr", ipvs::SchedulerName::as_str);
    let is_persistent = has(ipvs::ServiceFlags::PERSISTENT);
    PoolConfig {
        scheduler: scheduler.to_owned(),
        options: Options {
            family: match service.key.family() {
                ipvs::Family::V4 => Family::V4,
                ipvs::Family::V6 => Family::V6,
            },
            flags: Flags {
                fallback: has(ipvs::ServiceFlags::SCHED1),
                port: has(ipvs::ServiceFlags::SCHED2),
            },
            ..Options::default()
        },
        affinity: is_persistent.then(|| Duration::from_secs(service.timeout_secs.into())),
    }
}

pub(super) fn handling(options: &RelayOptions) -> Handling {
    let idle = options.idle_timeout_secs;
    Handling {
        proxy_protocol: options.proxy_protocol,
        idle: idle.map(|secs| Duration::from_secs(secs.into())),
    }
}

pub(super) fn transport(protocol: Protocol) -> Option<Transport> {
    match protocol {
        Protocol::Tcp => Some(Transport::Tcp),
        Protocol::Udp => Some(Transport::Udp),
        Protocol::Sctp => None,
    }
}

pub(super) fn thresholds(destination: &ipvs::Destination) -> Thresholds {
    let thresholds = Thresholds::new(destination.upper_threshold, destination.lower_threshold);
    // The kernel refuses a lower threshold above the upper one; no plan has one.
    thresholds.unwrap_or_default()
}

pub(super) fn socket(key: &ipvs::DestinationKey) -> SocketAddr {
    (key.address, key.port).into()
}
