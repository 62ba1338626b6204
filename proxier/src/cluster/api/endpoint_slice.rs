//! EndpointSlices on the wire.

use std::borrow::Cow;
use std::fmt::{Arguments, Display};
use std::sync::Arc;

use serde::Deserialize;

use super::address::why_unusable_or_link_local;
use super::metadata::{Metadata, is_subdomain};
use super::node::is_zone;
use super::parser::Parser;
use super::protobuf::{Fields, FromProtobuf};
use super::scalar::Scalar;
use super::seen::SeenValues;
use super::service::parse_family;
use super::{WireObject, or_default};
use crate::cluster::model::{self, Family, Hints, Location};
use crate::cluster::problem::Problem;
use crate::cluster::store::{Interner, Parsed};

/// The manager of slices that copy a legacy Endpoints object.
const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";

/// `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub struct EndpointSliceObject<'a> {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata<'a>,
    pub(super) address_type: Scalar<'a>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<SlicePortObject<'a>>,
    #[serde(deserialize_with = "or_default")]
    pub(super) endpoints: Vec<EndpointObject<'a>>,
}

impl<'a> FromProtobuf<'a> for EndpointSliceObject<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.merge(&mut it.metadata)),
        (2, |it, field| field.push(&mut it.endpoints)),
        (3, |it, field| field.push(&mut it.ports)),
        (4, |it, field| field.text(&mut it.address_type)),
    ];
}

/// `ports[]` of an [`EndpointSliceObject`], and `subsets[].ports[]` of legacy Endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(super) struct SlicePortObject<'a> {
    name: Scalar<'a>,
    protocol: Scalar<'a>,
    port: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for SlicePortObject<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.text(&mut it.name)),
        (2, |it, field| field.text(&mut it.protocol)),
        (3, |it, field| field.integer(&mut it.port)),
    ];
}

/// `endpoints[]` of an [`EndpointSliceObject`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(super) struct EndpointObject<'a> {
    #[serde(deserialize_with = "or_default")]
    pub(super) addresses: Vec<Scalar<'a>>,
    #[serde(deserialize_with = "or_default")]
    pub(super) conditions: Conditions<'a>,
    pub(super) node_name: Scalar<'a>,
    zone: Scalar<'a>,
    #[serde(deserialize_with = "or_default")]
    hints: EndpointHints<'a>,
}

impl<'a> FromProtobuf<'a> for EndpointObject<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.push_text(&mut it.addresses)),
        (2, |it, field| field.merge(&mut it.conditions)),
        (6, |it, field| field.text(&mut it.node_name)),
        (7, |it, field| field.text(&mut it.zone)),
        (8, |it, field| field.merge(&mut it.hints)),
    ];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(super) struct Conditions<'a> {
    pub(super) ready: Scalar<'a>,
    serving: Scalar<'a>,
    terminating: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for Conditions<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.flag(&mut it.ready)),
        (2, |it, field| field.flag(&mut it.serving)),
        (3, |it, field| field.flag(&mut it.terminating)),
    ];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct EndpointHints<'a> {
    #[serde(deserialize_with = "or_default")]
    for_zones: Vec<Hint<'a>>,
    #[serde(deserialize_with = "or_default")]
    for_nodes: Vec<Hint<'a>>,
}

impl<'a> FromProtobuf<'a> for EndpointHints<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.push(&mut it.for_zones)),
        (2, |it, field| field.push(&mut it.for_nodes)),
    ];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct Hint<'a> {
    name: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for Hint<'a> {
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| field.text(&mut it.name))];
}

impl WireObject for EndpointSliceObject<'_> {
    type Object = model::EndpointSlice;

    /// Only the first address of an endpoint is used, as in kube-proxy: the API defines no meaning for
    /// the others. A slice of type `FQDN`, of a headless Service or of no Service yields no object and no problem.
    fn parse(&self, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        let name = self.metadata.object_name("EndpointSlice")?;
        let kind = "EndpointSlice";
        let parsed = Parser::parse(kind, name, interner, |name, parser| self.read(name, parser));
        Ok(Parsed {
            // Only a metric uses it, so that an unreadable time is no Problem.
            changed: (self.metadata.annotations.trigger_time.as_str())
                .and_then(|time| humantime::parse_rfc3339(time).ok()),
            ..parsed
        })
    }
}

impl EndpointSliceObject<'_> {
    /// Returns the Service whose Endpoints object this slice copies, if it is a copy.
    pub(crate) fn mirrored_service(&self) -> Option<&str> {
        let labels = &self.metadata.labels;
        let is_copy = labels.managed_by.as_str() == Some(MIRRORING_CONTROLLER);
        labels.service_name.as_str().filter(|_| is_copy)
    }

    /// Returns whether the slice belongs to no Service. Removing the label detaches its endpoints.
    pub(crate) fn is_detached(&self) -> bool {
        self.metadata.labels.service_name.is_blank()
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
        if self.is_detached() || self.address_type.as_str() == Some("FQDN") {
            return None;
        }
        let Some(family) = parse_family(&self.address_type) else {
            let message = "is not IPv4, IPv6 or FQDN; the slice is skipped, but its last readable state, if any, \
                           stays in use";
            parser.problem("addressType", &self.address_type, message);
            return None;
        };
        let service = labels
            .service_name
            .as_str()
            .filter(|service| is_subdomain(service));
        let Some(service) = service else {
            let field = "metadata.labels[kubernetes.io/service-name]";
            let message = "is not the name of a Service; the slice is skipped, but its last readable state, if \
                           any, stays in use";
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
            service: (parser.interner).name(model::ObjectName::new(name.namespace(), service)),
            ports,
            endpoints: endpoints.into(),
        })
    }
}

