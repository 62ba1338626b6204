//! Reads a configuration file.

use std::fmt;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::fields::Field;
use super::kind::{Fault, Kind};
use super::origin::{Origin, Origins, SettingErrors};
use super::values::Values;
use super::{API_VERSION, KIND};
use crate::util::yaml;

/// The largest accepted file, in bytes. A ConfigMap cannot be larger.
const MAX_LENGTH: usize = 1 << 20;

/// The content of a configuration file.
#[derive(Debug, Default)]
pub(super) struct ReadFile {
    pub(super) values: Values,
    pub(super) origins: Origins,
    /// Unknown fields, which kube-proxy ignores, too.
    pub(super) notices: Vec<String>,
    errors: Vec<String>,
    has_version: bool,
    has_kind: bool,
}

/// Parses the text of the file at `path`.
///
/// # Errors
/// If the text is not one document of YAML or JSON, repeats a field, has another kind or version, or a field has a
/// value of the wrong type. The error has all fields of the wrong type; kube-proxy reports the first one. Of a
/// repeated field kube-proxy uses the last value or a mixture, so it is refused.
pub(super) fn read(path: &Path, text: &str) -> Result<ReadFile, SettingErrors> {
    let mut file = ReadFile::default();
    file.origins.file = Some(path.to_owned());
    if text.len() > MAX_LENGTH {
        let place = file.origins.place(None, "");
        return Err(SettingErrors(vec![format!(
            "{place}: the file is longer than 1 MiB"
        )]));
    }
    let mut options = yaml::limits(text.len());
    // kube-proxy's parser follows YAML 1.1: `yes` is a boolean, and 010 is 8.
    options.strict_booleans = false;
    options.legacy_octal_numbers = true;
    let root = |input: serde_saphyr::Deserializer<'_, '_>| {
        let file = &mut file;
        Section { path: "", file }.deserialize(input)
    };
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, root);
    if let Err(error) = read {
        let (line, message) = yaml::explain(&error);
        let place = file.origins.place(line, "");
        return Err(SettingErrors(vec![format!(
            "{place}: cannot be read: {message}"
        )]));
    }
    for (has, name, expected) in [
        (file.has_version, "apiVersion", API_VERSION),
        (file.has_kind, "kind", KIND),
    ] {
        if !has {
            let place = file.origins.place(None, "");
            let error = format!("{place}: {name} is missing; it must be {expected}");
            file.errors.push(error);
        }
    }
    SettingErrors::unless_empty(std::mem::take(&mut file.errors))?;
    Ok(file)
}

impl ReadFile {
    /// Adds an error unless a field of the whole file has the expected value.
    fn require(&mut self, line: u64, name: &str, value: &Value, expected: &str) {
        if value != expected {
            let place = self.origins.place(Some(line), name);
            let error = format!("{place}: {value} is not supported; it must be {expected}");
            self.errors.push(error);
        }
    }

    fn read_field(&mut self, line: u64, field: &'static Field, value: &Value) {
        let read = match value {
            // Go leaves the setting alone, but gives the value to the parser of durations that are no pointers.
            Value::Null if field.kind != Kind::Duration || field.keeps_zero => return,
            value => field.kind.decode(value),
        };
        match read {
            Ok(value) => {
                self.origins.insert(field.path, Origin::Line(line));
                let is_zero = value == field.kind.zero() || value.as_i64() == Some(0);
                if field.keeps_zero || !is_zero {
                    self.values.set(field.path, value);
                }
            }
            Err(Fault { below, reason }) => {
                let place = self.origins.place(Some(line), field.path);
                self.errors.push(format!("{place}{below}: {reason}"));
            }
        }
    }
}

/// Reads the section at `path`, which is empty for the whole file.
struct Section<'a> {
    path: &'a str,
    file: &'a mut ReadFile,
}

impl<'de> DeserializeSeed<'de> for Section<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Section<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path {
            "" => f.write_str("a mapping"),
            path => write!(f, "a mapping for {path}"),
        }
    }

    /// An empty section keeps all defaults.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { path, file } = self;
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let (line, name) = (key.referenced.line(), key.value);
            let inner = match path {
                "" => name,
                path => format!("{path}.{name}"),
            };
            if let Some(field) = Field::find(&inner) {
                file.read_field(line, field, &entries.next_value()?);
            } else if Field::is_section(&inner) {
                let path = &inner;
                entries.next_value_seed(Section { path, file })?;
            } else if inner == "apiVersion" {
                file.has_version = true;
                file.require(line, &inner, &entries.next_value()?, API_VERSION);
            } else if inner == "kind" {
                file.has_kind = true;
                file.require(line, &inner, &entries.next_value()?, KIND);
            } else {
                let place = file.origins.place(Some(line), &inner);
                let notice = format!("{place}: is an unknown field; it is ignored");
                file.notices.push(notice);
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}
