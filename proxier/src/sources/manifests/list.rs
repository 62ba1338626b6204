//! Documents with one object or a list.
//!
//! The items of a list are parsed one at a time, so that the generic tree of a whole cluster is never
//! in memory. The exception is an item without a kind of its own: the list's kind often follows the
//! items, so such an item is kept as a generic tree until the end of the list.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::document::ManifestObject;
use super::kind::{Kind, Single};
use crate::cluster::problem::Problem;

/// A document, or the value of a list's `items`.
pub(super) enum Document {
    /// An empty document, or `null`.
    Empty,
    /// A mapping: an object, or a list of objects.
    Object {
        head: Map<String, Value>,
        items: Box<Self>,
    },
    /// A list of objects.
    Array(Vec<Item>),
    /// A string, a number or a boolean.
    Scalar,
}

/// An element of a list.
pub(super) enum Item {
    /// The objects of an item with a kind of its own, at lines below the document's first one.
    Known(Vec<ManifestObject>),
    /// An item without a kind, so many lines below the document's first one.
    Anonymous(Value, usize),
}

impl Document {
    /// Converts an item, which may be a list itself.
    fn new(value: Value) -> Self {
        match value {
            Value::Null => Self::Empty,
            Value::Array(items) => {
                let items = items.into_iter().map(|item| Item::new(item, 0));
                Self::Array(items.collect())
            }
            Value::Object(mut head) => {
                let items = head.remove("items").unwrap_or_default();
                let items = Box::new(Self::new(items));
                Self::Object { head, items }
            }
            _ => Self::Scalar,
        }
    }

    /// Adds the objects of the document, which starts at `line`.
    pub(super) fn finish(self, line: usize, found: &mut Vec<ManifestObject>) {
        let problem = |field, message| Err(Problem::new("", field, "", message));
        let object = match self {
            Self::Empty => return,
            Self::Array(items) => return finish_items(items, None, line, found),
            Self::Scalar => problem("", "is not a Kubernetes object; the document is skipped"),
            Self::Object { head, items } => match (Kind::of(&head), *items) {
                (Err(problem), _) => Err(problem),
                (Ok(Kind::Other), _) | (Ok(Kind::List(_)), Self::Empty) => return,
                (Ok(Kind::List(kind)), Self::Array(items)) => {
                    return finish_items(items, kind, line, found);
                }
                (Ok(Kind::List(_)), Self::Object { .. } | Self::Scalar) => {
                    problem("items", "is not a list; the object is skipped")
                }
                (Ok(Kind::Single(kind)), _) => kind.read(&Value::Object(head)),
            },
        };
        found.push(ManifestObject { line, object });
    }
}

/// Adds the objects of a list of `kind` in the document at `line`.
fn finish_items(
    items: Vec<Item>,
    kind: Option<Single>,
    line: usize,
    found: &mut Vec<ManifestObject>,
) {
    for item in items {
        let (value, below) = match item {
            Item::Known(mut objects) => {
                objects.iter_mut().for_each(|object| object.line += line);
                found.extend(objects);
                continue;
            }
            Item::Anonymous(value, below) => (value, below),
        };
        let object = match kind {
            Some(kind) => kind.read(&value),
            None => {
                let message = match value {
                    Value::Object(_) => "is missing; the object is skipped",
                    _ => "is missing, because the item is not an object; it is skipped",
                };
                Err(Problem::new("", "kind", "", message))
            }
        };
        let line = line + below;
        found.push(ManifestObject { line, object });
    }
}

impl Item {
    fn new(value: Value, line: usize) -> Self {
        if value.get("kind").is_none() {
            return Self::Anonymous(value, line);
        }
        let mut objects = Vec::new();
        Document::new(value).finish(line, &mut objects);
        Self::Known(objects)
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

macro_rules! visit_scalars {
    ($($visit:ident($type:ty))*) => {
        $(fn $visit<E: Error>(self, _: $type) -> Result<Document, E> {
            Ok(Document::Scalar)
        })*
    };
}

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_unit<E: Error>(self) -> Result<Document, E> {
        Ok(Document::Empty)
    }

    visit_scalars! {
        visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_i128(i128) visit_u128(u128)
        visit_f64(f64) visit_str(&str)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut input: A) -> Result<Document, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = input.next_element()? {
            items.push(item);
        }
        Ok(Document::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Document, A::Error> {
        let mut head = Map::new();
        let mut items = Document::Empty;
        while let Some(key) = input.next_key::<String>()? {
            if key == "items" {
                items = input.next_value()?;
            } else {
                head.insert(key, input.next_value()?);
            }
        }
        let items = Box::new(items);
        Ok(Document::Object { head, items })
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let found = Spanned::<Value>::deserialize(input)?;
        // In JSON, no value has a line of its own.
        let lines = usize::try_from(found.referenced.line());
        let line = lines.unwrap_or_default().saturating_sub(1);
        Ok(Self::new(found.value, line))
    }
}

#[cfg(test)]
mod tests {
    use super::super::document;

    #[test]
    fn lists_in_lists_are_read() {
        let service = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}"#;
        let list = (0..50).fold(service.to_owned(), |inner, _| {
            format!(r#"{{"kind":"List","apiVersion":"v1","items":[{inner}]}}"#)
        });
        let found = document::read(&list);
        assert_eq!(found.len(), 1);
        assert!(found[0].object.is_ok(), "{:?}", found[0].object);
    }
}
