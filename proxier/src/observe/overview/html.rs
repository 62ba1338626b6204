//! The page `/status`: one file without scripts, and without anything from elsewhere.

use std::fmt::{self, Write as _};

use super::model::{ChangeView, FrontendView, Overview, ServiceRow, ServiceView};
use super::query::{Query, Sort};
use super::text;
use crate::cluster::model::ObjectName;

/// What the page looks like. Colours follow the reader's choice of a light or a dark theme.
const STYLE: &str = "
:root{color-scheme:light dark;--line:#8884;--good:#1a7f37;--bad:#cf222e;--warn:#9a6700;--bar:#4493f866}
body{font:14px/1.4 system-ui,sans-serif;margin:1em 1.5em}
h1{font-size:1.2em;margin:0 0 .3em}h2{font-size:1em;margin:1.4em 0 .3em}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.2em .6em;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.facts{display:flex;flex-wrap:wrap;gap:.2em 1.4em;margin:.2em 0 .6em}.facts b{font-weight:600}
.bar{background:linear-gradient(to right,var(--bar) var(--share),transparent var(--share))}
form{margin:.6em 0}input,select,button{font:inherit}tr.out td{opacity:.75}small{opacity:.75}
";

/// A text of an object, which must not be markup.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Such as those that turn the direction of the text round them.
                _ if character.is_control() || is_format(character) => f.write_char('\u{fffd}')?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Returns whether a character is invisible and changes how others are shown.
fn is_format(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns the page of a view that `query` asked for.
pub(crate) fn html(view: &Overview, query: &Query) -> String {
    let mut page = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut page, view, query);
    page
}

fn write_page(page: &mut String, view: &Overview, query: &Query) -> fmt::Result {
    let head = &view.head;
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{} - ipvs-proxier</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n",
        Escaped(&head.node)
    )?;
    let class = if head.is_healthy { "good" } else { "bad" };
    writeln!(
        page,
        "<h1><a href=\"/status\">{}</a>: <span class=\"{class}\">{}</span> {}</h1>",
        Escaped(&head.node),
        text::health(head),
        Escaped(&head.reasons.join("; "))
    )?;
    write!(
        page,
        "<div class=\"facts\"><span>ipvs-proxier <b>{}</b></span>",
        Escaped(&head.version)
    )?;
    write!(
        page,
        "<span>dataplane <b>{}</b></span>",
        Escaped(&head.mode)
    )?;
    for (name, value) in text::facts(head) {
        write!(page, "<span>{name} <b>{}</b></span>", Escaped(&value))?;
    }
    writeln!(page, "<span>{}</span></div>", Escaped(&head.time))?;
    for note in &head.notes {
        writeln!(page, "<p class=\"warn\">{}</p>", Escaped(note))?;
    }
    if let Some(service) = &view.service {
        write_service(page, service)?;
    }
    write_form(page, query)?;
    write_services(page, view, query)?;
    if !head.problems.is_empty() {
        let others = head.problem_count - head.problems.len().min(head.problem_count);
        writeln!(
            page,
            "<h2 id=\"problems\">Problems of the input ({})</h2>\n<ul>",
            head.problem_count
        )?;
        for problem in &head.problems {
            writeln!(page, "<li>{}</li>", Escaped(problem))?;
        }
        if others > 0 {
            writeln!(page, "<li>and {others} more</li>")?;
        }
        page.push_str("</ul>\n");
    }
    write_changes(page, &view.changes)?;
    page.push_str("</body>\n</html>\n");
    Ok(())
}

fn write_form(page: &mut String, query: &Query) -> fmt::Result {
    write!(page, "<form action=\"/status\">\n<select name=\"sort\">")?;
    for sort in Sort::ALL {
        let selected = if sort == query.sort { " selected" } else { "" };
        write!(page, "<option{selected}>{}</option>", sort.word())?;
    }
    let checked = if query.only_wrong { " checked" } else { "" };
    writeln!(
        page,
        "</select>\n<input name=\"filter\" value=\"{}\" placeholder=\"name, address, state:draining\" size=\"30\">\n\
         <label><input type=\"checkbox\" name=\"wrong\" value=\"1\"{checked}> only with a fault</label>",
        Escaped(&query.filter)
    )?;
    if query.refresh != Query::default().refresh {
        writeln!(
            page,
            "<input type=\"hidden\" name=\"refresh\" value=\"{}\">",
            query.refresh
        )?;
    }
    let words = query.to_string();
    let twin = |path: &str, name: &str| {
        let separator = if words.is_empty() { "" } else { "?" };
        format!(
            "<a href=\"{path}{separator}{}\">{name}</a>",
            Escaped(&words)
        )
    };
    writeln!(
        page,
        "<button>Show</button> <small>the same as {} and {}</small>\n</form>",
        twin("/status.json", "JSON"),
        twin("/status.csv", "CSV")
    )
}

fn link(page: &mut String, query: &Query, words: &str) -> fmt::Result {
    write!(
        page,
        "<a href=\"/status?{}\">{}</a> ",
        Escaped(&query.to_string()),
        Escaped(words)
    )
}

