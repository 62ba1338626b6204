//! Objects and events of a response that are not parsed yet.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::body::{MAX_OBJECT, unwrap_object};
use super::encoding::Encoding;
use super::resource::Resource;
use crate::cluster::api::protobuf::{Fields, first_field};
use crate::cluster::api::{self, FromProtobuf, ProtobufError, Scalar, WireObject as _};
use crate::cluster::model::ObjectName;
use crate::cluster::problem::Problem;
use crate::cluster::store::{Interner, Parsed};

/// An object as it arrived.
#[derive(Clone, Copy, Debug)]
pub(super) enum EncodedObject<'a> {
    /// Its text.
    Json(&'a [u8]),
    /// Its message, without magic number and envelope.
    Protobuf(&'a [u8]),
}

/// Why an object or an event cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Protobuf(#[from] ProtobufError),
    #[error("it is larger than {} MiB", MAX_OBJECT >> 20)]
    TooLarge,
    #[error("it has no name")]
    Nameless,
    #[error("it has no resource version")]
    Versionless,
    #[error("an event of an unknown type")]
    EventType,
}

impl<'a> EncodedObject<'a> {
    /// Returns the object that is the whole body of a response.
    ///
    /// A body without Kubernetes' magic number is read as JSON, which it may be.
    pub(super) fn of_body(encoding: Encoding, body: &'a [u8]) -> Self {
        match encoding {
            Encoding::Json => Self::Json(body),
            Encoding::Protobuf => unwrap_object(body).map_or(Self::Json(body), Self::Protobuf),
        }
    }

    /// Parses the object.
    ///
    /// An object of the wrong form becomes a [`Parsed`] with only a name and a Problem.
    ///
    /// # Errors
    /// If even the name cannot be read.
    pub(super) fn read<R: Resource>(
        self,
        interner: &mut Interner,
    ) -> Result<Parsed<R::Object>, Problem> {
        // First, because a list truncates such an object, and a truncated message may be that of another object.
        let decoded = if self.bytes().len() > MAX_OBJECT {
            Err(DecodeError::TooLarge)
        } else {
            self.decode::<R::Wire<'_>>()
        };
        let error = match decoded {
            Ok(wire) => return wire.parse(interner),
            Err(error) => error,
        };
        let Ok(name) = self.name() else {
            let message = format!("has no readable name: {error}; skipped");
            return Err(Problem::new(R::KIND, "", self.excerpt(), message));
        };
        let object = format!("{} {name}", R::KIND);
        let message = format!("cannot be read: {error}; its last readable state stays in use");
        Ok(Parsed {
            name,
            object: None,
            problems: vec![Problem::new(object, "", "", message)],
            changed: None,
        })
    }

    /// Returns the object's name. It is readable although the rest of the object may not be.
    pub(super) fn name(self) -> Result<ObjectName, DecodeError> {
        let Identity {
            name, namespace, ..
        } = self.metadata()?;
        let name = name.as_str().filter(|name| !name.is_empty());
        let name = name.ok_or(DecodeError::Nameless)?;
        Ok(ObjectName::new(namespace.as_str().unwrap_or(""), name))
    }

    /// Returns the object's resource version.
    pub(super) fn version(self) -> Result<Identity<'a>, DecodeError> {
        let metadata = self.metadata()?;
        if metadata.version().is_empty() {
            return Err(DecodeError::Versionless);
        }
        Ok(metadata)
    }

    /// Decodes the object.
    pub(super) fn decode<T: Deserialize<'a> + FromProtobuf<'a>>(self) -> Result<T, DecodeError> {
        Ok(match self {
            Self::Json(json) => api::from_json(json)?,
            Self::Protobuf(message) => api::from_protobuf(message)?,
        })
    }

    fn metadata(self) -> Result<Identity<'a>, DecodeError> {
        Ok(match self {
            Self::Json(json) => api::from_json::<Head<Identity<'a>>>(json)?.metadata,
            Self::Protobuf(message) => api::from_protobuf(first_field(message, METADATA)?)?,
        })
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Json(bytes) | Self::Protobuf(bytes) => bytes,
        }
    }

    /// Returns the beginning of the object, enough to recognise it in a log.
    fn excerpt(self) -> String {
        let bytes = self.bytes();
        let first = bytes.get(..512).unwrap_or(bytes);
        match self {
            Self::Json(_) => String::from_utf8_lossy(first).into_owned(),
            Self::Protobuf(_) => first.escape_ascii().to_string(),
        }
    }
}

