//! The metadata of objects.

use std::borrow::Cow;
use std::fmt;
use std::time::SystemTime;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::annotations::PREFIX;
use super::or_default;
use super::parser::Parser;
use super::protobuf::{Fields, FromProtobuf};
use super::scalar::Scalar;
use crate::cluster::model::ObjectName;
use crate::cluster::problem::Problem;

/// The annotation of an object that serves only as the lock of a leader election.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// The annotation with the time of the change that an EndpointSlice follows.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The maximum number of our annotations that are read from an object.
///
/// Each is compared with all others.
const MAX_OURS: usize = 200;

/// `metadata` of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(crate) struct Metadata<'a> {
    pub(crate) name: Scalar<'a>,
    pub(crate) namespace: Scalar<'a>,
    pub(crate) creation_timestamp: Scalar<'a>,
    pub(crate) deletion_timestamp: Scalar<'a>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) labels: Labels<'a>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) annotations: AnnotationMap<'a>,
}

impl<'a> FromProtobuf<'a> for Metadata<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.text(&mut it.name)),
        (3, |it, field| field.text(&mut it.namespace)),
        (8, |it, field| field.time(&mut it.creation_timestamp)),
        (9, |it, field| field.time(&mut it.deletion_timestamp)),
        (11, |it, field| field.entry(|name| it.labels.place(name))),
        (12, |it, field| {
            field.entry(|name| it.annotations.place(name))
        }),
    ];
}

/// The labels that the proxy uses, of all kinds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(crate) struct Labels<'a> {
    #[serde(rename = "kubernetes.io/service-name")]
    pub(crate) service_name: Scalar<'a>,
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(crate) service_proxy_name: Scalar<'a>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(crate) headless: Scalar<'a>,
    #[serde(rename = "endpointslice.kubernetes.io/managed-by")]
    pub(crate) managed_by: Scalar<'a>,
    #[serde(rename = "endpointslice.kubernetes.io/skip-mirror")]
    pub(crate) skip_mirror: Scalar<'a>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(crate) zone: Scalar<'a>,
    #[serde(rename = "topology.kubernetes.io/region")]
    pub(crate) region: Scalar<'a>,
}

impl<'a> Labels<'a> {
    /// Returns the place of a label's value; `None` if the proxy does not use the label.
    fn place(&mut self, name: &str) -> Option<&mut Scalar<'a>> {
        Some(match name {
            "kubernetes.io/service-name" => &mut self.service_name,
            "service.kubernetes.io/service-proxy-name" => &mut self.service_proxy_name,
            "service.kubernetes.io/headless" => &mut self.headless,
            "endpointslice.kubernetes.io/managed-by" => &mut self.managed_by,
            "endpointslice.kubernetes.io/skip-mirror" => &mut self.skip_mirror,
            "topology.kubernetes.io/zone" => &mut self.zone,
            "topology.kubernetes.io/region" => &mut self.region,
            _ => return None,
        })
    }
}

/// The annotations that the proxy uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnnotationMap<'a> {
    /// `control-plane.alpha.kubernetes.io/leader`: the object is only a lock.
    pub(crate) leader: Scalar<'a>,
    /// `endpoints.kubernetes.io/last-change-trigger-time` of an EndpointSlice.
    pub(crate) trigger_time: Scalar<'a>,
    /// The annotations of this proxy, named without the prefix, in the object's order.
    pub(super) ours: Vec<(Box<str>, Scalar<'a>)>,
}

/// Written by hand: derived code would drop unknown names with our prefix, which become Problems.
impl<'de: 'a, 'a> Deserialize<'de> for AnnotationMap<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AnnotationsVisitor)
    }
}

struct AnnotationsVisitor;

impl<'de> Visitor<'de> for AnnotationsVisitor {
    type Value = AnnotationMap<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AnnotationMap<'de>, A::Error> {
        let mut read = AnnotationMap::default();
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            // As serde's derived code does for duplicate fields.
            if read.has_ours(&name) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            match read.place(&name) {
                Some(place) => *place = map.next_value()?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(read)
    }
}

