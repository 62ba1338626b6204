//! Charts as SVG for the HTML page. Its style sheet defines the colours.

use crate::svg::{Anchor, Kind, Scale, Svg};

pub(crate) mod bars;
pub(crate) mod curves;
pub(crate) mod percentiles;
pub(crate) mod ratios;

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
fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits() {
        assert_eq!(time(12.34), "12 ms");
        assert_eq!(time(1_234.0), "1.23 s");
        assert_eq!(time(12_340.0), "12.3 s");
        assert_eq!(plain(0.25), "0.25");
        assert_eq!(plain(16.0), "16");
    }
}
