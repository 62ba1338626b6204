//! Splits a text into documents, and documents into objects.

use serde::Deserialize as _;

use super::kind::Object;
use super::list::Document;
use crate::cluster::problem::Problem;
use crate::util::yaml;

/// The maximum length of a syntax error's message, in characters.
const MAX_MESSAGE: usize = 200;

/// An object of a known kind, or why it is unreadable, and its first line.
pub(super) struct ManifestObject {
    pub(super) line: usize,
    pub(super) object: Result<Object, Problem>,
}

/// Parses all objects of `text`, in order.
///
/// The text is split into documents before it is parsed, so that a syntax error affects only its
/// document. The same split works for JSON, which cannot contain a line `---`.
pub(super) fn read(text: &str) -> Vec<ManifestObject> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    for chunk in chunks(text) {
        let Some(chunk) = chunk.without_preamble() else {
            continue;
        };
        // YAML includes most of JSON, but not all of it, and not several values in a row.
        let is_json_like = chunk.text.trim_start().starts_with(['{', '[']);
        if !is_json_like || !read_json(chunk, &mut found) {
            read_yaml(chunk, &mut found);
        }
    }
    found
}

/// A document of a text.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    text: &'a str,
    /// Its first line in the whole text, counted from 1.
    line: usize,
}

impl<'a> Chunk<'a> {
    /// Returns the document from its first line of content on, or `None` if it has none.
    ///
    /// A chunk of only directives and comments belongs to the following document.
    fn without_preamble(self) -> Option<Self> {
        let mut rest = self;
        for line in self.text.split_inclusive('\n') {
            let is_marker = matches!(line.trim_end(), "---" | "...");
            let is_content = !line.trim().is_empty() && !line.trim_start().starts_with('#');
            if is_content && !is_marker && !line.starts_with('%') {
                return Some(rest);
            }
            rest = Self {
                text: &rest.text[line.len()..],
                line: rest.line + 1,
            };
        }
        None
    }
}

/// Splits a text before each line that starts a YAML document.
fn chunks(text: &str) -> impl Iterator<Item = Chunk<'_>> {
    let mut rest = Some(Chunk { text, line: 1 });
    std::iter::from_fn(move || {
        let Chunk { text, line } = rest.take()?;
        let mut offset = 0;
        for (count, part) in text.split_inclusive('\n').enumerate() {
            let starts = part.strip_prefix("---").is_some_and(|after| {
                after.is_empty() || after.starts_with([' ', '\t', '\r', '\n'])
            });
            if starts && count > 0 {
                rest = Some(Chunk {
                    text: &text[offset..],
                    line: line + count,
                });
                break;
            }
            offset += part.len();
        }
        Some(Chunk {
            text: &text[..offset],
            line,
        })
    })
}

fn read_yaml(chunk: Chunk<'_>, found: &mut Vec<ManifestObject>) {
    let mut options = yaml::limits(chunk.text.len());
    // YAML 1.1 reads an unquoted `no` or `off` as a boolean, but people mean strings.
    options.strict_booleans = true;
    let read =
        serde_saphyr::with_deserializer_from_str_with_options(chunk.text, options, |input| {
            Document::deserialize(input)
        });
    match read {
        Ok(document) => document.finish(chunk.line, found),
        Err(error) => {
            let (line, message) = yaml::explain(&error);
            let line = line.and_then(|line| usize::try_from(line).ok());
            let line = chunk.line + line.unwrap_or_default().saturating_sub(1);
            found.push(unreadable(line, "YAML", &message));
        }
    }
}

/// Parses JSON values. Returns `false` if the first is not JSON, so that it may be YAML.
fn read_json(chunk: Chunk<'_>, found: &mut Vec<ManifestObject>) -> bool {
    let mut values = serde_json::Deserializer::from_str(chunk.text).into_iter::<Document>();
    let mut is_first = true;
    loop {
        let rest = &chunk.text[values.byte_offset()..];
        let passed = chunk.text.len() - rest.trim_start().len();
        let line = chunk.line + chunk.text[..passed].matches('\n').count();
        match values.next() {
            None => return true,
            Some(Ok(document)) => document.finish(line, found),
            Some(Err(_)) if is_first => return false,
            // A comment may follow the values, as in any YAML.
            Some(Err(_)) if rest.trim_start().starts_with('#') => return true,
            Some(Err(error)) => {
                let line = chunk.line + error.line().saturating_sub(1);
                let message = error.to_string();
                let message = message
                    .rsplit_once(" at line ")
                    .map_or(&*message, |(text, _)| text);
                found.push(unreadable(line, "JSON", message));
                return true;
            }
        }
        is_first = false;
    }
}

fn unreadable(line: usize, language: &str, message: &str) -> ManifestObject {
    let mut message: String = message.chars().map(printable).take(MAX_MESSAGE).collect();
    message = format!(
        "cannot be read as {language}: {message}; \
         objects read from this document before stay in use"
    );
    ManifestObject {
        line,
        object: Err(Problem::new("", "", "", message)),
    }
}

fn printable(letter: char) -> char {
    if letter.is_control() { ' ' } else { letter }
}
