//! Durations in the syntax of Go.

use std::fmt;
use std::time::Duration;

/// Go's `time.Duration`: nanoseconds, which may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GoDuration(i64);

/// The units of a duration and their nanoseconds, in the order in which they are tried: `ms` before
/// `m`. U+00B5 and U+03BC are two letters that look the same.
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
];

impl GoDuration {
    /// No time.
    pub(super) const ZERO: Self = Self(0);

    /// Returns a duration of this many nanoseconds.
    pub(super) const fn from_nanos(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// Returns the duration; 0 if it is negative.
    pub(super) fn to_duration(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Parses the syntax of Go's `time.ParseDuration`: `30s`, `1h15m30.5s`, `-1.5h`, `0`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (is_negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Some(Self::ZERO);
        }
        if rest.is_empty() {
            return None;
        }
        // The least duration has no positive counterpart in 64 bits.
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (value, after) = component(rest)?;
            total = total.checked_add(value)?;
            rest = after;
        }
        let signed = if is_negative { -total } else { total };
        i64::try_from(signed).ok().map(Self)
    }
}

/// Splits one number with its unit from `text`, and returns its nanoseconds.
fn component(text: &str) -> Option<(i128, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (unit, nanos) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?;
    let nanos = i128::from(*nanos);
    let whole: i128 = match whole {
        "" => 0,
        whole => whole.parse::<i64>().ok()?.into(),
    };
    // More digits than these are below one nanosecond in every unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let part: i128 = match fraction {
        "" => 0,
        fraction => fraction.parse().ok()?,
    };
    Some((whole * nanos + part * nanos / scale, &rest[unit.len()..]))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

/// The form of Go's `Duration.String`: `1h0m0s`, `1.5s`, `100ms`, `0s`.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let nanos = self.0.unsigned_abs();
        let (unit, name) = match nanos {
            0 => return f.write_str("0s"),
            1..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "\u{b5}s"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        let mut whole = nanos / unit;
        if name == "s" {
            if whole >= 3_600 {
                write!(f, "{}h", whole / 3_600)?;
            }
            if whole >= 60 {
                write!(f, "{}m", whole / 60 % 60)?;
            }
            whole %= 60;
        }
        write!(f, "{whole}")?;
        let width = unit.ilog10() as usize;
        let fraction = format!("{:0width$}", nanos % unit);
        let fraction = fraction.trim_end_matches('0');
        if width > 0 && !fraction.is_empty() {
            write!(f, ".{fraction}")?;
        }
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, written) in [
            ("0", "0s"),
            ("-0", "0s"),
            ("15m", "15m0s"),
            ("24h", "24h0m0s"),
            ("1h15m30.5s", "1h15m30.5s"),
            ("-1.5h", "-1h30m0s"),
            ("100ms", "100ms"),
            ("1500us", "1.5ms"),
            ("1\u{b5}s", "1\u{b5}s"),
            ("1\u{3bc}s", "1\u{b5}s"),
            ("999ns", "999ns"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("0.000000000000000000000001h", "0s"),
            ("9223372036s", "2562047h47m16s"),
        ] {
            let parsed = GoDuration::parse(text).unwrap();
            assert_eq!(parsed.to_string(), written, "{text}");
            assert_eq!(GoDuration::parse(written), Some(parsed));
        }
        for text in [
            "",
            "-",
            "5",
            "5x",
            "s",
            ".s",
            "1 s",
            "1d",
            "9223372037s",
            "1s-",
        ] {
            assert_eq!(GoDuration::parse(text), None, "{text}");
        }
    }
}
