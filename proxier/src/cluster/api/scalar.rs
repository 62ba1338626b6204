//! A value of any scalar type.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A string, number or boolean as it was written, or its absence.
///
/// Keeping the written type distinguishes `80` from `"80"`, so that a Problem can name the field with
/// the wrong one. A typed field would make the whole object unreadable.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Scalar<'a> {
    /// Missing or `null`.
    #[default]
    Absent,
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A whole number above `i64::MAX`, which no field of an object has.
    Huge(u64),
    /// Any other number.
    Float(f64),
    /// A string. It borrows from the message or the text where that is possible: the slices of 100,000
    /// endpoints have 300,000 strings.
    Text(Cow<'a, str>),
}

impl Scalar<'_> {
    /// Returns the string, if the value is one.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns whether the value is a string or absent.
    pub(crate) fn is_optional_text(&self) -> bool {
        matches!(self, Self::Absent | Self::Text(_))
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

impl<'a> From<&'a str> for Scalar<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<Cow<'a, str>> for Scalar<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::Text(text)
    }
}

impl From<String> for Scalar<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<u16> for Scalar<'_> {
    fn from(number: u16) -> Self {
        Self::Integer(number.into())
    }
}

/// The value without quotes; empty if absent.
impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => Ok(()),
            Self::Boolean(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Huge(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a single value")
    }

    fn visit_unit<E: Error>(self) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Absent)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Boolean(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar<'de>, E> {
        Ok(i64::try_from(value).map_or(Scalar::Huge(value), Scalar::Integer))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Scalar<'de>, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Scalar<'de>, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Scalar<'de>, E> {
        Ok(value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::api::from_json;

    #[test]
    fn a_string_in_json_is_copied_only_if_it_has_escapes() {
        let list = br#"["web", "w\u0065b"]"#;
        let [plain, escaped]: [Scalar<'_>; 2] = from_json(list).unwrap();
        assert!(matches!(plain, Scalar::Text(Cow::Borrowed("web"))));
        assert!(matches!(&escaped, Scalar::Text(Cow::Owned(text)) if text == "web"));
        assert_eq!(plain, escaped);
    }

    #[test]
    fn a_value_is_shown_as_it_was_written() {
        for text in [
            "true",
            "-9223372036854775808",
            "18446744073709551615",
            "0.5",
            "",
        ] {
            let json = if text.is_empty() { "null" } else { text };
            let value: Scalar<'_> = from_json(json.as_bytes()).unwrap();
            assert_eq!(value.to_string(), text);
        }
    }
}
