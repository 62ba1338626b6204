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
    /// The path of a field, in parts.
    Field(Vec<String>),
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
            if !FIELDS.contains(&key) {
                return Err(format!("field label not supported: {key}"));
            }
            let path = key.split('.').map(str::to_owned).collect();
            requirements.push((Subject::Field(path), requirement));
        }
        Ok(Self { requirements })
    }

    /// Returns whether `object` matches.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.requirements.iter().all(|(subject, requirement)| {
            let text = match subject {
                Subject::Label(key) => object["metadata"]["labels"][key].as_str(),
                Subject::Field(path) => {
                    let value = path.iter().fold(object, |value, part| &value[part]);
                    Some(value.as_str().unwrap_or(""))
                }
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
            assert_eq!(selector.matches(&object), matches, "{labels} {fields}");
        }
        assert!(Selector::parse("", "spec.ports=1").is_err());
    }
}
