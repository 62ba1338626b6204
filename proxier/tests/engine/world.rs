//! A small cluster and its random changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proxier::testing::model::{
    Endpoint, EndpointSlice, ExternalAddresses, Location, ObjectName, Protocol, Service,
    ServicePort, SlicePort, TrafficPolicy,
};
use proxier::testing::store::{Event, Parsed, Update};

/// The objects of the API server.
#[derive(Debug, Default)]
pub(crate) struct World {
    services: BTreeMap<ObjectName, Service>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    ApplyService(Service),
    DeleteService(ObjectName),
    EditService(ObjectName, Edit),
    ApplySlice(EndpointSlice),
    DeleteSlice(ObjectName),
    /// The endpoints on other nodes leave.
    KeepLocalEndpoints(ObjectName),
}

/// An edit of a Service that exists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit {
    InternalPolicy(TrafficPolicy),
    ExternalPolicy(TrafficPolicy),
    ExternalIps(Option<u8>),
    LoadBalancerIps(Option<u8>),
    /// Adds this number to the node ports.
    NodePorts(u16),
}

/// Returns changes with few names, addresses and ports, so that objects conflict.
pub(crate) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => service().prop_map(Change::ApplyService),
        1 => service_name().prop_map(Change::DeleteService),
        4 => (service_name(), edit()).prop_map(|(name, edit)| Change::EditService(name, edit)),
        5 => slice().prop_map(Change::ApplySlice),
        1 => slice_name().prop_map(Change::DeleteSlice),
        1 => slice_name().prop_map(Change::KeepLocalEndpoints),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    let address = || proptest::option::of(0..3_u8);
    prop_oneof![
        policy().prop_map(Edit::InternalPolicy),
        policy().prop_map(Edit::ExternalPolicy),
        address().prop_map(Edit::ExternalIps),
        address().prop_map(Edit::LoadBalancerIps),
        (0..3_u16).prop_map(Edit::NodePorts),
    ]
}

/// Returns the external address with this number: few, so that Services conflict.
fn external(last: Option<u8>) -> Vec<IpAddr> {
    let address = |last| IpAddr::from([192, 0, 2, last]);
    last.map(address).into_iter().collect()
}

/// The names of Services. `kubernetes` is programmed before the others.
const SERVICES: [&str; 4] = ["alpha", "beta", "kubernetes", "web"];

fn service_name() -> impl Strategy<Value = ObjectName> {
    select(&SERVICES[..]).prop_map(|name| ObjectName::new("default", name))
}

fn slice_name() -> impl Strategy<Value = ObjectName> {
    (0..4_u8).prop_map(|number| ObjectName::new("default", format!("slice-{number}")))
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)]
}

