//! Charts as SVG.

use super::page::escaped;

const WIDTH: f64 = 960.0;
/// The least height of a chart.
const HEIGHT: f64 = 300.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;
/// The height of a name's row, and of one in the legend.
const ROW: f64 = 20.0;
/// The width of a letter; a little more than its mean.
const LETTER: f64 = 7.2;

/// A series with at most this many points has a dot at each.
const FEW: usize = 20;

/// Series of points that share both axes.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) across: Axis,
    pub(crate) up: Axis,
    pub(crate) series: Vec<Series>,
}

/// An axis: what it shows, with the unit, and where its values are.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) kind: Kind,
}

/// How an axis spreads values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Linear,
    /// Logarithmic, with marks at 1, 2 and 5 of each power of ten. Values must be above 0; others are
    /// drawn at the low end.
    Decimal,
    /// The same with marks at powers of two.
    Binary,
    /// For the axis `up`: value N is the row of name N, counted from the top. Series are dots, without lines.
    Names(Vec<String>),
}

/// A line, or dots.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Points in the order of the line.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Series {
    pub(crate) fn new(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            points: points.into_iter().collect(),
        }
    }
}

impl Axis {
    pub(crate) fn new(label: &str, kind: Kind) -> Self {
        Self {
            label: label.to_owned(),
            kind,
        }
    }

    /// Returns the scale that shows all `values`.
    fn scale(&self, values: impl Iterator<Item = f64> + Clone) -> Scale {
        let high = values.clone().fold(f64::MIN, f64::max);
        let (low, high) = match &self.kind {
            Kind::Linear => (values.fold(0.0, f64::min), high),
            Kind::Decimal | Kind::Binary => {
                let positive = values.filter(|&value| value > 0.0);
                let low = positive.fold(f64::INFINITY, f64::min);
                (low.clamp(1e-6, 1e12), high)
            }
            Kind::Names(names) => (-0.5, names.len() as f64 - 0.5),
        };
        Scale {
            is_logarithmic: matches!(self.kind, Kind::Decimal | Kind::Binary),
            low,
            // An empty range is widened.
            high: if high > low {
                high
            } else {
                low + low.abs().max(1.0)
            },
        }
    }

    /// Returns the values to mark, with their labels.
    fn marks(&self, scale: Scale) -> Vec<(f64, String)> {
        let Scale { low, high, .. } = scale;
        let values: Vec<f64> = match &self.kind {
            Kind::Linear => {
                let rough = (high - low) / 4.0;
                let power = 10_f64.powf(rough.log10().floor());
                let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
                let step = steps.into_iter().find(|&step| step >= rough);
                let step = step.unwrap_or(rough);
                let first = (low / step).ceil();
                (0..20).map(|k| (first + f64::from(k)) * step).collect()
            }
            Kind::Decimal => (-6..9)
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)))
                .collect(),
            Kind::Binary => (-10..20).map(|power| 2_f64.powi(power)).collect(),
            Kind::Names(names) => {
                let names = names.iter().cloned();
                return (0_u32..).map(f64::from).zip(names).collect();
            }
        };
        // Includes a mark at the end of the axis despite rounding errors.
        let slack = 1e-9 * high.abs();
        let shown = |value: &f64| low - slack <= *value && *value <= high + slack;
        let labelled = |value| (value, plain(value));
        values.into_iter().filter(shown).map(labelled).collect()
    }
}

/// The range of an axis.
#[derive(Clone, Copy, Debug)]
struct Scale {
    is_logarithmic: bool,
    low: f64,
    high: f64,
}

impl Scale {
    /// Returns the place of a value between the places of the lowest and the highest one.
    fn at(self, value: f64, (from, to): (f64, f64)) -> f64 {
        let value = value.clamp(self.low, self.high);
        let share = if self.is_logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        from + share * (to - from)
    }
}

/// Where a plot draws its values.
struct Frame {
    across: Scale,
    up: Scale,
    /// The places of the lowest and the highest value of each axis.
    sides: (f64, f64),
    ends: (f64, f64),
    is_by_name: bool,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        self.across.at(value, self.sides)
    }

    fn y(&self, value: f64) -> f64 {
        self.up.at(value, self.ends)
    }
}

