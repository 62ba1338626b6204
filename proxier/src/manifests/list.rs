//! Documents with one object or a list.
//!
//! The items of a list are parsed one at a time, so that the generic tree of a whole cluster is never
//! in memory. A list's own kind often follows its items. An item without a kind of its own is kept as
//! a generic tree until then.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::document::{Cursor, ManifestObject};
use super::kind::{Kind, Object, Single};
use crate::problem::Problem;

/// The maximum nesting of lists.
const MAX_DEPTH: usize = 4;

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
pub(super) struct Item {
    line: usize,
    content: Content,
}

enum Content {
    /// An item with a kind of its own, parsed.
    Known(Vec<Result<Object, Problem>>),
    /// An item without a kind.
    Anonymous(Value),
}

impl Document {
    /// Adds the objects of the document, which starts at `line`.
    pub(super) fn finish(self, line: usize, found: &mut Vec<ManifestObject>) {
        match self {
            Self::Empty => {}
            Self::Array(items) => finish_items(items, None, found),
            Self::Scalar => {
                let message = "is not a Kubernetes object; the document is skipped";
                let object = Err(Problem::new("", "", "", message));
                found.push(ManifestObject { line, object });
            }
            Self::Object { head, items } => match Kind::of(&head) {
                Err(problem) => found.push(ManifestObject {
                    line,
                    object: Err(problem),
                }),
                Ok(Kind::Other) => {}
                Ok(Kind::List(kind)) => match *items {
                    Self::Empty => {}
                    Self::Array(items) => finish_items(items, kind, found),
                    Self::Object { .. } | Self::Scalar => {
                        let object = Err(not_a_list());
                        found.push(ManifestObject { line, object });
                    }
                },
                Ok(Kind::Single(kind)) => {
                    found.push(ManifestObject {
                        line,
                        object: kind.read(Value::Object(head)),
                    });
                }
            },
        }
    }
}

fn finish_items(items: Vec<Item>, kind: Option<Single>, found: &mut Vec<ManifestObject>) {
    items.into_iter().for_each(|item| item.finish(kind, found));
}

fn not_a_list() -> Problem {
    Problem::new("", "items", "", "is not a list; the object is skipped")
}

impl Item {
    fn new(value: Value, line: usize) -> Self {
        let content = match value {
            Value::Object(map) if map.contains_key("kind") => Content::Known(read(map, 0)),
            other => Content::Anonymous(other),
        };
        Self { line, content }
    }

    fn finish(self, kind: Option<Single>, found: &mut Vec<ManifestObject>) {
        let line = self.line;
        match (self.content, kind) {
            (Content::Known(objects), _) => {
                found.extend(
                    objects
                        .into_iter()
                        .map(|object| ManifestObject { line, object }),
                );
            }
            (Content::Anonymous(value), Some(kind)) => {
                found.push(ManifestObject {
                    line,
                    object: kind.read(value),
                });
            }
            (Content::Anonymous(value), None) => {
                let message = match value {
                    Value::Object(_) => "is missing; the object is skipped",
                    _ => "is missing, because the item is not an object; it is skipped",
                };
                found.push(ManifestObject {
                    line,
                    object: Err(Problem::new("", "kind", "", message)),
                });
            }
        }
    }
}

/// Parses an object with a kind; for a list, the objects in it.
fn read(mut object: Map<String, Value>, depth: usize) -> Vec<Result<Object, Problem>> {
    match Kind::of(&object) {
        Err(problem) => vec![Err(problem)],
        Ok(Kind::Other) => Vec::new(),
        Ok(Kind::Single(kind)) => vec![kind.read(Value::Object(object))],
        Ok(Kind::List(_)) if depth == MAX_DEPTH => {
            vec![Err(Problem::new(
                "",
                "items",
                "",
                "is nested too deeply in lists; skipped",
            ))]
        }
        Ok(Kind::List(kind)) => {
            let items = match object.remove("items") {
                None | Some(Value::Null) => return Vec::new(),
                Some(Value::Array(items)) => items,
                Some(_) => return vec![Err(not_a_list())],
            };
            let mut objects = Vec::with_capacity(items.len());
            for item in items {
                match (item, kind) {
                    (Value::Object(item), _) if item.contains_key("kind") => {
                        objects.extend(read(item, depth + 1));
                    }
                    (item, Some(kind)) => objects.push(kind.read(item)),
                    (_, None) => {
                        let message = "is missing; the object is skipped";
                        objects.push(Err(Problem::new("", "kind", "", message)));
                    }
                }
            }
            objects
        }
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

impl<'de> Visitor<'de> for DocumentSeed<'_> {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_unit<E: Error>(self) -> Result<Document, E> {
        Ok(Document::Empty)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Document, E> {
        Ok(Document::Scalar)
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Document, E> {
        Ok(Document::Scalar)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Document, E> {
        Ok(Document::Scalar)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Document, E> {
        Ok(Document::Scalar)
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Document, E> {
        Ok(Document::Scalar)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Document, E> {
        Ok(Document::Scalar)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Document, E> {
        Ok(Document::Scalar)
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
        // For JSON `Spanned` has no line, and the cursor has it; for YAML it counts from the
        // document's first line.
        let offset = usize::try_from(referenced.line())
            .unwrap_or_default()
            .saturating_sub(1);
        Ok(Item::new(value, line + offset))
    }
}
