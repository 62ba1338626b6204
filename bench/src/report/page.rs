//! An HTML page without scripts, fonts or links to other hosts.

use std::fmt::Display;

use super::svg::escaped;

const STYLE: &str = include_str!("style.css");

/// A page under construction. All texts are escaped, except in [`Page::html`].
#[derive(Clone, Debug)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    /// Returns a page with a title for the window and a heading.
    pub(crate) fn new(title: &str, heading: &str) -> Self {
        let (title, heading) = (escaped(title), escaped(heading));
        Self {
            text: format!(
                "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
                 <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
                 <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
                 <h1>{heading}</h1>\n"
            ),
        }
    }

    /// Adds a section's heading; `anchor` is the target of links.
    pub(crate) fn section(&mut self, anchor: &str, heading: &str) {
        let (anchor, heading) = (escaped(anchor), escaped(heading));
        self.html(&format!("<h2 id=\"{anchor}\">{heading}</h2>\n"));
    }

    pub(crate) fn heading(&mut self, heading: &str) {
        self.html(&format!("<h3>{}</h3>\n", escaped(heading)));
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        self.html(&format!("<p>{}</p>\n", escaped(text)));
    }

    /// Adds a paragraph in a softer colour, for conditions and explanations.
    pub(crate) fn note(&mut self, text: &str) {
        self.html(&format!("<p class=\"soft\">{}</p>\n", escaped(text)));
    }

    /// Adds text that is HTML already, such as a chart.
    pub(crate) fn html(&mut self, html: &str) {
        self.text.push_str(html);
    }

    /// Returns the whole page.
    pub(crate) fn finish(mut self) -> String {
        self.html("</main>\n</body>\n</html>\n");
        self.text
    }
}

/// Formats a whole number with a comma after every three digits.
pub(crate) fn thousands(number: impl Display) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_have_commas() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(1_234.56), "1,235");
        assert_eq!(thousands(12_345_678), "12,345,678");
    }

    #[test]
    fn texts_are_escaped() {
        let mut page = Page::new("t", "a < b");
        page.paragraph("c & d");
        let text = page.finish();
        assert!(text.contains("<h1>a &lt; b</h1>") && text.contains("<p>c &amp; d</p>"));
    }
}