fn write_services(page: &mut String, view: &Overview, query: &Query) -> fmt::Result {
    let list = &view.services;
    let last = list.first + list.rows.len();
    writeln!(
        page,
        "<h2>Services</h2>\n<p>{} Service ports, {} with a fault. Shown: {} to {last} of {}. ",
        list.total,
        list.wrong,
        (list.first + 1).min(last),
        list.matching
    )?;
    let page_at = |first| Query {
        first,
        ..query.clone()
    };
    if list.first > 0 {
        link(
            page,
            &page_at(list.first.saturating_sub(query.rows)),
            "previous",
        )?;
    }
    if last < list.matching {
        link(page, &page_at(last), "next")?;
    }
    page.push_str(
        "</p>\n<table>\n<tr><th>Service</th><th>frontend</th><th class=\"n\">endpoints</th>",
    );
    for column in text::TRAFFIC {
        write!(page, "<th class=\"n\">{column}</th>")?;
    }
    page.push_str("<th>state</th></tr>\n");
    for row in &list.rows {
        write_row(page, row, query)?;
    }
    page.push_str("</table>\n");
    Ok(())
}

fn write_row(page: &mut String, row: &ServiceRow, query: &Query) -> fmt::Result {
    page.push_str("<tr><td>");
    let service = ObjectName::new(&row.namespace, &row.name);
    link(page, &query.of_service(Some(service)), &text::name(row))?;
    write!(
        page,
        "</td><td>{}</td><td class=\"n\">{}</td>",
        Escaped(&text::frontends(row)),
        row.endpoints
    )?;
    for value in text::traffic(&row.traffic) {
        write!(page, "<td class=\"n\">{value}</td>")?;
    }
    let class = if row.faults.is_empty() { "" } else { "bad" };
    writeln!(
        page,
        "<td class=\"{class}\">{}</td></tr>",
        Escaped(&text::state(row))
    )
}

fn write_service(page: &mut String, service: &ServiceView) -> fmt::Result {
    writeln!(
        page,
        "<h2 id=\"service\">Service {}/{}</h2>",
        Escaped(&service.namespace),
        Escaped(&service.name)
    )?;
    for problem in &service.problems {
        writeln!(page, "<p class=\"bad\">{}</p>", Escaped(problem))?;
    }
    for frontend in &service.frontends {
        write_frontend(page, frontend)?;
    }
    if let Some(words) = text::left_out(service) {
        writeln!(page, "<p class=\"warn\">{words}.</p>")?;
    }
    Ok(())
}

fn write_frontend(page: &mut String, frontend: &FrontendView) -> fmt::Result {
    let class = if frontend.fault.is_some() { "bad" } else { "" };
    writeln!(
        page,
        "<p class=\"{class}\">{}</p>\n<table>\n<tr>",
        Escaped(&text::frontend(frontend))
    )?;
    for column in text::ENDPOINT {
        let class = if is_number(column) {
            " class=\"n\""
        } else {
            ""
        };
        write!(page, "<th{class}>{column}</th>")?;
    }
    page.push_str("</tr>\n");
    for endpoint in &frontend.endpoints {
        let is_out = endpoint.out_of_rotation.is_some();
        page.push_str(if is_out { "<tr class=\"out\">" } else { "<tr>" });
        for (column, value) in text::ENDPOINT.iter().zip(text::endpoint(endpoint)) {
            let value = Escaped(&value);
            match *column {
                "share" => {
                    let share = endpoint.share.unwrap_or(0.0) * 100.0;
                    write!(
                        page,
                        "<td class=\"n bar\" style=\"--share:{share:.0}%\">{value}</td>"
                    )?;
                }
                "state" => {
                    let class = if is_out { "warn" } else { "good" };
                    write!(page, "<td class=\"{class}\">{value}</td>")?;
                }
                column if is_number(column) => write!(page, "<td class=\"n\">{value}</td>")?,
                _ => write!(page, "<td>{value}</td>")?,
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
    Ok(())
}

fn is_number(column: &str) -> bool {
    !matches!(column, "endpoint" | "node" | "zone" | "state")
}

fn write_changes(page: &mut String, changes: &[ChangeView]) -> fmt::Result {
    page.push_str("<h2 id=\"changes\">Last changes</h2>\n<table>\n<tr><th>time</th><th>change</th><th>cause</th></tr>\n");
    for change in changes {
        let times = match change.times {
            1 => String::new(),
            times => format!(" ({times} times)"),
        };
        writeln!(
            page,
            "<tr><td>{}</td><td>{}{times}</td><td>{}</td></tr>",
            Escaped(&change.time),
            Escaped(&change.change),
            Escaped(&change.cause)
        )?;
    }
    page.push_str("</table>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_objects_are_no_markup() {
        let shown = |text| Escaped(text).to_string();
        assert_eq!(
            shown("<b a='1' c=\"2\">&"),
            "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;"
        );
        assert_eq!(
            shown("a\u{202e}b\u{1b}[2J\n"),
            "a\u{fffd}b\u{fffd}[2J\u{fffd}"
        );
    }
}
