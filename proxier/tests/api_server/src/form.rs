//! The form of responses: JSON or protobuf, of complete objects or their metadata.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, Status};
use prost::Message as _;
use serde_json::{Value, json};

use crate::messages::{Encode as _, list_metadata};
use crate::objects::{Kind, Object};
use crate::protobuf::{self, field_length};
use crate::{Behaviour, Request};

/// The encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    /// Returns the first encoding of the `Accept` header that the server speaks.
    pub(crate) fn of_request(request: &Request, behaviour: &Behaviour) -> Self {
        let accept = request.accept.as_deref().unwrap_or("");
        let first = accept.split([',', ';']).next().unwrap_or("").trim();
        match first == "application/vnd.kubernetes.protobuf" && behaviour.speaks_protobuf {
            true => Self::Protobuf,
            false => Self::Json,
        }
    }

    /// Returns the `Content-Type` of a list or an object.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Returns the `Content-Type` of a watch.
    pub(crate) fn watch_content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// Returns a `Status` object as the body of a response.
    pub(crate) fn status(self, status: Status) -> Vec<u8> {
        match self {
            Self::Json => json!(status).to_string().into_bytes(),
            Self::Protobuf => protobuf::wrap(("v1", "Status"), &status.encode()),
        }
    }

    /// Returns the last event of a failing watch.
    pub(crate) fn error(self, status: Status) -> Vec<u8> {
        let mut event = Vec::new();
        match self {
            Self::Json => put_line(&mut event, "ERROR", &json!(status).to_string()),
            Self::Protobuf => {
                protobuf::put_frame(&mut event, "ERROR", ("v1", "Status"), &status.encode());
            }
        }
        event
    }
}

/// The part of objects that a response has.
#[derive(Clone, Copy, Debug)]
enum Extent {
    Whole,
    Metadata,
}

/// The form of objects in a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) encoding: Encoding,
    extent: Extent,
    kind: Kind,
}

impl Form {
    pub(crate) fn of_request(request: &Request, behaviour: &Behaviour, kind: Kind) -> Self {
        let accept = request.accept.as_deref().unwrap_or("");
        Self {
            encoding: Encoding::of_request(request, behaviour),
            extent: match accept.contains("as=PartialObjectMetadata") {
                true => Extent::Metadata,
                false => Extent::Whole,
            },
            kind,
        }
    }

    /// Returns the beginning of a list of `objects`.
    pub(crate) fn list_head(self, metadata: ListMeta, objects: &[Arc<Object>]) -> Vec<u8> {
        let (api_version, kind) = self.object_type();
        let kind = format!("{kind}List");
        match self.encoding {
            Encoding::Json => {
                let metadata = json!(metadata);
                let head = format!(
                    "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\
                     \"items\":["
                );
                head.into_bytes()
            }
            Encoding::Protobuf => {
                let mut list = Vec::new();
                let metadata = list_metadata(metadata).encode_to_vec();
                protobuf::put_bytes(&mut list, 1, &metadata);
                let items = objects.iter();
                let items = items.map(|it| field_length(self.object(it).protobuf.len()));
                let length = list.len() + items.sum::<usize>();
                let mut bytes = protobuf::envelope((api_version, &kind), length);
                bytes.extend_from_slice(&list);
                bytes
            }
        }
    }

    /// Appends item number `index` of a list.
    pub(crate) fn put_item(self, list: &mut Vec<u8>, index: usize, object: &Arc<Object>) {
        let object = self.object(object);
        match self.encoding {
            Encoding::Json => {
                list.extend((index > 0).then_some(b','));
                list.extend_from_slice(object.json.as_bytes());
            }
            Encoding::Protobuf => protobuf::put_bytes(list, 2, &object.protobuf),
        }
    }

    /// Appends the end of a list.
    pub(crate) fn put_end(self, list: &mut Vec<u8>) {
        if self.encoding == Encoding::Json {
            list.extend_from_slice(b"]}\n");
        }
    }

    /// Appends an event.
    pub(crate) fn put_event(self, to: &mut Vec<u8>, event_type: &str, object: &Arc<Object>) {
        let object = self.object(object);
        match self.encoding {
            Encoding::Json => put_line(to, event_type, &object.json),
            Encoding::Protobuf => {
                protobuf::put_frame(to, event_type, self.object_type(), &object.protobuf);
            }
        }
    }

    /// Appends a bookmark with this metadata.
    pub(crate) fn put_bookmark(self, to: &mut Vec<u8>, metadata: &Value) {
        let Kind {
            name, api_version, ..
        } = self.kind;
        let object = Arc::new(Object::of_metadata(api_version, name, metadata));
        self.put_event(to, "BOOKMARK", &object);
    }

    /// Returns the object with the part that this form has.
    fn object(self, object: &Arc<Object>) -> Arc<Object> {
        match self.extent {
            Extent::Whole => object.clone(),
            Extent::Metadata => Arc::new(object.partial()),
        }
    }

    fn object_type(self) -> (&'static str, &'static str) {
        match self.extent {
            Extent::Whole => (self.kind.api_version, self.kind.name),
            Extent::Metadata => ("meta.k8s.io/v1", "PartialObjectMetadata"),
        }
    }
}

fn put_line(to: &mut Vec<u8>, event_type: &str, object: &str) {
    for part in ["{\"type\":\"", event_type, "\",\"object\":", object, "}\n"] {
        to.extend_from_slice(part.as_bytes());
    }
}
