//! Our decoders read what others wrote: objects of k8s-openapi in JSON, and in protobuf by the numbers of Kubernetes' own
//! `.proto` files.

use std::collections::BTreeMap;

use api_server::messages::{encode_json, encode_partial};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ManagedFieldsEntry, ObjectMeta, OwnerReference, Time,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde::Deserialize;

use super::endpoints::Endpoints;
use super::*;

/// Bytes that decide what an object has.
struct Choices<'a>(&'a mut dyn Iterator<Item = u8>);

impl Choices<'_> {
    /// Returns the next byte; 0 after the last one.
    fn next(&mut self) -> u8 {
        self.0.next().unwrap_or(0)
    }

    fn is_set(&mut self) -> bool {
        self.next() >= 0x80
    }

    fn option<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.is_set().then(|| value(self))
    }

    fn list<T>(&mut self, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.next() >> 6).map(|_| value(self)).collect()
    }

    fn text(&mut self) -> String {
        let texts = ["web", "10.96.0.1", "Local", "ä/€", "fd00::7", "TCP"];
        let choice = usize::from(self.next());
        match texts.get(choice) {
            Some(text) => (*text).to_owned(),
            // Of all lengths around those at which a length takes another byte.
            None => "x".repeat(choice),
        }
    }

    fn number(&mut self) -> i32 {
        let numbers = [1, 80, 127, 128, 65_535, 70_000, i32::MAX, -1, i32::MIN];
        numbers[usize::from(self.next()) % numbers.len()]
    }

    fn time(&mut self) -> Time {
        let second = i64::from(self.next()) * 10_000_000;
        Time(Timestamp::from_second(second + 1).unwrap())
    }

    /// Returns a map with some of these names.
    fn map(&mut self, names: &[&str]) -> BTreeMap<String, String> {
        let mut map = BTreeMap::new();
        for name in names {
            if self.is_set() {
                map.insert((*name).to_owned(), self.text());
            }
        }
        map
    }
}

fn metadata(any: &mut Choices<'_>) -> ObjectMeta {
    let labels = [
        "app",
        "kubernetes.io/service-name",
        "service.kubernetes.io/service-proxy-name",
        "service.kubernetes.io/headless",
        "endpointslice.kubernetes.io/managed-by",
        "endpointslice.kubernetes.io/skip-mirror",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    ];
    let annotations = [
        "control-plane.alpha.kubernetes.io/leader",
        "endpoints.kubernetes.io/last-change-trigger-time",
        "ipvs-proxier.io/any",
        "note",
    ];
    ObjectMeta {
        name: any.option(Choices::text),
        namespace: any.option(Choices::text),
        generate_name: any.option(Choices::text),
        resource_version: any.option(Choices::text),
        generation: any.option(|any| any.number().into()),
        creation_timestamp: any.option(Choices::time),
        deletion_timestamp: any.option(Choices::time),
        labels: Some(any.map(&labels)),
        annotations: Some(any.map(&annotations)),
        owner_references: Some(any.list(|any| OwnerReference {
            name: any.text(),
            controller: any.option(Choices::is_set),
            ..OwnerReference::default()
        })),
        managed_fields: Some(any.list(|any| ManagedFieldsEntry {
            manager: any.option(Choices::text),
            time: any.option(Choices::time),
            ..ManagedFieldsEntry::default()
        })),
        ..ObjectMeta::default()
    }
}

