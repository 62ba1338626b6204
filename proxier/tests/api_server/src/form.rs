//! The form of responses: JSON or protobuf, of complete objects or their metadata.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::objects::{Kind, Object};
use crate::protobuf::{self, encode};
use crate::{Behaviour, Request, schema};

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
    pub(crate) fn status(self, status: &Value) -> Vec<u8> {
        match self {
            Self::Json => status.to_string().into_bytes(),
            Self::Protobuf => protobuf::wrap(("v1", "Status"), &encode(status, schema::STATUS)),
        }
    }

    /// Returns the last event of a failing watch.
    pub(crate) fn error(self, status: &Value) -> Vec<u8> {
        match self {
            Self::Json => line("ERROR", &status.to_string()),
            Self::Protobuf => protobuf::frame("ERROR", &self.status(status)),
        }
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
    pub(crate) fn list_head(self, metadata: &Value, objects: &[Arc<Object>]) -> Vec<u8> {
        let (api_version, kind) = self.object_type();
        let kind = format!("{kind}List");
        match self.encoding {
            Encoding::Json => {
                let head = format!(
                    "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\
                     \"items\":["
                );
                head.into_bytes()
            }
            Encoding::Protobuf => {
                let mut list = Vec::new();
                let metadata = encode(metadata, schema::LIST_METADATA);
                protobuf::put_bytes(&mut list, 1, &metadata);
                let items = objects.iter().map(|object| {
                    let length = self.object(object).protobuf.len();
                    let mut head = Vec::new();
                    protobuf::put_length(&mut head, 2, length);
                    head.len() + length
                });
                let length = list.len() + items.sum::<usize>();
                let mut bytes = Vec::new();
                protobuf::put_envelope(&mut bytes, (api_version, &kind), length);
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

    /// Returns an event.
    pub(crate) fn event(self, event_type: &str, object: &Arc<Object>) -> Vec<u8> {
        let object = self.object(object);
        match self.encoding {
            Encoding::Json => line(event_type, &object.json),
            Encoding::Protobuf => {
                let object = protobuf::wrap(self.object_type(), &object.protobuf);
                protobuf::frame(event_type, &object)
            }
        }
    }

    /// Returns a bookmark with this metadata.
    pub(crate) fn bookmark(self, metadata: &Value) -> Vec<u8> {
        let object = json!({
            "kind": self.kind.name,
            "apiVersion": self.kind.api_version,
            "metadata": metadata,
        });
        self.event("BOOKMARK", &Arc::new(Object::new(&object, schema::PARTIAL)))
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

fn line(event_type: &str, object: &str) -> Vec<u8> {
    format!("{{\"type\":\"{event_type}\",\"object\":{object}}}\n").into_bytes()
}