impl Plot {
    /// Returns the chart as SVG; an empty text if it has no point.
    pub(super) fn svg(&self) -> String {
        let points = self.series.iter().flat_map(|series| &series.points);
        if points.clone().next().is_none() {
            return String::new();
        }
        let across = self.across.scale(points.clone().map(|&(x, _)| x));
        let up = self.up.scale(points.map(|&(_, y)| y));
        let marks = self.up.marks(up);
        let (is_by_name, rows) = match &self.up.kind {
            Kind::Names(names) => (true, names.len()),
            _ => (false, 0),
        };
        let rows = rows.max(self.series.len()) as f64 * ROW;
        let height = HEIGHT.max(TOP + rows + BOTTOM);
        let bottom = height - BOTTOM;
        let frame = Frame {
            across,
            up,
            sides: (
                16.0 + width(marks.iter().map(|(_, label)| label.as_str())),
                WIDTH - 36.0 - width(self.series.iter().map(|it| it.name.as_str())),
            ),
            ends: if is_by_name {
                (TOP, bottom)
            } else {
                (bottom, TOP)
            },
            is_by_name,
        };
        let (left, right) = frame.sides;
        let middle = (f64::midpoint(left, right), height - 8.0);
        let mut svg = text(middle, "middle", &self.across.label);
        svg += &text((4.0, 14.0), "start", &self.up.label);
        for (value, label) in marks {
            let y = frame.y(value);
            svg += &line((left, y), (right, y), "");
            svg += &text((left - 6.0, y + 4.0), "end", &label);
        }
        for (value, label) in self.across.marks(across) {
            let x = frame.x(value);
            svg += &line((x, bottom), (x, bottom + 4.0), "");
            svg += &text((x, bottom + 18.0), "middle", &label);
        }
        for (number, series) in self.series.iter().enumerate() {
            let colour = colour(number, self.series.len());
            let y = TOP + ROW * (number as f64 + 0.5);
            let key = format!(" style=\"stroke:{colour};stroke-width:3\"");
            svg += &line((right + 12.0, y - 4.0), (right + 26.0, y - 4.0), &key);
            svg += &text((right + 32.0, y), "start", &series.name);
            svg += &series.svg(&frame, &colour);
        }
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">{svg}</svg>",
            escaped(&self.title)
        )
    }
}

impl Series {
    /// Returns the line, and the dots if they are few.
    fn svg(&self, frame: &Frame, colour: &str) -> String {
        let mut svg = String::new();
        let name = escaped(&self.name);
        if !frame.is_by_name {
            let place = |&(x, y): &(f64, f64)| format!("{:.1} {:.1}", frame.x(x), frame.y(y));
            let places: Vec<String> = self.points.iter().map(place).collect();
            let path = places.join("L");
            svg += &format!("<path stroke=\"{colour}\" d=\"M{path}\"><title>{name}</title></path>");
        }
        if !frame.is_by_name && self.points.len() > FEW {
            return svg;
        }
        for &(x, y) in &self.points {
            let value = if frame.is_by_name {
                plain(x)
            } else {
                format!("{} at {}", plain(y), plain(x))
            };
            svg += &format!(
                "<circle fill=\"{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{name}: {value}</title>\
                 </circle>",
                frame.x(x),
                frame.y(y),
            );
        }
        svg
    }
}

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"{style}/>")
}

/// Returns a text whose `anchor`, its start, middle or end, is at a place.
fn text((x, y): (f64, f64), anchor: &str, text: &str) -> String {
    let text = escaped(text);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>")
}

/// Returns the width of the longest text.
fn width<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    let longest = texts.map(|text| text.chars().count()).max();
    LETTER * longest.unwrap_or_default() as f64
}

/// Returns the colour of a series; those of `count` series differ as far as possible.
fn colour(number: usize, count: usize) -> String {
    let hue = 210.0 + 360.0 * number as f64 / count as f64;
    format!("hsl({:.0} 65% 50%)", hue % 360.0)
}

/// Formats a number without trailing zeros.
fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(up: Kind, series: &[Series]) -> String {
        let plot = Plot {
            title: "cost".to_owned(),
            across: Axis::new("Services", Kind::Decimal),
            up: Axis::new("ms", up),
            series: series.to_vec(),
        };
        plot.svg()
    }

    #[test]
    fn each_series_has_a_line_and_a_name() {
        let ours = Series::new("ours", [(1_000.0, 1.0), (10_000.0, 2.0)]);
        let theirs = Series::new("a<b", [(1_000.0, 5.0)]);
        let svg = plot(Kind::Linear, &[ours, theirs]);
        assert_eq!(svg.matches("<path").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a&lt;b") && svg.contains(">10000<"), "{svg}");
        assert_eq!(plot(Kind::Linear, &[]), "");
    }

    #[test]
    fn names_have_rows_from_the_top() {
        let names = ["first", "second"].map(str::to_owned).to_vec();
        let series = Series::new("p99", [(2.0, 0.0), (3.0, 1.0)]);
        let svg = plot(Kind::Names(names), &[series]);
        assert!(!svg.contains("<path"), "{svg}");
        assert!(svg.find(">first<") < svg.find(">second<"), "{svg}");
        let places = svg.split("cy=\"").skip(1);
        let mut places = places.map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
        assert!(places.next() < places.next(), "{svg}");
    }

    #[test]
    fn scales_map_their_ends_and_mark_round_values() {
        let values = [1.0, 16.0].into_iter();
        for (kind, marks) in [
            (Kind::Linear, vec!["0", "5", "10", "15"]),
            (Kind::Decimal, vec!["1", "2", "5", "10"]),
            (Kind::Binary, vec!["1", "2", "4", "8", "16"]),
        ] {
            let axis = Axis::new("", kind);
            let scale = axis.scale(values.clone());
            assert!((scale.at(scale.low, (10.0, 110.0)) - 10.0).abs() < 1e-9);
            assert!((scale.at(1e9, (10.0, 110.0)) - 110.0).abs() < 1e-9);
            let labels = axis.marks(scale).into_iter().map(|(_, label)| label);
            assert_eq!(labels.collect::<Vec<_>>(), marks);
        }
        let empty = Axis::new("", Kind::Linear).scale([0.0].into_iter());
        assert!(empty.at(0.0, (0.0, 1.0)).is_finite());
    }
}