fn service(any: &mut Choices<'_>) -> core::Service {
    let port = |any: &mut Choices<'_>| core::ServicePort {
        name: any.option(Choices::text),
        protocol: any.option(Choices::text),
        port: any.number(),
        target_port: any.option(|any| IntOrString::String(any.text())),
        node_port: any.option(Choices::number),
        app_protocol: any.option(Choices::text),
    };
    let ingress = |any: &mut Choices<'_>| core::LoadBalancerIngress {
        ip: any.option(Choices::text),
        hostname: any.option(Choices::text),
        ip_mode: any.option(Choices::text),
        ports: None,
    };
    let affinity = |any: &mut Choices<'_>| core::SessionAffinityConfig {
        client_ip: any.option(|any| core::ClientIPConfig {
            timeout_seconds: any.option(Choices::number),
        }),
    };
    core::Service {
        metadata: metadata(any),
        spec: any.option(|any| core::ServiceSpec {
            allocate_load_balancer_node_ports: any.option(Choices::is_set),
            cluster_ip: any.option(Choices::text),
            cluster_ips: Some(any.list(Choices::text)),
            external_ips: Some(any.list(Choices::text)),
            external_name: any.option(Choices::text),
            external_traffic_policy: any.option(Choices::text),
            health_check_node_port: any.option(Choices::number),
            internal_traffic_policy: any.option(Choices::text),
            ip_families: Some(any.list(Choices::text)),
            ip_family_policy: any.option(Choices::text),
            load_balancer_class: any.option(Choices::text),
            load_balancer_ip: any.option(Choices::text),
            load_balancer_source_ranges: Some(any.list(Choices::text)),
            ports: Some(any.list(port)),
            publish_not_ready_addresses: any.option(Choices::is_set),
            // In protobuf it is not read, because only manifests need it.
            selector: None,
            session_affinity: any.option(Choices::text),
            session_affinity_config: any.option(affinity),
            traffic_distribution: any.option(Choices::text),
            type_: any.option(Choices::text),
        }),
        status: any.option(|any| core::ServiceStatus {
            load_balancer: any.option(|any| core::LoadBalancerStatus {
                ingress: Some(any.list(ingress)),
            }),
            conditions: None,
        }),
    }
}

fn slice(any: &mut Choices<'_>) -> discovery::EndpointSlice {
    let hints = |any: &mut Choices<'_>| discovery::EndpointHints {
        for_zones: Some(any.list(|any| discovery::ForZone { name: any.text() })),
        for_nodes: Some(any.list(|any| discovery::ForNode { name: any.text() })),
    };
    let endpoint = |any: &mut Choices<'_>| discovery::Endpoint {
        addresses: any.list(Choices::text),
        conditions: any.option(|any| discovery::EndpointConditions {
            ready: any.option(Choices::is_set),
            serving: any.option(Choices::is_set),
            terminating: any.option(Choices::is_set),
        }),
        hostname: any.option(Choices::text),
        node_name: any.option(Choices::text),
        zone: any.option(Choices::text),
        hints: any.option(hints),
        target_ref: any.option(object_reference),
        deprecated_topology: Some(any.map(&["topology.kubernetes.io/zone"])),
    };
    discovery::EndpointSlice {
        metadata: metadata(any),
        address_type: any.text(),
        endpoints: any.list(endpoint),
        ports: Some(any.list(|any| discovery::EndpointPort {
            name: any.option(Choices::text),
            protocol: any.option(Choices::text),
            port: any.option(Choices::number),
            app_protocol: any.option(Choices::text),
        })),
    }
}

fn object_reference(any: &mut Choices<'_>) -> core::ObjectReference {
    core::ObjectReference {
        name: any.option(Choices::text),
        kind: any.option(Choices::text),
        ..core::ObjectReference::default()
    }
}

fn node(any: &mut Choices<'_>) -> core::Node {
    core::Node {
        metadata: metadata(any),
        spec: any.option(|any| core::NodeSpec {
            pod_cidr: any.option(Choices::text),
            pod_cidrs: Some(any.list(Choices::text)),
            provider_id: any.option(Choices::text),
            taints: Some(any.list(|any| core::Taint {
                key: any.text(),
                effect: any.text(),
                ..core::Taint::default()
            })),
            ..core::NodeSpec::default()
        }),
        status: any.option(|any| core::NodeStatus {
            addresses: Some(any.list(|any| core::NodeAddress {
                address: any.text(),
                type_: any.text(),
            })),
            ..core::NodeStatus::default()
        }),
    }
}

