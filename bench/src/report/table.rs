//! A table of texts, for a terminal and for a page.

use super::page::escaped;

/// A table. The first column is aligned to the left, all others to the right.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            head: head.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Returns the table for a terminal.
    pub(crate) fn text(&self) -> String {
        let columns = self.lines().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.lines().filter_map(move |line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in self.lines() {
            let mut row = String::new();
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                row += &match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            text += row.trim_end();
            text.push('\n');
        }
        text
    }

    /// Returns the table as HTML.
    pub(crate) fn html(&self) -> String {
        let row = |tag: &str, line: &[String]| {
            let cells = line
                .iter()
                .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows: String = self.rows.iter().map(|line| row("td", line)).collect();
        let head = row("th", &self.head);
        format!("<div class=\"wide\"><table>{head}{rows}</table></div>\n")
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.head).chain(&self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["", "ours", "b"]);
        table.row(["latency", "1 ms", "10 ms"]);
        assert_eq!(table.text(), "         ours      b\nlatency  1 ms  10 ms\n");
        let html = table.html();
        assert!(html.contains("<th>ours</th>") && html.contains("<td>10 ms</td>"));
    }
}
