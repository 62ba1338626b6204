//! The chart of the sweep by number of nodes: a line per number of servers.

use crate::compare::sweep::{NODES, SERVERS, Sweep};
use crate::report::svg::{Anchor, Kind, Scale, Svg, plain};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// Draws the 99th percentile of the counting scheduler, divided by that of the plain one.
pub(crate) fn draw(sweep: &Sweep) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let ratios = || sweep.points.iter().map(|point| point.ratio());
    let low = ratios().fold(0.5, f64::min) / 1.05;
    let high = ratios().fold(2.0, f64::max) * 1.05;
    let nodes = Scale::new(
        Kind::Binary,
        (f64::from(NODES[0]), f64::from(NODES[NODES.len() - 1])),
        (LEFT, WIDTH - RIGHT),
    );
    let ratio = Scale::new(Kind::Binary, (low, high), (HEIGHT - BOTTOM, TOP));
    for mark in ratio.marks() {
        let y = ratio.at(mark);
        let class = if (mark - 1.0).abs() < 1e-9 {
            "even"
        } else {
            "grid"
        };
        svg.line(class, (LEFT, y), (WIDTH - RIGHT, y));
        svg.text("mark", (LEFT - 8.0, y + 4.0), Anchor::End, &plain(mark));
    }
    for count in NODES {
        let x = nodes.at(f64::from(count));
        let y = HEIGHT - BOTTOM + 16.0;
        svg.text("mark", (x, y), Anchor::Middle, &count.to_string());
    }
    svg.text(
        "axis",
        ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0),
        Anchor::Middle,
        &format!(
            "number of nodes; below 1, {} has a lower 99th percentile than {}",
            sweep.counting, sweep.plain
        ),
    );
    for (shade, servers) in SERVERS.into_iter().enumerate() {
        let points = || {
            NODES.into_iter().map(|count| {
                let point = sweep.point(count, servers)?;
                Some((point, nodes.at(f64::from(count)), ratio.at(point.ratio())))
            })
        };
        let name = format!("{servers} servers");
        let line = points().map(|point| point.map(|(_, x, y)| (x, y)));
        svg.path(&format!("curve s{shade}"), line, &name);
        for (point, x, y) in points().flatten() {
            let tip = format!("{name}, {} nodes: {:.2}", point.nodes, point.ratio());
            svg.dot(&format!("s{shade}"), (x, y), 3.5, &tip);
        }
        // A legend in fixed order, because labels at the ends of lines may overlap.
        let y = TOP + 20.0 + 20.0 * shade as f64;
        let x = WIDTH - RIGHT + 22.0;
        svg.line(
            &format!("curve s{shade}"),
            (x, y - 4.0),
            (x + 14.0, y - 4.0),
        );
        svg.text("mark", (x + 20.0, y), Anchor::Start, &name);
    }
    svg.finish(&format!(
        "99th percentile of {} divided by that of {} ({})",
        sweep.counting, sweep.plain, sweep.about
    ))
}