fn service_cidr(any: &mut Choices<'_>) -> networking::ServiceCIDR {
    networking::ServiceCIDR {
        metadata: metadata(any),
        spec: any.option(|any| networking::ServiceCIDRSpec {
            cidrs: Some(any.list(Choices::text)),
        }),
        status: None,
    }
}

/// Legacy Endpoints come from manifests, so they are read in JSON only.
fn endpoints(any: &mut Choices<'_>) -> core::Endpoints {
    let address = |any: &mut Choices<'_>| core::EndpointAddress {
        ip: any.text(),
        hostname: any.option(Choices::text),
        node_name: any.option(Choices::text),
        target_ref: any.option(object_reference),
    };
    core::Endpoints {
        metadata: metadata(any),
        subsets: Some(any.list(|any| core::EndpointSubset {
            addresses: Some(any.list(address)),
            not_ready_addresses: Some(any.list(address)),
            ports: Some(any.list(|any| core::EndpointPort {
                name: any.option(Choices::text),
                protocol: any.option(Choices::text),
                port: any.number(),
                app_protocol: any.option(Choices::text),
            })),
        })),
    }
}

/// Returns what we read of a random object, after it was found equal in both encodings. `$wire` is our type.
///
/// A macro, because the type borrows from the text and from the message.
macro_rules! read_both {
    ($wire:ident, $object:expr, $encode:expr) => {{
        let object = serde_json::to_value(&$object).unwrap();
        let text = object.to_string();
        let json: $wire<'_> = from_json(text.as_bytes()).unwrap();
        let json = format!("{json:#?}");
        let message: Vec<u8> = $encode(&object);
        let protobuf: $wire<'_> = from_protobuf(&message).unwrap();
        assert_eq!(format!("{protobuf:#?}"), json);
        json
    }};
}

/// Returns what we read of an object of each kind, of which `bytes` decides what it has.
fn read_all(bytes: &(impl Iterator<Item = u8> + Clone)) -> Vec<String> {
    let new = || bytes.clone();
    vec![
        read_both!(
            ServiceObject,
            service(&mut Choices(&mut new())),
            encode_json::<core::Service>
        ),
        read_both!(
            EndpointSliceObject,
            slice(&mut Choices(&mut new())),
            encode_json::<discovery::EndpointSlice>
        ),
        read_both!(
            NodeObject,
            node(&mut Choices(&mut new())),
            encode_json::<core::Node>
        ),
        read_both!(NodeLabels, node(&mut Choices(&mut new())), encode_partial),
        read_both!(
            ServiceCidrObject,
            service_cidr(&mut Choices(&mut new())),
            encode_json::<networking::ServiceCIDR>
        ),
    ]
}

proptest! {
    #[test]
    fn both_encodings_mean_the_same(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes.into_iter());
    }
}

#[test]
fn every_field_is_read() {
    let full = std::iter::repeat(u8::MAX);
    let endpoints = serde_json::to_vec(&endpoints(&mut Choices(&mut full.clone()))).unwrap();
    let endpoints: Endpoints<'_> = from_json(&endpoints).unwrap();
    let mut all = read_all(&full);
    all.push(format!("{endpoints:#?}"));
    for read in all {
        let read = read.replace("selector: {}", "");
        for nothing in ["Absent", "None", "[]", "{}"] {
            assert!(!read.contains(nothing), "{nothing} in {read}");
        }
    }
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

#[test]
fn bytes_that_are_not_utf8_matter_only_in_fields_that_are_read() {
    let named: Named = from_json(b"{\"other\": \"\xff\", \"name\": \"web\"}").unwrap();
    assert_eq!(named.name, "web");
    assert!(from_json::<Named>(b"{\"name\": \"\xff\"}").is_err());
}