/// An event of a watch as it arrived.
#[derive(Clone, Copy, Debug)]
pub(super) enum EncodedEvent<'a> {
    /// A line.
    Json(&'a [u8]),
    /// A frame without its length.
    Protobuf(&'a [u8]),
}

impl<'a> EncodedEvent<'a> {
    /// Returns the type of the event, and its object.
    pub(super) fn split(self) -> Result<(EventType, EncodedObject<'a>), DecodeError> {
        match self {
            Self::Json(line) => {
                let event: WatchEvent<'_> = serde_json::from_slice(line)?;
                let json = event.object.get().as_bytes();
                Ok((event.event_type, EncodedObject::Json(json)))
            }
            Self::Protobuf(frame) => {
                // `meta.k8s.io/v1` `WatchEvent`, and `runtime.RawExtension` in it.
                let event_type = EventType::of_bytes(first_field(frame, 1)?);
                let event_type = event_type.ok_or(DecodeError::EventType)?;
                let object = unwrap_object(first_field(first_field(frame, 2)?, 1)?)?;
                Ok((event_type, EncodedObject::Protobuf(object)))
            }
        }
    }
}

/// One line of a watch in JSON. The type of the object depends on that of the event, so it is text here.
#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type")]
    event_type: EventType,
    #[serde(borrow)]
    object: &'a RawValue,
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

impl EventType {
    fn of_bytes(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"ADDED" => Self::Added,
            b"MODIFIED" => Self::Modified,
            b"DELETED" => Self::Deleted,
            b"BOOKMARK" => Self::Bookmark,
            b"ERROR" => Self::Error,
            _ => return None,
        })
    }
}

/// The number of `metadata` in each object and list.
const METADATA: u32 = 1;

/// An object reduced to its metadata.
#[derive(Deserialize)]
struct Head<M> {
    metadata: M,
}

/// The metadata that tells which object it is, and of which version.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Identity<'a> {
    name: Scalar<'a>,
    namespace: Scalar<'a>,
    resource_version: Scalar<'a>,
    annotations: Option<BookmarkAnnotations<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct BookmarkAnnotations<'a> {
    #[serde(default, rename = "k8s.io/initial-events-end")]
    initial_events_end: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for Identity<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.text(&mut it.name)),
        (3, |it, field| field.text(&mut it.namespace)),
        (6, |it, field| field.text(&mut it.resource_version)),
        (12, |it, field| {
            let annotations = it.annotations.get_or_insert_default();
            let end = &mut annotations.initial_events_end;
            field.entry(|name| (name == "k8s.io/initial-events-end").then_some(end))
        }),
    ];
}

impl Identity<'_> {
    /// Returns the resource version.
    pub(super) fn version(&self) -> &str {
        self.resource_version.as_str().unwrap_or_default()
    }

    /// Returns whether this bookmark ends the initial objects of a streaming list.
    pub(super) fn ends_initial_events(&self) -> bool {
        let annotations = self.annotations.as_ref();
        annotations.and_then(|all| all.initial_events_end.as_str()) == Some("true")
    }
}

/// A list's metadata.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListVersion {
    pub(super) resource_version: String,
    #[serde(default)]
    pub(super) r#continue: Option<String>,
}

impl ListVersion {
    /// Reads the metadata of a list without items.
    pub(super) fn of_json(list: &[u8]) -> Result<Self, DecodeError> {
        let list: Head<Self> = serde_json::from_slice(list)?;
        list.metadata.checked()
    }

    /// Reads the metadata.
    pub(super) fn of_protobuf(metadata: &[u8]) -> Result<Self, DecodeError> {
        api::from_protobuf::<Self>(metadata)?.checked()
    }

    /// Rejects a response that only resembles a list, such as a `Status`: as an empty list, it would remove all
    /// objects.
    fn checked(self) -> Result<Self, DecodeError> {
        if self.resource_version.is_empty() {
            return Err(DecodeError::Versionless);
        }
        Ok(self)
    }
}

impl<'a> FromProtobuf<'a> for ListVersion {
    const FIELDS: Fields<'a, Self> = &[
        (2, |it, field| field.string(&mut it.resource_version)),
        (3, |it, field| {
            field.string(it.r#continue.get_or_insert_default())
        }),
    ];
}

#[cfg(test)]
mod tests {
    use api_server::messages::encode_partial;
    use serde_json::json;

    use super::super::resource::Services;
    use super::*;