impl<'a> AnnotationMap<'a> {
    /// Returns whether the map has this annotation of ours.
    fn has_ours(&self, name: &str) -> bool {
        let name = name.strip_prefix(PREFIX);
        name.is_some_and(|name| self.ours.iter().any(|(known, _)| **known == *name))
    }

    /// Returns the place of an annotation's value; `None` if the proxy does not use the annotation.
    fn place(&mut self, name: &str) -> Option<&mut Scalar<'a>> {
        match name {
            LEADER => return Some(&mut self.leader),
            TRIGGER_TIME => return Some(&mut self.trigger_time),
            _ => {}
        }
        let name = name.strip_prefix(PREFIX)?;
        // Of two with one name the last counts, as in Go's decoder of protobuf.
        let known = self.ours.iter().position(|(known, _)| **known == *name);
        let index = known.unwrap_or(self.ours.len());
        if index == MAX_OURS {
            return None;
        }
        if index == self.ours.len() {
            self.ours.push((name.into(), Scalar::Absent));
        }
        self.ours.get_mut(index).map(|(_, value)| value)
    }
}

impl Metadata<'_> {
    /// Returns the object's name. An object without a namespace is in `default`, as for kubectl.
    ///
    /// # Errors
    /// If the API server would reject the name or the namespace.
    pub(crate) fn object_name(&self, kind: &str) -> Result<ObjectName, Problem> {
        let is_default = self.namespace.is_blank();
        let namespace = if is_default {
            Some("default")
        } else {
            self.namespace.as_str()
        };
        let Some(namespace) = namespace.filter(|namespace| is_label(namespace)) else {
            let message = "is not a DNS label; the object is skipped";
            return Err(self.problem(kind, "metadata.namespace", &self.namespace, message));
        };
        Ok(ObjectName::new(namespace, self.valid_name(kind)?))
    }

    /// Returns the name without its namespace.
    ///
    /// # Errors
    /// If the API server would reject the name.
    fn valid_name(&self, kind: &str) -> Result<&str, Problem> {
        self.name
            .as_str()
            .filter(|name| is_subdomain(name))
            .ok_or_else(|| {
                let message = "is not a DNS name of at most 253 characters; the object is skipped";
                self.problem(kind, "metadata.name", &self.name, message)
            })
    }

    /// Returns the name of a cluster-scoped object.
    ///
    /// # Errors
    /// If the API server would reject the name.
    pub(crate) fn cluster_object_name(&self, kind: &str) -> Result<ObjectName, Problem> {
        Ok(ObjectName::new("", self.valid_name(kind)?))
    }

    /// Returns `creationTimestamp`.
    pub(super) fn created(&self, parser: &mut Parser<'_>) -> Option<SystemTime> {
        let field = "metadata.creationTimestamp";
        let value = &self.creation_timestamp;
        let message = match value {
            Scalar::Absent => return None,
            Scalar::Text(text) => match humantime::parse_rfc3339(text) {
                Ok(time) => return Some(time),
                Err(_) => "is not an RFC 3339 time in UTC; ignored",
            },
            _ => "is not a string; ignored",
        };
        parser.problem(field, value, message);
        None
    }

    fn problem(&self, kind: &str, field: &str, value: &Scalar<'_>, message: &str) -> Problem {
        let object = match (&self.namespace, &self.name) {
            (_, Scalar::Absent) => kind.to_owned(),
            (Scalar::Absent, name) => format!("{kind} {name}"),
            (namespace, name) => format!("{kind} {namespace}/{name}"),
        };
        Problem::new(object, field, value, message)
    }
}

/// Returns whether `text` is a DNS label (RFC 1123), as namespaces and port names are.
pub(super) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_name_part(text.as_bytes())
}

/// Returns whether `text` is an RFC 1123 subdomain, as object names are.
///
/// Only the total length is limited, as in the API server's validation.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text
            .as_bytes()
            .split(|&byte| byte == b'.')
            .all(is_name_part)
}

fn is_name_part(part: &[u8]) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !part.is_empty()
        && part.iter().copied().all(is_letter)
        && !part.starts_with(b"-")
        && !part.ends_with(b"-")
}
