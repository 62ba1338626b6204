//! A value of any scalar type.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A string, number or boolean as it was written, or its absence.
///
/// Keeping the written type distinguishes `80` from `"80"`, so that a Problem can name the field with
/// the wrong one. A typed field would make the whole object unreadable.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Scalar {
    /// Missing or `null`.
    #[default]
    Absent,
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number; `serde_json` yields those from the least `i64` to the greatest `u64`.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(Box<str>),
}

impl Scalar {
    /// Returns the string, if the value is one.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns whether the value is missing, `null` or an empty string. The API server treats them
    /// alike wherever a string is optional.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Self::Absent => true,
            Self::Text(text) => text.is_empty(),
            _ => false,
        }
    }
}

impl From<&str> for Scalar {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<u16> for Scalar {
    fn from(number: u16) -> Self {
        Self::Integer(number.into())
    }
}

/// The value without quotes; empty if absent.
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => Ok(()),
            Self::Boolean(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a single value")
    }

    fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
        Ok(Scalar::Absent)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Boolean(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.into()))
    }
}
