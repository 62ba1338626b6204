//! Services on the wire.

mod addresses;
mod ports;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

pub(crate) use self::addresses::parse_family;
use super::annotations;
use super::metadata::Metadata;
use super::parser::Parser;
use super::protobuf::{Fields, FromProtobuf};
use super::scalar::Scalar;
use super::{WireObject, or_default};
use crate::cluster::model::{self, TrafficPolicy};
use crate::cluster::problem::Problem;
use crate::cluster::store::{Interner, Parsed};

/// The API's default of `spec.sessionAffinityConfig.clientIP.timeoutSeconds`.
const DEFAULT_AFFINITY_SECS: u32 = 10_800;
/// The longest affinity that the API accepts: a day.
const MAX_AFFINITY_SECS: u32 = 86_400;

/// `v1` `Service`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub struct ServiceObject<'a> {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata<'a>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) spec: ServiceSpec<'a>,
    #[serde(deserialize_with = "or_default")]
    status: ServiceStatus<'a>,
}

impl<'a> FromProtobuf<'a> for ServiceObject<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.merge(&mut it.metadata)),
        (2, |it, field| field.merge(&mut it.spec)),
        (3, |it, field| field.merge(&mut it.status)),
    ];
}

/// `spec` of a [`ServiceObject`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(crate) struct ServiceSpec<'a> {
    pub(crate) r#type: Scalar<'a>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Scalar<'a>,
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    pub(crate) cluster_ips: Vec<Scalar<'a>>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) ip_families: Vec<Scalar<'a>>,
    pub(crate) ip_family_policy: Scalar<'a>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) ports: Vec<PortObject<'a>>,
    #[serde(deserialize_with = "or_default")]
    // Only whether it is empty is used: it decides whether Endpoints are mirrored.
    selector: BTreeMap<Box<str>, IgnoredAny>,
    session_affinity: Scalar<'a>,
    #[serde(deserialize_with = "or_default")]
    session_affinity_config: AffinityConfig<'a>,
    #[serde(rename = "externalIPs", deserialize_with = "or_default")]
    external_ips: Vec<Scalar<'a>>,
    pub(crate) external_traffic_policy: Scalar<'a>,
    internal_traffic_policy: Scalar<'a>,
    pub(crate) health_check_node_port: Scalar<'a>,
    #[serde(deserialize_with = "or_default")]
    load_balancer_source_ranges: Vec<Scalar<'a>>,
    pub(crate) allocate_load_balancer_node_ports: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for ServiceSpec<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.push(&mut it.ports)),
        (3, |it, field| field.text(&mut it.cluster_ip)),
        (4, |it, field| field.text(&mut it.r#type)),
        (5, |it, field| field.push_text(&mut it.external_ips)),
        (7, |it, field| field.text(&mut it.session_affinity)),
        (9, |it, field| {
            field.push_text(&mut it.load_balancer_source_ranges)
        }),
        (11, |it, field| field.text(&mut it.external_traffic_policy)),
        (12, |it, field| {
            field.integer(&mut it.health_check_node_port)
        }),
        (14, |it, field| field.merge(&mut it.session_affinity_config)),
        (17, |it, field| field.text(&mut it.ip_family_policy)),
        (18, |it, field| field.push_text(&mut it.cluster_ips)),
        (19, |it, field| field.push_text(&mut it.ip_families)),
        (20, |it, field| {
            field.flag(&mut it.allocate_load_balancer_node_ports)
        }),
        (22, |it, field| field.text(&mut it.internal_traffic_policy)),
    ];
}

/// `spec.ports[]` of a [`ServiceObject`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(crate) struct PortObject<'a> {
    name: Scalar<'a>,
    protocol: Scalar<'a>,
    pub(crate) port: Scalar<'a>,
    pub(crate) node_port: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for PortObject<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.text(&mut it.name)),
        (2, |it, field| field.text(&mut it.protocol)),
        (3, |it, field| field.integer(&mut it.port)),
        (5, |it, field| field.integer(&mut it.node_port)),
    ];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct AffinityConfig<'a> {
    #[serde(rename = "clientIP", deserialize_with = "or_default")]
    client_ip: ClientIpConfig<'a>,
}

impl<'a> FromProtobuf<'a> for AffinityConfig<'a> {
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| field.merge(&mut it.client_ip))];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct ClientIpConfig<'a> {
    timeout_seconds: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for ClientIpConfig<'a> {
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| field.integer(&mut it.timeout_seconds))];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct ServiceStatus<'a> {
    #[serde(deserialize_with = "or_default")]
    load_balancer: LoadBalancerStatus<'a>,
}

impl<'a> FromProtobuf<'a> for ServiceStatus<'a> {
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| field.merge(&mut it.load_balancer))];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct LoadBalancerStatus<'a> {
    #[serde(deserialize_with = "or_default")]
    ingress: Vec<Ingress<'a>>,
}

