//! Malformed or conflicting input, and what was done instead.

use std::fmt;

/// The maximum number of problems that are kept, logged and reported, of each kind of object and in all.
pub(crate) const MAX_PROBLEMS: usize = 2_000;

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
        #[cfg(test)]
        work::count();
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
        #[cfg(test)]
        work::count();
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

/// Problems up to [`MAX_PROBLEMS`], and the number of the others.
#[derive(Debug, Default)]
pub(crate) struct ProblemList {
    listed: Vec<Problem>,
    left_out: usize,
}

impl ProblemList {
    /// Adds the problem that `make` returns. If there are too many already, only counts it.
    pub(crate) fn add(&mut self, make: impl FnOnce() -> Problem) {
        match self.listed.len() < MAX_PROBLEMS {
            true => self.listed.push(make()),
            false => self.left_out += 1,
        }
    }

    /// Adds copies of these problems.
    pub(crate) fn extend<'a>(&mut self, problems: impl IntoIterator<Item = &'a Problem>) {
        problems
            .into_iter()
            .for_each(|problem| self.add(|| problem.clone()));
    }

    /// Counts objects whose problems are not listed anywhere.
    pub(crate) fn leave_out(&mut self, objects: usize) {
        self.left_out += objects;
    }

    /// Returns the problems, sorted. If there are more, the last one has their number.
    pub(crate) fn finish(self) -> Vec<Problem> {
        let Self {
            mut listed,
            left_out,
        } = self;
        listed.sort();
        if left_out > 0 {
            let message = format!(
                "problems or more exist besides the {MAX_PROBLEMS} that are listed; they have the same effect, and \
                 are listed when others are solved"
            );
            listed.push(Problem::new("This node", "problems", left_out, message));
        }
        listed
    }
}

fn shorten(text: &str) -> String {
    // Counted in characters: cutting inside a UTF-8 sequence would panic.
    match text.char_indices().nth(Problem::MAX_VALUE) {
        None => text.to_owned(),
        Some((cut, _)) => format!("{}... ({} bytes)", &text[..cut], text.len()),
    }
}

/// Counts the problems that this thread makes or formats.
#[cfg(test)]
pub(crate) mod work {
    use std::cell::Cell;

    thread_local!(static COUNT: Cell<usize> = const { Cell::new(0) });

    pub(crate) fn count() {
        COUNT.set(COUNT.get() + 1);
    }

    /// Returns the number so far.
    pub(crate) fn counted() -> usize {
        COUNT.get()
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
