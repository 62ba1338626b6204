//! The chart of connections that move to another server: a bar per scheduler.

use crate::compare::findings::percent;
use crate::compare::results::{Chapter, Row};
use crate::report::svg::{Anchor, Kind, Scale, Svg};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 70.0;
const TOP: f64 = 30.0;
const ROW: f64 = 20.0;

/// Draws the share of connections that move after a change of the servers as bars, and the share
/// without a change as ticks. Returns `None` if no scenario step changed the servers.
pub(crate) fn draw(chapter: &Chapter) -> Option<String> {
    let mut rows: Vec<(&Row, f64)> = chapter
        .rows
        .iter()
        .filter_map(|row| Some((row, row.moved_after_change?)))
        .collect();
    if rows.is_empty() {
        return None;
    }
    rows.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let bottom = TOP + ROW * rows.len() as f64;
    let mut svg = Svg::new(WIDTH, bottom + 24.0);
    let scale = Scale::new(Kind::Linear, (0.0, 100.0), (LEFT, WIDTH - RIGHT));
    for mark in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let x = scale.at(mark);
        svg.line("grid", (x, TOP - 4.0), (x, bottom));
        svg.text(
            "mark",
            (x, bottom + 15.0),
            Anchor::Middle,
            &format!("{mark:.0} %"),
        );
    }
    svg.rect("bar", (LEFT, 6.0), (14.0, 10.0), "after a change");
    let key = "moved after a change that was not to the previous server";
    svg.text("mark", (LEFT + 20.0, 16.0), Anchor::Start, key);
    svg.line("tick", (LEFT + 410.0, 4.0), (LEFT + 410.0, 18.0));
    svg.text(
        "mark",
        (LEFT + 418.0, 16.0),
        Anchor::Start,
        "moved without a change",
    );
    for (number, (row, share)) in (0_u32..).zip(rows) {
        let y = TOP + ROW * f64::from(number);
        svg.text("name", (LEFT - 10.0, y + 14.0), Anchor::End, &row.scheduler);
        let end = scale.at(share * 100.0);
        let tip = format!("{}: {}", row.scheduler, percent(share));
        svg.rect("bar", (LEFT, y + 4.0), (end - LEFT, ROW - 8.0), &tip);
        if let Some(undisturbed) = row.moved {
            let x = scale.at(undisturbed * 100.0);
            svg.line("tick", (x, y + 1.0), (x, y + ROW - 1.0));
        }
        svg.text(
            "mark",
            (WIDTH - 4.0, y + 14.0),
            Anchor::End,
            &percent(share),
        );
    }
    Some(svg.finish(&format!(
        "Connections that move to another server in {}",
        chapter.name
    )))
}
