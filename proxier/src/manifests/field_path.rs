//! Deserialization with the path of a field of the wrong type.

use std::fmt::{self, Display};

use serde::de::value::StringDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

/// A value of the wrong type, and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistyped {
    /// The path of the field, such as `spec.ports[0]`.
    pub(super) path: String,
    /// The value.
    pub(super) value: String,
    /// What is wrong with it.
    pub(super) message: String,
}

/// Deserializes `value` as a `T`.
pub(super) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Mistyped> {
    T::deserialize(Node(value)).map_err(|mut error| {
        if error.path.starts_with('.') {
            error.path.remove(0);
        }
        error
    })
}

impl Mistyped {
    /// Prepends the field `name` to the path.
    fn inside_field(mut self, name: &str) -> Self {
        // Names of labels contain dots.
        let name = if name.contains('.') {
            format!("[{name}]")
        } else {
            format!(".{name}")
        };
        self.path.insert_str(0, &name);
        self
    }

    /// Prepends `index` to the path.
    fn inside_item(mut self, index: usize) -> Self {
        self.path.insert_str(0, &format!("[{index}]"));
        self
    }

    fn new(value: String, message: String) -> Self {
        Self {
            path: String::new(),
            value,
            message,
        }
    }
}

impl std::error::Error for Mistyped {}

impl Display for Mistyped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}", self.path, self.value, self.message)
    }
}

impl Error for Mistyped {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(String::new(), message.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let value = match unexpected {
            Unexpected::Bool(value) => value.to_string(),
            Unexpected::Unsigned(value) => value.to_string(),
            Unexpected::Signed(value) => value.to_string(),
            Unexpected::Float(value) => value.to_string(),
            Unexpected::Str(value) => value.to_owned(),
            other => format!("({other})"),
        };
        Self::new(value, format!("is not {expected}"))
    }
}

/// A deserializer for a node of the tree.
struct Node(Value);

impl<'de> Deserializer<'de> for Node {
    type Error = Mistyped;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistyped> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => visitor.visit_u64(value),
                (None, Some(value)) => visitor.visit_i64(value),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => visitor.visit_seq(Items(items.into_iter().enumerate())),
            Value::Object(map) => visitor.visit_map(Fields {
                rest: map.into_iter(),
                next: None,
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistyped> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// Rejects a list. Derived code would accept one, field by field in the order of declaration.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistyped> {
        match self.0 {
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mistyped> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistyped> {
        // The value is in memory already, so there is nothing to skip.
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map enum identifier
    }
}

struct Items(std::iter::Enumerate<std::vec::IntoIter<Value>>);

impl<'de> SeqAccess<'de> for Items {
    type Error = Mistyped;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Mistyped> {
        let Some((index, value)) = self.0.next() else {
            return Ok(None);
        };
        seed.deserialize(Node(value))
            .map(Some)
            .map_err(|error| error.inside_item(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Fields {
    rest: <Map<String, Value> as IntoIterator>::IntoIter,
    next: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Mistyped;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Mistyped> {
        self.next = self.rest.next();
        let Some((key, _)) = &self.next else {
            return Ok(None);
        };
        // The key is kept for the path of an error in its value.
        let key: StringDeserializer<Mistyped> = key.clone().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Mistyped> {
        let Some((key, value)) = self.next.take() else {
            return Err(Error::custom("a value without a key"));
        };
        seed.deserialize(Node(value))
            .map_err(|error| error.inside_field(&key))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api;

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
            assert_eq!(from_value::<api::Service>(value).unwrap_err(), wanted);
        }
    }
}
