//! EndpointSlices on the wire.

mod protobuf;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{Arguments, Display};

use serde::Deserialize;

use super::address::why_unusable_or_link_local;
use super::metadata::{Metadata, is_subdomain};
use super::node::is_zone;
use super::or_default;
use super::parser::Parser;
use super::scalar::Scalar;
use super::service::parse_family;
use crate::model::{self, Family, Hints};
use crate::problem::Problem;
use crate::store::{Interner, Parsed};

/// The manager of slices that copy a legacy Endpoints object.
const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";

/// `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping")]
pub struct EndpointSliceObject {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata,
    pub(super) address_type: Scalar,
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<SlicePortObject>,
    #[serde(deserialize_with = "or_default")]
    pub(super) endpoints: Vec<EndpointObject>,
}

/// `ports[]` of an [`EndpointSliceObject`], and `subsets[].ports[]` of legacy Endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
pub(super) struct SlicePortObject {
    name: Scalar,
    protocol: Scalar,
    port: Scalar,
}

/// `endpoints[]` of an [`EndpointSliceObject`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping")]
pub(super) struct EndpointObject {
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

impl EndpointSliceObject {
    /// Parses the object.
    ///
    /// Only the first address of an endpoint is used, as in kube-proxy: the API defines no meaning for
    /// the others. A slice of type `FQDN` or of a headless Service yields no object and no problem.
    ///
    /// # Errors
    /// If the object has no valid name.
    pub fn parse(&self, interner: &mut Interner) -> Result<Parsed<model::EndpointSlice>, Problem> {
        let name = self.metadata.object_name("EndpointSlice")?;
        let kind = "EndpointSlice";
        Ok(Parser::parse(kind, name, interner, |name, parser| {
            self.read(name, parser)
        }))
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
        parser: &mut Parser<'_>,
    ) -> Option<model::EndpointSlice> {
        let labels = &self.metadata.labels;
        // The watch's selector excludes these slices; manifests may contain them.
        if labels.headless != Scalar::Absent {
            return None;
        }
        if self.address_type.as_str() == Some("FQDN") {
            return None;
        }
        let Some(family) = parse_family(&self.address_type) else {
            let message = "is not IPv4, IPv6 or FQDN; the slice is skipped";
            parser.problem("addressType", &self.address_type, message);
            return None;
        };
        let service = labels
            .service_name
            .as_str()
            .filter(|service| is_subdomain(service));
        let Some(service) = service else {
            let field = "metadata.labels[kubernetes.io/service-name]";
            let message = "does not name a Service; the slice is skipped";
            parser.problem(field, &labels.service_name, message);
            return None;
        };
        let ports = slice_ports("ports", &self.ports, parser);
        let mut endpoints = Vec::with_capacity(self.endpoints.len());
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            endpoints.extend(endpoint.read(index, family, parser));
        }
        Some(model::EndpointSlice {
            name: name.clone(),
            service: service.into(),
            ports: ports.into(),
            endpoints: endpoints.into(),
            // Only a metric uses it, so that an unreadable time is no Problem.
            changed: (self.metadata.annotations.trigger_time.as_str())
                .and_then(|time| humantime::parse_rfc3339(time).ok()),
        })
    }
}

/// Parses the ports at the path `at`, in the object's order.
///
/// A port without a name gets the empty name. The API server adds it; a manifest may lack it.
pub(super) fn slice_ports(
    at: &str,
    wire: &[SlicePortObject],
    parser: &mut Parser<'_>,
) -> Vec<model::SlicePort> {
    let instead = "the port is skipped";
    let mut ports = Vec::with_capacity(wire.len());
    let mut seen = HashSet::new();
    for (index, port) in wire.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let read = (
            parser.port_name(format_args!("{at}.name"), &port.name, instead),
            parser.protocol(format_args!("{at}.protocol"), &port.protocol, instead),
            parser.port(format_args!("{at}.port"), &port.port, instead),
        );
        let (Some(name), Some(protocol), Some(port)) = read else {
            continue;
        };
        if !seen.insert((name, protocol)) {
            let message = "is the name of an earlier port too; the port is skipped";
            parser.problem(format_args!("{at}.name"), name, message);
            continue;
        }
        ports.push(model::SlicePort {
            name: parser.intern(name),
            protocol,
            port,
        });
    }
    ports
}

impl EndpointObject {
    fn read(
        &self,
        index: usize,
        family: Family,
        parser: &mut Parser<'_>,
    ) -> Option<model::Endpoint> {
        let instead = "the endpoint is skipped";
        let at = format_args!("endpoints[{index}]");
        let Some(text) = self.addresses.first() else {
            let message = format!("is empty; {instead}");
            parser.problem(format_args!("{at}.addresses"), "", message);
            return None;
        };
        let field = format_args!("{at}.addresses[0]");
        let address = parser.address(field, text, why_unusable_or_link_local, instead)?;
        if Family::from(address) != family {
            let message = format!("is not of the slice's addressType; {instead}");
            parser.problem(field, text, message);
            return None;
        }
        let mut flag = |name, value, default| {
            parser.flag(format_args!("{at}.conditions.{name}"), value, default)
        };
        let conditions = &self.conditions;
        let is_ready = flag("ready", &conditions.ready, true);
        let is_serving = flag("serving", &conditions.serving, true);
        let is_terminating = flag("terminating", &conditions.terminating, false);
        let node = node_name(format_args!("{at}.nodeName"), &self.node_name, parser);
        let zone = self.zone.as_str().filter(|zone| is_zone(zone));
        if zone.is_none() && !self.zone.is_blank() {
            let message = "is not a zone; the endpoint's zone is unknown";
            parser.problem(format_args!("{at}.zone"), &self.zone, message);
        }
        Some(model::Endpoint {
            address,
            is_ready,
            is_serving,
            is_terminating,
            location: parser.interner.location(node.as_deref(), zone),
            hints: self.hints.read(at, parser),
        })
    }
}

/// Parses the name of an endpoint's node, in lower case.
pub(super) fn node_name<'a>(
    field: impl Display,
    value: &'a Scalar,
    parser: &mut Parser<'_>,
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
    let message = "is not a node name; the endpoint's node is unknown";
    parser.problem(field, value, message);
    None
}

impl EndpointHints {
    fn read(&self, at: Arguments<'_>, parser: &mut Parser<'_>) -> Option<Box<Hints>> {
        if self.for_zones.is_empty() && self.for_nodes.is_empty() {
            return None;
        }
        let mut names = |list: &[Hint], field: &str| {
            let mut names = Vec::with_capacity(list.len());
            for (index, hint) in list.iter().enumerate() {
                let name = hint.name.as_str();
                match name.filter(|name| (1..=253).contains(&name.len())) {
                    Some(name) => names.push(parser.intern(name)),
                    None => {
                        let field = format_args!("{at}.hints.{field}[{index}].name");
                        parser.problem(field, &hint.name, "is not a name; the hint is ignored");
                    }
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
