//! The kinds that are watched, and the parsing of their objects.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::json::MAX_OBJECT;
use crate::api;
use crate::model::{self, ObjectName};
use crate::problem::Problem;
use crate::store::{Event, Interner, ObjectKind, Parsed, Update};

/// Media type of complete objects in JSON.
pub(super) const FULL_OBJECTS: &str = "application/json";
/// Media type of objects reduced to their metadata; servers before 1.15 return complete ones.
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                                   application/json";
/// Media type of a list of objects reduced to their metadata.
pub(super) const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// A kind that can be listed and watched.
pub(super) trait Resource: Send + 'static {
    /// The type of its objects on the wire.
    type Wire: DeserializeOwned;
    /// The type of its objects in the model.
    type Object: ObjectKind + Send;

    /// The kind's name.
    const KIND: &'static str;
    /// The kind's plural name in messages.
    const PLURAL: &'static str;
    /// The path of the collection.
    const PATH: &'static str;
    /// The label selector.
    const LABELS: Option<&'static str> = None;
    /// The field selector.
    const FIELDS: Option<&'static str> = None;
    /// Whether the proxy works without the kind if the server lacks it or denies access to it.
    const IS_OPTIONAL: bool = false;
    /// The `Accept` header of a watch, and that of a list.
    const ACCEPT: (&'static str, &'static str) = (FULL_OBJECTS, FULL_OBJECTS);

    /// Parses an object.
    fn parse(wire: &Self::Wire, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem>;

    /// Converts an update to an event, or `None` if it changes nothing.
    ///
    /// A kind whose events carry no problems keeps them up to date in `problems`.
    fn event(change: Update<Self::Object>, problems: &mut Vec<Problem>) -> Option<Event>;
}

/// All Services except headless ones and those of another proxy: the selectors of kube-proxy 1.36.
/// The field selector needs a server of at least 1.23.
pub(super) struct Services;

impl Resource for Services {
    type Wire = api::ServiceObject;
    type Object = model::Service;

    const KIND: &'static str = "Service";
    const PLURAL: &'static str = "Services";
    const PATH: &'static str = "/api/v1/services";
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/service-proxy-name");
    const FIELDS: Option<&'static str> = Some("spec.clusterIP!=None");

    fn parse(wire: &Self::Wire, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        wire.parse(interner)
    }

    fn event(change: Update<Self::Object>, _: &mut Vec<Problem>) -> Option<Event> {
        Some(Event::Services(change))
    }
}

/// All EndpointSlices except those of headless Services, as kube-proxy 1.36.
///
/// Slices of another proxy's Services are included. A slice's `service-proxy-name` label is a copy
/// that may lag behind the label of its Service.
pub(super) struct EndpointSlices;

impl Resource for EndpointSlices {
    type Wire = api::EndpointSliceObject;
    type Object = model::EndpointSlice;

    const KIND: &'static str = "EndpointSlice";
    const PLURAL: &'static str = "EndpointSlices";
    const PATH: &'static str = "/apis/discovery.k8s.io/v1/endpointslices";
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/headless");

    fn parse(wire: &Self::Wire, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        wire.parse(interner)
    }

    fn event(change: Update<Self::Object>, _: &mut Vec<Problem>) -> Option<Event> {
        Some(Event::EndpointSlices(change))
    }
}

/// Our own Node; the follower selects it by name.
pub(super) struct OwnNode;

impl Resource for OwnNode {
    type Wire = api::NodeObject;
    type Object = model::Node;

    const KIND: &'static str = "Node";
    const PLURAL: &'static str = "our Node";
    const PATH: &'static str = "/api/v1/nodes";

    fn parse(wire: &Self::Wire, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        wire.parse(interner)
    }

    /// Sends no event if our Node was deleted or cannot be read. As in kube-proxy, its last readable
    /// state stays in use, so traffic continues.
    fn event(change: Update<Self::Object>, problems: &mut Vec<Problem>) -> Option<Event> {
        let node = match change {
            Update::Apply(node) => {
                // Not for a list, which has cleared the problems before it was read.
                problems.clear();
                Some(node)
            }
            Update::Reset(all) => all.iter().next(),
            Update::Merge(all) => all.into_iter().next(),
            Update::Delete(_) => None,
        }?;
        problems.extend(node.problems);
        node.object.map(Event::Node)
    }
}

/// The ranges of cluster IPs; servers before 1.33 lack the kind.
pub(super) struct ServiceCidrs;

impl Resource for ServiceCidrs {
    type Wire = api::ServiceCidrObject;
    type Object = model::ServiceCidr;

    const KIND: &'static str = "ServiceCIDR";
    const PLURAL: &'static str = "ServiceCIDRs";
    const PATH: &'static str = "/apis/networking.k8s.io/v1/servicecidrs";
    const IS_OPTIONAL: bool = true;

    fn parse(wire: &Self::Wire, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        wire.parse(interner)
    }

    fn event(change: Update<Self::Object>, _: &mut Vec<Problem>) -> Option<Event> {
        Some(Event::ServiceCidrs(change))
    }
}

/// The locations of all nodes. Only their metadata is requested.
pub(super) struct Nodes;

impl Resource for Nodes {
    type Wire = api::NodeLabels;
    type Object = model::NodeLocation;

    const KIND: &'static str = "Node";
    const PLURAL: &'static str = "Nodes";
    const PATH: &'static str = "/api/v1/nodes";
    const ACCEPT: (&'static str, &'static str) = (METADATA, METADATA_LIST);

