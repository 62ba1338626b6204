//! Settings from files: values of YAML, with the types that Go's decoder accepts.

use std::collections::BTreeMap;

use super::{BOOLEAN, DURATION, INTEGER, LEVEL, SIZE, Slot};
use crate::cli::config::go::{GoDuration, Quantity};
use crate::cli::config::tree::{YamlNode, YamlValue};
use crate::cli::config::{FilePattern, FlushFrequency};

/// Why the value of a field is invalid.
#[derive(Debug)]
pub(in crate::cli::config) struct FieldFault {
    /// The line of the invalid value.
    pub(in crate::cli::config) line: u64,
    /// The path below the field, such as `[1]`.
    pub(in crate::cli::config) below: String,
    /// The text that follows the name of the field.
    pub(in crate::cli::config) reason: String,
}

impl FieldFault {
    fn new(tree: &YamlNode, reason: impl Into<String>) -> Self {
        Self {
            line: tree.line,
            below: String::new(),
            reason: reason.into(),
        }
    }

    /// Returns the fault of an element as one of the whole field.
    fn below(self, path: String) -> Self {
        Self {
            below: path,
            ..self
        }
    }
}

fn mistyped(tree: &YamlNode, what: &str) -> FieldFault {
    FieldFault::new(tree, format!("must be {what}, not {}", tree.value.kind()))
}

impl Slot<'_> {
    /// Sets the value of a field of a file.
    pub(in crate::cli::config) fn decode(self, tree: &YamlNode) -> Result<(), FieldFault> {
        if tree.value == YamlValue::Null {
            // Go leaves a value of null alone, but gives it to the parser of durations that are not
            // pointers, which rejects it.
            return match self {
                Self::Duration(_) => Err(invalid_duration(tree, "null")),
                _ => Ok(()),
            };
        }
        match self {
            Self::Bool(place) => *place = boolean(tree)?,
            Self::OptionalBool(place) => *place = Some(boolean(tree)?),
            Self::Integer(place) => *place = integer(tree)?,
            Self::OptionalInteger(place) => *place = Some(integer(tree)?),
            Self::Float(place) => *place = float(tree)?,
            Self::Text(place) | Self::Address(place) | Self::AddressPort(place) => {
                text(tree, "a string (quote it)")?.clone_into(place);
            }
            Self::Commas(place) => {
                let text = text(tree, "a string with networks, separated by commas")?;
                let words = text.split(',').filter(|_| !text.is_empty());
                *place = words.map(str::to_owned).collect();
            }
            Self::Duration(place) => *place = duration(tree)?,
            Self::OptionalDuration(place) => *place = Some(duration(tree)?),
            Self::Flush(place) => *place = flush_frequency(tree)?,
            Self::Words(place) => *place = Some(each(tree, "a list of strings", word)?),
            Self::Gates(place) => place.extend(gates(tree)?),
            Self::Level(place) => {
                *place = as_level(&tree.value).ok_or_else(|| mistyped(tree, LEVEL))?;
            }
            Self::Patterns(place) => {
                *place = each(tree, "a list of filePattern and verbosity", pattern)?;
            }
            Self::Size(place) => *place = size(tree)?,
        }
        Ok(())
    }
}

fn boolean(tree: &YamlNode) -> Result<bool, FieldFault> {
    match tree.value {
        YamlValue::Bool(value) => Ok(value),
        _ => Err(mistyped(tree, BOOLEAN)),
    }
}

/// Reads a number that Go would read into an `int32`: whole, in bounds.
fn integer(tree: &YamlNode) -> Result<i32, FieldFault> {
    let number = match tree.value {
        YamlValue::Integer(number) => i32::try_from(number).ok(),
        // `1e2` is 100 in YAML. The cast is exact within the bounds.
        YamlValue::Float(number) => {
            let bounds = f64::from(i32::MIN)..=f64::from(i32::MAX);
            let is_whole = number.fract() == 0.0 && bounds.contains(&number);
            #[expect(clippy::cast_possible_truncation, reason = "checked above")]
            is_whole.then_some(number as i32)
        }
        _ => None,
    };
    number.ok_or_else(|| mistyped(tree, INTEGER))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "kube-proxy keeps qps with this precision"
)]
fn float(tree: &YamlNode) -> Result<f32, FieldFault> {
    match tree.value {
        YamlValue::Float(value) => Ok(value as f32),
        YamlValue::Integer(value) => Ok(value as f32),
        _ => Err(mistyped(tree, "a number")),
    }
}

