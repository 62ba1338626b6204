//! After any history, a snapshot has the objects that arrived.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::cluster::model::{
    Annotations, Cidr, Endpoint, ExternalAddresses, Hints, Location, Protocol, ProxyProtocol,
    SchedulerFlags, ServicePort, SlicePort, SourceAddress, TopologyKey, TrafficPolicy, Weights,
};

/// Applies changes to a snapshot and expects its content to be that of a map.
#[derive(Default)]
struct Mirrored {
    snapshot: Snapshot,
    services: BTreeMap<ObjectName, Service>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
}

#[derive(Clone, Debug)]
enum Step {
    Service(Service),
    Slice(EndpointSlice),
    Delete(ObjectName),
    /// Complete lists, which may have several objects with one name: the last one wins.
    Reset(Vec<Service>, Vec<EndpointSlice>),
    /// Lists of the present objects.
    Relist,
}

impl Mirrored {
    fn apply(&mut self, change: Step) {
        match change {
            Step::Service(service) => {
                self.services.insert(service.name.clone(), service.clone());
                self.update(Event::Services(Update::Apply(parsed(
                    &service.name.clone(),
                    service,
                ))));
            }
            Step::Slice(slice) => {
                self.slices.insert(slice.name.clone(), slice.clone());
                self.update(Event::EndpointSlices(Update::Apply(parsed(
                    &slice.name.clone(),
                    slice,
                ))));
            }
            Step::Delete(name) => {
                self.services.remove(&name);
                self.slices.remove(&name);
                self.update(Event::Services(Update::Delete(name.clone())));
                self.update(Event::EndpointSlices(Update::Delete(name)));
            }
            Step::Reset(services, slices) => {
                let named = |service: &Service| (service.name.clone(), service.clone());
                self.services = services.iter().map(named).collect();
                let named = |slice: &EndpointSlice| (slice.name.clone(), slice.clone());
                self.slices = slices.iter().map(named).collect();
                let parse = |service: Service| parsed(&service.name.clone(), service);
                let services = services.into_iter().map(parse).collect();
                let parse = |slice: EndpointSlice| parsed(&slice.name.clone(), slice);
                let slices = slices.into_iter().map(parse).collect();
                self.update(Event::Services(Update::Reset(services)));
                self.update(Event::EndpointSlices(Update::Reset(slices)));
            }
            Step::Relist => {
                let services = self.services.iter().rev();
                let services = services
                    .map(|(name, it)| parsed(name, it.clone()))
                    .collect();
                let slices = self.slices.iter().rev();
                let slices = slices.map(|(name, it)| parsed(name, it.clone())).collect();
                let touched = self.update(Event::Services(Update::Reset(services)));
                assert_eq!(touched, Touched::none());
                let touched = self.update(Event::EndpointSlices(Update::Reset(slices)));
                assert_eq!(touched, Touched::none());
            }
        }
    }

    fn update(&mut self, event: Event) -> Touched {
        let mut touched = Touched::none();
        self.snapshot.apply(event, &mut touched);
        touched
    }

    fn expect(&self) {
        let services: Vec<Service> = self.snapshot.services().cloned().collect();
        let expected: Vec<Service> = self.services.values().cloned().collect();
        assert_eq!(services, expected);
        let mut names: BTreeSet<ObjectName> = self.services.keys().cloned().collect();
        names.extend(self.slices.values().map(|slice| slice.service.clone()));
        for name in names {
            assert_eq!(self.snapshot.service(&name), self.services.get(&name));
            let expected = self.slices.values().filter(|slice| slice.service == name);
            assert!(self.snapshot.slices(&name).eq(expected));
        }
    }
}

fn parsed<T>(name: &ObjectName, object: T) -> Parsed<T> {
    Parsed {
        name: name.clone(),
        object: Some(object),
        problems: Vec::new(),
        changed: None,
    }
}

proptest! {
    #[test]
    fn a_snapshot_has_the_objects_that_arrived(changes in vec(change(), 0..30)) {
        let mut compared = Mirrored::default();
        for change in changes {
            compared.apply(change);
            compared.expect();
        }
        // Without objects nothing remains of them.
        let names: Vec<ObjectName> = compared.services.keys().chain(compared.slices.keys()).cloned().collect();
        for name in names {
            compared.apply(Step::Delete(name));
        }
        let Snapshot { services, slices, slices_of, needing_regions, .. } = compared.snapshot;
        prop_assert!(services.is_empty() && slices.is_empty());
        prop_assert!(slices_of.is_empty() && needing_regions.is_empty());
    }
}

fn change() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => service().prop_map(Step::Service),
        3 => slice().prop_map(Step::Slice),
        1 => name().prop_map(Step::Delete),
        1 => (vec(service(), 0..6), vec(slice(), 0..6)).prop_map(|(services, slices)| Step::Reset(services, slices)),
        1 => Just(Step::Relist),
    ]
}

/// Names of which one begins with the other, with and without the end that the controller adds.
fn text() -> impl Strategy<Value = &'static str> {
    select(
        &[
            "a",
            "a-b",
            "a-b-c",
            "web",
            "web-x7k2p",
            "web-2-x7k2p",
            "by-hand",
        ][..],
    )
}