/// Parses the ports at the path `at`. Returns them ordered by name and protocol, in shared memory.
///
/// A port without a name gets the empty name. The API server adds it; a manifest may lack it.
pub(super) fn slice_ports(
    at: &str,
    wire: &[SlicePortObject<'_>],
    parser: &mut Parser<'_>,
) -> Arc<[model::SlicePort]> {
    let instead = "the port is skipped";
    let mut ports = Vec::with_capacity(wire.len());
    let mut seen = SeenValues::new();
    for (index, port) in wire.iter().enumerate() {
        let at = format_args!("{at}[{index}]");
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
    ports.sort_by(|one, other| (&one.name, one.protocol).cmp(&(&other.name, other.protocol)));
    parser.interner.slice_ports(ports)
}

impl EndpointObject<'_> {
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
        Some(model::Endpoint {
            address,
            is_ready,
            is_serving,
            is_terminating,
            location: self.location(at, parser),
        })
    }

    fn location(&self, at: Arguments<'_>, parser: &mut Parser<'_>) -> Arc<Location> {
        let hints = self.hints.read(at, parser);
        // Nearly all endpoints have a location that an earlier endpoint had. It was checked then.
        if self.node_name.is_optional_text()
            && self.zone.is_optional_text()
            && let (node, zone) = (self.node_name.as_str(), self.zone.as_str())
            && let Some(known) = parser.interner.known_location(node, zone, &hints)
        {
            return known;
        }
        let node = node_name(format_args!("{at}.nodeName"), &self.node_name, parser);
        let zone = self.zone.as_str().filter(|zone| is_zone(zone));
        if zone.is_none() && !self.zone.is_blank() {
            let message = "is not a zone; the endpoint's zone is unknown";
            parser.problem(format_args!("{at}.zone"), &self.zone, message);
        }
        parser.interner.location(node.as_deref(), zone, hints)
    }
}

/// Parses the name of an endpoint's node, in lower case.
pub(super) fn node_name<'a>(
    field: impl Display,
    value: &'a Scalar<'_>,
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

impl EndpointHints<'_> {
    fn read(&self, at: Arguments<'_>, parser: &mut Parser<'_>) -> Hints {
        let mut names = |list: &[Hint<'_>], field: &str| {
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
        Hints {
            zones: names(&self.for_zones, "forZones"),
            nodes: names(&self.for_nodes, "forNodes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::api::from_json;

    #[test]
    fn a_slice_whose_label_names_no_service_belongs_to_none() {
        let parse = |label: &str, address_type: &str| {
            let slice = format!(
                r#"{{"metadata": {{"name": "web-1", "labels": {{{label}}}}}, "addressType": {address_type}}}"#
            );
            let slice: EndpointSliceObject<'_> = from_json(slice.as_bytes()).unwrap();
            slice.parse(&mut Interner::default()).unwrap()
        };
        let label = r#""kubernetes.io/service-name":"#;
        // Without a Problem, the store drops what it had of the slice.
        for absent in [
            String::new(),
            format!(r#"{label} """#),
            format!("{label} null"),
        ] {
            for address_type in [r#""IPv4""#, "7"] {
                let parsed = parse(&absent, address_type);
                assert_eq!(
                    (parsed.object, &parsed.problems[..]),
                    (None, &[][..]),
                    "{absent}"
                );
            }
        }
        for unreadable in ["7", r#""a web""#] {
            let parsed = parse(&format!("{label} {unreadable}"), r#""IPv4""#);
            let [problem] = &parsed.problems[..] else {
                panic!("{unreadable}: {:?}", parsed.problems);
            };
            assert_eq!(parsed.object, None);
            assert!(
                problem
                    .message
                    .ends_with("its last readable state, if any, stays in use"),
                "{problem}"
            );
        }
    }

    #[test]
    fn a_known_location_hides_no_problem() {
        let slice = br#"{
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.0.0.1"]},
                {"addresses": ["10.0.0.2"], "nodeName": "a"},
                {"addresses": ["10.0.0.3"], "nodeName": "a", "zone": "z"},
                {"addresses": ["10.0.0.4"], "nodeName": 1},
                {"addresses": ["10.0.0.5"], "nodeName": "a", "zone": 1},
                {"addresses": ["10.0.0.6"], "nodeName": "A", "zone": ""},
                {"addresses": ["10.0.0.7"], "nodeName": "a", "zone": "z"}
            ]
        }"#;
        let slice: EndpointSliceObject<'_> = from_json(slice).unwrap();
        let parsed = slice.parse(&mut Interner::default()).unwrap();
        let fields = parsed.problems.iter().map(|problem| &*problem.field);
        let expected = ["endpoints[3].nodeName", "endpoints[4].zone"];
        assert_eq!(fields.collect::<Vec<_>>(), expected);
        let endpoints = parsed.object.unwrap().endpoints;
        let same_place = |(one, other): (usize, usize)| {
            Arc::ptr_eq(&endpoints[one].location, &endpoints[other].location)
        };
        for same in [(0, 3), (1, 4), (1, 5), (2, 6)] {
            assert!(same_place(same), "{same:?}");
        }
        assert!(!same_place((0, 1)) && !same_place((1, 2)));
    }
}
