//! Text of other programs in a line of ours.

use std::fmt::{self, Display, Write};

/// A text that ends no line and controls no terminal: control characters and line separators are escaped, as in
/// Rust's strings.
///
/// Messages of an API server, names of processes and chains, and errors that quote them are the text of other
/// programs. With a line break, such a text could end with a line that looks like one of ours.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<T>(pub T);

impl<T: Display> Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

/// Escapes what is written to it.
struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(ends_or_controls) {
            let (before, after) = rest.split_at(at);
            self.0.write_str(before)?;
            let mut characters = after.chars();
            for escaped in characters.next().into_iter().flat_map(char::escape_default) {
                self.0.write_char(escaped)?;
            }
            rest = characters.as_str();
        }
        self.0.write_str(rest)
    }
}

fn ends_or_controls(character: char) -> bool {
    // Line and paragraph separators are no control characters, but some viewers break lines at them.
    character.is_control() || matches!(character, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_line_ends_are_escaped() {
        let shown = |text: &str| OneLine(text).to_string();
        assert_eq!(shown("Dienst \u{e4}\\n \"x\""), "Dienst \u{e4}\\n \"x\"");
        assert_eq!(shown("\na\r\n\tb\0"), r"\na\r\n\tb\u{0}");
        assert_eq!(shown("\u{1b}[2J\u{9b}"), r"\u{1b}[2J\u{9b}");
        assert_eq!(
            shown("a\u{2028}b\u{2029}\u{7f}"),
            r"a\u{2028}b\u{2029}\u{7f}"
        );
    }
}