    fn parse(wire: &Self::Wire, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        wire.parse(interner)
    }

    fn event(change: Update<Self::Object>, _: &mut Vec<Problem>) -> Option<Event> {
        Some(Event::Nodes(change))
    }
}

impl NameMetadata {
    /// Converts to the model's name.
    pub(super) fn object_name(&self) -> ObjectName {
        ObjectName::new(&self.namespace, &self.name)
    }
}

/// Parses one object from JSON.
///
/// An object of the wrong form becomes a [`Parsed`] with only a name and a Problem.
///
/// # Errors
/// If even the name cannot be read.
pub(super) fn read<R: Resource>(
    json: &[u8],
    interner: &mut Interner,
) -> Result<Parsed<R::Object>, Problem> {
    let error = match api::from_json::<R::Wire>(json) {
        Ok(wire) => return R::parse(&wire, interner),
        Err(error) => error,
    };
    let head: Head<NameMetadata> = api::from_json(json).map_err(|_| {
        // 512 bytes are enough to recognise the object in a log.
        let text = String::from_utf8_lossy(json.get(..512).unwrap_or(json));
        let message = match json.len() > MAX_OBJECT {
            true => format!("is larger than {} MiB; skipped", MAX_OBJECT >> 20),
            false => format!("has no readable name: {error}; skipped"),
        };
        Problem::new(R::KIND, "", text, message)
    })?;
    let name = head.metadata.object_name();
    let object = format!("{} {name}", R::KIND);
    let problem = Problem::new(
        object,
        "",
        "",
        format!("cannot be read: {error}; its last readable state stays in use"),
    );
    Ok(Parsed {
        name,
        object: None,
        problems: vec![problem],
    })
}

/// Parses one line of a streaming list in one pass, if it adds an object without faults.
///
/// `None`: the line must be parsed step by step.
pub(super) fn read_added<R: Resource>(
    line: &[u8],
    interner: &mut Interner,
) -> Option<Parsed<R::Object>> {
    let event: WatchEvent<R::Wire> = api::from_json(line).ok()?;
    match event.event_type {
        EventType::Added => R::parse(&event.object, interner).ok(),
        _ => None,
    }
}

/// One line of a watch.
///
/// The type of the object depends on that of the event. So an object that may be of any type is
/// unparsed text.
#[derive(Deserialize)]
pub(super) struct WatchEvent<T> {
    /// The type of the event.
    #[serde(rename = "type")]
    pub(super) event_type: EventType,
    /// The object.
    pub(super) object: T,
}

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EventType {
    /// The object is new, or it matches the selectors now.
    Added,
    /// The object changed.
    Modified,
    /// The object was deleted, or it no longer matches the selectors.
    Deleted,
    /// All changes up to the object's resource version were sent.
    Bookmark,
    /// The watch failed; the object is a `Status`.
    Error,
}

/// An object reduced to its metadata.
#[derive(Deserialize)]
pub(super) struct Head<M> {
    pub(super) metadata: M,
}

/// The namespace and name from an object's metadata.
#[derive(Deserialize)]
pub(super) struct NameMetadata {
    #[serde(default)]
    namespace: String,
    name: String,
}

/// The resource version from an object's metadata, and the mark that ends a streaming list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionMetadata {
    pub(super) resource_version: String,
    #[serde(default)]
    annotations: Option<BookmarkAnnotations>,
}

#[derive(Deserialize)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<String>,
}

impl VersionMetadata {
    /// Returns whether this bookmark ends the initial objects of a streaming list.
    pub(super) fn ends_initial_events(&self) -> bool {
        let annotation = self.annotations.as_ref();
        annotation.and_then(|all| all.initial_events_end.as_deref()) == Some("true")
    }
}

/// A list without its items.
#[derive(Deserialize)]
pub(super) struct ListEnvelope {
    pub(super) metadata: ListVersion,
}

/// A list's metadata.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListVersion {
    pub(super) resource_version: String,
    #[serde(default)]
    pub(super) r#continue: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_object_keeps_its_name() {
        let mut interner = Interner::default();
        let json = br#"{"metadata":{"namespace":"a","name":"b"},"spec":{"ports":{"x":1}}}"#;
        let parsed = read::<Services>(json, &mut interner).unwrap();
        assert_eq!(parsed.name, ObjectName::new("a", "b"));
        assert_eq!(parsed.object, None);
        let text = parsed.problems[0].to_string();
        assert!(text.starts_with("Service a/b: cannot be read: "), "{text}");

        for json in ["[1]", "{}", r#"{"metadata":{"name":["x"]}}"#, "{\"meta"] {
            let problem = read::<Services>(json.as_bytes(), &mut interner).unwrap_err();
            assert_eq!(problem.object, "Service");
        }
    }

    #[test]
    fn a_bookmark_marks_the_end_of_the_initial_events() {
        let version = |json: &str| {
            serde_json::from_str::<Head<VersionMetadata>>(json)
                .unwrap()
                .metadata
        };
        let end = r#"{"metadata":{"resourceVersion":"7","creationTimestamp":null,
            "annotations":{"k8s.io/initial-events-end":"true"}}}"#;
        assert!(version(end).ends_initial_events());
        assert!(!version(r#"{"metadata":{"resourceVersion":"7"}}"#).ends_initial_events());
    }
}
