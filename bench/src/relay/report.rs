//! The report: a table, JSON and a plot.

use std::fmt::Write as _;

use serde::Serialize;

use super::contestant::Contestant;
use super::figures::{Better, Figure, Spread};
use crate::report::svg::{Anchor, Kind, Scale, Svg};

/// All figures of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) kernel: String,
    pub(super) processors: usize,
    pub(super) workers: usize,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) idle_connections: usize,
    pub(super) versions: Vec<String>,
    pub(super) figures: Vec<Figure>,
}

const CONTESTANTS: [Contestant; 4] = [
    Contestant::Barest,
    Contestant::Haproxy,
    Contestant::Nginx,
    Contestant::Ours,
];

impl Report {
    /// Returns the medians, the ratios and the missed targets as text.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "Linux {}, {} processors, {} worker(s) on processors of their own where there are enough; {}\n\
             medians of {} rounds of {} s; a ratio is that of ours to the other relay, with its lowest and \
             highest round\n\n{:<36}",
            self.kernel,
            self.processors,
            self.workers,
            self.versions.join(", "),
            self.rounds,
            self.seconds,
            "",
        );
        for contestant in CONTESTANTS {
            let _ = write!(text, "{:>10}", contestant.to_string());
        }
        let _ = writeln!(
            text,
            "  {:>27}  {:>19}",
            "to the better peer", "to the barest"
        );
        for figure in &self.figures {
            let name = format!("{}, {}", figure.name, figure.unit);
            let _ = write!(text, "{name:<36}");
            for contestant in CONTESTANTS {
                let median = figure.spread(contestant).map(|spread| spread.median);
                let _ = write!(text, "{:>10}", median.map_or_else(|| "-".to_owned(), short));
            }
            let peer = figure.better_peer().and_then(|peer| {
                let ratio = figure.ratio(peer)?;
                Some(format!("{:<7} {}", peer.to_string(), ratio_text(ratio)))
            });
            let barest = figure.ratio(Contestant::Barest).map(ratio_text);
            let (peer, barest) = (peer.unwrap_or_default(), barest.unwrap_or_default());
            let _ = writeln!(text, "  {peer:>27}  {barest:>19}");
        }
        for missed in self.missed() {
            let _ = writeln!(text, "target missed: {missed}");
        }
        text
    }

    /// Returns a line for each missed target.
    pub(super) fn missed(&self) -> Vec<String> {
        self.figures.iter().flat_map(Figure::missed).collect()
    }

    /// Draws how much better or worse the other relays are than ours, on a logarithmic axis.
    pub(super) fn plot(&self) -> String {
        let rows: f64 = self.figures.iter().map(|_| ROW).sum();
        let bottom = TOP + rows;
        let mut svg = Svg::new(WIDTH, bottom + 44.0);
        let scale = Scale::new(Kind::Binary, (0.25, 8.0), (LEFT, WIDTH - 20.0));
        for mark in scale.marks() {
            let x = scale.at(mark);
            let class = if mark == 1.0 { "ours" } else { "grid" };
            svg.line(class, (x, TOP - 6.0), (x, bottom));
            svg.text(
                "mark",
                (x, bottom + 16.0),
                Anchor::Middle,
                &mark.to_string(),
            );
        }
        let axis = "better than ours  ◀  1 = ours  ▶  worse than ours";
        svg.text("mark", (scale.at(1.0), bottom + 36.0), Anchor::Middle, axis);
        for (place, (class, contestant)) in (0_u8..).zip(OTHERS) {
            let x = LEFT + 110.0 * f64::from(place);
            svg.dot(class, (x, 14.0), 5.0, "");
            svg.text(
                "mark",
                (x + 12.0, 18.0),
                Anchor::Start,
                &contestant.to_string(),
            );
        }
        let mut y = TOP + ROW / 2.0;
        for figure in &self.figures {
            svg.text("name", (LEFT - 12.0, y + 4.0), Anchor::End, figure.name);
            for (class, contestant) in OTHERS {
                let Some(ratio) = figure.ratio(contestant) else {
                    continue;
                };
                let worse = |ratio: f64| match figure.target.better {
                    Better::Less => ratio.recip(),
                    Better::More => ratio,
                };
                let (one, other) = (scale.at(worse(ratio.low)), scale.at(worse(ratio.high)));
                svg.line(class, (one, y), (other, y));
                let tip = format!("{contestant}: {:.2}", worse(ratio.median));
                svg.dot(class, (scale.at(worse(ratio.median)), y), 5.0, &tip);
            }
            y += ROW;
        }
        svg.document("Relays compared with ours", STYLE)
    }
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 250.0;
const TOP: f64 = 44.0;
const ROW: f64 = 24.0;

/// The relays in the plot, each with its class in the style sheet.
const OTHERS: [(&str, Contestant); 3] = [
    ("barest", Contestant::Barest),
    ("haproxy", Contestant::Haproxy),
    ("nginx", Contestant::Nginx),
];

const STYLE: &str = "\
    text { font: 12px sans-serif; fill: #333 } .grid { stroke: #ddd } \
    .ours { stroke: #222; stroke-width: 2 } .barest { stroke: #888; fill: #888 } \
    .haproxy { stroke: #1f6fb4; fill: #1f6fb4 } .nginx { stroke: #2a8f4a; fill: #2a8f4a } \
    line { stroke-opacity: 0.6 }";

fn ratio_text(ratio: Spread) -> String {
    format!(
        "{:.2} ({:.2} .. {:.2})",
        ratio.median, ratio.low, ratio.high
    )
}

/// Formats a number with three digits.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
