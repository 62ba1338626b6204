//! The values of settings.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::duration::GoDuration;
use super::fields::{FIELDS, Field};
use super::{API_VERSION, KIND};

/// Values of fields by their path, or of flags without a field by their name.
///
/// A field that is not set has its default. All values have the type of their field.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Values(BTreeMap<&'static str, Value>);

impl Values {
    /// Sets a value; `null` has no effect.
    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        match value.into() {
            Value::Null => {}
            value => _ = self.0.insert(name, value),
        }
    }

    /// Sets a value of a flag: elements of lists and mappings are added to those of earlier flags.
    pub(super) fn extend(&mut self, name: &'static str, value: Value) {
        match (self.0.get_mut(name), value) {
            (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
            (Some(Value::Object(entries)), Value::Object(more)) => entries.extend(more),
            (_, value) => self.set(name, value),
        }
    }

    /// Removes a value and returns it; the field has its default then.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// Returns whether a value is set that is not the default.
    pub(super) fn differs(&self, field: &Field) -> bool {
        let value = self.0.get(field.path);
        value.is_some_and(|value| *value != field.default_value())
    }

    /// Returns the value, or the default.
    pub(super) fn get(&self, name: &str) -> Value {
        let default = || Field::find(name).map(Field::default_value);
        let value = self.0.get(name).cloned();
        value.or_else(default).unwrap_or_default()
    }

    /// Returns a string.
    pub(crate) fn text(&self, name: &str) -> String {
        match self.get(name) {
            Value::String(text) => text,
            _ => String::new(),
        }
    }

    /// Returns whether a boolean is true.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name) == Value::Bool(true)
    }

    /// Returns an integer; `None` without a default.
    pub(super) fn integer(&self, name: &str) -> Option<i64> {
        self.get(name).as_i64()
    }

    /// Returns a duration.
    pub(super) fn duration(&self, name: &str) -> GoDuration {
        match self.get(name) {
            Value::Number(nanos) => GoDuration::from_nanos(nanos.as_i64().unwrap_or_default()),
            value => value
                .as_str()
                .and_then(GoDuration::parse)
                .unwrap_or_default(),
        }
    }

    /// Returns the strings of a list.
    pub(super) fn words(&self, name: &str) -> Vec<String> {
        let list = self.get(name);
        let words = list.as_array().into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Returns the content of the configuration as kube-proxy has it.
    ///
    /// It has all fields of kube-proxy's file, except those that its definition omits when empty.
    pub(super) fn to_json(&self) -> Value {
        let mut root = Map::from_iter([
            ("apiVersion".to_owned(), API_VERSION.into()),
            ("kind".to_owned(), KIND.into()),
        ]);
        for field in &FIELDS {
            let value = self.get(field.path);
            let is_empty = value == field.kind.zero() && OMITTED.contains(&field.path);
            if !is_empty {
                insert(&mut root, field.path, value);
            }
        }
        Value::Object(root)
    }
}

/// The fields that are absent if they are empty.
const OMITTED: [&str; 5] = [
    "featureGates",
    "logging.options.json.splitStream",
    "logging.options.text.splitStream",
    "logging.vmodule",
    "windowsRunAsService",
];

fn insert(section: &mut Map<String, Value>, path: &str, value: Value) {
    let Some((name, rest)) = path.split_once('.') else {
        section.insert(path.to_owned(), value);
        return;
    };
    let inner = section.entry(name).or_insert_with(|| Map::new().into());
    // A field is never a section (a test of FIELDS).
    if let Value::Object(inner) = inner {
        insert(inner, rest, value);
    }
}

/// Returns a mapping as YAML: sections in lines, values in JSON, which is YAML.
pub(super) fn to_yaml(content: &Value, indent: usize) -> String {
    let entries = content.as_object().into_iter().flatten();
    let lines = entries.map(|(name, value)| {
        let value = match value {
            // Names of gates may need quotes.
            Value::Object(_) if name != "featureGates" => {
                format!("\n{}", to_yaml(value, indent + 2))
            }
            Value::String(text) if is_plain(text) => format!(" {text}\n"),
            value => format!(" {value}\n"),
        };
        format!("{:indent$}{name}:{value}", "")
    });
    lines.collect()
}

/// Returns whether every reader takes a text without quotes for a string.
fn is_plain(text: &str) -> bool {
    // The words that YAML 1.1 reads as booleans or null.
    let words = ["true", "false", "yes", "no", "y", "n", "on", "off", "null"];
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text
            .bytes()
            .all(|letter| letter.is_ascii_alphanumeric() || b"/._-".contains(&letter))
        && !words.contains(&text.to_ascii_lowercase().as_str())
}
