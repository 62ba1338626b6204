//! Label and field selectors.

use serde_json::Value;

/// Label and field selectors of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    requirements: Vec<(Subject, Requirement)>,
}

#[derive(Clone, Debug)]
enum Subject {
    Label(String),
    /// The position of a field in [`FIELDS`].
    Field(usize),
}

#[derive(Clone, Debug)]
enum Requirement {
    Exists,
    IsMissing,
    Is(String),
    IsNot(String),
}

/// The fields of the served kinds by which a real server can select.
const FIELDS: [&str; 4] = [
    "metadata.name",
    "metadata.namespace",
    "spec.clusterIP",
    "spec.type",
];

/// The parts of an object by which selectors choose.
#[derive(Clone, Debug)]
pub(crate) struct Selectable {
    labels: Box<[(Box<str>, Box<str>)]>,
    /// The values of [`FIELDS`]; empty without one.
    fields: [Box<str>; FIELDS.len()],
}

impl Selectable {
    pub(crate) fn of(object: &Value) -> Self {
        let labels = object["metadata"]["labels"].as_object();
        let labels = labels.into_iter().flatten().filter_map(|(key, value)| {
            let value = value.as_str()?;
            Some((key.as_str().into(), value.into()))
        });
        let field = |path: &str| {
            let value = path.split('.').fold(object, |value, part| &value[part]);
            value.as_str().unwrap_or("").into()
        };
        Self {
            labels: labels.collect(),
            fields: FIELDS.map(field),
        }
    }

    fn label(&self, key: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        let (_, value) = labels.find(|(known, _)| **known == *key)?;
        Some(value)
    }
}

impl Selector {
    /// Parses the parameters `labelSelector` and `fieldSelector`.
    ///
    /// # Errors
    /// The message of the 400 response to an invalid selector.
    pub(crate) fn parse(labels: &str, fields: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for text in labels.split(',').filter(|text| !text.is_empty()) {
            let (key, requirement) = split(text);
            requirements.push((Subject::Label(key.to_owned()), requirement));
        }
        for text in fields.split(',').filter(|text| !text.is_empty()) {
            let (key, requirement) = split(text);
            let Some(position) = FIELDS.iter().position(|known| *known == key) else {
                return Err(format!("field label not supported: {key}"));
            };
            requirements.push((Subject::Field(position), requirement));
        }
        Ok(Self { requirements })
    }

    /// Returns whether `object` matches.
    pub(crate) fn matches(&self, object: &Selectable) -> bool {
        self.requirements.iter().all(|(subject, requirement)| {
            let text = match subject {
                Subject::Label(key) => object.label(key),
                Subject::Field(position) => Some(&*object.fields[*position]),
            };
            match requirement {
                Requirement::Exists => text.is_some(),
                Requirement::IsMissing => text.is_none(),
                Requirement::Is(wanted) => text == Some(wanted),
                Requirement::IsNot(unwanted) => text != Some(unwanted),
            }
        })
    }
}

fn split(text: &str) -> (&str, Requirement) {
    if let Some(key) = text.strip_prefix('!') {
        (key, Requirement::IsMissing)
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Requirement::IsNot(value.to_owned()))
    } else if let Some((key, value)) = text.split_once('=') {
        (
            key,
            Requirement::Is(value.trim_start_matches('=').to_owned()),
        )
    } else {
        (text, Requirement::Exists)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_and_fields_choose() {
        let object =
            json!({"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {"clusterIP": "None"}});
        for (labels, fields, matches) in [
            ("", "", true),
            ("!y,x=1", "metadata.name=a", true),
            ("!x", "", false),
            ("y", "", false),
            ("x!=1", "", false),
            ("y!=1", "spec.clusterIP!=", true),
            ("", "spec.clusterIP!=None", false),
        ] {
            let selector = Selector::parse(labels, fields).unwrap();
            let selectable = Selectable::of(&object);
            assert_eq!(selector.matches(&selectable), matches, "{labels} {fields}");
        }
        assert!(Selector::parse("", "spec.ports=1").is_err());
    }
}