impl<'a> FromProtobuf<'a> for LoadBalancerStatus<'a> {
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| field.push(&mut it.ingress))];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct Ingress<'a> {
    ip: Scalar<'a>,
    ip_mode: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for Ingress<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.text(&mut it.ip)),
        (3, |it, field| field.text(&mut it.ip_mode)),
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServiceType {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

impl WireObject for ServiceObject<'_> {
    type Object = model::Service;

    /// A headless Service, one of type `ExternalName` and one with the label
    /// `service.kubernetes.io/service-proxy-name` of another proxy yield no object and no problem.
    fn parse(&self, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        let name = self.metadata.object_name("Service")?;
        Ok(Parser::parse("Service", name, interner, |name, parser| {
            self.read(name, parser)
        }))
    }
}

impl ServiceObject<'_> {
    /// Returns whether the Service has cluster IPs, no matter which proxy serves it.
    pub(crate) fn has_addresses(&self) -> bool {
        let is_headless = |ip: &Scalar<'_>| ip.as_str() == Some("None");
        !is_headless(&self.spec.cluster_ip)
            && !self.spec.cluster_ips.first().is_some_and(is_headless)
            && self.spec.r#type.as_str() != Some("ExternalName")
    }

    /// Returns whether the control plane selects the endpoints by Pod labels.
    pub(crate) fn has_selector(&self) -> bool {
        !self.spec.selector.is_empty()
    }

    fn read(&self, name: &model::ObjectName, parser: &mut Parser<'_>) -> Option<model::Service> {
        // Whatever the label's value: kube-proxy's selector requires its absence.
        if !self.has_addresses() || self.metadata.labels.service_proxy_name != Scalar::Absent {
            return None;
        }
        let spec = &self.spec;
        let kind = parser.choice(
            "spec.type",
            &spec.r#type,
            [
                ("ClusterIP", ServiceType::ClusterIp),
                ("NodePort", ServiceType::NodePort),
                ("LoadBalancer", ServiceType::LoadBalancer),
                ("ExternalName", ServiceType::ExternalName),
            ],
        );
        let cluster_ips = addresses::cluster_ips(spec, parser);
        if cluster_ips.is_empty() {
            // A cluster IP that is present but invalid has its own Problem already.
            if spec.cluster_ip.is_blank() {
                let message = "is missing; the Service is not served";
                parser.problem("spec.clusterIP", &spec.cluster_ip, message);
            }
            return None;
        }
        let policies = [
            ("Cluster", TrafficPolicy::Cluster),
            ("Local", TrafficPolicy::Local),
        ];
        let field = "spec.internalTrafficPolicy";
        let internal_policy = parser.choice(field, &spec.internal_traffic_policy, policies);
        let field = "spec.externalTrafficPolicy";
        let mut external_policy = parser.choice(field, &spec.external_traffic_policy, policies);
        // The API ignores the field if clients outside the cluster cannot reach the Service.
        if kind == ServiceType::ClusterIp && spec.external_ips.is_empty() {
            external_policy = TrafficPolicy::Cluster;
        }
        // As in kube-proxy: with policy Cluster every node is healthy for a load balancer.
        let has_health_check =
            kind == ServiceType::LoadBalancer && external_policy == TrafficPolicy::Local;
        let created = self.metadata.created(parser);
        let ports = ports::ports(&spec.ports, parser);
        let ports = parser.interner.service_ports(ports);
        let affinity_secs = self.affinity_secs(parser);
        let external_ips = addresses::external_ips(&spec.external_ips, &cluster_ips, parser);
        let ingress = &self.status.load_balancer.ingress;
        let load_balancer_ips = addresses::ingress_ips(ingress, &cluster_ips, parser);
        let ranges = &spec.load_balancer_source_ranges;
        let source_ranges = addresses::source_ranges(ranges, &load_balancer_ips, parser);
        let external = model::ExternalAddresses {
            external_ips,
            load_balancer_ips,
            source_ranges,
        };
        let external = external.boxed();
        Some(model::Service {
            name: name.clone(),
            created,
            ports,
            affinity_secs,
            internal_policy,
            external_policy,
            external,
            cluster_ips: cluster_ips.into(),
            health_check_node_port: has_health_check
                .then(|| self.health_check_node_port(parser))
                .flatten(),
            annotations: annotations::read(&self.metadata.annotations, parser),
        })
    }

    fn affinity_secs(&self, parser: &mut Parser<'_>) -> Option<u32> {
        let words = [("None", false), ("ClientIP", true)];
        if !parser.choice("spec.sessionAffinity", &self.spec.session_affinity, words) {
            return None;
        }
        let timeout = &self.spec.session_affinity_config.client_ip.timeout_seconds;
        let secs = match timeout {
            Scalar::Absent => Some(DEFAULT_AFFINITY_SECS),
            Scalar::Integer(number) => u32::try_from(*number)
                .ok()
                .filter(|secs| (1..=MAX_AFFINITY_SECS).contains(secs)),
            _ => None,
        };
        Some(secs.unwrap_or_else(|| {
            parser.problem(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                timeout,
                format!("is not 1 to {MAX_AFFINITY_SECS}; {DEFAULT_AFFINITY_SECS} is used"),
            );
            DEFAULT_AFFINITY_SECS
        }))
    }

    fn health_check_node_port(&self, parser: &mut Parser<'_>) -> Option<u16> {
        let port = &self.spec.health_check_node_port;
        let instead = "the Service has no health check";
        parser.port("spec.healthCheckNodePort", port, instead)
    }
}