    #[test]
    fn an_unreadable_object_keeps_its_name() {
        let mut interner = Interner::default();
        let json = br#"{"metadata":{"namespace":"a","name":"b"},"spec":{"ports":{"x":1}}}"#;
        let mut read = |json| EncodedObject::Json(json).read::<Services>(&mut interner);
        let parsed = read(json).unwrap();
        assert_eq!(parsed.name, ObjectName::new("a", "b"));
        assert_eq!(parsed.object, None);
        let text = parsed.problems[0].to_string();
        assert!(text.starts_with("Service a/b: cannot be read: "), "{text}");

        for json in ["[1]", "{}", r#"{"metadata":{"name":["x"]}}"#, "{\"meta"] {
            let problem = read(json.as_bytes()).unwrap_err();
            assert_eq!(problem.object, "Service");
        }
    }

    #[test]
    fn a_message_that_is_damaged_behind_its_metadata_keeps_its_name() {
        let mut interner = Interner::default();
        let mut read =
            |message: &[u8]| EncodedObject::Protobuf(message).read::<Services>(&mut interner);
        // Metadata with the name "b" and the namespace "a"; then a spec.
        let metadata = b"\x0a\x06\x0a\x01b\x1a\x01a";
        for (spec, why) in [
            // Cut off after two of nine bytes.
            (b"\x12\x09\x0a\x01".as_slice(), "ends within a field"),
            // A cluster IP that is a number, and one that is not UTF-8.
            (b"\x12\x02\x18\x07", "field 3 has the wrong type"),
            (b"\x12\x03\x1a\x01\xff", "field 3 is not UTF-8"),
            (
                b"\x12\x0b\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                "overlong number",
            ),
            (b"\x12\x01\x07", "invalid field key"),
        ] {
            let parsed = read(&[metadata, spec].concat()).unwrap();
            assert_eq!(parsed.name, ObjectName::new("a", "b"));
            assert_eq!(parsed.object, None);
            let text = parsed.problems[0].to_string();
            assert!(text.starts_with("Service a/b: cannot be read: "), "{text}");
            assert!(text.contains(why), "{text}");
        }
        for message in [b"".as_slice(), b"\x0a\x06\x0a\x01", b"\x0a\x03\x1a\x01a"] {
            let problem = read(message).unwrap_err();
            assert_eq!(problem.object, "Service");
        }
        // A list truncates it, here between two fields.
        let fields = b"\x78\x00".repeat(MAX_OBJECT / 2);
        let parsed = read(&[metadata, fields.as_slice()].concat()).unwrap();
        assert_eq!(parsed.name, ObjectName::new("a", "b"));
        let text = parsed.problems[0].to_string();
        assert!(text.contains("it is larger than 16 MiB"), "{text}");
    }

    #[test]
    fn an_annotation_that_is_not_utf_8_does_no_harm() {
        // `x` in metadata with the name "b" and the namespace "a".
        let metadata = b"\x0a\x0e\x0a\x01b\x1a\x01a\x62\x06\x0a\x01x\x12\x01\xff";
        let object = EncodedObject::Protobuf(metadata);
        let parsed = object.read::<Services>(&mut Interner::default()).unwrap();
        let problems: Vec<String> = parsed.problems.iter().map(Problem::to_string).collect();
        assert!(
            problems.iter().all(|text| !text.contains("cannot be read")),
            "{problems:?}"
        );
    }

    #[test]
    fn a_response_without_a_resource_version_is_no_list() {
        for metadata in [b"".as_slice(), b"\x12\x00"] {
            assert!(ListVersion::of_protobuf(metadata).is_err());
        }
        assert!(ListVersion::of_json(br#"{"metadata":{"resourceVersion":""}}"#).is_err());
        let version = ListVersion::of_protobuf(b"\x12\x015").unwrap();
        assert_eq!(version.resource_version, "5");
        let bookmark = EncodedObject::Protobuf(b"\x0a\x02\x32\x00").version();
        assert!(matches!(bookmark, Err(DecodeError::Versionless)));
    }

    #[test]
    fn a_bookmark_marks_the_end_of_the_initial_events() {
        let mut bookmark = json!({"metadata": {
            "name": "b",
            "namespace": "a",
            "resourceVersion": "7",
            "creationTimestamp": null,
            "annotations": {"k8s.io/initial-events-end": "true"},
        }});
        for ends in [true, false] {
            let text = bookmark.to_string();
            let message = encode_partial(&bookmark);
            for object in [
                EncodedObject::Json(text.as_bytes()),
                EncodedObject::Protobuf(&message),
            ] {
                assert_eq!(object.name().unwrap(), ObjectName::new("a", "b"));
                let identity = object.version().unwrap();
                assert_eq!(identity.version(), "7");
                assert_eq!(identity.ends_initial_events(), ends);
            }
            bookmark["metadata"]["annotations"] = json!({"x": "true"});
        }
    }
}
