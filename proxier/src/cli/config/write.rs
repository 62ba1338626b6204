//! Writes a configuration as YAML.

use std::collections::BTreeMap;

use serde_json::Value;

use super::slot::Written;
use super::{API_VERSION, Configuration, FIELDS, KIND};

/// A section of the file, or a value.
enum YamlEntry {
    Section(BTreeMap<String, Self>),
    Value(Written),
}

impl Configuration {
    /// Returns the content of the file that `--write-config-to` writes.
    ///
    /// It has the fields of kube-proxy's file in the same order: every one, sorted by name, except
    /// those that its definition omits when empty.
    pub(crate) fn to_yaml(&self) -> String {
        let mut out = String::new();
        write_section(&mut out, &self.tree(), 0);
        out
    }

    /// Returns the same content as JSON, for `/configz`.
    pub(crate) fn to_json(&self) -> Value {
        json_section(self.tree())
    }

    /// Returns every field that is written.
    fn tree(&self) -> BTreeMap<String, YamlEntry> {
        let mut copy = self.clone();
        let mut root = BTreeMap::new();
        let text = |text: &str| YamlEntry::Value(Written::Text(text.to_owned()));
        root.insert("apiVersion".to_owned(), text(API_VERSION));
        root.insert("kind".to_owned(), text(KIND));
        for field in &FIELDS {
            let written = (field.slot)(&mut copy).written();
            // `omitempty` in kube-proxy's definition.
            let is_omitted = written == Written::Omitted
                || (OMITTED_IF_FALSE.contains(&field.path)
                    && written == Written::Plain("false".to_owned()));
            if !is_omitted {
                insert(&mut root, field.path, written);
            }
        }
        root
    }
}

/// The fields that are absent if they are false.
const OMITTED_IF_FALSE: [&str; 3] = [
    "logging.options.json.splitStream",
    "logging.options.text.splitStream",
    "windowsRunAsService",
];

fn insert(section: &mut BTreeMap<String, YamlEntry>, path: &str, value: Written) {
    match path.split_once('.') {
        None => _ = section.insert(path.to_owned(), YamlEntry::Value(value)),
        Some((name, rest)) => {
            let inner = section
                .entry(name.to_owned())
                .or_insert_with(|| YamlEntry::Section(BTreeMap::new()));
            // A field is never a section (a test of FIELDS).
            if let YamlEntry::Section(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

fn json_section(section: BTreeMap<String, YamlEntry>) -> Value {
    let entries = section.into_iter().map(|(name, entry)| match entry {
        YamlEntry::Section(inner) => (name, json_section(inner)),
        YamlEntry::Value(value) => (name, json_value(value)),
    });
    Value::Object(entries.collect())
}

fn json_value(value: Written) -> Value {
    match value {
        // A number, a boolean, `null` or `[]`: the same in YAML and JSON.
        Written::Plain(words) => serde_json::from_str(&words).unwrap_or(Value::String(words)),
        Written::Text(text) => Value::String(text),
        Written::List(items) => items.into_iter().map(json_value).collect(),
        Written::Map(entries) => {
            let entries = entries.into_iter();
            Value::Object(
                entries
                    .map(|(name, value)| (name, json_value(value)))
                    .collect(),
            )
        }
        Written::Omitted => Value::Null,
    }
}

fn write_section(out: &mut String, section: &BTreeMap<String, YamlEntry>, depth: usize) {
    for (name, entry) in section {
        match entry {
            YamlEntry::Section(inner) => {
                line(out, depth, &format!("{}:", scalar(name)));
                write_section(out, inner, depth + 1);
            }
            YamlEntry::Value(value) => write_value(out, name, value, depth),
        }
    }
}

fn write_value(out: &mut String, name: &str, value: &Written, depth: usize) {
    let name = scalar(name);
    match value {
        Written::Plain(words) => line(out, depth, &format!("{name}: {words}")),
        Written::Text(text) => line(out, depth, &format!("{name}: {}", scalar(text))),
        Written::List(items) if items.is_empty() => line(out, depth, &format!("{name}: []")),
        Written::List(items) => {
            line(out, depth, &format!("{name}:"));
            for item in items {
                write_item(out, item, depth);
            }
        }
        Written::Map(entries) => {
            line(out, depth, &format!("{name}:"));
            for (name, value) in entries {
                write_value(out, name, value, depth + 1);
            }
        }
        Written::Omitted => {}
    }
}

fn write_item(out: &mut String, item: &Written, depth: usize) {
    match item {
        Written::Plain(words) => line(out, depth, &format!("- {words}")),
        Written::Text(text) => line(out, depth, &format!("- {}", scalar(text))),
        Written::Map(entries) => {
            let mut inner = String::new();
            for (name, value) in entries {
                write_value(&mut inner, name, value, depth + 1);
            }
            // The dash takes the place of the first line's indentation.
            let start = 2 * depth;
            inner.replace_range(start..start + 2, "- ");
            out.push_str(&inner);
        }
        Written::List(_) | Written::Omitted => {}
    }
}

fn line(out: &mut String, depth: usize, text: &str) {
    for _ in 0..depth {
        out.push_str("  ");
    }
    out.push_str(text);
    out.push('\n');
}

/// Returns a string as a YAML scalar: plain if every reader takes it for a string, otherwise as JSON.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text
            .bytes()
            .all(|letter| letter.is_ascii_alphanumeric() || b"/._-".contains(&letter))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    match is_plain {
        true => text.to_owned(),
        // JSON is valid in YAML, with the same escapes.
        false => Value::from(text).to_string(),
    }
}

/// The words that YAML 1.1 reads as booleans or null.
const WORDS: [&str; 9] = ["true", "false", "yes", "no", "y", "n", "on", "off", "null"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_where_a_reader_could_mistake_them() {
        for (text, written) in [
            ("ipvs", "ipvs"),
            ("/etc/kube.conf", "/etc/kube.conf"),
            ("", "\"\""),
            ("yes", "\"yes\""),
            ("::", "\"::\""),
            ("30s", "\"30s\""),
            ("a\nb", "\"a\\nb\""),
        ] {
            assert_eq!(scalar(text), written);
        }
    }
}
