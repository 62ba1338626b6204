//! Reads a configuration file.

use std::path::Path;

use super::fields::Field;
use super::origin::{Origin, Origins, SettingErrors};
use super::tree::{self, YamlNode, YamlValue};
use super::{API_VERSION, Configuration, KIND};

/// The largest accepted file, in bytes. A ConfigMap cannot be larger.
const MAX_LENGTH: usize = 1 << 20;

/// The content of a configuration file.
#[derive(Debug, Default)]
pub(super) struct ReadFile {
    /// The fields as they are in the file, without defaults.
    pub(super) configuration: Configuration,
    pub(super) origins: Origins,
    /// Unknown and repeated fields. kube-proxy's strict reader rejects them; then it reads the file
    /// again with its lenient one, which ignores unknown fields. Of a repeated field or section of YAML it uses the
    /// last value only; the repeated sections of JSON it reads one after the other.
    pub(super) notices: Vec<String>,
    errors: Vec<String>,
}

/// Parses the text of the file at `path`.
///
/// # Errors
/// If the text is not YAML, has another kind or version, or a field has a value of the wrong type. The
/// error has all such fields; kube-proxy reports the first one.
pub(super) fn read(path: &Path, text: &str) -> Result<ReadFile, SettingErrors> {
    let mut file = ReadFile::default();
    file.origins.file = Some(path.to_owned());
    if text.len() > MAX_LENGTH {
        let place = file.origins.place(None, "");
        return Err(SettingErrors(vec![format!(
            "{place}: the file is longer than 1 MiB"
        )]));
    }
    let mut tree = tree::parse(text).map_err(|(line, message)| {
        let place = file.origins.place(line, "");
        SettingErrors(vec![format!("{place}: not valid YAML: {message}")])
    })?;
    // As kube-proxy recognises JSON.
    if !text.trim_start().starts_with('{') {
        let mut repeated = Vec::new();
        tree.keep_last("", &mut repeated);
        file.notice_repeated(repeated, "only the last value is used");
    }
    let YamlValue::Map(entries) = &tree.value else {
        let place = file.origins.place(Some(tree.line.max(1)), "");
        let kind = tree.value.kind();
        return Err(SettingErrors(vec![format!(
            "{place}: must be a mapping with apiVersion: {API_VERSION} and kind: {KIND}, not {kind}"
        )]));
    };
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        file.require(entries, name, expected);
    }
    file.walk("", &tree);
    match file.errors.is_empty() {
        true => Ok(file),
        false => Err(SettingErrors(file.errors)),
    }
}

type Entries = [(serde_saphyr::Spanned<String>, YamlNode)];

impl ReadFile {
    /// Adds an error unless the last entry of this name has the expected value.
    fn require(&mut self, entries: &Entries, name: &str, expected: &str) {
        let found = entries.iter().rev().find(|(key, _)| key.value == name);
        let error = match found.map(|(_, tree)| (&tree.value, tree.line)) {
            Some((YamlValue::Text(text), _)) if text == expected => return,
            Some((YamlValue::Text(text), line)) => {
                let place = self.origins.place(Some(line), name);
                format!("{place}: {text:?} is not supported; it must be {expected}")
            }
            Some((other, line)) => {
                let place = self.origins.place(Some(line), name);
                format!("{place}: must be {expected}, not {}", other.kind())
            }
            None => {
                let place = self.origins.place(None, "");
                format!("{place}: {name} is missing; it must be {expected}")
            }
        };
        self.errors.push(error);
    }

    /// Reads the section at `path`.
    fn walk(&mut self, path: &str, tree: &YamlNode) {
        let entries = match &tree.value {
            YamlValue::Map(entries) => entries,
            // As in kube-proxy: an empty section keeps all defaults.
            YamlValue::Null => return,
            other => {
                let place = self.origins.place(Some(tree.line), path);
                let error = format!("{place}: must be a mapping, not {}", other.kind());
                self.errors.push(error);
                return;
            }
        };
        // Only JSON still has some.
        self.notice_repeated(
            tree::repeated(path, entries),
            "as JSON, the values are merged",
        );
        for (key, value) in entries {
            let name = &key.value;
            let inner = tree::below(path, name);
            if let Some(field) = Field::find(&inner) {
                self.read_field(field, value);
            } else if Field::is_section(&inner) {
                self.walk(&inner, value);
            } else if !(path.is_empty() && ["apiVersion", "kind"].contains(&&**name)) {
                let place = self.origins.place(Some(key.referenced.line()), &inner);
                self.notices
                    .push(format!("{place}: is an unknown field; it is ignored"));
            }
        }
    }

    fn notice_repeated(&mut self, repeated: impl IntoIterator<Item = (String, u64)>, effect: &str) {
        for (path, line) in repeated {
            let place = self.origins.place(Some(line), &path);
            self.notices.push(format!("{place}: is repeated; {effect}"));
        }
    }

    fn read_field(&mut self, field: &'static Field, tree: &YamlNode) {
        match (field.slot)(&mut self.configuration).decode(tree) {
            Ok(()) => {
                let origin = Origin::Line(tree.line);
                self.origins.insert(field.path, origin);
                if let YamlValue::List(items) = &tree.value {
                    for (index, item) in items.iter().enumerate() {
                        let path = format!("{}[{index}]", field.path);
                        self.origins.insert(path, Origin::Line(item.line));
                    }
                }
            }
            Err(fault) => {
                let place = self.origins.place(Some(fault.line), field.path);
                let text = format!("{place}{}: {}", fault.below, fault.reason);
                self.errors.push(text);
            }
        }
    }
}
