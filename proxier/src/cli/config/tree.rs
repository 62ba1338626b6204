//! A YAML or JSON text as a tree in which each value knows its line.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use crate::yaml;

/// A value and the line on which it begins, counted from 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct YamlNode {
    pub(super) line: u64,
    pub(super) value: YamlValue,
}

/// A value of any type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum YamlValue {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<YamlNode>),
    /// In the order of the text, with repeated keys.
    Map(Vec<(Spanned<String>, YamlNode)>),
}

impl YamlValue {
    /// Returns the name of the type, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

impl YamlNode {
    /// Removes each entry of a mapping that a later entry of its name replaces.
    ///
    /// `found` gets the path below `path` and the line of each later entry.
    pub(super) fn keep_last(&mut self, path: &str, found: &mut Vec<(String, u64)>) {
        match &mut self.value {
            YamlValue::List(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    item.keep_last(&format!("{path}[{index}]"), found);
                }
            }
            YamlValue::Map(entries) => {
                found.extend(repeated(path, entries));
                let mut names = HashSet::new();
                entries.reverse();
                entries.retain(|(key, _)| names.insert(key.value.clone()));
                entries.reverse();
                for (key, value) in entries {
                    value.keep_last(&below(path, &key.value), found);
                }
            }
            _ => {}
        }
    }
}

/// Returns the paths and lines of the entries of the mapping at `path` that repeat the name of an earlier one.
pub(super) fn repeated(
    path: &str,
    entries: &[(Spanned<String>, YamlNode)],
) -> impl Iterator<Item = (String, u64)> {
    let mut names = HashSet::new();
    let repeated = entries
        .iter()
        .filter(move |(key, _)| !names.insert(&key.value));
    repeated.map(move |(key, _)| (below(path, &key.value), key.referenced.line()))
}

/// Returns the path of the entry `name` of the mapping at `path`, which is empty for the whole text.
pub(super) fn below(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// Parses the first document of a text. The error has the line, if known, and the reason.
pub(super) fn parse(text: &str) -> Result<YamlNode, (Option<u64>, String)> {
    let mut options = yaml::limits(text.len());
    // kube-proxy's parser follows YAML 1.1: `yes` is a boolean, and 010 is 8.
    options.strict_booleans = false;
    options.legacy_octal_numbers = true;
    // Repeated keys reach the visitor, which keeps them all.
    options.duplicate_keys = serde_saphyr::DuplicateKeyPolicy::LastWins;
    serde_saphyr::with_deserializer_from_str_with_options(first_document(text), options, |input| {
        YamlNode::deserialize(input)
    })
    .map_err(|error| yaml::explain(&error))
}

/// Returns the text up to its second document, which kube-proxy ignores.
fn first_document(text: &str) -> &str {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut offset = 0;
    let mut has_content = false;
    for line in text.split_inclusive('\n') {
        let is_marker = line
            .strip_prefix("---")
            .is_some_and(|after| after.is_empty() || after.starts_with([' ', '\t', '\r', '\n']));
        if is_marker && has_content {
            return &text[..offset];
        }
        has_content |= !line.trim().is_empty() && !line.trim_start().starts_with('#');
        offset += line.len();
    }
    text
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let found = Spanned::<YamlValue>::deserialize(input)?;
        Ok(Self {
            line: found.referenced.line(),
            value: found.value,
        })
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(YamlVisitor)
    }
}

struct YamlVisitor;

impl<'de> Visitor<'de> for YamlVisitor {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(YamlValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlValue, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(YamlValue::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tree: &YamlNode) -> String {
        let value = match &tree.value {
            YamlValue::List(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
            YamlValue::Map(entries) => {
                let entry = |(key, value): &(Spanned<String>, YamlNode)| {
                    format!("{}@{}={}", key.value, key.referenced.line(), text(value))
                };
                entries.iter().map(entry).collect::<Vec<_>>().join(" ")
            }
            value => format!("{value:?}"),
        };
        format!("{}:({value})", tree.line)
    }

    #[test]
    fn values_have_lines_and_repeated_keys_stay() {
        let parsed = parse("# comment\na: yes\nb:\n  - 010\n  - x\na: ~\nc: 1e2\n").unwrap();
        assert_eq!(
            text(&parsed),
            "2:(a@2=2:(Bool(true)) b@3=4:(4:(Integer(8)) 5:(Text(\"x\"))) a@6=6:(Null) \
             c@7=7:(Float(100.0)))"
        );
        let json = "{\n\t\"a\": {\"b\": \"yes\"},\n\t\"c\": [true]\n}\n";
        assert_eq!(
            text(&parse(json).unwrap()),
            "1:(a@2=2:(b@2=2:(Text(\"yes\"))) c@3=3:(3:(Bool(true))))"
        );
    }

    #[test]
    fn only_the_first_document_counts() {
        assert_eq!(
            text(&parse("---\n# x\na: 1\n---\nb: [\n").unwrap()),
            "3:(a@3=3:(Integer(1)))"
        );
    }

    #[test]
    fn syntax_errors_have_a_line() {
        let (line, message) = parse("a: 1\nb: [\n").unwrap_err();
        assert!(line >= Some(2), "{line:?} {message}");
        let (line, _) = parse("a:\n\tb: 1\n").unwrap_err();
        assert_eq!(line, Some(2));
    }
}
