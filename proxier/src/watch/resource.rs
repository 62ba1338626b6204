//! What is watched, and how its objects are read.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::json::MAX_OBJECT;
use crate::api;
use crate::model::{self, ObjectName};
use crate::problem::Problem;
use crate::store::{Event, Interner, Parsed, Update};

/// JSON objects as they are stored.
pub(super) const WHOLE: &str = "application/json";
/// Only their metadata, from servers that can (all since 1.15).
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                                   application/json";
/// Only their metadata, as a list.
pub(super) const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// A kind of object that can be listed and watched.
pub(super) trait Resource: Send + 'static {
    /// The object on the wire.
    type Wire: DeserializeOwned;
    /// The object in the model.
    type Object: Send;

    /// The kind's name.
    const KIND: &'static str;
    /// The kind's name in the plural, for people.
    const PLURAL: &'static str;
    /// Where the server has the objects.
    const PATH: &'static str;
    /// Which are wanted, by their labels.
    const LABELS: Option<&'static str> = None;
    /// Which are wanted, by their fields.
    const FIELDS: Option<&'static str> = None;
    /// Whether a server may have no such objects, or withhold them, without harm.
    const IS_OPTIONAL: bool = false;
    /// What is asked for when watching, and when listing.
    const ACCEPT: (&'static str, &'static str) = (WHOLE, WHOLE);

    /// Reads an object.
    fn parse(wire: &Self::Wire, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem>;

    /// Tells of a change; `None` when nobody needs to hear of it. Problems that the event cannot
    /// carry become `problems`.
    fn event(change: Update<Self::Object>, problems: &mut Vec<Problem>) -> Option<Event>;
}

/// All Services but those that another proxy serves and headless ones: the selectors of kube-proxy
/// 1.36. The field selector needs a server of at least 1.23.
pub(super) struct Services;

impl Resource for Services {
    type Wire = api::Service;
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

/// All EndpointSlices but those of headless Services, as kube-proxy 1.36. Those of Services that
/// another proxy serves come along: their labels need not follow their Service's in time.
pub(super) struct EndpointSlices;

impl Resource for EndpointSlices {
    type Wire = api::EndpointSlice;
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

/// Our own node, chosen by its name.
pub(super) struct OwnNode;

impl Resource for OwnNode {
    type Wire = api::Node;
    type Object = model::Node;

    const KIND: &'static str = "Node";
    const PLURAL: &'static str = "our Node";
    const PATH: &'static str = "/api/v1/nodes";

    fn parse(wire: &Self::Wire, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        let (node, problems) = wire.parse(interner)?;
        Ok(Parsed {
            name: ObjectName::new("", node.name.clone()),
            object: Some(node),
            problems,
        })
    }

    /// A node that is gone, or cannot be read, stays as it was last seen, as with kube-proxy: its
    /// traffic goes on.
    fn event(change: Update<Self::Object>, problems: &mut Vec<Problem>) -> Option<Event> {
        let node = match change {
            Update::Apply(node) => {
                problems.clear();
                Some(node)
            }
            Update::Reset(all) | Update::Merge(all) => all.into_iter().next(),
            Update::Delete(_) => None,
        }?;
        problems.extend(node.problems);
        node.object.map(Event::Node)
    }
}

/// The ranges of cluster IPs; servers before 1.33 have no such objects.
pub(super) struct ServiceCidrs;

impl Resource for ServiceCidrs {
    type Wire = api::ServiceCidr;
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

/// Where all nodes are; only their metadata is asked for.
pub(super) struct Nodes;

impl Resource for Nodes {
    type Wire = api::NodeLabels;
    type Object = model::NodePlace;

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

impl Name {
    /// The name in the model's form.
    pub(super) fn object_name(self, interner: &mut Interner) -> ObjectName {
        ObjectName::new(interner.intern(&self.namespace), self.name)
    }
}

/// Reads one object from its JSON.
///
/// One that cannot be read for its form is an object of which only the name is known, with a
/// Problem.
///
/// # Errors
/// When not even the name can be read, so that nothing can be said about it.
pub(super) fn read<R: Resource>(
    json: &[u8],
    interner: &mut Interner,
) -> Result<Parsed<R::Object>, Problem> {
    let error = match serde_json::from_slice::<R::Wire>(json) {
        Ok(wire) => return R::parse(&wire, interner),
        Err(error) => error,
    };
    let head: Head<Name> = serde_json::from_slice(json).map_err(|_| {
        let text = String::from_utf8_lossy(json.get(..512).unwrap_or(json));
        let message = match json.len() > MAX_OBJECT {
            true => "is too large; skipped".to_owned(),
            false => format!("has no name: {error}; skipped"),
        };
        Problem::new(R::KIND, "", text, message)
    })?;
    let name = head.metadata.object_name(interner);
    let object = format!("{} {name}", R::KIND);
    let problem = Problem::new(
        object,
        "",
        "",
        format!("cannot be read: {error}; left as it was"),
    );
    Ok(Parsed {
        name,
        object: None,
        problems: vec![problem],
    })
}

/// One line of a watch.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    /// What happened.
    #[serde(rename = "type")]
    pub(super) what: What,
    /// To what, unread.
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// What a line of a watch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum What {
    /// There is an object that we did not know, or that did not match before.
    Added,
    /// It differs from what we knew.
    Modified,
    /// It is gone, or does not match any more.
    Deleted,
    /// Nothing, up to a resource version.
    Bookmark,
    /// The watch ends, for the reason that the object holds.
    Error,
}

/// An object, of which only the metadata counts.
#[derive(Deserialize)]
pub(super) struct Head<M> {
    pub(super) metadata: M,
}

/// Which object.
#[derive(Deserialize)]
pub(super) struct Name {
    #[serde(default)]
    namespace: String,
    name: String,
}

/// Up to where a watch has told.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Version {
    pub(super) resource_version: String,
    #[serde(default)]
    annotations: Option<BookmarkAnnotations>,
}

#[derive(Deserialize)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<String>,
}

impl Version {
    /// Whether all objects of a streaming list have been told.
    pub(super) fn ends_initial_events(&self) -> bool {
        let annotation = self.annotations.as_ref();
        annotation.and_then(|all| all.initial_events_end.as_deref()) == Some("true")
    }
}

/// What surrounds the objects of a list.
#[derive(Deserialize)]
pub(super) struct ListHead {
    pub(super) metadata: ListVersion,
}

/// Which state of the server a list shows, and whether there is more of it.
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
    fn bookmarks_say_when_the_initial_events_end() {
        let version = |json: &str| {
            serde_json::from_str::<Head<Version>>(json)
                .unwrap()
                .metadata
        };
        let end = r#"{"metadata":{"resourceVersion":"7","creationTimestamp":null,
            "annotations":{"k8s.io/initial-events-end":"true"}}}"#;
        assert!(version(end).ends_initial_events());
        assert!(!version(r#"{"metadata":{"resourceVersion":"7"}}"#).ends_initial_events());
    }
}
