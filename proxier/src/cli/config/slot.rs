//! A setting's place in the configuration, with its type.

use std::collections::BTreeMap;

use super::go::{GoDuration, Quantity};
use super::{FilePattern, FlushFrequency};

mod field;
mod flag;

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

// The words by which messages name a type, whether the value is from a flag or from a file.
const BOOLEAN: &str = "true or false";
const INTEGER: &str = "a 32-bit integer";
const DURATION: &str = "a duration, such as 30s or 1h15m";
const LEVEL: &str = "a number from 0 to 2147483647";
const SIZE: &str = "a size, such as 512 or 4Ki";

impl Slot<'_> {
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