fn text<'a>(tree: &'a YamlNode, what: &str) -> Result<&'a str, FieldFault> {
    match &tree.value {
        YamlValue::Text(text) => Ok(text),
        _ => Err(mistyped(tree, what)),
    }
}

fn duration(tree: &YamlNode) -> Result<GoDuration, FieldFault> {
    let text = text(tree, DURATION)?;
    GoDuration::parse(text).ok_or_else(|| invalid_duration(tree, &format!("{text:?}")))
}

fn invalid_duration(tree: &YamlNode, value: &str) -> FieldFault {
    FieldFault::new(tree, format!("invalid value {value}: must be {DURATION}"))
}

/// Reads a duration, or a number of nanoseconds.
fn flush_frequency(tree: &YamlNode) -> Result<FlushFrequency, FieldFault> {
    let (duration, is_number) = match tree.value {
        YamlValue::Integer(value) => {
            let nanos = i64::try_from(value);
            let nanos = nanos.map_err(|_| mistyped(tree, "a 64-bit number of nanoseconds"))?;
            (GoDuration::from_nanos(nanos), true)
        }
        _ => (duration(tree)?, false),
    };
    Ok(FlushFrequency {
        duration,
        is_number,
    })
}

/// Reads the elements of a list.
fn each<T>(
    tree: &YamlNode,
    what: &str,
    read: fn(&YamlNode) -> Result<T, FieldFault>,
) -> Result<Vec<T>, FieldFault> {
    let YamlValue::List(items) = &tree.value else {
        return Err(mistyped(tree, what));
    };
    let items = items.iter().enumerate();
    items
        .map(|(index, item)| read(item).map_err(|fault| fault.below(format!("[{index}]"))))
        .collect()
}

fn word(item: &YamlNode) -> Result<String, FieldFault> {
    match &item.value {
        // Go's zero value.
        YamlValue::Null => Ok(String::new()),
        _ => text(item, "a string").map(str::to_owned),
    }
}

fn gates(tree: &YamlNode) -> Result<BTreeMap<String, bool>, FieldFault> {
    let YamlValue::Map(entries) = &tree.value else {
        return Err(mistyped(tree, "a mapping of names to true or false"));
    };
    let gate = |gate: &YamlNode| match gate.value {
        // Go's zero value.
        YamlValue::Null => Ok(false),
        _ => boolean(gate),
    };
    let entries = entries.iter().map(|(name, value)| {
        let value = gate(value).map_err(|fault| fault.below(format!(".{}", name.value)))?;
        Ok((name.value.clone(), value))
    });
    entries.collect()
}

fn as_level(value: &YamlValue) -> Option<u32> {
    match value {
        YamlValue::Integer(value) => u32::try_from(*value).ok(),
        _ => None,
    }
}

/// Reads an element of `logging.vmodule`.
fn pattern(item: &YamlNode) -> Result<FilePattern, FieldFault> {
    let YamlValue::Map(entries) = &item.value else {
        return Err(mistyped(item, "a mapping"));
    };
    let mut found = FilePattern::default();
    for (name, entry) in entries {
        match &*name.value {
            "filePattern" => match &entry.value {
                YamlValue::Text(text) => text.clone_into(&mut found.pattern),
                _ => return Err(FieldFault::new(entry, "filePattern must be a string")),
            },
            "verbosity" => match as_level(&entry.value) {
                Some(level) => found.verbosity = level,
                None => {
                    let reason = format!("verbosity must be {LEVEL}");
                    return Err(FieldFault::new(entry, reason));
                }
            },
            _ => {}
        }
    }
    Ok(found)
}

fn size(tree: &YamlNode) -> Result<Quantity, FieldFault> {
    let size = match &tree.value {
        YamlValue::Text(text) => Quantity::parse(text),
        YamlValue::Integer(number) => Quantity::parse(&number.to_string()),
        _ => None,
    };
    size.ok_or_else(|| mistyped(tree, SIZE))
}
