//! Malformed or conflicting input, and what was done instead.

use std::fmt;

/// A value in the input that cannot be used, and what is done instead.
///
/// A Problem affects only its field or object. All other fields and objects are used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The object, as `Kind namespace/name`, or a place in a file if the object is unreadable.
    pub object: String,
    /// The path of the field, such as `spec.externalIPs[0]`; empty for the whole object.
    pub field: String,
    /// The field's value, shortened to [`Problem::MAX_VALUE`] characters.
    pub value: String,
    /// The fault and its consequence; lower case, no full stop.
    pub message: String,
    /// The place of the object, if it was read from a file.
    pub source: Option<Source>,
}

/// A line of a manifest file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// The file's path.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl Problem {
    /// The maximum length of a value in characters; a longer one is truncated and marked.
    pub const MAX_VALUE: usize = 120;

    /// Returns a problem with `field` of `object`.
    ///
    /// `object` and `value` are truncated, so that hostile input cannot fill logs or memory.
    pub fn new(
        object: impl fmt::Display,
        field: impl Into<String>,
        value: impl fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        Self {
            object: shorten(&object.to_string()),
            field: field.into(),
            value: shorten(&value.to_string()),
            message: message.into(),
            source: None,
        }
    }

    /// Returns the kind of object and the field, without indexes: `Problems of Service spec.externalIPs`.
    pub(crate) fn kind(&self) -> String {
        let object = self.object.split(' ').next().unwrap_or_default();
        // Annotations are in brackets, too.
        let is_index = |part: &str| part.starts_with(|first: char| first.is_ascii_digit());
        let parts = self.field.split('[');
        let parts = parts.map(|part| match is_index(part) {
            true => part.split_once(']').map_or("", |(_, rest)| rest).to_owned(),
            false => format!("[{part}"),
        });
        let field: String = parts.collect();
        format!("Problems of {object} {}", field.trim_start_matches('['))
    }

    /// Sets the place of the object.
    pub fn at(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }
}

/// One line: `file:line: Service default/x: spec.externalIPs[0]: "bogus": message`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            write!(f, "{source}: ")?;
        }
        write!(f, "{}: ", self.object)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        if !self.value.is_empty() {
            write!(f, "{:?}: ", self.value)?;
        }
        f.write_str(&self.message)
    }
}

fn shorten(text: &str) -> String {
    // Counted in characters: cutting inside a UTF-8 sequence would panic.
    match text.char_indices().nth(Problem::MAX_VALUE) {
        None => text.to_owned(),
        Some((cut, _)) => format!("{}... ({} bytes)", &text[..cut], text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_one_field_are_of_one_kind() {
        let kind = |field| Problem::new("Service default/x", field, "", "").kind();
        let ingress = "status.loadBalancer.ingress[3].ip";
        assert_eq!(
            kind(ingress),
            "Problems of Service status.loadBalancer.ingress.ip"
        );
        let annotation = "metadata.annotations[ipvs-proxier.io/weights]";
        assert_eq!(
            kind(annotation),
            format!("Problems of Service {annotation}")
        );
    }

    #[test]
    fn prints_as_one_line_and_shortens_values() {
        let problem = Problem::new(
            "Service default/x",
            "spec.clusterIP",
            "bogus",
            "not an address",
        )
        .at(Source {
            file: "a.yaml".into(),
            line: 7,
        });
        assert_eq!(
            problem.to_string(),
            "a.yaml:7: Service default/x: spec.clusterIP: \"bogus\": not an address"
        );
        let long = Problem::new(
            "Service a/b",
            "metadata.name",
            "é".repeat(1 << 20),
            "too long",
        );
        assert!(long.value.len() < 300, "{}", long.value.len());
        assert!(long.value.ends_with("(2097152 bytes)"));
    }
}
