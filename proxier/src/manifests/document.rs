//! Texts, their documents, and the objects in these.

use std::cell::Cell;
use std::io::Read;

use serde::de::DeserializeSeed;
use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use super::kind::Object;
use super::list::DocumentSeed;
use crate::problem::Problem;

/// The longest explanation of a syntax error that is kept, in characters.
const MAX_MESSAGE: usize = 200;

/// An object that matters, or why one could not be had, and the line where it starts.
pub(super) struct Found {
    pub(super) line: usize,
    pub(super) object: Result<Object, Problem>,
}

/// Everything in `text`, in its order.
///
/// The text is split into documents before anything is parsed, so that a syntax error costs its
/// document only. JSON needs no other treatment: a line with `---` cannot occur in it.
pub(super) fn read(text: &str) -> Vec<Found> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    for chunk in chunks(text) {
        let Some(chunk) = chunk.without_preamble() else {
            continue;
        };
        // YAML takes in most JSON, but neither all of it nor several values in a row.
        let is_json_like = chunk.text.trim_start().starts_with(['{', '[']);
        if !is_json_like || !read_json(chunk, &mut found) {
            read_yaml(chunk, &mut found);
        }
    }
    found
}

/// A part of a text.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    text: &'a str,
    /// The line of the whole text where the part starts, counted from 1.
    line: usize,
}

impl<'a> Chunk<'a> {
    /// The part from its first line of content on; `None` when there is none.
    ///
    /// A chunk of nothing but directives and comments belongs to the document after it.
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

/// Splits a text before every line that starts a YAML document.
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

fn read_yaml(chunk: Chunk<'_>, found: &mut Vec<Found>) {
    // Without aliases a document has fewer nodes than bytes, so these limits only meet bombs: what
    // aliases may add is bounded whatever the size of the text.
    let size = chunk.text.len();
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 2 * size + 1000,
            max_nodes: size + 1000,
            max_total_scalar_bytes: size + (1 << 20),
            max_aliases: 1000,
            max_anchors: 1000,
            max_merge_keys: 1000,
            max_documents: 2,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
        // kubectl quotes such strings, people do not; no boolean is read where `no` would matter.
        strict_booleans: true,
        with_snippet: false,
    };
    let cursor = Cursor::new(chunk.line);
    let read =
        serde_saphyr::with_deserializer_from_str_with_options(chunk.text, options, |input| {
            DocumentSeed(&cursor).deserialize(input)
        });
    match read {
        Ok(document) => document.finish(chunk.line, found),
        Err(error) => {
            let line = error
                .location()
                .and_then(|place| usize::try_from(place.line()).ok());
            let line = chunk.line + line.unwrap_or_default().saturating_sub(1);
            let message = UserMessageFormatter
                .format_message(error.without_snippet())
                .into_owned();
            found.push(unreadable(line, "YAML", &message));
        }
    }
}

/// Reads any number of JSON values; `false` when the first is none, so that it may be YAML.
fn read_json(chunk: Chunk<'_>, found: &mut Vec<Found>) -> bool {
    let cursor = Cursor::new(chunk.line);
    let mut rest = chunk.text;
    let mut is_first = true;
    loop {
        let value = rest.trim_start();
        cursor.pass(&rest.as_bytes()[..rest.len() - value.len()]);
        // After the values there may still be a comment, as in any YAML.
        if value.is_empty() || value.starts_with('#') {
            return true;
        }
        let line = cursor.line();
        if !value.starts_with(['{', '[']) {
            found.push(unreadable(line, "JSON", "neither an object nor an array"));
            return true;
        }
        let start = cursor.offset.get();
        let reader = CountingReader {
            bytes: value.as_bytes(),
            cursor: &cursor,
        };
        let mut input = serde_json::Deserializer::from_reader(reader);
        match DocumentSeed(&cursor).deserialize(&mut input) {
            Ok(document) => document.finish(line, found),
            Err(_) if is_first => return false,
            Err(error) => {
                let line = line + error.line().saturating_sub(1);
                let message = error.to_string();
                let message = message
                    .rsplit_once(" at line ")
                    .map_or(&*message, |(text, _)| text);
                found.push(unreadable(line, "JSON", message));
                return true;
            }
        }
        is_first = false;
        rest = &value[(cursor.offset.get() - start).min(value.len())..];
    }
}

fn unreadable(line: usize, language: &str, message: &str) -> Found {
    let mut message: String = message.chars().map(printable).take(MAX_MESSAGE).collect();
    message = format!("cannot be read as {language}: {message}; the document is skipped");
    Found {
        line,
        object: Err(Problem::new("", "", "", message)),
    }
}

fn printable(letter: char) -> char {
    if letter.is_control() { ' ' } else { letter }
}

/// Where in the text the reader is.
pub(super) struct Cursor {
    line: Cell<usize>,
    offset: Cell<usize>,
}

impl Cursor {
    fn new(line: usize) -> Self {
        Self {
            line: Cell::new(line),
            offset: Cell::new(0),
        }
    }

    /// The current line of the whole text.
    ///
    /// Of JSON that is the line of the next byte. A YAML parser reads ahead and says itself where
    /// things stand, so that of YAML it is the line where the document starts.
    pub(super) fn line(&self) -> usize {
        self.line.get()
    }

    fn pass(&self, bytes: &[u8]) {
        let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
        self.line.set(self.line.get() + lines);
        self.offset.set(self.offset.get() + bytes.len());
    }
}

/// Tells how far `serde_json` has read, which it keeps to itself.
struct CountingReader<'a> {
    bytes: &'a [u8],
    cursor: &'a Cursor,
}

impl Read for CountingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.bytes.read(buffer)?;
        self.cursor.pass(&buffer[..count]);
        Ok(count)
    }
}
