//! Classifies objects by kind and parses those of known kinds.

use serde_json::{Map, Value};

use super::field_path;
use crate::cluster::api;
use crate::cluster::problem::Problem;

/// An object of a kind that the proxy uses.
#[derive(Debug)]
pub(super) enum Object {
    Service(Box<api::ServiceObject<'static>>),
    EndpointSlice(api::EndpointSliceObject<'static>),
    Endpoints(api::Endpoints<'static>),
    Node(api::NodeObject<'static>),
}

/// The class of an object by its `apiVersion` and `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A kind that the proxy uses.
    Single(Single),
    /// A list of objects in `items`. An item without a kind of its own is of the given one.
    List(Option<Single>),
    /// A kind that the proxy does not use.
    Other,
}

/// The kinds that the proxy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Single {
    Service,
    EndpointSlice,
    Endpoints,
    Node,
}

/// The kinds of the core group that the proxy does not use; each has a list kind too.
///
/// Any further kind of the group is an error: it may be a misspelled Service.
const OTHER_CORE_KINDS: [&str; 14] = [
    "Binding",
    "ComponentStatus",
    "ConfigMap",
    "Event",
    "LimitRange",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ReplicationController",
    "ResourceQuota",
    "Secret",
    "ServiceAccount",
];

impl Kind {
    /// Classifies an object.
    ///
    /// In groups that Kubernetes does not define any kind is valid: a `Service` of
    /// `serving.knative.dev/v1` is of [`Kind::Other`].
    ///
    /// # Errors
    /// If a field is missing or not a string, or if the kind is probably misspelled. The problem
    /// does not name the object.
    pub(super) fn of(object: &Map<String, Value>) -> Result<Self, Problem> {
        let kind = word(object, "kind")?;
        let version = word(object, "apiVersion")?;
        let single = kind.strip_suffix("List").unwrap_or(kind);
        let found = match single {
            "Service" => Some((Single::Service, "v1")),
            "Endpoints" => Some((Single::Endpoints, "v1")),
            "Node" => Some((Single::Node, "v1")),
            "EndpointSlice" => Some((Single::EndpointSlice, "discovery.k8s.io/v1")),
            _ => None,
        };
        match found {
            Some((single, wanted)) if version == wanted => Ok(match kind.ends_with("List") {
                true => Self::List(Some(single)),
                false => Self::Single(single),
            }),
            Some((_, wanted)) if is_of_kubernetes(version) => {
                let message = format!("{kind} belongs to {wanted}; the object is skipped");
                Err(Problem::new("", "apiVersion", version, message))
            }
            Some(_) => Ok(Self::Other),
            None if kind == "List" && version == "v1" => Ok(Self::List(None)),
            None if is_misspelled(single, version) => {
                let message = format!("is not a kind of {version}; the object is skipped");
                Err(Problem::new("", "kind", kind, message))
            }
            None => Ok(Self::Other),
        }
    }
}

impl Single {
    /// Parses `value` as an object of this kind.
    ///
    /// # Errors
    /// If a list or a mapping is in the wrong place.
    pub(super) fn read(self, value: &Value) -> Result<Object, Problem> {
        let read = match self {
            Self::Service => field_path::from_value(value).map(Object::Service),
            Self::EndpointSlice => field_path::from_value(value).map(Object::EndpointSlice),
            Self::Endpoints => field_path::from_value(value).map(Object::Endpoints),
            Self::Node => field_path::from_value(value).map(Object::Node),
        };
        read.map_err(|error| {
            let message = format!("{}; the object is skipped", error.message);
            Problem::new(self.label(value), error.path, error.value, message)
        })
    }

    fn label(self, value: &Value) -> String {
        let kind = match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Endpoints => "Endpoints",
            Self::Node => "Node",
        };
        let text = |pointer| value.pointer(pointer).and_then(Value::as_str);
        match (text("/metadata/namespace"), text("/metadata/name")) {
            (_, None) => kind.to_owned(),
            (None, Some(name)) if self == Self::Node => format!("{kind} {name}"),
            (namespace, Some(name)) => format!("{kind} {}/{name}", namespace.unwrap_or("default")),
        }
    }
}

fn word<'a>(object: &'a Map<String, Value>, field: &str) -> Result<&'a str, Problem> {
    match object.get(field) {
        Some(Value::String(word)) if !word.is_empty() => Ok(word),
        None | Some(Value::Null) => {
            let message = "is missing; the object is skipped";
            Err(Problem::new("", field, "", message))
        }
        Some(other) => {
            let message = "is not a name; the object is skipped";
            Err(Problem::new("", field, other, message))
        }
    }
}

/// Returns whether Kubernetes defines the group of `version`: its groups have no dot or end in
/// `.k8s.io`.
fn is_of_kubernetes(version: &str) -> bool {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// Returns whether a kind that the proxy does not use is probably a misspelled one.
fn is_misspelled(single: &str, version: &str) -> bool {
    match version.split_once('/') {
        None => version != "v1" || !OTHER_CORE_KINDS.contains(&single),
        // EndpointSlice is the only kind of this group.
        Some((group, _)) => group == "discovery.k8s.io",
    }
}
