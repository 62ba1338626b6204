//! A setting's place in the configuration, with its type.

use std::collections::BTreeMap;

use super::go::{self, GoDuration, Quantity};
use super::tree::{YamlNode, YamlValue};
use super::{FilePattern, FlushFrequency};

/// A mutable reference to a setting of any type.
#[derive(Debug)]
pub(crate) enum Slot<'a> {
    /// A boolean.
    Bool(&'a mut bool),
    /// A boolean whose default is not false.
    OptionalBool(&'a mut Option<bool>),
    /// A 32-bit integer.
    Integer(&'a mut i32),
    /// A 32-bit integer for which 0 is a value.
    OptionalInteger(&'a mut Option<i32>),
    /// A number that may have a fraction.
    Float(&'a mut f32),
    /// A string.
    Text(&'a mut String),
    /// An IP address in a flag, a string in a file.
    Address(&'a mut String),
    /// An IP address with or without a port in a flag, a string in a file.
    AddressPort(&'a mut String),
    /// A string that is a list, separated by commas.
    Commas(&'a mut Vec<String>),
    /// A duration.
    Duration(&'a mut GoDuration),
    /// A duration for which 0 is a value.
    OptionalDuration(&'a mut Option<GoDuration>),
    /// A duration, or a number of nanoseconds.
    Flush(&'a mut FlushFrequency),
    /// A list of strings.
    Words(&'a mut Option<Vec<String>>),
    /// Feature gates.
    Gates(&'a mut BTreeMap<String, bool>),
    /// A level of verbosity.
    Level(&'a mut u32),
    /// Levels of verbosity of source files.
    Patterns(&'a mut Vec<FilePattern>),
    /// A size in bytes.
    Size(&'a mut Quantity),
}

/// A value of a file, ready to be written as YAML.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Written {
    /// Words that need no quotes: `null`, a number, a boolean, `[]`.
    Plain(String),
    /// A string.
    Text(String),
    /// The elements of a list, each with its lines.
    List(Vec<Self>),
    /// The entries of a mapping, in order.
    Map(Vec<(String, Self)>),
    /// No line at all.
    Omitted,
}

/// Why a value is invalid. The text follows the name of the setting.
type Reason = String;

impl Slot<'_> {
    /// Sets the value of a flag. Lists, gates and patterns are extended.
    pub(crate) fn parse(self, text: &str) -> Result<(), Reason> {
        let not = |what: &str| format!("invalid value {text:?}: must be {what}");
        match self {
            Self::Bool(place) => *place = go::boolean(text).ok_or_else(|| not(BOOLEAN))?,
            Self::OptionalBool(place) => {
                *place = Some(go::boolean(text).ok_or_else(|| not(BOOLEAN))?);
            }
            Self::Integer(place) => *place = go::integer(text).ok_or_else(|| not(INTEGER))?,
            Self::OptionalInteger(place) => {
                *place = Some(go::integer(text).ok_or_else(|| not(INTEGER))?);
            }
            Self::Float(place) => *place = text.parse().map_err(|_| not("a number"))?,
            Self::Text(place) => text.clone_into(place),
            // As in kube-proxy, an empty address keeps the default.
            Self::Address(_) | Self::AddressPort(_) if text.is_empty() => {}
            Self::Address(place) => {
                let address: std::net::IpAddr = text
                    .trim()
                    .parse()
                    .map_err(|_| not("an IP address, without a port"))?;
                *place = address.to_string();
            }
            Self::AddressPort(place) => {
                is_address_port(text)
                    .then(|| text.clone_into(place))
                    .ok_or_else(|| not("IP or IP:port, such as 0.0.0.0:10256 or [::]:10256"))?;
            }
            Self::Commas(place) => *place = text.split(',').map(str::to_owned).collect(),
            Self::Duration(place) => {
                *place = GoDuration::parse(text).ok_or_else(|| not(DURATION))?;
            }
            Self::OptionalDuration(place) => {
                *place = Some(GoDuration::parse(text).ok_or_else(|| not(DURATION))?);
            }
            Self::Flush(place) => {
                *place = FlushFrequency {
                    duration: GoDuration::parse(text).ok_or_else(|| not(DURATION))?,
                    is_number: false,
                }
            }
            Self::Words(place) => {
                let words =
                    go::words(text).ok_or_else(|| not("a list of words, separated by commas"))?;
                place.get_or_insert_default().extend(words);
            }
            Self::Gates(place) => place.extend(gates(text)?),
            Self::Level(place) => *place = go::level(text).ok_or_else(|| not(LEVEL))?,
            Self::Patterns(place) => place.extend(patterns(text)?),
            Self::Size(place) => *place = Quantity::parse(text).ok_or_else(|| not(SIZE))?,
        }
        Ok(())
    }

    /// Sets the value of a field of a file. The error has the line, the path below the field, and the
    /// reason.
    pub(super) fn decode(self, tree: &YamlNode) -> Result<(), (u64, String, Reason)> {
        let fail = |reason: Reason| Err((tree.line, String::new(), reason));
        let mistyped = |what: &str| {
            let kind = tree.value.kind();
            Err((
                tree.line,
                String::new(),
                format!("must be {what}, not {kind}"),
            ))
        };
        let duration = |text: &str| {
            GoDuration::parse(text).ok_or_else(|| {
                (
                    tree.line,
                    String::new(),
                    format!("invalid value {text:?}: must be {DURATION}"),
                )
            })
        };
        match (self, &tree.value) {
            // Go leaves a value of null alone, but gives it to the parser of durations that are not
            // pointers, which rejects it.
            (Self::Duration(_), YamlValue::Null) => {
                return fail(format!("invalid value null: must be {DURATION}"));
            }
            (_, YamlValue::Null) => {}
            (Self::Bool(place), YamlValue::Bool(value)) => *place = *value,
            (Self::OptionalBool(place), YamlValue::Bool(value)) => *place = Some(*value),
            (Self::Bool(_) | Self::OptionalBool(_), _) => return mistyped("true or false"),
            (Self::Integer(place), value) => match whole(value) {
                Some(number) => *place = number,
                None => return mistyped(INTEGER),
            },
            (Self::OptionalInteger(place), value) => match whole(value) {
                Some(number) => *place = Some(number),
                None => return mistyped(INTEGER),
            },
            (Self::Float(place), YamlValue::Float(value)) => *place = to_f32(*value),
            (Self::Float(place), YamlValue::Integer(value)) => *place = *value as f32,
            (Self::Float(_), _) => return mistyped("a number"),
            (Self::Text(place) | Self::Address(place) | Self::AddressPort(place), value) => {
                match value {
                    YamlValue::Text(text) => text.clone_into(place),
                    _ => return mistyped("a string (quote it)"),
                }
            }
            (Self::Commas(place), YamlValue::Text(text)) => {
                *place = match &**text {
                    "" => Vec::new(),
                    text => text.split(',').map(str::to_owned).collect(),
                }
            }
            (Self::Commas(_), _) => return mistyped("a string with networks, separated by commas"),
            (Self::Duration(place), YamlValue::Text(text)) => *place = duration(text)?,
            (Self::OptionalDuration(place), YamlValue::Text(text)) => {
                *place = Some(duration(text)?);
            }
            (Self::Duration(_) | Self::OptionalDuration(_), _) => return mistyped(DURATION),
            (Self::Flush(place), YamlValue::Text(text)) => {
                let (duration, is_number) = (duration(text)?, false);
                *place = FlushFrequency {
                    duration,
                    is_number,
                };
            }
            (Self::Flush(place), YamlValue::Integer(value)) => match i64::try_from(*value) {
                Ok(nanos) => {
                    let (duration, is_number) = (GoDuration::from_nanos(nanos), true);
                    *place = FlushFrequency {
                        duration,
                        is_number,
                    };
                }
                Err(_) => return mistyped("a 64-bit number of nanoseconds"),
            },
            (Self::Flush(_), _) => return mistyped(DURATION),
            (Self::Words(place), YamlValue::List(items)) => {
                let mut words = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    match &item.value {
                        YamlValue::Text(text) => words.push(text.clone()),
                        YamlValue::Null => words.push(String::new()),
                        other => {
                            let reason = format!("must be a string, not {}", other.kind());
                            return Err((item.line, format!("[{index}]"), reason));
                        }
                    }
                }
                *place = Some(words);
            }
            (Self::Words(_), _) => return mistyped("a list of strings"),
            (Self::Gates(place), YamlValue::Map(entries)) => {
                for (name, gate) in entries {
                    match gate.value {
                        YamlValue::Bool(value) => _ = place.insert(name.value.clone(), value),
                        YamlValue::Null => _ = place.insert(name.value.clone(), false),
                        ref other => {
                            let reason = format!("must be true or false, not {}", other.kind());
                            return Err((gate.line, format!(".{}", name.value), reason));
                        }
                    }
                }
            }
            (Self::Gates(_), _) => return mistyped("a mapping of names to true or false"),
            (Self::Level(place), YamlValue::Integer(value)) => match u32::try_from(*value) {
                Ok(level) => *place = level,
                Err(_) => return mistyped(LEVEL),
            },
            (Self::Level(_), _) => return mistyped(LEVEL),
            (Self::Patterns(place), YamlValue::List(items)) => {
                let read = items.iter().enumerate().map(|(index, item)| {
                    pattern(item).map_err(|(line, reason)| (line, format!("[{index}]"), reason))
                });
                *place = read.collect::<Result<_, _>>()?;
            }
            (Self::Patterns(_), _) => return mistyped("a list of filePattern and verbosity"),
            (Self::Size(place), value) => {
                let text = match value {
                    YamlValue::Text(text) => Some(text.clone()),
                    YamlValue::Integer(number) => Some(number.to_string()),
                    _ => None,
                };
                match text.and_then(|text| Quantity::parse(&text)) {
                    Some(size) => *place = size,
                    None => return mistyped(SIZE),
                }
            }
        }
        Ok(())
    }

    /// Returns the value as `--write-config-to` writes it.
    pub(crate) fn written(self) -> Written {
        let plain = |value: &dyn ToString| Written::Plain(value.to_string());
        let null = || Written::Plain("null".to_owned());
        match self {
            Self::Bool(value) => plain(value),
            Self::OptionalBool(value) => value.map_or_else(null, |value| plain(&value)),
            Self::Integer(value) => plain(value),
            Self::OptionalInteger(value) => value.map_or_else(null, |value| plain(&value)),
            Self::Float(value) => plain(value),
            Self::Text(text) | Self::Address(text) | Self::AddressPort(text) => {
                Written::Text(text.clone())
            }
            Self::Commas(words) => Written::Text(words.join(",")),
            Self::Duration(value) => Written::Text(value.to_string()),
            Self::OptionalDuration(value) => {
                value.map_or_else(null, |value| Written::Text(value.to_string()))
            }
            Self::Flush(value) if value.is_number => plain(&value.duration.nanos()),
            Self::Flush(value) => Written::Text(value.duration.to_string()),
            Self::Words(None) => null(),
            Self::Words(Some(words)) => {
                Written::List(words.iter().cloned().map(Written::Text).collect())
            }
            Self::Gates(gates) if gates.is_empty() => Written::Omitted,
            Self::Gates(gates) => {
                let gates = gates
                    .iter()
                    .map(|(name, value)| (name.clone(), plain(value)));
                Written::Map(gates.collect())
            }
            Self::Level(value) => plain(value),
            Self::Patterns(patterns) if patterns.is_empty() => Written::Omitted,
            Self::Patterns(patterns) => {
                let entry = |pattern: &FilePattern| {
                    Written::Map(vec![
                        (
                            "filePattern".to_owned(),
                            Written::Text(pattern.pattern.clone()),
                        ),
                        ("verbosity".to_owned(), plain(&pattern.verbosity)),
                    ])
                };
                Written::List(patterns.iter().map(entry).collect())
            }
            Self::Size(size) => Written::Text(size.to_string()),
        }
    }
}

const BOOLEAN: &str = "true or false";
const INTEGER: &str = "a 32-bit integer";
const DURATION: &str = "a duration, such as 30s or 1h15m";
const LEVEL: &str = "a number from 0 to 2147483647";
const SIZE: &str = "a size, such as 512 or 4Ki";

/// Returns a number that Go would read into an `int32`: whole, in bounds.
fn whole(value: &YamlValue) -> Option<i32> {
    match value {
        YamlValue::Integer(number) => i32::try_from(*number).ok(),
        // `1e2` is 100 in YAML. The cast is exact within the bounds.
        YamlValue::Float(number) => {
            let bounds = f64::from(i32::MIN)..=f64::from(i32::MAX);
            let is_whole = number.fract() == 0.0 && bounds.contains(number);
            #[expect(clippy::cast_possible_truncation, reason = "checked above")]
            is_whole.then_some(*number as i32)
        }
        _ => None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "kube-proxy keeps qps with this precision"
)]
fn to_f32(value: f64) -> f32 {
    value as f32
}

/// Returns whether kube-proxy's flag type `ipport` accepts the text.
fn is_address_port(text: &str) -> bool {
    use std::net::{IpAddr, Ipv6Addr};
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<std::net::Ipv4Addr>().is_ok(),
    };
    host && go::level(port).is_some_and(|port| port <= 65_535)
}

/// Parses `A=true,B=false`.
fn gates(text: &str) -> Result<BTreeMap<String, bool>, Reason> {
    let mut gates = BTreeMap::new();
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!(
                "invalid value {pair:?}: must be NAME=true or NAME=false"
            ));
        };
        let (name, value) = (name.trim(), value.trim());
        let value = go::boolean(value)
            .ok_or_else(|| format!("invalid value {value:?} of {name}: must be {BOOLEAN}"))?;
        gates.insert(name.to_owned(), value);
    }
    Ok(gates)
}

/// Parses `server=2,client*=4`.
fn patterns(text: &str) -> Result<Vec<FilePattern>, Reason> {
    let parse = |pair: &str| {
        let (pattern, level) = pair.split_once('=')?;
        let verbosity = go::level(level)?;
        let pattern = (!pattern.is_empty()).then(|| pattern.to_owned())?;
        Some(FilePattern { pattern, verbosity })
    };
    text.split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            parse(pair).ok_or_else(|| format!("invalid value {pair:?}: must be PATTERN=NUMBER"))
        })
        .collect()
}

/// Reads an element of `logging.vmodule`.
fn pattern(item: &YamlNode) -> Result<FilePattern, (u64, Reason)> {
    let YamlValue::Map(entries) = &item.value else {
        let reason = format!("must be a mapping, not {}", item.value.kind());
        return Err((item.line, reason));
    };
    let mut found = FilePattern::default();
    for (name, entry) in entries {
        match (&*name.value, &entry.value) {
            ("filePattern", YamlValue::Text(text)) => text.clone_into(&mut found.pattern),
            ("verbosity", YamlValue::Integer(level)) if u32::try_from(*level).is_ok() => {
                found.verbosity = u32::try_from(*level).unwrap_or_default();
            }
            ("filePattern", _) => return Err((entry.line, "filePattern must be a string".into())),
            ("verbosity", _) => return Err((entry.line, format!("verbosity must be {LEVEL}"))),
            _ => {}
        }
    }
    Ok(found)
}
