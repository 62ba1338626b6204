//! Values in the syntax of Go's flag and configuration libraries.
//!
//! kube-proxy reads its flags and files with them, and a drop-in must accept the same words: `0x10`
//! and `010` are numbers there, `T` is a boolean, and `1.5h` is a duration.

use std::fmt;
use std::time::Duration;

/// Go's `time.Duration`: nanoseconds, which may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GoDuration(i64);

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
    pub(crate) const ZERO: Self = Self(0);

    /// Returns a duration of this many seconds.
    pub(crate) const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// Returns a duration of this many nanoseconds.
    pub(crate) const fn from_nanos(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// Returns the nanoseconds.
    pub(crate) const fn nanos(self) -> i64 {
        self.0
    }

    /// Returns the duration; 0 if it is negative.
    pub(crate) fn to_duration(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Parses the syntax of Go's `time.ParseDuration`: `30s`, `1h15m30.5s`, `-1.5h`, `0`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
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

/// Parses a boolean as `strconv.ParseBool` does.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a 32-bit integer as `strconv.ParseInt(text, 0, 32)` does: `-5`, `0x1F`, `0o17`, `017`.
pub(crate) fn integer(text: &str) -> Option<i32> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = rest.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    // `from_str_radix` would accept a second sign.
    if !digits.starts_with(|letter: char| letter.is_ascii_alphanumeric()) {
        return None;
    }
    i32::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}

/// Parses a level of verbosity as `strconv.ParseUint(text, 10, 31)` does.
pub(crate) fn level(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
    let level: u32 = is_number.then(|| text.parse().ok())??;
    (level <= i32::MAX.unsigned_abs()).then_some(level)
}

/// Parses one record of Go's `encoding/csv`: values may be quoted with `"`.
pub(crate) fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    // Like pflag: an empty text has no word, not an empty one.
    if text.is_empty() {
        return Some(words);
    }
    let mut rest = text;
    loop {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_word(quoted)?,
            None => {
                let (word, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                if word.contains('"') {
                    return None;
                }
                (word.to_owned(), after)
            }
        };
        words.push(word);
        match after.strip_prefix(',') {
            Some(after) => rest = after,
            None => return after.is_empty().then_some(words),
        }
    }
}

/// Splits a word from `text`, which begins after its opening quote. Two quotes stand for one.
fn quoted_word(text: &str) -> Option<(String, &str)> {
    let mut word = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        word.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                word.push('"');
                rest = after;
            }
            None => return Some((word, after)),
        }
    }
}

/// A size in the syntax of Kubernetes quantities: `512`, `4Ki`, `3M`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quantity(String);

impl Default for Quantity {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl Quantity {
    /// Parses a quantity; `None` if it is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = text.strip_prefix(['-', '+']).unwrap_or(text);
        let end = number.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
        let (number, suffix) = number.split_at(end.unwrap_or(number.len()));
        let is_suffix = matches!(
            suffix,
            "" | "n"
                | "u"
                | "m"
                | "k"
                | "M"
                | "G"
                | "T"
                | "P"
                | "E"
                | "Ki"
                | "Mi"
                | "Gi"
                | "Ti"
                | "Pi"
                | "Ei"
        );
        (is_suffix && number.parse::<f64>().is_ok()).then(|| Self(text.to_owned()))
    }

    /// Returns whether this is the size 0.
    pub(crate) fn is_zero(&self) -> bool {
        !self.0.contains(|letter| matches!(letter, '1'..='9'))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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

    #[test]
    fn integers_may_have_the_prefix_of_a_base() {
        for (text, number) in [
            ("0", 0),
            ("-999", -999),
            ("+5", 5),
            ("0x1F", 31),
            ("010", 8),
            ("0b11", 3),
            ("-2147483648", i32::MIN),
        ] {
            assert_eq!(integer(text), Some(number), "{text}");
        }
        for text in ["", "-", "--5", "1.0", "08", "2147483648", "0x", "0x-5"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn lists_have_the_syntax_of_csv() {
        let read = |text| words(text).map(|words| words.join("|"));
        assert_eq!(read("").as_deref(), Some(""));
        assert_eq!(read("a,b").as_deref(), Some("a|b"));
        assert_eq!(read("a,").as_deref(), Some("a|"));
        assert_eq!(read("\"a,b\",c").as_deref(), Some("a,b|c"));
        assert_eq!(read("\"a\"\"b\"").as_deref(), Some("a\"b"));
        for text in ["\"a", "a\"b", "\"a\"b"] {
            assert_eq!(words(text), None, "{text}");
        }
    }

    #[test]
    fn levels_and_sizes_have_bounds() {
        assert_eq!(level("2147483647"), Some(2_147_483_647));
        for text in ["", "-1", "+1", "2147483648", "x"] {
            assert_eq!(level(text), None, "{text}");
        }
        assert!(Quantity::parse("0").unwrap().is_zero());
        assert!(!Quantity::parse("10Ki").unwrap().is_zero());
        assert_eq!(Quantity::parse("1K"), None);
    }
}
