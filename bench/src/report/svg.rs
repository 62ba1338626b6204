//! Scales and shapes of charts as SVG.

use std::fmt::Write as _;

/// Escapes text for use between tags and in quoted attributes.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A mapping from values to positions on the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Linear,
    /// Logarithmic, with marks at 1, 2 and 5 of each power of ten.
    Decimal,
    /// Logarithmic, with marks at powers of two.
    Binary,
}

impl Scale {
    /// Maps `low` to `from` and `high` to `to`. An empty range is widened.
    pub(crate) fn new(kind: Kind, (low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        let high = if high > low {
            high
        } else {
            low + low.abs().max(1.0)
        };
        Self {
            kind,
            low,
            high,
            from,
            to,
        }
    }

    pub(crate) fn at(self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let share = if self.kind == Kind::Linear {
            (value - self.low) / (self.high - self.low)
        } else {
            (value / self.low).ln() / (self.high / self.low).ln()
        };
        self.from + share * (self.to - self.from)
    }

    /// Returns the values to mark.
    pub(crate) fn marks(self) -> Vec<f64> {
        let all: Vec<f64> = match self.kind {
            Kind::Linear => {
                let rough = (self.high - self.low) / 4.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0]
                    .map(|digit| digit * power)
                    .into_iter()
                    .find(|&step| step >= rough)
                    .unwrap_or(rough);
                let first = (self.low / step).ceil();
                (0..20).map(|k| (first + f64::from(k)) * step).collect()
            }
            Kind::Decimal => (-6..9)
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)))
                .collect(),
            Kind::Binary => (-10..20).map(|power| 2_f64.powi(power)).collect(),
        };
        // Includes a mark at the end of the axis despite rounding errors.
        let slack = 1e-9 * self.high.abs();
        all.into_iter()
            .filter(|&mark| self.low - slack <= mark && mark <= self.high + slack)
            .collect()
    }
}

/// A chart under construction.
#[derive(Debug)]
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// The point of a text that is at its position.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    // Writing to a string cannot fail, so these methods ignore the results.

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    pub(crate) fn rect(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        tip: &str,
    ) {
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"><title>{}</title></rect>"#,
            escaped(tip)
        );
    }

    pub(crate) fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64, tip: &str) {
        let _ = write!(
            self.body,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius:.1}"><title>{}</title></circle>"#,
            escaped(tip)
        );
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = write!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        );
    }

    /// Draws a line through points, with gaps at missing ones.
    pub(crate) fn path(
        &mut self,
        class: &str,
        points: impl Iterator<Item = Option<(f64, f64)>>,
        tip: &str,
    ) {
        let mut data = String::new();
        let mut pen_is_down = false;
        for point in points {
            if let Some((x, y)) = point {
                // SVG: M moves without drawing, which leaves the gap; L draws a line.
                let verb = if pen_is_down { 'L' } else { 'M' };
                let _ = write!(data, "{verb}{x:.1} {y:.1}");
            }
            pen_is_down = point.is_some();
        }
        let _ = write!(
            self.body,
            r#"<path class="{class}" d="{data}"><title>{}</title></path>"#,
            escaped(tip)
        );
    }

    /// Returns a file of its own, with a style sheet.
    pub(crate) fn document(mut self, label: &str, style: &str) -> String {
        self.body = format!("<style>{}</style>{}", escaped(style), self.body);
        let text = self.finish(label);
        text.replacen("<svg", r#"<svg xmlns="http://www.w3.org/2000/svg""#, 1)
    }

    /// Returns an element of a page whose style sheet defines the classes.
    pub(crate) fn finish(self, label: &str) -> String {
        format!(
            r#"<svg viewBox="0 0 {:.0} {:.0}" role="img" aria-label="{}">{}</svg>"#,
            self.width,
            self.height,
            escaped(label),
            self.body
        )
    }
}

/// Formats a time in milliseconds in a suitable unit.
pub(crate) fn time(ms: f64) -> String {
    if ms >= 99_950.0 {
        format!("{:.0} s", ms / 1e3)
    } else if ms >= 9_995.0 {
        format!("{:.1} s", ms / 1e3)
    } else if ms >= 999.5 {
        format!("{:.2} s", ms / 1e3)
    } else {
        format!("{ms:.0} ms")
    }
}

/// Formats the label of a mark without trailing zeros.
pub(crate) fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_map_their_ends() {
        for kind in [Kind::Linear, Kind::Decimal, Kind::Binary] {
            let scale = Scale::new(kind, (1.0, 16.0), (10.0, 110.0));
            assert!((scale.at(1.0) - 10.0).abs() < 1e-9);
            assert!((scale.at(16.0) - 110.0).abs() < 1e-9);
            assert!((scale.at(1e9) - 110.0).abs() < 1e-9);
        }
        let binary = Scale::new(Kind::Binary, (1.0, 16.0), (0.0, 100.0));
        assert!((binary.at(4.0) - 50.0).abs() < 1e-9);
        assert_eq!(binary.marks(), [1.0, 2.0, 4.0, 8.0, 16.0]);
        let decimal = Scale::new(Kind::Decimal, (1.0, 16.0), (0.0, 100.0));
        assert_eq!(decimal.marks(), [1.0, 2.0, 5.0, 10.0]);
        let linear = Scale::new(Kind::Linear, (0.0, 100.0), (0.0, 1.0));
        assert_eq!(linear.marks(), [0.0, 50.0, 100.0]);
        assert!(
            Scale::new(Kind::Linear, (0.0, 0.0), (0.0, 1.0))
                .at(0.0)
                .is_finite()
        );
    }

    #[test]
    fn names_are_escaped() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text("a", (0.0, 0.0), Anchor::Start, "<script>");
        svg.dot("b", (0.0, 0.0), 1.0, "\"&");
        let text = svg.finish("x\"y");
        assert!(text.contains("&lt;script&gt;"));
        assert!(text.contains("&quot;&amp;"));
        assert!(text.contains("x&quot;y"));
    }

    #[test]
    fn numbers_have_few_digits() {
        assert_eq!(time(12.34), "12 ms");
        assert_eq!(time(1_234.0), "1.23 s");
        assert_eq!(time(12_340.0), "12.3 s");
        assert_eq!(plain(0.25), "0.25");
        assert_eq!(plain(16.0), "16");
    }
}
