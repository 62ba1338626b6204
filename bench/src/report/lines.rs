//! A chart with a line per series.

use super::svg::{Anchor, Kind, Scale, Svg, plain};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;

/// The number of colours in the style sheet.
const COLOURS: usize = 6;

/// A chart whose lines share both axes.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    /// The chart in words, for readers who cannot see it.
    pub(crate) title: String,
    pub(crate) across: Axis,
    pub(crate) up: Axis,
    pub(crate) series: Vec<Series>,
}

/// An axis: what it shows, with the unit, and how values are spread over it.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    /// Values of an axis that is not linear must be above 0; others are drawn at its low end.
    pub(crate) kind: Kind,
}

/// A line, and a dot for each point if they are few.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Points in order of their first coordinate.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Axis {
    pub(crate) fn new(label: &str, kind: Kind) -> Self {
        Self {
            label: label.to_owned(),
            kind,
        }
    }

    /// Returns the scale that shows all `values` between two positions.
    fn scale(&self, values: impl Iterator<Item = f64> + Clone, ends: (f64, f64)) -> Scale {
        let high = values.clone().fold(f64::MIN, f64::max);
        let low = match self.kind {
            Kind::Linear => values.fold(0.0, f64::min),
            Kind::Decimal | Kind::Binary => values
                .filter(|&value| value > 0.0)
                .fold(f64::INFINITY, f64::min)
                .clamp(1e-6, 1e12),
        };
        Scale::new(self.kind, (low, high), ends)
    }
}

impl Lines {
    /// Returns the chart as SVG; an empty text if it has no point.
    pub(crate) fn draw(&self) -> String {
        let points = self.series.iter().flat_map(|series| &series.points);
        if points.clone().next().is_none() {
            return String::new();
        }
        let mut svg = Svg::new(WIDTH, HEIGHT);
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let (top, bottom) = (TOP, HEIGHT - BOTTOM);
        let across = self
            .across
            .scale(points.clone().map(|&(x, _)| x), (left, right));
        let up = self.up.scale(points.map(|&(_, y)| y), (bottom, top));
        for mark in up.marks() {
            let y = up.at(mark);
            svg.line("grid", (left, y), (right, y));
            svg.text("mark", (left - 6.0, y + 4.0), Anchor::End, &plain(mark));
        }
        for mark in across.marks() {
            let at = (across.at(mark), bottom + 16.0);
            svg.text("mark", at, Anchor::Middle, &plain(mark));
        }
        let middle = f64::midpoint(left, right);
        let label = &self.across.label;
        svg.text("axis", (middle, HEIGHT - 8.0), Anchor::Middle, label);
        svg.text("axis", (4.0, 14.0), Anchor::Start, &self.up.label);
        self.legend(&mut svg, right);
        for (colour, series) in self.series.iter().enumerate() {
            let class = format!("c{}", colour % COLOURS);
            let at = |&(x, y): &(f64, f64)| (across.at(x), up.at(y));
            let line = format!("curve {class}");
            svg.path(&line, series.points.iter().map(at).map(Some), &series.name);
            if series.points.len() <= 20 {
                for point in &series.points {
                    let tip = format!("{}: {} at {}", series.name, plain(point.1), plain(point.0));
                    svg.dot(&class, at(point), 3.0, &tip);
                }
            }
        }
        svg.finish(&self.title)
    }

    /// Writes the names of the series from right to left.
    fn legend(&self, svg: &mut Svg, right: f64) {
        let mut x = right;
        for (colour, series) in self.series.iter().enumerate().rev() {
            x -= 7.2 * series.name.chars().count() as f64;
            svg.text("mark", (x, 14.0), Anchor::Start, &series.name);
            let class = format!("curve c{}", colour % COLOURS);
            svg.line(&class, (x - 18.0, 10.0), (x - 4.0, 10.0));
            x -= 32.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_has_a_line_and_a_name() {
        let series = |name: &str, points: &[(f64, f64)]| Series {
            name: name.to_owned(),
            points: points.to_vec(),
        };
        let mut lines = Lines {
            title: "cost".to_owned(),
            across: Axis::new("Services", Kind::Decimal),
            up: Axis::new("ms", Kind::Linear),
            series: vec![
                series("ours", &[(1_000.0, 1.0), (10_000.0, 2.0)]),
                series("a<b", &[(1_000.0, 5.0)]),
            ],
        };
        let svg = lines.draw();
        assert_eq!(svg.matches("<path").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a&lt;b") && svg.contains(">10000<"), "{svg}");
        lines.series.clear();
        assert_eq!(lines.draw(), "");
    }
}
