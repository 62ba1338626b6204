//! The encoding of each kind of objects.

use std::time::SystemTime;

use super::encoding::{Encode, ObjectReader, ObjectWriter, encode_enum, encode_struct};
use crate::cluster::model::{
    Annotations, Endpoint, EndpointSlice, Hints, Node, NodeLocation, Protocol, ProxyProtocol,
    SchedulerFlags, Service, ServiceCidr, ServicePort, SlicePort, SourceAddress, TopologyKey,
    TrafficPolicy, Weights,
};

/// A kind of objects that the store keeps.
pub trait ObjectKind: Encode {
    /// Returns the group of the object: objects of a group are found together.
    fn group(&self) -> &str {
        ""
    }

    /// Returns the group that an object called `name` usually has, which is a prefix of the name.
    fn usual_group(_name: &str) -> &str {
        ""
    }
}

impl ObjectKind for Service {}
impl ObjectKind for ServiceCidr {}
impl ObjectKind for NodeLocation {}
impl ObjectKind for Node {}

/// Slices are grouped by their Service.
impl ObjectKind for EndpointSlice {
    fn group(&self) -> &str {
        &self.service
    }

    /// The controller adds five random characters to the name of the Service: `web-x7k2p`.
    fn usual_group(name: &str) -> &str {
        name.rsplit_once('-').map_or("", |(service, _)| service)
    }
}

/// Returns whether a Service with this content has a field that most Services lack, such as annotations.
pub(super) fn has_rare_fields(service: &[u8]) -> bool {
    service
        .first()
        .is_some_and(|flags| flags & HAS_RARE_FIELDS != 0)
}

/// The third flag of a Service.
const HAS_RARE_FIELDS: u8 = 1 << 2;

impl Encode for Service {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        let Self {
            name: _,
            created,
            cluster_ips,
            ports,
            affinity_secs,
            internal_policy,
            external_policy,
            external_ips,
            load_balancer_ips,
            source_ranges,
            health_check_node_port,
            annotations,
        } = self;
        // Most Services have none of these fields, and one bit says so.
        let has_rare_fields = affinity_secs.is_some()
            || !external_ips.is_empty()
            || !load_balancer_ips.is_empty()
            || !source_ranges.is_empty()
            || health_check_node_port.is_some()
            || annotations.is_some();
        to.flags([
            *internal_policy == TrafficPolicy::Local,
            *external_policy == TrafficPolicy::Local,
            has_rare_fields,
        ]);
        created.write(to);
        cluster_ips.write(to);
        ports.write(to);
        if has_rare_fields {
            affinity_secs.write(to);
            external_ips.write(to);
            load_balancer_ips.write(to);
            source_ranges.write(to);
            health_check_node_port.write(to);
            annotations.write(to);
        }
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        let [is_internal_local, is_external_local, has_rare_fields] = from.flags()?;
        let policy = |is_local| match is_local {
            true => TrafficPolicy::Local,
            false => TrafficPolicy::Cluster,
        };
        let mut service = Self {
            name: from.name.clone(),
            created: Option::<SystemTime>::read(from)?,
            cluster_ips: Encode::read(from)?,
            ports: Encode::read(from)?,
            affinity_secs: None,
            internal_policy: policy(is_internal_local),
            external_policy: policy(is_external_local),
            external_ips: Box::default(),
            load_balancer_ips: Box::default(),
            source_ranges: Box::default(),
            health_check_node_port: None,
            annotations: None,
        };
        if has_rare_fields {
            service.affinity_secs = Encode::read(from)?;
            service.external_ips = Encode::read(from)?;
            service.load_balancer_ips = Encode::read(from)?;
            service.source_ranges = Encode::read(from)?;
            service.health_check_node_port = Encode::read(from)?;
            service.annotations = Encode::read(from)?;
        }
        Some(service)
    }
}

impl Encode for EndpointSlice {
    /// Without the time of the last change, which is of interest only when the slice arrives.
    fn write(&self, to: &mut ObjectWriter<'_>) {
        let Self {
            name: _,
            service: _,
            ports,
            endpoints,
            changed: _,
        } = self;
        ports.write(to);
        endpoints.write(to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        Some(Self {
            name: from.name.clone(),
            service: from.group.into(),
            ports: Encode::read(from)?,
            endpoints: Encode::read(from)?,
            changed: None,
        })
    }
}

impl Encode for Endpoint {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        let Self {
            address,
            is_ready,
            is_serving,
            is_terminating,
            location,
            hints,
        } = self;
        // A large cluster has 100,000 endpoints, so everything but the address shares one byte.
        to.flags([
            *is_ready,
            *is_serving,
            *is_terminating,
            hints.is_some(),
            address.is_ipv6(),
        ]);
        to.octets(*address);
        location.write(to);
        if let Some(hints) = hints {
            hints.write(to);
        }
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        let [is_ready, is_serving, is_terminating, has_hints, is_v6] = from.flags()?;
        Some(Self {
            address: from.octets(is_v6)?,
            is_ready,
            is_serving,
            is_terminating,
            location: Encode::read(from)?,
            hints: match has_hints {
                true => Some(Encode::read(from)?),
                false => None,
            },
        })
    }
}

impl Encode for NodeLocation {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        let Self {
            name: _,
            region,
            addresses,
        } = self;
        region.write(to);
        addresses.write(to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        Some(Self {
            name: from.name.name().into(),
            region: Encode::read(from)?,
            addresses: Encode::read(from)?,
        })
    }
}

impl Encode for ServiceCidr {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        let Self { name: _, ranges } = self;
        ranges.write(to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        Some(Self {
            name: from.name.name().into(),
            ranges: Encode::read(from)?,
        })
    }
}

encode_struct!(Node {
    name,
    addresses,
    zone,
    region,
    pod_cidrs,
    is_leaving
});
encode_struct!(ServicePort {
    name,
    protocol,
    port,
    node_port
});
encode_struct!(SlicePort {
    name,
    protocol,
    port
});
encode_struct!(Hints { zones, nodes });
encode_struct!(Annotations {
    scheduler,
    scheduler_flags,
    weights,
    drain_secs,
    idle_timeout_secs,
    proxy_protocol,
    source_address,
    topology_keys
});
encode_struct!(SchedulerFlags { fallback, port });
encode_struct!(Weights {
    addresses,
    nodes,
    zones,
    default
});
encode_enum!(Protocol: Tcp, Udp, Sctp);
encode_enum!(ProxyProtocol: V1, V2);
encode_enum!(SourceAddress: Node, Client);
encode_enum!(TopologyKey: Hostname, Zone, Region, Any);
