//! The types of settings: their values in flags and in files.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value, json};

use super::duration::GoDuration;

/// The type of a setting. A value of it is a JSON value as kube-proxy writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A boolean.
    Bool,
    /// A 32-bit integer.
    Integer,
    /// A number that may have a fraction.
    Number,
    /// A level of verbosity.
    Level,
    /// A string.
    Text,
    /// An IP address in a flag, a string in a file.
    Address,
    /// An IP address with or without a port in a flag, a string in a file.
    AddressPort,
    /// A string with networks, separated by commas.
    Networks,
    /// A duration.
    Duration,
    /// A duration, or in a file a number of nanoseconds.
    Flush,
    /// A size in the syntax of Kubernetes quantities: `512`, `4Ki`, `3M`.
    Size,
    /// A list of strings; `null` is another value than the empty list.
    Words,
    /// Feature gates.
    Gates,
    /// Levels of verbosity of source files.
    Patterns,
}

/// Why a value of a file is invalid.
#[derive(Debug)]
pub(super) struct Fault {
    /// The path below the field, such as `[1]`.
    pub(super) below: String,
    /// The text that follows the path.
    pub(super) reason: String,
}

impl Kind {
    /// Returns the value that a field without a default has if it is not set.
    pub(crate) fn zero(self) -> Value {
        match self {
            Self::Bool => false.into(),
            Self::Integer | Self::Number | Self::Level => 0.into(),
            Self::Text | Self::Address | Self::AddressPort | Self::Networks => "".into(),
            Self::Duration | Self::Flush => "0s".into(),
            Self::Size => "0".into(),
            Self::Words => Value::Null,
            Self::Gates => json!({}),
            Self::Patterns => json!([]),
        }
    }

    /// Returns the words by which messages name the type.
    fn expected(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Integer => "a 32-bit integer",
            Self::Number => "a number",
            Self::Level => "a number from 0 to 2147483647",
            Self::Text => "a string (quote it)",
            Self::Address => "an IP address, without a port",
            Self::AddressPort => "IP or IP:port, such as 0.0.0.0:10256 or [::]:10256",
            Self::Networks => "a valid CIDR block, or two separated by a comma",
            Self::Duration | Self::Flush => "a duration, such as 30s or 1h15m",
            Self::Size => "a size, such as 512 or 4Ki",
            Self::Words => "a list of words without quotes, separated by commas",
            Self::Gates => "NAME=true or NAME=false, separated by commas",
            Self::Patterns => "PATTERN=NUMBER, separated by commas",
        }
    }

    /// Parses the value of a flag; `null` keeps the setting. The error follows the name of the flag.
    pub(super) fn parse(self, text: &str) -> Result<Value, String> {
        let found = match self {
            Self::Bool => boolean(text).map(Value::from),
            Self::Integer => integer(text).map(Value::from),
            Self::Number => text.parse().ok().and_then(number),
            Self::Level => level(text),
            Self::Text => Some(text.into()),
            // As in kube-proxy, an empty address keeps the default.
            Self::Address | Self::AddressPort if text.is_empty() => Some(Value::Null),
            Self::Address => {
                let address: Option<IpAddr> = text.trim().parse().ok();
                address.map(|address| address.to_string().into())
            }
            Self::AddressPort => is_address_port(text).then(|| text.into()),
            Self::Networks => (!text.is_empty()).then(|| text.into()),
            Self::Duration | Self::Flush => duration(text),
            Self::Size => size(text),
            Self::Words if text.is_empty() => Some(json!([])),
            Self::Words => {
                let is_plain = !text.contains(['"', '\n']);
                is_plain.then(|| text.split(',').collect())
            }
            Self::Gates => pairs(text, gate).map(Value::Object),
            Self::Patterns => pairs(text, pattern).map(Value::Array),
        };
        found.ok_or_else(|| format!("invalid value {text:?}: must be {}", self.expected()))
    }

    /// Checks the value of a field of a file, which is not `null`.
    pub(super) fn decode(self, value: &Value) -> Result<Value, Fault> {
        let found = match (self, value) {
            (Self::Bool, Value::Bool(_)) => Some(value.clone()),
            (Self::Text | Self::Address | Self::AddressPort | Self::Networks, Value::String(_)) => {
                Some(value.clone())
            }
            (Self::Integer, Value::Number(found)) => found
                .as_i64()
                .and_then(|found| i32::try_from(found).ok())
                .map(Value::from),
            (Self::Number, Value::Number(found)) => found.as_f64().and_then(number),
            (Self::Level, Value::Number(found)) => level(&found.to_string()),
            (Self::Flush, Value::Number(found)) => found.as_i64().map(Value::from),
            (Self::Size, Value::Number(found)) => size(&found.to_string()),
            (Self::Size, Value::String(text)) => size(text),
            (Self::Duration | Self::Flush, Value::String(_) | Value::Null) => {
                let invalid = || format!("invalid value {value}: must be {}", self.expected());
                return value
                    .as_str()
                    .and_then(duration)
                    .ok_or_else(|| Fault::below("", invalid()));
            }
            (Self::Words, Value::Array(items)) => {
                return items.iter().enumerate().map(word).collect();
            }
            (Self::Gates, Value::Object(entries)) => {
                let gates: Result<Map<_, _>, _> = entries.iter().map(gate_of_file).collect();
                return gates.map(Value::Object);
            }
            (Self::Patterns, Value::Array(items)) => {
                return items.iter().enumerate().map(pattern_of_file).collect();
            }
            _ => None,
        };
        let expected = match self {
            Self::Address | Self::AddressPort => Self::Text.expected(),
            Self::Networks => "a string with networks, separated by commas",
            Self::Words => "a list of strings",
            Self::Gates => "a mapping of names to true or false",
            Self::Patterns => "a list of filePattern and verbosity",
            kind => kind.expected(),
        };
        found.ok_or_else(|| Fault::mistyped("", expected, value))
    }
}

