//! Deserialization with the path of a field of the wrong type.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};
use serde_path_to_error::{Path, Segment};

/// A value of the wrong type, and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistyped {
    /// The path of the field, such as `spec.ports[0]`.
    pub(super) path: String,
    /// The value.
    pub(super) value: String,
    /// The fault.
    pub(super) message: String,
}

/// Deserializes `value` as a `T`, which borrows nothing.
pub(super) fn from_value<T: Deserialize<'static>>(value: &Value) -> Result<T, Mistyped> {
    serde_path_to_error::deserialize(Tree(value)).map_err(|error| {
        let reason = error.inner().to_string();
        // serde's text is `invalid type: ..., expected ...`; `expecting` of our types ends it.
        let message = match reason.rsplit_once(", expected ") {
            Some((_, expected)) => format!("is not {expected}"),
            None => reason,
        };
        Mistyped {
            path: written(error.path()),
            value: shown(find(value, error.path())),
            message,
        }
    })
}

/// Returns `path` as text. Names with dots, as labels have, are in brackets.
fn written(path: &Path) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } if key.contains('.') => text += &format!("[{key}]"),
            Segment::Map { key } if text.is_empty() => text += key,
            Segment::Map { key } => text += &format!(".{key}"),
            other => text += &other.to_string(),
        }
    }
    text
}

fn find<'a>(value: &'a Value, path: &Path) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Map { key } => value.get(key),
        Segment::Seq { index } => value.get(index),
        _ => None,
    })
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => String::new(),
        Some(Value::Array(_)) => "(sequence)".to_owned(),
        Some(Value::Object(_)) => "(map)".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(scalar) => scalar.to_string(),
    }
}

/// A deserializer that rejects a list in place of a struct.
///
/// `serde_json`'s own accepts the list and assigns its items to the fields in order of declaration.
struct Tree<'a>(&'a Value);

impl IntoDeserializer<'_, Error> for Tree<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Tree<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(Tree))),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, value)| (&**key, Tree(value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
            scalar => scalar.clone().deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::api;

    #[test]
    fn errors_name_the_field_of_the_wrong_type() {
        for (value, path, shown, message) in [
            (json!([]), "", "(sequence)", "is not a mapping"),
            (
                json!({"spec": [1]}),
                "spec",
                "(sequence)",
                "is not a mapping",
            ),
            (json!({"spec": 5}), "spec", "5", "is not a mapping"),
            (
                json!({"spec": {"ports": {}}}),
                "spec.ports",
                "(map)",
                "is not a sequence",
            ),
            (
                json!({"spec": {"ports": [{}, "x"]}}),
                "spec.ports[1]",
                "x",
                "is not a mapping",
            ),
            (
                json!({"spec": {"ports": [{"port": [80]}]}}),
                "spec.ports[0].port",
                "(sequence)",
                "is not a single value",
            ),
            (
                json!({"metadata": {"labels": {"kubernetes.io/service-name": {}}}}),
                "metadata.labels[kubernetes.io/service-name]",
                "(map)",
                "is not a single value",
            ),
        ] {
            let wanted = Mistyped {
                path: path.to_owned(),
                value: shown.to_owned(),
                message: message.to_owned(),
            };
            assert_eq!(
                from_value::<api::ServiceObject<'_>>(&value).unwrap_err(),
                wanted
            );
        }
    }
}
