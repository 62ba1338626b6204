//! Bodies of lists and watches: they are split into objects while their bytes arrive, so memory never
//! holds a whole response.

mod json;
mod protobuf;

use self::json::{LineSplitter, ListSplitter};
pub(super) use self::protobuf::unwrap_object;
use self::protobuf::{FrameSplitter, ItemSplitter};
use super::encoding::Encoding;
use super::failure::RequestFailure;
use super::object::{EncodedEvent, EncodedObject, ListVersion};

/// The largest object that is accepted, in bytes: ten times etcd's request limit of 1.5 MiB, since
/// JSON is larger than the stored protobuf.
pub(super) const MAX_OBJECT: usize = 16 << 20;

/// The largest accepted size of a list without its items, in bytes.
const MAX_ENVELOPE: usize = 1 << 20;

/// The capacity that the buffer of an incomplete object keeps, in bytes.
///
/// A watch may be silent for minutes after a large object. Without this, each of the five watches
/// would keep the capacity of its largest object.
const KEPT: usize = 64 << 10;

/// The response is not a list, or it exceeds a limit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a list: {0}")]
pub(super) struct NotAList(&'static str);

/// An event is longer than twice [`MAX_OBJECT`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of a watch is too long")]
pub(super) struct TooLong;

/// The body of a list.
pub(super) enum ListBody {
    Json(ListSplitter),
    Protobuf(ItemSplitter),
}

impl ListBody {
    pub(super) fn new(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Json => Self::Json(ListSplitter::default()),
            Encoding::Protobuf => Self::Protobuf(ItemSplitter::default()),
        }
    }

    /// Consumes the next bytes and calls `each` with every object they complete.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(EncodedObject<'_>),
    ) -> Result<(), NotAList> {
        match self {
            Self::Json(splitter) => splitter.push(bytes, |json| each(EncodedObject::Json(json))),
            Self::Protobuf(splitter) => {
                splitter.push(bytes, |message| each(EncodedObject::Protobuf(message)))
            }
        }
    }

    /// Returns the list's metadata.
    pub(super) fn finish(self) -> Result<ListVersion, RequestFailure> {
        let version = match self {
            Self::Json(splitter) => ListVersion::of_json(&splitter.finish()?),
            Self::Protobuf(splitter) => ListVersion::of_protobuf(&splitter.finish()?),
        };
        version.map_err(|error| RequestFailure::Malformed(format!("a list: {error}")))
    }
}

/// The body of a watch.
pub(super) enum WatchBody {
    Json(LineSplitter),
    Protobuf(FrameSplitter),
}

impl WatchBody {
    pub(super) fn new(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Json => Self::Json(LineSplitter::default()),
            Encoding::Protobuf => Self::Protobuf(FrameSplitter::default()),
        }
    }

    /// Takes the next complete event off the front of `rest`.
    ///
    /// Returns `None` if the rest is an incomplete event, which is kept.
    pub(super) fn next<'a, 'b: 'a>(
        &'a mut self,
        rest: &mut &'b [u8],
    ) -> Result<Option<EncodedEvent<'a>>, TooLong> {
        Ok(match self {
            Self::Json(splitter) => splitter.next(rest)?.map(EncodedEvent::Json),
            Self::Protobuf(splitter) => splitter.next(rest)?.map(EncodedEvent::Protobuf),
        })
    }
}