fn service() -> impl Strategy<Value = Service> {
    let port = (0..2_u16, any::<bool>(), any::<bool>());
    let addresses = (0..4_u8, any::<bool>(), proptest::option::of(0..3_u8));
    (
        service_name(),
        addresses,
        vec(port, 1..3),
        policy(),
        policy(),
        any::<bool>(),
    )
        .prop_map(
            |(
                name,
                (last, is_dual, external_ip),
                ports,
                internal_policy,
                external_policy,
                is_sticky,
            )| {
                let mut cluster_ips: Vec<IpAddr> = vec![[10, 96, 0, last].into()];
                if is_dual {
                    cluster_ips.push([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last) + 1].into());
                }
                let mut service_ports: Vec<ServicePort> = Vec::new();
                for (number, is_udp, has_node_port) in ports {
                    let protocol = if is_udp { Protocol::Udp } else { Protocol::Tcp };
                    let name: Arc<str> = format!("p{number}").into();
                    if service_ports.iter().all(|port| port.name != name) {
                        service_ports.push(ServicePort {
                            name,
                            protocol,
                            port: 80 + number,
                            node_port: has_node_port.then_some(30_000 + number),
                        });
                    }
                }
                Service {
                    created: Some(UNIX_EPOCH + Duration::from_secs(last.into())),
                    name,
                    cluster_ips: cluster_ips.into(),
                    ports: service_ports.into(),
                    affinity_secs: is_sticky.then_some(600),
                    internal_policy,
                    external_policy,
                    external: ExternalAddresses {
                        external_ips: external(external_ip),
                        ..ExternalAddresses::default()
                    }
                    .boxed(),
                    health_check_node_port: None,
                    annotations: None,
                }
            },
        )
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let endpoint = (1..6_u8, 0..4_u8, any::<bool>());
    let service = select(&SERVICES[..]);
    (slice_name(), service, vec(endpoint, 0..5)).prop_map(|(name, service, endpoints)| {
        let port = |number: u16, protocol| SlicePort {
            name: format!("p{number}").into(),
            protocol,
            port: 8080 + number,
        };
        let endpoint = |(last, state, is_here): (u8, u8, bool)| Endpoint {
            address: [10, 244, 0, last].into(),
            is_ready: state > 1,
            is_serving: state > 0,
            is_terminating: state == 1,
            location: Arc::new(Location {
                node: Some(if is_here { "here" } else { "other" }.into()),
                ..Location::default()
            }),
        };
        EndpointSlice {
            name,
            service: ObjectName::new("default", service),
            ports: [
                port(0, Protocol::Tcp),
                port(1, Protocol::Tcp),
                port(0, Protocol::Udp),
            ]
            .into(),
            endpoints: endpoints.into_iter().map(endpoint).collect(),
        }
    })
}

fn parsed<T: Clone>((name, object): (&ObjectName, &T)) -> Parsed<T> {
    Parsed {
        name: name.clone(),
        object: Some(object.clone()),
        problems: Vec::new(),
        changed: None,
    }
}

impl World {
    /// Applies a change. Returns its event; `None` if the object to delete does not exist.
    pub(crate) fn apply(&mut self, change: Change) -> Option<Event> {
        Some(match change {
            Change::ApplyService(service) => {
                let event = Event::Services(Update::Apply(parsed((&service.name, &service))));
                self.services.insert(service.name.clone(), service);
                event
            }
            Change::DeleteService(name) => {
                self.services.remove(&name)?;
                Event::Services(Update::Delete(name))
            }
            Change::EditService(name, edit) => {
                let service = self.services.get_mut(&name)?;
                match edit {
                    Edit::InternalPolicy(policy) => service.internal_policy = policy,
                    Edit::ExternalPolicy(policy) => service.external_policy = policy,
                    Edit::ExternalIps(last) => {
                        service.external.get_or_insert_default().external_ips = external(last);
                    }
                    Edit::LoadBalancerIps(last) => {
                        service.external.get_or_insert_default().load_balancer_ips = external(last);
                    }
                    Edit::NodePorts(more) => {
                        let ports = Arc::make_mut(&mut service.ports).iter_mut();
                        ports
                            .for_each(|port| port.node_port = Some(30_000 + port.port - 80 + more));
                    }
                }
                Event::Services(Update::Apply(parsed((&name, &*service))))
            }
            Change::KeepLocalEndpoints(name) => {
                let slice = self.slices.get_mut(&name)?;
                let is_local = |it: &Endpoint| it.location.node.as_deref() == Some("here");
                let local = slice.endpoints.iter().filter(|&it| is_local(it));
                slice.endpoints = local.cloned().collect();
                Event::EndpointSlices(Update::Apply(parsed((&name, &*slice))))
            }
            Change::ApplySlice(slice) => {
                let event = Event::EndpointSlices(Update::Apply(parsed((&slice.name, &slice))));
                self.slices.insert(slice.name.clone(), slice);
                event
            }
            Change::DeleteSlice(name) => {
                self.slices.remove(&name)?;
                Event::EndpointSlices(Update::Delete(name))
            }
        })
    }

    pub(crate) fn all_services(&self) -> Event {
        Event::Services(Update::Reset(self.services.iter().map(parsed).collect()))
    }

    pub(crate) fn all_slices(&self) -> Event {
        Event::EndpointSlices(Update::Reset(self.slices.iter().map(parsed).collect()))
    }
}
