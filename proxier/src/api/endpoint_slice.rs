//! EndpointSlices on the wire.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;

use super::address::why_unusable_or_link_local;
use super::findings::Findings;
use super::metadata::{Metadata, is_subdomain};
use super::node::is_zone;
use super::or_default;
use super::scalar::Scalar;
use crate::model::{self, Family, Hints};
use crate::problem::Problem;
use crate::store::{Interner, Parsed};

/// The manager of slices that copy a legacy Endpoints object.
const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";

/// `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping")]
pub struct EndpointSlice {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata,
    pub(super) address_type: Scalar,
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<SlicePort>,
    #[serde(deserialize_with = "or_default")]
    pub(super) endpoints: Vec<Endpoint>,
}

/// `ports[]` of an [`EndpointSlice`], and `subsets[].ports[]` of legacy Endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
pub(super) struct SlicePort {
    name: Scalar,
    protocol: Scalar,
    port: Scalar,
}

/// `endpoints[]` of an [`EndpointSlice`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping")]
pub(super) struct Endpoint {
    #[serde(deserialize_with = "or_default")]
    pub(super) addresses: Vec<Scalar>,
    #[serde(deserialize_with = "or_default")]
    pub(super) conditions: Conditions,
    pub(super) node_name: Scalar,
    zone: Scalar,
    #[serde(deserialize_with = "or_default")]
    hints: EndpointHints,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
pub(super) struct Conditions {
    pub(super) ready: Scalar,
    serving: Scalar,
    terminating: Scalar,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping")]
struct EndpointHints {
    #[serde(deserialize_with = "or_default")]
    for_zones: Vec<Hint>,
    #[serde(deserialize_with = "or_default")]
    for_nodes: Vec<Hint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
struct Hint {
    name: Scalar,
}

impl EndpointSlice {
    /// Parses the object.
    ///
    /// Only the first address of an endpoint is used, as in kube-proxy: the API defines no meaning for
    /// the others. A slice of type `FQDN` or of a headless Service yields no object and no problem.
    ///
    /// # Errors
    /// If the object has no valid name.
    pub fn parse(&self, interner: &mut Interner) -> Result<Parsed<model::EndpointSlice>, Problem> {
        let name = self.metadata.object_name("EndpointSlice", interner)?;
        let mut findings = Findings::new("EndpointSlice", &name);
        let object = self.read(&name, interner, &mut findings);
        Ok(Parsed {
            name,
            object,
            problems: findings.into_problems(),
        })
    }

    /// Returns the Service whose Endpoints object this slice copies, if it is a copy.
    pub(crate) fn mirrored_service(&self) -> Option<&str> {
        let labels = &self.metadata.labels;
        let is_copy = labels.managed_by.as_str() == Some(MIRRORING_CONTROLLER);
        labels.service_name.as_str().filter(|_| is_copy)
    }

    fn read(
        &self,
        name: &model::ObjectName,
        interner: &mut Interner,
        findings: &mut Findings,
    ) -> Option<model::EndpointSlice> {
        let labels = &self.metadata.labels;
        // The watch's selector excludes these slices; manifests may contain them.
        if labels.headless != Scalar::Absent {
            return None;
        }
        let family = match self.address_type.as_str() {
            Some("IPv4") => Family::V4,
            Some("IPv6") => Family::V6,
            Some("FQDN") => return None,
            _ => {
                let message = "is not IPv4, IPv6 or FQDN; the slice is skipped";
                findings.add("addressType", &self.address_type, message);
                return None;
            }
        };
        let service = labels
            .service_name
            .as_str()
            .filter(|service| is_subdomain(service));
        let Some(service) = service else {
            let field = "metadata.labels[kubernetes.io/service-name]";
            let message = "does not name a Service; the slice is skipped";
            findings.add(field, &labels.service_name, message);
            return None;
        };
        Some(model::EndpointSlice {
            name: name.clone(),
            service: interner.intern(service),
            ports: slice_ports("ports", &self.ports, interner, findings),
            endpoints: self.endpoints(family, interner, findings),
        })
    }

