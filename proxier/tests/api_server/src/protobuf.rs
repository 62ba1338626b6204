//! Kubernetes' protobuf around objects: envelopes, lists and the frames of watches.

use k8s_pb::apimachinery::pkg::apis::meta::v1::WatchEvent;
use k8s_pb::apimachinery::pkg::runtime::{RawExtension, TypeMeta, Unknown};
use prost::Message as _;

/// The first bytes of each message that is not part of another one.
const MAGIC: &[u8] = b"k8s\0";

/// The API version and the kind of an object, which its envelope has.
pub(crate) type ObjectType<'a> = (&'a str, &'a str);

/// Returns a message with the magic number and its envelope.
pub(crate) fn wrap(object_type: ObjectType<'_>, message: &[u8]) -> Vec<u8> {
    let mut wrapped = envelope(object_type, message.len());
    wrapped.extend_from_slice(message);
    wrapped
}

/// Returns the magic number and the envelope of a message of `length` bytes, which must follow.
pub(crate) fn envelope((api_version, kind): ObjectType<'_>, length: usize) -> Vec<u8> {
    let envelope = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
        }),
        ..Unknown::default()
    };
    let mut bytes = [MAGIC, &envelope.encode_to_vec()].concat();
    put_head(&mut bytes, 2, length);
    bytes
}

/// Appends a field with bytes.
pub(crate) fn put_bytes(to: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    put_head(to, number, bytes.len());
    to.extend_from_slice(bytes);
}

/// Appends the head of a field with `length` bytes. Its number is below 16.
fn put_head(to: &mut Vec<u8>, number: u8, length: usize) {
    to.push(number << 3 | 2);
    prost::encode_length_delimiter(length, to).expect("a vector has room");
}

/// Returns the size of a field with `length` bytes of content, including its head.
pub(crate) fn field_length(length: usize) -> usize {
    1 + prost::length_delimiter_len(length) + length
}

/// Appends the frame of a watch's event with an object.
pub(crate) fn put_frame(
    to: &mut Vec<u8>,
    event_type: &str,
    object_type: ObjectType<'_>,
    message: &[u8],
) {
    let event = WatchEvent {
        r#type: Some(event_type.to_owned()),
        object: Some(RawExtension {
            raw: Some(wrap(object_type, message)),
        }),
    };
    let length = u32::try_from(event.encoded_len()).expect("an event of less than 4 GiB");
    to.extend_from_slice(&length.to_be_bytes());
    event.encode(to).expect("a vector has room");
}
