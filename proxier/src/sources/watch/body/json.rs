//! Bodies in JSON.

use memchr::{memchr, memchr2};

use super::{KEPT, MAX_ENVELOPE, MAX_OBJECT, NotAList, TooLong};

/// Splits a list into the elements of `items` while its bytes arrive.
///
/// Buffers only the incomplete element and the list's fields other than `items`. The splitter finds the
/// end of an element by its brackets and does not parse the element. So a malformed element whose brackets
/// match affects no other element. An element larger than [`MAX_OBJECT`] is truncated.
#[derive(Debug, Default)]
pub(in crate::sources::watch) struct ListSplitter {
    /// The number of open brackets.
    depth: usize,
    /// Set inside a string: whether its next character is escaped.
    string: Option<Escape>,
    /// Whether the array that is open at depth 2 is the value of `items`.
    in_items: bool,
    /// The last string at depth 1. When a value begins, it is the value's key.
    key: Vec<u8>,
    /// The bytes of the element that is incomplete.
    element: Vec<u8>,
    /// The list without its items.
    envelope: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    No,
    Next,
}

impl ListSplitter {
    /// Consumes the next bytes of the response and calls `each` with every element they complete.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), NotAList> {
        // The index in `bytes` where the open element starts; 0 if it started in earlier bytes.
        let mut start = 0;
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let was_inside = self.is_inside_element();
            let was_in_items = self.in_items;
            let here = at;
            at += 1;
            if self.string == Some(Escape::No) && was_inside {
                // Most bytes of a list are in strings inside elements. Skipping a string in one step saves
                // most of the time.
                let rest = bytes.get(here..).unwrap_or_default();
                let plain = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                if plain > 0 {
                    at = here + plain;
                    continue;
                }
            }
            self.step(byte)?;
            match (was_inside, self.is_inside_element()) {
                (false, true) => start = here,
                (true, false) => {
                    let tail = bytes.get(start..at).unwrap_or_default();
                    if self.element.is_empty() {
                        each(tail);
                    } else {
                        self.keep(tail);
                        each(&self.element);
                        self.element.clear();
                        self.element.shrink_to(KEPT);
                    }
                    start = 0;
                }
                (true, true) => {}
                (false, false) => {
                    if !(was_in_items && self.in_items) {
                        self.envelope.push(byte);
                    }
                }
            }
        }
        if self.is_inside_element() {
            self.keep(bytes.get(start..).unwrap_or_default());
        }
        if self.envelope.len() > MAX_ENVELOPE {
            return Err(NotAList("not a list"));
        }
        Ok(())
    }

    /// Appends to the open element and truncates it one byte above [`MAX_OBJECT`].
    fn keep(&mut self, bytes: &[u8]) {
        // The byte above the limit shows the reader of the element that the element was too large.
        let room = (MAX_OBJECT + 1).saturating_sub(self.element.len());
        self.element
            .extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// Returns the list object with an empty `items`.
    pub(super) fn finish(self) -> Result<Vec<u8>, NotAList> {
        if self.depth > 0 || self.envelope.is_empty() {
            return Err(NotAList("ends too early"));
        }
        Ok(self.envelope)
    }

    fn is_inside_element(&self) -> bool {
        self.in_items && self.depth > 2
    }

    fn step(&mut self, byte: u8) -> Result<(), NotAList> {
        if let Some(escape) = self.string {
            self.string = match (escape, byte) {
                (Escape::No, b'"') => None,
                (Escape::No, b'\\') => Some(Escape::Next),
                _ => Some(Escape::No),
            };
            // The key is only compared with `items`, so 64 bytes of a long string are enough.
            if self.depth == 1 && self.string.is_some() && self.key.len() < 64 {
                self.key.push(byte);
            }
            return Ok(());
        }
        match byte {
            b'"' => {
                self.string = Some(Escape::No);
                if self.depth == 1 {
                    self.key.clear();
                }
            }
            b'{' | b'[' => {
                self.in_items |= self.depth == 1 && byte == b'[' && self.key == b"items";
                self.depth += 1;
            }
            b'}' | b']' => {
                let open = self.depth.checked_sub(1);
                self.depth = open.ok_or(NotAList("brackets do not match"))?;
                self.in_items &= self.depth > 1;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Splits a watch into lines while its bytes arrive.
///
/// Buffers only the incomplete line. All other lines stay where they arrived.
#[derive(Debug, Default)]
pub(in crate::sources::watch) struct LineSplitter {
    /// The line that is incomplete, or that was returned last.
    partial: Vec<u8>,
    /// Whether `partial` was returned.
    is_returned: bool,
}

impl LineSplitter {
    /// Takes the next complete line that is not blank off the front of `rest`.
    ///
    /// Returns `None` if the rest is an incomplete line, which is kept.
    pub(super) fn next<'a, 'b: 'a>(
        &'a mut self,
        rest: &mut &'b [u8],
    ) -> Result<Option<&'a [u8]>, TooLong> {
        loop {
            if std::mem::take(&mut self.is_returned) {
                self.partial.clear();
                self.partial.shrink_to(KEPT);
            }
            let Some(end) = memchr(b'\n', rest) else {
                self.keep(std::mem::take(rest))?;
                return Ok(None);
            };
            let (line, after) = rest.split_at(end);
            *rest = after.get(1..).unwrap_or_default();
            if self.partial.is_empty() {
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(line));
                }
                continue;
            }
            self.keep(line)?;
            self.is_returned = true;
            if !self.partial.trim_ascii().is_empty() {
                break;
            }
        }
        // After the loop, because the compiler rejects a conditional return of what `self` owns in it.
        Ok(Some(&self.partial))
    }

    /// Appends to the incomplete line.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.partial.len() + bytes.len() > 2 * MAX_OBJECT {
            return Err(TooLong);
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, size: usize) -> Result<(Vec<String>, String), NotAList> {
        let mut splitter = ListSplitter::default();
        let mut elements = Vec::new();
        for bytes in text.as_bytes().chunks(size) {
            splitter.push(bytes, |element| {
                elements.push(String::from_utf8(element.to_vec()).unwrap());
            })?;
        }
        let envelope = String::from_utf8(splitter.finish()?).unwrap();
        Ok((elements, envelope))
    }

    #[test]
    fn elements_are_split_wherever_chunks_end() {
        let text = r#" {"kind":"items", "a":[{"items":[1]}], "items": [ {"a":"]}\"\\"} ,
            {"items":[{}],"b":{"c":["{"]}}, [7]
            ] , "metadata":{"items":[8],"resourceVersion":"5"}} "#;
        for size in 1..text.len() + 1 {
            let (elements, envelope) = cut(text, size).unwrap();
            let expected = [
                r#"{"a":"]}\"\\"}"#,
                r#"{"items":[{}],"b":{"c":["{"]}}"#,
                "[7]",
            ];
            assert_eq!(elements, expected, "pieces of {size}");
            let envelope: serde_json::Value = serde_json::from_str(&envelope).unwrap();
            assert_eq!(envelope["items"], serde_json::json!([]));
            assert_eq!(envelope["a"][0]["items"][0], 1);
            assert_eq!(envelope["metadata"]["resourceVersion"], "5");
            assert_eq!(envelope["metadata"]["items"][0], 8);
        }
    }

    #[test]
    fn a_response_that_is_not_a_list_is_rejected_or_has_no_elements() {
        assert_eq!(cut("", 1), Err(NotAList("ends too early")));
        assert_eq!(cut(r#"{"items":[{}"#, 3), Err(NotAList("ends too early")));
        assert_eq!(cut("}", 1), Err(NotAList("brackets do not match")));
        for text in [r#"{"items":null}"#, r#"{"items":{"a":[{}]}}"#, "<html>"] {
            assert_eq!(cut(text, 2).unwrap(), (vec![], text.to_owned()));
        }
        let endless = "[".repeat(MAX_ENVELOPE + 1);
        assert_eq!(cut(&endless, 4096), Err(NotAList("not a list")));
    }

    #[test]
    fn an_object_above_the_limit_is_truncated() {
        let mut splitter = ListSplitter::default();
        let mut lengths = Vec::new();
        let piece = vec![b'x'; 1 << 20];
        splitter.push(br#"{"items":[{"a":""#, |_| ()).unwrap();
        for _ in 0..20 {
            splitter.push(&piece, |_| ()).unwrap();
        }
        let end = br#""},{}]}"#;
        splitter
            .push(end, |element| lengths.push(element.len()))
            .unwrap();
        assert_eq!(lengths, [MAX_OBJECT + 1, 2]);
        assert_eq!(splitter.finish().unwrap(), br#"{"items":[]}"#);
    }

    #[test]
    fn lines_are_split_wherever_chunks_end() {
        let text = "one\n\n two\r\n\nthree\nunfinished";
        for size in 1..text.len() + 1 {
            let mut splitter = LineSplitter::default();
            let mut lines = Vec::new();
            for bytes in text.as_bytes().chunks(size) {
                let mut rest = bytes;
                while let Some(line) = splitter.next(&mut rest).unwrap() {
                    lines.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(lines, ["one", " two\r", "three"], "pieces of {size}");
        }
    }

    #[test]
    fn only_an_incomplete_line_is_kept() {
        let mut splitter = LineSplitter::default();
        let long = [vec![b'x'; 1 << 20], b"\nab".to_vec()].concat();
        for _ in 0..3 {
            let mut rest = long.as_slice();
            while splitter.next(&mut rest).unwrap().is_some() {}
            assert_eq!(splitter.partial, b"ab");
            assert!(splitter.partial.capacity() <= KEPT);
        }
    }

    #[test]
    fn an_endless_line_is_rejected() {
        let mut splitter = LineSplitter::default();
        let bytes = vec![b'x'; 1 << 20];
        let refused = (0..100).find(|_| splitter.next(&mut bytes.as_slice()).is_err());
        assert_eq!(refused, Some((2 * MAX_OBJECT) >> 20));
    }
}