    fn endpoints(
        &self,
        family: Family,
        interner: &mut Interner,
        findings: &mut Findings,
    ) -> Vec<model::Endpoint> {
        // The exact capacity, because endpoints are most of the snapshot's memory.
        let mut endpoints = Vec::with_capacity(self.endpoints.len());
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            endpoints.extend(endpoint.read(index, family, interner, findings));
        }
        endpoints
    }
}

/// Parses the ports at the path `at`, in the object's order.
///
/// A port without a name is the unnamed one: the API server adds the empty name, manifests need not.
pub(super) fn slice_ports(
    at: &str,
    wire: &[SlicePort],
    interner: &mut Interner,
    findings: &mut Findings,
) -> Vec<model::SlicePort> {
    let instead = "the port is skipped";
    let mut ports = Vec::with_capacity(wire.len());
    let mut seen = HashSet::new();
    for (index, port) in wire.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let read = (
            findings.port_name(&format!("{at}.name"), &port.name, instead),
            findings.protocol(&format!("{at}.protocol"), &port.protocol, instead),
            findings.port(&format!("{at}.port"), &port.port, instead),
        );
        let (Some(name), Some(protocol), Some(port)) = read else {
            continue;
        };
        if !seen.insert((name, protocol)) {
            findings.add(
                format!("{at}.name"),
                name,
                "is the name of an earlier port too; the port is skipped",
            );
            continue;
        }
        ports.push(model::SlicePort {
            name: interner.intern(name),
            protocol,
            port,
        });
    }
    ports
}

impl Endpoint {
    fn read(
        &self,
        index: usize,
        family: Family,
        interner: &mut Interner,
        findings: &mut Findings,
    ) -> Option<model::Endpoint> {
        let instead = "the endpoint is skipped";
        let Some(text) = self.addresses.first() else {
            findings.add(
                format!("endpoints[{index}].addresses"),
                "",
                format!("is empty; {instead}"),
            );
            return None;
        };
        // A field's path costs an allocation, so it is formatted only for invalid endpoints: a
        // large cluster has 100,000 valid ones.
        let address = match text.as_str().and_then(super::parse_address) {
            Some(address) if why_unusable_or_link_local(address).is_none() => address,
            _ => {
                let field = format!("endpoints[{index}].addresses[0]");
                findings.address(&field, text, why_unusable_or_link_local, instead)?
            }
        };
        if Family::from(address) != family {
            let field = format!("endpoints[{index}].addresses[0]");
            findings.add(
                field,
                text,
                format!("is not of the slice's addressType; {instead}"),
            );
            return None;
        }
        let conditions = &self.conditions;
        // The path is formatted only for an invalid value, as above.
        let mut flag = |name: &str, value: &Scalar, default: bool| match value {
            Scalar::Absent => default,
            Scalar::Boolean(flag) => *flag,
            _ => findings.flag(
                &format!("endpoints[{index}].conditions.{name}"),
                value,
                default,
            ),
        };
        Some(model::Endpoint {
            address,
            is_ready: flag("ready", &conditions.ready, true),
            is_serving: flag("serving", &conditions.serving, true),
            is_terminating: flag("terminating", &conditions.terminating, false),
            location: self.location(index, interner, findings),
            hints: self.hints.read(index, interner, findings),
        })
    }
}

impl Endpoint {
    fn location(
        &self,
        index: usize,
        interner: &mut Interner,
        findings: &mut Findings,
    ) -> Arc<model::Location> {
        let field = || format!("endpoints[{index}].nodeName");
        let node = node_name(field, &self.node_name, findings);
        let zone = self.zone(index, findings);
        interner.location(node.as_deref(), zone)
    }

    fn zone(&self, index: usize, findings: &mut Findings) -> Option<&str> {
        if self.zone.is_blank() {
            return None;
        }
        let zone = self.zone.as_str().filter(|zone| is_zone(zone));
        if zone.is_none() {
            let message = "is not a zone; the endpoint's zone is unknown";
            findings.add(format!("endpoints[{index}].zone"), &self.zone, message);
        }
        zone
    }
}

/// Parses the name of an endpoint's node, in lower case.
pub(super) fn node_name<'a>(
    field: impl FnOnce() -> String,
    value: &'a Scalar,
    findings: &mut Findings,
) -> Option<Cow<'a, str>> {
    if value.is_blank() {
        return None;
    }
    if let Some(name) = value.as_str() {
        if is_subdomain(name) {
            return Some(name.into());
        }
        // Node names are lower case in the API, but perhaps not in a hand-written slice.
        let lower = name.to_lowercase();
        if is_subdomain(&lower) {
            return Some(lower.into());
        }
    }
    findings.add(
        field(),
        value,
        "is not a node name; the endpoint's node is unknown",
    );
    None
}

impl EndpointHints {
    fn read(
        &self,
        index: usize,
        interner: &mut Interner,
        findings: &mut Findings,
    ) -> Option<Box<Hints>> {
        if self.for_zones.is_empty() && self.for_nodes.is_empty() {
            return None;
        }
        let mut names = |list: &[Hint], field: &str| {
            let mut names = Vec::with_capacity(list.len());
            for (at, hint) in list.iter().enumerate() {
                match hint
                    .name
                    .as_str()
                    .filter(|name| (1..=253).contains(&name.len()))
                {
                    Some(name) => names.push(interner.intern(name)),
                    None => findings.add(
                        format!("endpoints[{index}].hints.{field}[{at}].name"),
                        &hint.name,
                        "is not a name; the hint is ignored",
                    ),
                }
            }
            names
        };
        let zones = names(&self.for_zones, "forZones");
        let nodes = names(&self.for_nodes, "forNodes");
        // `None` and not an empty box: most endpoints have no hints.
        (!zones.is_empty() || !nodes.is_empty()).then(|| Box::new(Hints { zones, nodes }))
    }
}