impl Fault {
    fn below(path: impl Into<String>, reason: String) -> Self {
        Self {
            below: path.into(),
            reason,
        }
    }

    fn mistyped(path: impl Into<String>, expected: &str, value: &Value) -> Self {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "a mapping",
        };
        Self::below(path, format!("must be {expected}, not {found}"))
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a decimal number. One that begins with 0 is octal in kube-proxy.
fn integer(text: &str) -> Option<i32> {
    let digits = text.trim_start_matches(['-', '+']);
    let is_decimal = digits == "0" || !digits.starts_with('0');
    is_decimal.then(|| text.parse().ok())?
}

/// Returns a number as kube-proxy writes it: without a fraction if it is whole.
fn number(number: f64) -> Option<Value> {
    #[expect(clippy::cast_possible_truncation, reason = "compared below")]
    let whole = number as i32;
    match f64::from(whole) == number {
        true => Some(whole.into()),
        // `null` would be infinity or no number.
        false => Some(Value::from(number)).filter(|value| !value.is_null()),
    }
}

fn level(text: &str) -> Option<Value> {
    let level: i32 = text.parse().ok().filter(|level| *level >= 0)?;
    (!text.starts_with('+')).then(|| level.into())
}

fn duration(text: &str) -> Option<Value> {
    Some(GoDuration::parse(text)?.to_string().into())
}

fn size(text: &str) -> Option<Value> {
    let number = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = number.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let (number, suffix) = number.split_at(end.unwrap_or(number.len()));
    let suffixes = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E"];
    let is_suffix = match suffix.strip_suffix('i') {
        Some(prefix) => ["K", "M", "G", "T", "P", "E"].contains(&prefix),
        None => suffixes.contains(&suffix),
    };
    (is_suffix && number.parse::<f64>().is_ok()).then(|| text.into())
}

/// Returns whether kube-proxy's flag type `ipport` accepts the text.
fn is_address_port(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match bracketed {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<Ipv4Addr>().is_ok(),
    };
    is_host && port.parse::<u16>().is_ok()
}

/// Parses `A=X,B=Y` with a function for one pair.
fn pairs<T, C: FromIterator<T>>(text: &str, parse: fn((&str, &str)) -> Option<T>) -> Option<C> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    pairs
        .map(|pair| pair.split_once('=').and_then(parse))
        .collect()
}

fn gate((name, value): (&str, &str)) -> Option<(String, Value)> {
    Some((name.trim().to_owned(), boolean(value.trim())?.into()))
}

fn pattern((pattern, verbosity): (&str, &str)) -> Option<Value> {
    let verbosity = level(verbosity)?;
    (!pattern.is_empty()).then(|| json!({"filePattern": pattern, "verbosity": verbosity}))
}

fn word((index, item): (usize, &Value)) -> Result<Value, Fault> {
    match item {
        Value::String(_) => Ok(item.clone()),
        // Go's zero value.
        Value::Null => Ok("".into()),
        _ => Err(Fault::mistyped(format!("[{index}]"), "a string", item)),
    }
}

fn gate_of_file((name, value): (&String, &Value)) -> Result<(String, Value), Fault> {
    match value {
        Value::Bool(_) => Ok((name.clone(), value.clone())),
        // Go's zero value.
        Value::Null => Ok((name.clone(), false.into())),
        _ => Err(Fault::mistyped(
            format!(".{name}"),
            Kind::Bool.expected(),
            value,
        )),
    }
}

fn pattern_of_file((index, item): (usize, &Value)) -> Result<Value, Fault> {
    let read = || {
        let entries = item.as_object()?;
        let pattern = entries.get("filePattern").map_or(Some(""), Value::as_str)?;
        let verbosity = match entries.get("verbosity") {
            Some(verbosity) => level(&verbosity.to_string())?,
            None => 0.into(),
        };
        Some(json!({"filePattern": pattern, "verbosity": verbosity}))
    };
    let expected =
        "must have a filePattern, which is a string, and a verbosity from 0 to 2147483647";
    read().ok_or_else(|| Fault::below(format!("[{index}]"), expected.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_which_kube_proxy_reads_another_value_are_refused() {
        for (text, number) in [
            ("0", 0),
            ("-999", -999),
            ("+5", 5),
            ("-2147483648", i32::MIN),
        ] {
            assert_eq!(integer(text), Some(number), "{text}");
        }
        for text in [
            "",
            "-",
            "--5",
            "1.0",
            "010",
            "-010",
            "00",
            "0x1F",
            "1_000",
            "2147483648",
        ] {
            assert_eq!(integer(text), None, "{text}");
        }
        assert!(Kind::Words.parse("\"a,b\",c").is_err());
    }

    #[test]
    fn levels_and_sizes_have_bounds() {
        assert_eq!(level("2147483647"), Some(2_147_483_647.into()));
        for text in ["", "-1", "+1", "2147483648", "x"] {
            assert_eq!(level(text), None, "{text}");
        }
        for text in ["0", "10Ki", "1.5G"] {
            assert_eq!(size(text), Some(text.into()));
        }
        for text in ["", "1K", "x", "1 Ki", "1i", "1ki"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
