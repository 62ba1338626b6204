//! The encodings of responses, and the `Accept` headers that ask for them.

use http::{HeaderValue, header};

/// The media type of Kubernetes' protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An encoding of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON.
    Json,
    /// Protobuf, which each API server since Kubernetes 1.3 speaks. It takes 55 to 65 % of JSON's bytes,
    /// and the server encodes it faster.
    Protobuf,
}

impl Encoding {
    /// Returns the first encoding in a list of media types, such as an `Accept` header; `None` if it
    /// names neither.
    pub(crate) fn of_media_types(list: &str) -> Option<Self> {
        list.split(',').find_map(|entry| {
            let media_type = entry.split(';').next().unwrap_or_default().trim();
            if media_type.eq_ignore_ascii_case(PROTOBUF) {
                Some(Self::Protobuf)
            } else {
                let is_json = media_type.eq_ignore_ascii_case("application/json");
                is_json.then_some(Self::Json)
            }
        })
    }

    /// Returns the encoding of a response with these headers.
    ///
    /// A body of another type is read as JSON: its text is then part of the failure's message.
    pub(super) fn of_response(headers: &http::HeaderMap) -> Self {
        let media_type = headers.get(header::CONTENT_TYPE);
        let media_type = media_type.and_then(|value: &HeaderValue| value.to_str().ok());
        media_type
            .and_then(Self::of_media_types)
            .unwrap_or(Self::Json)
    }
}

/// Which part of the objects of a kind is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectForm {
    /// Complete objects.
    Whole,
    /// Only their metadata; servers before 1.15 return complete objects.
    Metadata,
}

/// The `Accept` headers for a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptHeaders {
    pub(super) list: &'static str,
    pub(super) watch: &'static str,
}

impl ObjectForm {
    /// Returns the headers that ask for objects of this form, preferably in `encoding`.
    ///
    /// Each header also names JSON, which a server that lacks the preferred encoding returns.
    pub(super) fn accept(self, encoding: Encoding) -> AcceptHeaders {
        match (self, encoding) {
            (Self::Whole, Encoding::Json) => AcceptHeaders {
                list: "application/json",
                watch: "application/json",
            },
            (Self::Whole, Encoding::Protobuf) => AcceptHeaders {
                list: "application/vnd.kubernetes.protobuf,application/json",
                watch: "application/vnd.kubernetes.protobuf;stream=watch,application/json",
            },
            (Self::Metadata, Encoding::Json) => AcceptHeaders {
                list: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                       application/json",
                watch: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                        application/json",
            },
            (Self::Metadata, Encoding::Protobuf) => AcceptHeaders {
                list: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;\
                       g=meta.k8s.io;v=v1,\
                       application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                       application/json",
                watch: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;\
                        g=meta.k8s.io;v=v1;stream=watch,\
                        application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                        application/json",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_media_type_decides() {
        for (list, encoding) in [
            ("application/json", Some(Encoding::Json)),
            ("application/json;charset=utf-8", Some(Encoding::Json)),
            (PROTOBUF, Some(Encoding::Protobuf)),
            (
                "application/vnd.kubernetes.protobuf;stream=watch",
                Some(Encoding::Protobuf),
            ),
            (
                " application/cbor , Application/JSON,application/vnd.kubernetes.protobuf",
                Some(Encoding::Json),
            ),
            ("text/html", None),
            ("", None),
        ] {
            assert_eq!(Encoding::of_media_types(list), encoding, "{list}");
        }
    }

    #[test]
    fn every_header_asks_for_the_encoding_first_and_accepts_json() {
        for form in [ObjectForm::Whole, ObjectForm::Metadata] {
            for encoding in [Encoding::Json, Encoding::Protobuf] {
                let AcceptHeaders { list, watch } = form.accept(encoding);
                for header in [list, watch] {
                    assert_eq!(Encoding::of_media_types(header), Some(encoding), "{header}");
                    assert!(header.ends_with("application/json"), "{header}");
                    assert!(!header.contains(' '), "{header}");
                }
            }
        }
    }
}
