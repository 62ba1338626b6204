//! Drawing the view. No text of an object reaches the terminal unescaped.

use std::ops::Range;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::screen::Screen;
use crate::observe::overview::model::{EndpointView, Head, ServiceRow, ServiceView};
use crate::observe::overview::text;
use crate::util::one_line::OneLine;

/// The lines of the last changes.
const CHANGES: u16 = 6;

const KEYS: &str = "q quit  enter expand  s sort  / filter  w only faults  \u{2191}\u{2193} pgup pgdn move  \u{2190}\u{2192} scroll endpoints";

/// The columns of Services that are numbers.
const SERVICE_NUMBERS: Range<usize> = 2..7;

/// The columns of endpoints that are numbers.
const ENDPOINT_NUMBERS: Range<usize> = 3..10;

/// Draws the whole view.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let head = head(&screen.view.head, screen.failure.as_deref());
    let head_height = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let has_detail = screen.view.service.is_some();
    let [top, list, detail, changes, bottom] = Layout::vertical([
        Constraint::Length(head_height),
        Constraint::Fill(1),
        if has_detail {
            Constraint::Fill(1)
        } else {
            Constraint::Length(0)
        },
        Constraint::Length(CHANGES + 1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    // Without the title and the header.
    screen.fit(usize::from(list.height.saturating_sub(2)));
    frame.render_widget(Paragraph::new(head), top);
    draw_services(frame, screen, list);
    if let Some(service) = &screen.view.service {
        draw_service(frame, service, &mut screen.scroll, detail);
    }
    draw_changes(frame, screen, changes);
    frame.render_widget(Paragraph::new(footer(screen)), bottom);
}

fn plain(text: &str) -> String {
    OneLine(text).to_string()
}

/// Returns the cells of a row, of which those in `numbers` are aligned to the right.
fn aligned(cells: impl IntoIterator<Item = String>, numbers: Range<usize>) -> Vec<Cell<'static>> {
    let cells = cells.into_iter().enumerate();
    let cell = |(place, text): (usize, String)| match numbers.contains(&place) {
        true => Cell::new(Line::raw(text).right_aligned()),
        false => Cell::new(text),
    };
    cells.map(cell).collect()
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn bad() -> Style {
    Style::new().fg(Color::Red)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Returns the lines of the head.
fn head(head: &Head, failure: Option<&str>) -> Vec<Line<'static>> {
    let health = if head.is_healthy {
        Style::new().fg(Color::Green)
    } else {
        bad()
    };
    let mut lines = vec![Line::from(vec![
        Span::styled(format!("ipvs-proxier {} ", plain(&head.version)), bold()),
        Span::raw(format!("{} {}  ", plain(&head.node), plain(&head.mode))),
        Span::styled(text::health(head), health),
        Span::raw(format!(
            " {}  {}",
            plain(&head.reasons.join("; ")),
            plain(&head.time)
        )),
    ])];
    let facts = text::facts(head).into_iter();
    let facts: Vec<String> = facts
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    // The last one says what the view costs, and has a line of its own.
    if let Some((cost, facts)) = facts.split_last() {
        lines.push(Line::raw(plain(&facts.join("  "))));
        lines.push(Line::styled(plain(cost), dim()));
    }
    let faults = head
        .notes
        .iter()
        .map(String::as_str)
        .chain(failure)
        .chain(head.problems.iter().map(String::as_str));
    lines.extend(
        faults
            .take(3)
            .map(|fault| Line::styled(plain(fault), bad())),
    );
    lines
}

fn draw_services(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let [title, table] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let (list, query) = (&screen.view.services, screen.query());
    let selection = match (query.filter.is_empty(), query.only_wrong) {
        (true, false) => String::new(),
        (true, true) => ", only with a fault".to_owned(),
        (false, is_wrong) => {
            let wrong = if is_wrong { " with a fault" } else { "" };
            format!(", only{wrong} with \"{}\"", query.filter)
        }
    };
    let words = format!(
        "Services {} to {} of {} by {}{selection}; {} ports in all, {} with a fault",
        (list.first + 1).min(list.first + list.rows.len()),
        list.first + list.rows.len(),
        list.matching,
        query.sort.word(),
        list.total,
        list.wrong
    );
    frame.render_widget(Line::styled(plain(&words), bold()), title);
    let row = |row: &ServiceRow| {
        let [active, inactive, new, bytes] = text::traffic(&row.traffic);
        let cells = [
            plain(&text::name(row)),
            plain(&text::frontends(row)),
            row.endpoints.to_string(),
            active,
            inactive,
            new,
            bytes,
        ];
        let state = Cell::new(plain(&text::state(row)));
        let style = if row.faults.is_empty() {
            Style::new()
        } else {
            bad()
        };
        let cells = aligned(cells, SERVICE_NUMBERS);
        Row::new(cells.into_iter().chain([state.style(style)]))
    };
    let header = ["service", "frontend", "endpoints"].into_iter();
    let header = header.chain(text::TRAFFIC).chain(["state"]);
    let header = aligned(header.map(str::to_owned), SERVICE_NUMBERS);
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(28),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Fill(2),
    ];
    let services = Table::new(list.rows.iter().map(row), widths)
        .header(Row::new(header).style(dim()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(screen.cursor));
    frame.render_stateful_widget(services, table, &mut state);
}

fn draw_service(frame: &mut Frame<'_>, service: &ServiceView, scroll: &mut usize, area: Rect) {
    let title = format!("Service {}/{}", service.namespace, service.name);
    let mut rows = vec![];
    let spread = |line: String| Row::new([Cell::new(line).column_span(11)]);
    rows.extend(
        service
            .problems
            .iter()
            .map(|problem| spread(plain(problem)).style(bad())),
    );
    for frontend in &service.frontends {
        let style = if frontend.fault.is_some() {
            bad()
        } else {
            Style::new()
        };
        rows.push(spread(plain(&text::frontend(frontend))).style(style));
        rows.extend(frontend.endpoints.iter().map(endpoint));
    }
    rows.extend(text::left_out(service).map(spread));
    *scroll = (*scroll).min(rows.len().saturating_sub(1));
    let [above, below] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Line::styled(plain(&title), bold()), above);
    let widths = [24, 12, 10, 6, 7, 8, 7, 8, 5, 5].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Fill(1)]);
    let header = aligned(text::ENDPOINT.map(str::to_owned), ENDPOINT_NUMBERS);
    let table =
        Table::new(rows.into_iter().skip(*scroll), widths).header(Row::new(header).style(dim()));
    frame.render_widget(table, below);
}

fn endpoint(endpoint: &EndpointView) -> Row<'static> {
    let cells = text::endpoint(endpoint).into_iter();
    let row = Row::new(aligned(cells.map(|cell| plain(&cell)), ENDPOINT_NUMBERS));
    match endpoint.out_of_rotation {
        Some(_) => row.style(Style::new().fg(Color::Yellow)),
        None => row,
    }
}

fn draw_changes(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let mut lines = vec![Line::styled("Last changes", bold())];
    for change in screen.view.changes.iter().take(usize::from(CHANGES)) {
        let times = match change.times {
            1 => String::new(),
            times => format!(" ({times} times)"),
        };
        lines.push(Line::from(vec![
            Span::styled(format!("{} ", plain(&change.time)), dim()),
            Span::raw(format!("{}{times} ", plain(&change.change))),
            Span::styled(format!("[{}]", plain(&change.cause)), dim()),
        ]));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn footer(screen: &Screen) -> Line<'static> {
    match screen.is_typing {
        true => Line::raw(format!("filter: {}_", plain(&screen.query().filter))),
        false => Line::styled(KEYS, dim()),
    }
}
