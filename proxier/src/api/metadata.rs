//! What all objects have in common.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::annotations::PREFIX;
use super::findings::Findings;
use super::or_default;
use super::scalar::Scalar;
use crate::model::ObjectName;
use crate::problem::Problem;
use crate::store::Interner;

/// The annotation by which leader elections mark the objects they (ab)use.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// `metadata` of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping")]
pub struct Metadata {
    pub(crate) name: Scalar,
    pub(crate) namespace: Scalar,
    pub(crate) creation_timestamp: Scalar,
    #[serde(deserialize_with = "or_default")]
    pub(crate) labels: Labels,
    #[serde(deserialize_with = "or_default")]
    pub(crate) annotations: Annotations,
}

/// The labels that are read, each where it means something.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
pub(crate) struct Labels {
    #[serde(rename = "kubernetes.io/service-name")]
    pub(crate) service_name: Scalar,
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(crate) service_proxy_name: Scalar,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(crate) headless: Scalar,
    #[serde(rename = "endpointslice.kubernetes.io/managed-by")]
    pub(crate) managed_by: Scalar,
    #[serde(rename = "endpointslice.kubernetes.io/skip-mirror")]
    pub(crate) skip_mirror: Scalar,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(crate) zone: Scalar,
    #[serde(rename = "topology.kubernetes.io/region")]
    pub(crate) region: Scalar,
}

/// The annotations that are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Annotations {
    /// `control-plane.alpha.kubernetes.io/leader`: the object is not what it seems.
    pub(crate) leader: Scalar,
    /// Ours, by their names without the prefix, in the object's order.
    pub(super) ours: Vec<(Box<str>, Scalar)>,
}

/// By hand, because of the names only those that begin with our prefix are kept, known or not.
impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AnnotationsVisitor)
    }
}

struct AnnotationsVisitor;

impl<'de> Visitor<'de> for AnnotationsVisitor {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
        let mut read = Annotations::default();
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if name == LEADER {
                read.leader = map.next_value()?;
            } else if let Some(ours) = name.strip_prefix(PREFIX) {
                if read.ours.iter().any(|(earlier, _)| **earlier == *ours) {
                    return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
                }
                read.ours.push((ours.into(), map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(read)
    }
}

impl Metadata {
    /// The object's name; an object without a namespace is in `default`, where kubectl puts it.
    ///
    /// # Errors
    /// When the name or the namespace is none that the API server would accept.
    pub(crate) fn object_name(
        &self,
        kind: &str,
        interner: &mut Interner,
    ) -> Result<ObjectName, Problem> {
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
        let name = self.cluster_name(kind)?;
        Ok(ObjectName {
            namespace: interner.intern(namespace),
            name: name.into(),
        })
    }

    /// The name of an object that is in no namespace.
    ///
    /// # Errors
    /// When the name is none that the API server would accept.
    pub(crate) fn cluster_name(&self, kind: &str) -> Result<&str, Problem> {
        self.name
            .as_str()
            .filter(|name| is_subdomain(name))
            .ok_or_else(|| {
                let message = "is not a DNS name of at most 253 characters; the object is skipped";
                self.problem(kind, "metadata.name", &self.name, message)
            })
    }

    /// The same as the name of an object in no namespace.
    ///
    /// # Errors
    /// As [`Metadata::cluster_name`].
    pub(crate) fn cluster_object_name(
        &self,
        kind: &str,
        interner: &mut Interner,
    ) -> Result<ObjectName, Problem> {
        let name = self.cluster_name(kind)?;
        Ok(ObjectName::new(interner.intern(""), interner.intern(name)))
    }

    /// `creationTimestamp` in the form that sorts by time.
    pub(super) fn created(&self, findings: &mut Findings) -> Option<Box<str>> {
        let field = "metadata.creationTimestamp";
        let text = findings.text(field, &self.creation_timestamp, "taken as unknown")?;
        if is_utc_second(text) {
            return Some(text.into());
        }
        findings.add(
            field,
            text,
            "is not a UTC time in whole seconds; taken as unknown",
        );
        None
    }

    fn problem(&self, kind: &str, field: &str, value: &Scalar, message: &str) -> Problem {
        let object = match (&self.namespace, &self.name) {
            (_, Scalar::Absent) => kind.to_owned(),
            (Scalar::Absent, name) => format!("{kind} {name}"),
            (namespace, name) => format!("{kind} {namespace}/{name}"),
        };
        Problem::new(object, field, value, message)
    }
}

/// Whether `text` is a DNS label (RFC 1123): the form of namespaces and port names.
pub(super) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_name_part(text)
}

/// Whether `text` is a DNS name in lower case (RFC 1123 subdomain): the form of object names.
///
/// Only the whole is limited in length, as in the API server's validation.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_name_part)
}

fn is_name_part(part: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !part.is_empty()
        && part.bytes().all(is_letter)
        && !part.starts_with('-')
        && !part.ends_with('-')
}

/// Whether `text` is a time such as `2026-11-21T02:54:59Z`, the only form the API server writes.
fn is_utc_second(text: &str) -> bool {
    let pattern = b"dddd-dd-ddTdd:dd:ddZ";
    text.len() == pattern.len()
        && text
            .bytes()
            .zip(pattern)
            .all(|(byte, &wanted)| match wanted {
                b'd' => byte.is_ascii_digit(),
                _ => byte == wanted,
            })
}
