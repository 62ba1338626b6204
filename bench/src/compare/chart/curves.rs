//! The chart of the imbalance over time: a panel per kind of scheduler, because fifteen lines in one
//! panel cannot be told apart.

use crate::compare::results::{Chapter, Row};
use crate::report::svg::{Anchor, Kind, Scale, Svg, plain};

const WIDTH: f64 = 960.0;
const COLUMNS: u32 = 3;
const GAP: f64 = 22.0;
const LEFT: f64 = 34.0;
const PANEL: f64 = 178.0;
const PLOT: f64 = 108.0;
const HEAD: f64 = 36.0;

/// The kinds of schedulers; all others are drawn in the last panel.
const FAMILIES: [(&str, &[&str]); 5] = [
    ("in turn", &["rr", "wrr"]),
    ("by counting", &["lc", "wlc", "sed", "nq"]),
    ("by hashing", &["sh", "mh", "dh"]),
    ("by memory of addresses", &["lblc", "lblcr"]),
    ("filling up", &["fo", "ovf"]),
];
const OTHERS: &str = "random, and others";
/// Drawn in grey in every panel for comparison.
const REFERENCE: &str = "rr";

/// Draws the load of the most loaded server, divided by the mean load, over time.
pub(crate) fn draw(chapter: &Chapter) -> String {
    let panels = panels(&chapter.rows);
    let count = u32::try_from(panels.len()).unwrap_or(u32::MAX);
    let lines = f64::from(count.div_ceil(COLUMNS));
    let mut svg = Svg::new(WIDTH, lines * PANEL + 6.0);
    let width = (WIDTH - GAP * f64::from(COLUMNS - 1)) / f64::from(COLUMNS);
    let peaks = chapter
        .rows
        .iter()
        .flat_map(|row| &row.peak_curve)
        .flatten();
    let highest = peaks.copied().fold(2.0, f64::max);
    for (number, (family, rows)) in (0_u32..).zip(panels) {
        let corner = (
            f64::from(number % COLUMNS) * (width + GAP),
            f64::from(number / COLUMNS) * PANEL,
        );
        panel(&mut svg, chapter, (family, &rows), corner, width, highest);
    }
    svg.finish(&format!(
        "Load of the most loaded server divided by the mean over time in {}",
        chapter.name
    ))
}

fn panels(rows: &[Row]) -> Vec<(&'static str, Vec<&Row>)> {
    let family_of = |row: &Row| {
        FAMILIES
            .iter()
            .find(|(_, members)| members.contains(&row.scheduler.as_str()))
            .map_or(OTHERS, |&(family, _)| family)
    };
    FAMILIES
        .iter()
        .map(|&(family, _)| family)
        .chain([OTHERS])
        .map(|family| {
            let members = rows.iter().filter(|row| family_of(row) == family);
            (family, members.collect::<Vec<_>>())
        })
        .filter(|(_, members)| !members.is_empty())
        .collect()
}

fn panel(
    svg: &mut Svg,
    chapter: &Chapter,
    (family, rows): (&str, &[&Row]),
    (left, top): (f64, f64),
    width: f64,
    highest: f64,
) {
    let across = (left + LEFT, left + width);
    let down = (top + HEAD + PLOT, top + HEAD);
    let time = Scale::new(Kind::Linear, (0.0, chapter.seconds), across);
    let load = Scale::new(Kind::Binary, (1.0, highest * 1.05), down);
    svg.text("title", (across.0, top + 13.0), Anchor::Start, family);
    for mark in load.marks() {
        let y = load.at(mark);
        svg.line("grid", (across.0, y), (across.1, y));
        svg.text("mark", (across.0 - 6.0, y + 4.0), Anchor::End, &plain(mark));
    }
    let marks = time.marks();
    for &mark in &marks {
        let label = if Some(&mark) == marks.last() {
            format!("{} s", plain(mark))
        } else {
            plain(mark)
        };
        svg.text(
            "mark",
            (time.at(mark), down.0 + 15.0),
            Anchor::Middle,
            &label,
        );
    }
    for &event in &chapter.events {
        let x = time.at(event);
        svg.line("event", (x, down.0), (x, down.0 + 4.0));
    }
    let mut curve = |class: &str, row: &Row| {
        let count = row.peak_curve.len() as f64;
        let step = chapter.seconds / count;
        let points = (0_u32..).zip(&row.peak_curve).map(|(number, peak)| {
            let at = (f64::from(number) + 0.5) * step;
            peak.map(|peak| (time.at(at), load.at(peak)))
        });
        svg.path(class, points, &row.scheduler);
    };
    if let Some(reference) = chapter.row(REFERENCE)
        && rows.iter().all(|row| row.scheduler != REFERENCE)
    {
        curve("curve reference", reference);
    }
    for (colour, row) in rows.iter().enumerate() {
        curve(&format!("curve c{}", colour % 6), row);
    }
    let mut x = across.0;
    for (colour, row) in rows.iter().enumerate() {
        let y = top + 26.0;
        svg.line(
            &format!("curve c{}", colour % 6),
            (x, y - 4.0),
            (x + 14.0, y - 4.0),
        );
        svg.text("mark", (x + 18.0, y), Anchor::Start, &row.scheduler);
        x += 30.0 + 7.2 * row.scheduler.len() as f64;
    }
}
