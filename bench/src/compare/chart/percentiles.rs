//! The chart of latency percentiles: a line with four dots per scheduler.

use crate::compare::findings::percent;
use crate::compare::results::{Chapter, Row};
use crate::report::svg::{Anchor, Kind, Scale, Svg, plain, time};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 30.0;
const ROW: f64 = 22.0;

/// Draws the percentiles of every scheduler, the lowest 99th percentile first.
pub(crate) fn draw(chapter: &Chapter) -> String {
    let mut rows: Vec<&Row> = chapter.rows.iter().collect();
    rows.sort_by(|one, other| one.latency_ms.p99.total_cmp(&other.latency_ms.p99));
    let bottom = TOP + ROW * rows.len() as f64;
    let mut svg = Svg::new(WIDTH, bottom + 42.0);
    let low = lowest(&rows, |row| row.latency_ms.p50) / 1.1;
    let high = rows
        .iter()
        .map(|row| row.latency_ms.p999)
        .fold(low * 2.0, f64::max);
    let scale = Scale::new(Kind::Decimal, (low, high * 1.05), (LEFT, WIDTH - RIGHT));
    for mark in scale.marks() {
        let x = scale.at(mark);
        svg.line("grid", (x, TOP - 4.0), (x, bottom));
        let label = plain(mark / 1e3);
        svg.text("mark", (x, bottom + 15.0), Anchor::Middle, &label);
    }
    svg.text(
        "axis",
        ((LEFT + WIDTH - RIGHT) / 2.0, bottom + 34.0),
        Anchor::Middle,
        "seconds from arrival to end (a connection takes one second of one core)",
    );
    legend(&mut svg);
    svg.text("mark", (WIDTH - 4.0, 16.0), Anchor::End, "connections lost");
    for (number, row) in (0_u32..).zip(&rows) {
        let y = TOP + ROW * (f64::from(number) + 0.5);
        let latency = row.latency_ms;
        svg.text("name", (LEFT - 10.0, y + 4.0), Anchor::End, &row.scheduler);
        let ends = (scale.at(latency.p50), scale.at(latency.p999));
        svg.line("span", (ends.0, y), (ends.1, y));
        for (class, radius, value, name) in [
            ("p50", 4.0, latency.p50, "p50"),
            ("p90", 4.0, latency.p90, "p90"),
            ("p999", 4.0, latency.p999, "p99.9"),
            ("p99", 5.5, latency.p99, "p99"),
        ] {
            let tip = format!("{} {name}: {}", row.scheduler, time(value));
            svg.dot(class, (scale.at(value), y), radius, &tip);
        }
        let class = if row.lost_share > 0.01 { "bad" } else { "mark" };
        let lost = percent(row.lost_share);
        svg.text(class, (WIDTH - 4.0, y + 4.0), Anchor::End, &lost);
    }
    svg.finish(&format!("Latency percentiles in {}", chapter.name))
}

fn legend(svg: &mut Svg) {
    let mut x = LEFT;
    for (class, radius, name) in [
        ("p50", 4.0, "p50"),
        ("p90", 4.0, "p90"),
        ("p99", 5.5, "p99"),
        ("p999", 4.0, "p99.9"),
    ] {
        svg.dot(class, (x, 12.0), radius, name);
        svg.text("mark", (x + 10.0, 16.0), Anchor::Start, name);
        x += 62.0;
    }
}

fn lowest(rows: &[&Row], of: fn(&Row) -> f64) -> f64 {
    rows.iter()
        .map(|row| of(row))
        .fold(f64::INFINITY, f64::min)
        .clamp(0.001, 1e9)
}
