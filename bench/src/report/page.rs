//! A report as an HTML page without scripts, fonts or links to other hosts.

use super::{Report, Section};

const STYLE: &str = include_str!("style.css");

/// Returns the page.
pub(super) fn html(report: &Report) -> String {
    let title = escaped(&report.title);
    let sections = report.sections.iter();
    let links = sections.clone().map(|it| {
        let title = escaped(&it.title);
        format!("<a href=\"#{title}\">{title}</a>\n")
    });
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         {}<nav>{}</nav>\n{}</main>\n</body>\n</html>\n",
        paragraphs(&report.notes),
        links.collect::<String>(),
        sections.map(section).collect::<String>(),
    )
}

fn section(section: &Section) -> String {
    let title = escaped(&section.title);
    let mut html = format!("<h2 id=\"{title}\">{title}</h2>\n");
    html += &paragraphs(&section.notes);
    section.tables.iter().for_each(|it| html += &it.html());
    for plot in &section.plots {
        html += &format!("<h3>{}</h3>\n{}\n", escaped(&plot.title), plot.svg());
    }
    html
}

fn paragraphs(notes: &[String]) -> String {
    let paragraph = |note: &String| format!("<p>{}</p>\n", escaped(note));
    notes.iter().map(paragraph).collect()
}

/// Escapes text for use between tags and in quoted attributes.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::table::Table;
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut table = Table::new(["", "a<b"]);
        table.row(["c&d", "1"]);
        let section = Section {
            title: "x \"y\"".to_owned(),
            notes: vec!["1 < 2".to_owned()],
            tables: vec![table],
            ..Section::default()
        };
        let html = html(&Report {
            title: "<title>".to_owned(),
            notes: Vec::new(),
            sections: vec![section],
        });
        for text in [
            "<h1>&lt;title&gt;</h1>",
            "<a href=\"#x &quot;y&quot;\">",
            "<p>1 &lt; 2</p>",
            "<th>a&lt;b</th>",
            "<td>c&amp;d</td>",
        ] {
            assert!(html.contains(text), "{text} is not in\n{html}");
        }
    }
}
