//! Documents with one object or a list.
//!
//! The items of a list are parsed one at a time, so that the generic tree of a whole cluster is never
//! in memory. The exception is an item without a kind of its own: the list's kind often follows the
//! items, so such an item is kept as a generic tree until the end of the list.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::document::{Cursor, ManifestObject};
use super::kind::{Kind, Single};
use crate::problem::Problem;

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
    /// The objects of an item with a kind of its own.
    Known(Vec<ManifestObject>),
    /// An item without a kind, at this line.
    Anonymous(Value, usize),
}

impl Document {
    /// Converts an item at `line`, which may be a list itself.
    fn new(value: Value, line: usize) -> Self {
        match value {
            Value::Null => Self::Empty,
            Value::Array(items) => {
                let items = items.into_iter().map(|item| Item::new(item, line));
                Self::Array(items.collect())
            }
            Value::Object(mut head) => {
                let items = head.remove("items").unwrap_or_default();
                let items = Box::new(Self::new(items, line));
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
            Self::Array(items) => return finish_items(items, None, found),
            Self::Scalar => problem("", "is not a Kubernetes object; the document is skipped"),
            Self::Object { head, items } => match (Kind::of(&head), *items) {
                (Err(problem), _) => Err(problem),
                (Ok(Kind::Other), _) | (Ok(Kind::List(_)), Self::Empty) => return,
                (Ok(Kind::List(kind)), Self::Array(items)) => {
                    return finish_items(items, kind, found);
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

/// Adds the objects of a list of `kind`.
fn finish_items(items: Vec<Item>, kind: Option<Single>, found: &mut Vec<ManifestObject>) {
    for item in items {
        let (value, line) = match item {
            Item::Known(objects) => {
                found.extend(objects);
                continue;
            }
            Item::Anonymous(value, line) => (value, line),
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
        found.push(ManifestObject { line, object });
    }
}

impl Item {
    fn new(value: Value, line: usize) -> Self {
        if value.get("kind").is_none() {
            return Self::Anonymous(value, line);
        }
        let mut objects = Vec::new();
        Document::new(value, line).finish(line, &mut objects);
        Self::Known(objects)
    }
}

/// Deserializes a [`Document`].
pub(super) struct DocumentSeed<'a>(pub(super) &'a Cursor);

impl<'de> DeserializeSeed<'de> for DocumentSeed<'_> {
    type Value = Document;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Document, D::Error> {
        input.deserialize_any(self)
    }
}

macro_rules! visit_scalars {
    ($($visit:ident($type:ty))*) => {
        $(fn $visit<E: Error>(self, _: $type) -> Result<Document, E> {
            Ok(Document::Scalar)
        })*
    };
}

impl<'de> Visitor<'de> for DocumentSeed<'_> {
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
        while let Some(item) = input.next_element_seed(ItemSeed(self.0))? {
            items.push(item);
        }
        Ok(Document::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Document, A::Error> {
        let mut head = Map::new();
        let mut items = Document::Empty;
        while let Some(key) = input.next_key::<String>()? {
            if key == "items" {
                items = input.next_value_seed(DocumentSeed(self.0))?;
            } else {
                head.insert(key, input.next_value()?);
            }
        }
        let items = Box::new(items);
        Ok(Document::Object { head, items })
    }
}

struct ItemSeed<'a>(&'a Cursor);

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Item, D::Error> {
        let line = self.0.line();
        let Spanned {
            value, referenced, ..
        } = Spanned::<Value>::deserialize(input)?;
        // For JSON the cursor has the line of the item, and `Spanned` has none. For YAML the cursor
        // has the document's first line, from which `Spanned` counts.
        let offset = usize::try_from(referenced.line())
            .unwrap_or_default()
            .saturating_sub(1);
        Ok(Item::new(value, line + offset))
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
