//! Encoding of JSON objects in Kubernetes' protobuf.

use serde_json::{Map, Value, json};

use crate::schema::{Schema, Type};

/// The first bytes of each message that is not part of another one.
const MAGIC: &[u8] = b"k8s\0";

/// The wire types of numbers, and of strings and messages.
const VARINT: u32 = 0;
const LENGTH: u32 = 2;

/// Encodes an object as the message of `schema`.
///
/// Fields that the schema lacks are left out. A value of another type than the schema's gets the type
/// of the value, as if a fault had damaged the message.
pub(crate) fn encode(object: &Value, schema: Schema) -> Vec<u8> {
    let mut message = Vec::new();
    for &(number, name, kind) in schema {
        if let Some(value) = object.get(name) {
            put_value(&mut message, number, kind, value);
        }
    }
    message
}

fn put_value(to: &mut Vec<u8>, number: u32, kind: Type, value: &Value) {
    match (kind, value) {
        (_, Value::Null) => {}
        (Type::Json, value) => {
            let mut raw = Vec::new();
            put_bytes(&mut raw, 1, value.to_string().as_bytes());
            put_bytes(to, number, &raw);
        }
        (_, Value::Array(all)) => all.iter().for_each(|one| put_value(to, number, kind, one)),
        (Type::Message(schema), Value::Object(_)) => put_bytes(to, number, &encode(value, schema)),
        (Type::Map, Value::Object(entries)) => put_entries(to, number, entries),
        (Type::IntOrString, Value::Number(_)) => {
            let message = json!({"type": 0, "number": value});
            let schema = &[(1, "type", Type::Scalar), (2, "number", Type::Scalar)];
            put_bytes(to, number, &encode(&message, schema));
        }
        (Type::IntOrString, Value::String(_)) => {
            let message = json!({"type": 1, "text": value});
            let schema = &[(1, "type", Type::Scalar), (3, "text", Type::Scalar)];
            put_bytes(to, number, &encode(&message, schema));
        }
        (Type::Time, Value::String(text)) => {
            let seconds = humantime::parse_rfc3339(text).ok().and_then(|time| {
                let since = time.duration_since(std::time::UNIX_EPOCH);
                since.ok().map(|since| since.as_secs())
            });
            let message = json!({"seconds": seconds});
            put_bytes(
                to,
                number,
                &encode(&message, &[(1, "seconds", Type::Scalar)]),
            );
        }
        (_, Value::String(text)) => put_bytes(to, number, text.as_bytes()),
        (_, Value::Bool(flag)) => put_number(to, number, u64::from(*flag)),
        (_, Value::Number(count)) => {
            // Protobuf encodes negative numbers as their 64 bits.
            let negative = count.as_i64().map(i64::cast_unsigned);
            put_number(to, number, negative.or(count.as_u64()).unwrap_or_default());
        }
        (_, Value::Object(_)) => put_bytes(to, number, value.to_string().as_bytes()),
    }
}

fn put_entries(to: &mut Vec<u8>, number: u32, entries: &Map<String, Value>) {
    for (key, value) in entries {
        let entry = json!({"key": key, "value": value});
        let schema = &[(1, "key", Type::Scalar), (2, "value", Type::Scalar)];
        put_bytes(to, number, &encode(&entry, schema));
    }
}

/// Appends a field with bytes.
pub(crate) fn put_bytes(to: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_length(to, number, bytes.len());
    to.extend_from_slice(bytes);
}

/// Appends the head of a field with this number of bytes.
pub(crate) fn put_length(to: &mut Vec<u8>, number: u32, length: usize) {
    put_varint(to, u64::from(number << 3 | LENGTH));
    put_varint(to, length as u64);
}

fn put_number(to: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(to, u64::from(number << 3 | VARINT));
    put_varint(to, value);
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return to.push(low);
        }
        to.push(low | 0x80);
    }
}

/// Returns the size of a field with `length` bytes of content, including its head.
pub(crate) fn field_length(number: u32, length: usize) -> usize {
    let varint = |number: u64| (number | 1).ilog2() as usize / 7 + 1;
    varint(u64::from(number << 3)) + varint(length as u64) + length
}

/// The API version and the kind of an object: `runtime.TypeMeta`, which its envelope has.
pub(crate) type ObjectType<'a> = (&'a str, &'a str);

fn type_length((api_version, kind): ObjectType<'_>) -> usize {
    field_length(1, api_version.len()) + field_length(2, kind.len())
}

/// Appends the magic number, and the envelope of a message of `length` bytes, which must follow.
pub(crate) fn put_envelope(to: &mut Vec<u8>, object_type: ObjectType<'_>, length: usize) {
    to.extend_from_slice(MAGIC);
    put_length(to, 1, type_length(object_type));
    put_bytes(to, 1, object_type.0.as_bytes());
    put_bytes(to, 2, object_type.1.as_bytes());
    put_length(to, 2, length);
}

/// Returns a message with the magic number and its envelope.
pub(crate) fn wrap(object_type: ObjectType<'_>, message: &[u8]) -> Vec<u8> {
    let mut wrapped = Vec::with_capacity(message.len() + 64);
    put_envelope(&mut wrapped, object_type, message.len());
    wrapped.extend_from_slice(message);
    wrapped
}

/// Appends the frame of a watch's event with an object.
///
/// All lengths come first, so that the many objects of a streaming list are copied once.
pub(crate) fn put_frame(
    to: &mut Vec<u8>,
    event_type: &str,
    object_type: ObjectType<'_>,
    message: &[u8],
) {
    let envelope = field_length(1, type_length(object_type)) + field_length(2, message.len());
    let object = MAGIC.len() + envelope;
    let extension = field_length(1, object);
    let event = field_length(1, event_type.len()) + field_length(2, extension);
    let length = u32::try_from(event).expect("an event of less than 4 GiB");
    to.extend_from_slice(&length.to_be_bytes());
    put_bytes(to, 1, event_type.as_bytes());
    put_length(to, 2, extension);
    put_length(to, 1, object);
    put_envelope(to, object_type, message.len());
    to.extend_from_slice(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_lengths_of_its_parts() {
        for length in [0, 1, 90, 127, 128, 200, 16_383, 16_384, 70_000] {
            let mut frame = Vec::new();
            put_frame(&mut frame, "ADDED", ("v1", "Service"), &vec![7; length]);
            let (head, event) = frame.split_first_chunk().unwrap();
            assert_eq!(u32::from_be_bytes(*head) as usize, event.len(), "{length}");
            let mut extension = Vec::new();
            put_bytes(
                &mut extension,
                1,
                &wrap(("v1", "Service"), &vec![7; length]),
            );
            let mut expected = Vec::new();
            put_bytes(&mut expected, 1, b"ADDED");
            put_bytes(&mut expected, 2, &extension);
            assert_eq!(event, expected, "{length}");
            assert_eq!(field_length(2, extension.len()) + 7, expected.len());
        }
    }
}
