//! Reads JSON objects; unlike serde's derived structs, it rejects arrays.

use std::fmt;
use std::marker::PhantomData;

use anyhow::anyhow;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Parses a line, which must be an object.
pub(super) fn parse<T: DeserializeOwned>(line: &[u8]) -> anyhow::Result<T> {
    match serde_json::from_slice(line) {
        Ok(Object(value)) => Ok(value),
        Err(error) => Err(without_line(&error)),
    }
}

/// A value that is only read from an object. serde alone would also read it from an array, by position.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// The field names of a JSON object.
#[derive(Debug)]
pub(super) struct Keys(Vec<String>);

impl Keys {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|key| key == name)
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(KeysOnly)
    }
}

struct KeysOnly;

impl<'de> Visitor<'de> for KeysOnly {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
        let mut keys = Vec::new();
        while let Some((key, IgnoredAny)) = map.next_entry()? {
            keys.push(key);
        }
        Ok(Keys(keys))
    }
}

/// Removes the line number that serde_json appends: it is always 1, as each line is parsed alone.
fn without_line(error: &serde_json::Error) -> anyhow::Error {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&position) {
        Some(text) => anyhow!("{text}, column {}", error.column()),
        None => anyhow!("{text}"),
    }
}