fn name() -> impl Strategy<Value = ObjectName> {
    (select(&["a", "a-b"][..]), text())
        .prop_map(|(namespace, name)| ObjectName::new(namespace, name))
}

fn service() -> impl Strategy<Value = Service> {
    let port = (
        text(),
        select(&Protocol::ALL[..]),
        1_u16..,
        option::of(1_u16..),
    );
    let port = port.prop_map(|(name, protocol, port, node_port)| ServicePort {
        name: name.into(),
        protocol,
        port,
        node_port,
    });
    let policy = || select(&[TrafficPolicy::Cluster, TrafficPolicy::Local][..]);
    let addresses = || vec(any::<IpAddr>(), 0..3);
    let plain = (
        name(),
        option::of(time()),
        addresses(),
        vec(port, 0..3),
        policy(),
        policy(),
    );
    let external = (addresses(), addresses(), vec(cidr(), 0..3));
    let external =
        external.prop_map(
            |(external_ips, load_balancer_ips, source_ranges)| ExternalAddresses {
                external_ips,
                load_balancer_ips,
                source_ranges,
            },
        );
    let seldom = (
        option::of(1_u32..=86_400),
        external,
        option::of(1_u16..),
        option::of(annotations()),
    );
    (plain, option::of(seldom)).prop_map(|(plain, seldom)| {
        let (name, created, cluster_ips, ports, internal_policy, external_policy) = plain;
        let (affinity_secs, external, port, annotations) = seldom.unwrap_or_default();
        Service {
            name,
            created,
            cluster_ips: cluster_ips.into(),
            ports: ports.into(),
            affinity_secs,
            internal_policy,
            external_policy,
            external: external.boxed(),
            health_check_node_port: port,
            annotations: annotations.map(Box::new),
        }
    })
}

fn time() -> impl Strategy<Value = SystemTime> {
    let distance = (0..1_u64 << 40, 0..1_000_000_000_u32);
    (any::<bool>(), distance).prop_map(|(is_after, (secs, nanos))| {
        let distance = Duration::new(secs, nanos);
        match is_after {
            true => SystemTime::UNIX_EPOCH + distance,
            false => SystemTime::UNIX_EPOCH - distance,
        }
    })
}

fn cidr() -> impl Strategy<Value = Cidr> {
    (any::<IpAddr>(), 0..=32_u8).prop_map(|(address, length)| Cidr::new(address, length).unwrap())
}

fn annotations() -> impl Strategy<Value = Annotations> {
    let flags = any::<[bool; 2]>().prop_map(|[fallback, port]| SchedulerFlags { fallback, port });
    let named = || vec((text().prop_map(Arc::from), any::<u16>()), 0..3).prop_map(Vec::into);
    let weights = (
        vec((cidr(), any::<u16>()), 0..3),
        named(),
        named(),
        any::<Option<u16>>(),
        any::<u16>(),
    );
    let weights = weights.prop_map(|(addresses, nodes, zones, region, default)| Weights {
        addresses: addresses.into(),
        nodes,
        zones,
        near: region
            .map(|weight| (TopologyKey::Region, weight))
            .into_iter()
            .collect(),
        default,
    });
    let keys = vec(select(&TopologyKey::ALL[..]), 1..4).prop_map(Vec::into);
    let fields = (
        option::of(text().prop_map(Box::from)),
        option::of(flags),
        option::of(weights),
        any::<Option<u32>>(),
        any::<Option<u32>>(),
        option::of(select(&[ProxyProtocol::V1, ProxyProtocol::V2][..])),
        option::of(select(&[SourceAddress::Node, SourceAddress::Client][..])),
        option::of(keys),
        any::<Option<u32>>(),
        any::<Option<u32>>(),
        any::<Option<u16>>(),
    );
    fields.prop_map(|fields| Annotations {
        scheduler: fields.0,
        scheduler_flags: fields.1,
        weights: fields.2,
        drain_secs: fields.3,
        idle_timeout_secs: fields.4,
        proxy_protocol: fields.5,
        source_address: fields.6,
        topology_keys: fields.7,
        slow_start_secs: fields.8,
        passive_health: fields.9,
        most_connections: fields.10,
    })
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let port = (text(), select(&Protocol::ALL[..]), 1_u16..);
    let port = port.prop_map(|(name, protocol, port)| SlicePort {
        name: name.into(),
        protocol,
        port,
    });
    let texts = || vec(text().prop_map(Arc::from), 0..3);
    let hints = (texts(), texts()).prop_map(|(zones, nodes)| Hints { zones, nodes });
    let endpoint = (
        any::<IpAddr>(),
        any::<[bool; 3]>(),
        option::of(text()),
        option::of(text()),
        hints,
    );
    let endpoint = endpoint.prop_map(|(address, states, node, zone, hints)| {
        let [is_ready, is_serving, is_terminating] = states;
        let location = Location {
            node: node.map(Arc::from),
            zone: zone.map(Arc::from),
            hints,
        };
        Endpoint {
            address,
            is_ready,
            is_serving,
            is_terminating,
            location: location.into(),
        }
    });
    let parts = (name(), text(), vec(port, 0..3), vec(endpoint, 0..4));
    parts.prop_map(|(name, service, ports, endpoints)| EndpointSlice {
        service: ObjectName::new(name.namespace(), service),
        name,
        ports: ports.into(),
        endpoints: endpoints.into(),
    })
}
