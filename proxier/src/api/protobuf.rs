//! Reading of protobuf messages.
//!
//! A message is a sequence of fields, and a field is a number with a value. The types on the wire
//! read the fields that they hold and skip all others, which costs a few instructions each. No bytes
//! cause a panic, and the depth of calls is that of the types, not that of the message.
//!
//! Kubernetes' encoder writes each field of a Go type that is not a pointer, even if it is empty or 0.
//! Its JSON lacks these fields. So [`ProtobufField::text`] and [`ProtobufField::integer`] read them as
//! absent, and `exact_text` and `exact_integer` read pointers and elements of lists.

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

use super::scalar::Scalar;

/// A type that is read from a protobuf message.
pub trait FromProtobuf<'a>: Default {
    /// Reads one field of the message. Ignores a field that the type does not hold.
    ///
    /// # Errors
    /// If the value is not of the field's type.
    fn read_field(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError>;
}

/// Why bytes are not a message of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The bytes do not begin with Kubernetes' magic number.
    #[error("no magic number of Kubernetes' protobuf")]
    Magic,
    /// The message ends within a field.
    #[error("the protobuf message ends within a field")]
    Cut,
    /// A number takes more than ten bytes.
    #[error("the protobuf message has an overlong number")]
    Overlong,
    /// The key of a field is 0 or has an unknown wire type.
    #[error("the protobuf message has an invalid field key")]
    Key,
    /// A field has another type than the one of this number.
    #[error("protobuf field {0} has the wrong type")]
    Type(u32),
    /// A string is not UTF-8.
    #[error("protobuf field {0} is not UTF-8")]
    Text(u32),
}

/// Reads a message.
///
/// # Errors
/// If the bytes are not such a message.
pub fn from_protobuf<'a, T: FromProtobuf<'a>>(message: &'a [u8]) -> Result<T, ProtobufError> {
    let mut value = T::default();
    merge(&mut value, message)?;
    Ok(value)
}

/// Reads all fields of `message` into `value`.
fn merge<'a>(value: &mut impl FromProtobuf<'a>, message: &'a [u8]) -> Result<(), ProtobufError> {
    let mut fields = ProtobufFields(message);
    while !fields.0.is_empty() {
        value.read_field(fields.take_field()?)?;
    }
    Ok(())
}

/// Returns the bytes of the first field `number`; none if the field is missing.
///
/// Does not look at what follows the field, so a message that is cut off there has it too.
///
/// # Errors
/// If the bytes up to the field are not a message, or the field is not bytes.
pub(crate) fn first_field(message: &[u8], number: u32) -> Result<&[u8], ProtobufError> {
    for field in ProtobufFields(message) {
        let field = field?;
        if field.number == number {
            return field.bytes();
        }
    }
    Ok(&[])
}

/// The wire type of numbers.
const VARINT: u8 = 0;
/// The wire type of strings and messages.
const LENGTH: u8 = 2;

/// The head of a field: its key, and the value or the length of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldHead {
    pub(crate) number: u32,
    pub(crate) content: FieldContent,
}

/// What follows the key of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldContent {
    /// A number, which is part of the head.
    Varint(u64),
    /// This many bytes that follow the head: a string, a message or packed numbers.
    Bytes(u64),
    /// This many bytes of a number of fixed size.
    Fixed(u64),
}

impl FieldHead {
    /// Takes a head off the front of `bytes`. [`ProtobufError::Cut`] if they end before it does.
    ///
    /// # Errors
    /// If the bytes are not the head of a field.
    pub(crate) fn take(bytes: &mut &[u8]) -> Result<Self, ProtobufError> {
        let key = take_varint(bytes)?;
        let number = u32::try_from(key >> 3).map_err(|_| ProtobufError::Key)?;
        if number == 0 {
            return Err(ProtobufError::Key);
        }
        // The lowest byte has all three bits of the wire type.
        let content = match key.to_le_bytes()[0] & 7 {
            VARINT => FieldContent::Varint(take_varint(bytes)?),
            1 => FieldContent::Fixed(8),
            LENGTH => FieldContent::Bytes(take_varint(bytes)?),
            5 => FieldContent::Fixed(4),
            // Groups, 3 and 4, are obsolete; Kubernetes has none.
            _ => return Err(ProtobufError::Key),
        };
        Ok(Self { number, content })
    }
}

/// Takes a number of variable length off the front of `bytes`.
fn take_varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(ProtobufError::Cut)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(ProtobufError::Overlong)
}

/// The fields of a message, in its order. Ends after the first error.
pub(crate) struct ProtobufFields<'a>(pub(crate) &'a [u8]);

impl<'a> ProtobufFields<'a> {
    /// Takes the next field.
    fn take_field(&mut self) -> Result<ProtobufField<'a>, ProtobufError> {
        // Nearly all fields have a number below 16, and a value or a length below 128.
        let &[key @ 0x08..0x80, value @ 0..0x80, ref rest @ ..] = self.0 else {
            return self.take_any_field();
        };
        let value = match key & 7 {
            VARINT => {
                self.0 = rest;
                ProtobufValue::Number(value.into())
            }
            LENGTH => {
                let bytes = rest.split_at_checked(value.into());
                let (bytes, rest) = bytes.ok_or(ProtobufError::Cut)?;
                self.0 = rest;
                ProtobufValue::Bytes(bytes)
            }
            _ => return self.take_any_field(),
        };
        let number = (key >> 3).into();
        Ok(ProtobufField { number, value })
    }

    fn take_any_field(&mut self) -> Result<ProtobufField<'a>, ProtobufError> {
        let FieldHead { number, content } = FieldHead::take(&mut self.0)?;
        let value = match content {
            FieldContent::Varint(value) => ProtobufValue::Number(value),
            FieldContent::Bytes(length) => ProtobufValue::Bytes(self.take_bytes(length)?),
            FieldContent::Fixed(length) => {
                self.take_bytes(length)?;
                ProtobufValue::Fixed
            }
        };
        Ok(ProtobufField { number, value })
    }

    fn take_bytes(&mut self, length: u64) -> Result<&'a [u8], ProtobufError> {
        let length = usize::try_from(length).map_err(|_| ProtobufError::Cut)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Cut)?;
        self.0 = rest;
        Ok(bytes)
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = Result<ProtobufField<'a>, ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.take_field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct ProtobufField<'a> {
    /// The field's number in the type of the message.
    pub(crate) number: u32,
    value: ProtobufValue<'a>,
}

#[derive(Clone, Copy, Debug)]
enum ProtobufValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A number of 4 or 8 bytes. No field that is read has this type.
    Fixed,
}

impl<'a> ProtobufField<'a> {
    /// Returns the bytes of a string or a message.
    pub(crate) fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self.value {
            ProtobufValue::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Type(self.number)),
        }
    }

    /// Returns a string.
    pub(crate) fn str(self) -> Result<&'a str, ProtobufError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| ProtobufError::Text(self.number))
    }

    /// Returns a string, which is absent if it is empty.
    pub(super) fn text(self) -> Result<Scalar<'a>, ProtobufError> {
        Ok(match self.str()? {
            "" => Scalar::Absent,
            text => text.into(),
        })
    }

    /// Returns a string, also an empty one.
    pub(super) fn exact_text(self) -> Result<Scalar<'a>, ProtobufError> {
        self.str().map(Scalar::from)
    }

    /// Returns a whole number.
    pub(crate) fn number(self) -> Result<i64, ProtobufError> {
        match self.value {
            // Protobuf encodes negative numbers as their 64 bits.
            ProtobufValue::Number(number) => Ok(number.cast_signed()),
            _ => Err(ProtobufError::Type(self.number)),
        }
    }

    /// Returns a whole number, which is absent if it is 0.
    pub(super) fn integer(self) -> Result<Scalar<'a>, ProtobufError> {
        Ok(match self.number()? {
            0 => Scalar::Absent,
            number => Scalar::Integer(number),
        })
    }

    /// Returns a whole number, also 0.
    pub(super) fn exact_integer(self) -> Result<Scalar<'a>, ProtobufError> {
        self.number().map(Scalar::Integer)
    }

    /// Returns a boolean.
    pub(super) fn flag(self) -> Result<Scalar<'a>, ProtobufError> {
        Ok(Scalar::Boolean(self.number()? != 0))
    }

    /// Returns a `meta.k8s.io/v1` `Time`; the zero value is absent.
    ///
    /// A year before 1970 or after 9999 remains a number, which is no valid time.
    pub(super) fn time(self) -> Result<Scalar<'a>, ProtobufError> {
        /// The beginning of the year 10000.
        const END: u64 = 253_402_300_800;
        let message = self.bytes()?;
        if message.is_empty() {
            return Ok(Scalar::Absent);
        }
        let Timestamp { seconds } = from_protobuf(message)?;
        Ok(match u64::try_from(seconds) {
            Ok(secs) if secs < END => Scalar::Time(UNIX_EPOCH + Duration::from_secs(secs)),
            _ => Scalar::Integer(seconds),
        })
    }

    /// Reads a message into a new element at the end of `list`, which it need not be moved to.
    pub(super) fn element<T: FromProtobuf<'a>>(
        self,
        list: &mut Vec<T>,
    ) -> Result<(), ProtobufError> {
        let message = self.bytes()?;
        list.push(T::default());
        list.last_mut()
            .map_or(Ok(()), |element| merge(element, message))
    }

    /// Returns a message.
    pub(crate) fn message<T: FromProtobuf<'a>>(self) -> Result<T, ProtobufError> {
        from_protobuf(self.bytes()?)
    }

    /// Reads a message into `value`, which may have fields of it from an earlier part.
    pub(crate) fn merge(self, value: &mut impl FromProtobuf<'a>) -> Result<(), ProtobufError> {
        merge(value, self.bytes()?)
    }

    /// Returns a string; bytes that are not UTF-8 are replaced.
    pub(crate) fn lossy_str(self) -> Result<Cow<'a, str>, ProtobufError> {
        self.bytes().map(lossy)
    }

    /// Returns an entry of a map of strings: its key and its value, which [`lossy`] converts.
    pub(crate) fn entry(self) -> Result<(&'a [u8], &'a [u8]), ProtobufError> {
        let (mut key, mut value) = (&[][..], &[][..]);
        for field in ProtobufFields(self.bytes()?) {
            let field = field?;
            match field.number {
                1 => key = field.bytes()?,
                2 => value = field.bytes()?,
                _ => {}
            }
        }
        Ok((key, value))
    }
}

/// Returns a string. Bytes that are not UTF-8 are replaced, as the API server does in JSON: it does not check
/// annotations, and any client may write one.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    // The check of the whole is faster than that of `from_utf8_lossy`.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// A point of time. Kubernetes ignores the fraction of the second.
#[derive(Default)]
struct Timestamp {
    seconds: i64,
}

impl FromProtobuf<'_> for Timestamp {
    fn read_field(&mut self, field: ProtobufField<'_>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.seconds = field.number()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::{
        EndpointSliceObject, NodeLabels, NodeObject, ServiceCidrObject, ServiceObject,
        WireObject as _,
    };

    fn time(message: &[u8]) -> String {
        let value = ProtobufValue::Bytes(message);
        let field = ProtobufField { number: 8, value };
        field.time().unwrap().to_string()
    }

    #[test]
    fn times_are_those_of_json() {
        assert_eq!(time(b""), "");
        assert_eq!(time(b"\x08\x00\x10\x00"), "1970-01-01T00:00:00Z");
        // The fraction of the second is ignored.
        assert_eq!(
            time(b"\x08\x80\xa3\xf6\xcd\x06\x10\x07"),
            "2026-03-20T18:27:12Z"
        );
        assert_eq!(time(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "-1");
        assert_eq!(time(b"\x08\x80\x83\xd1\xff\xaf\x07"), "253402300800");
    }

    #[test]
    fn empty_values_are_absent_unless_they_are_pointers() {
        let field = |value| ProtobufField { number: 1, value };
        let text = field(ProtobufValue::Bytes(b""));
        assert_eq!(text.text(), Ok(Scalar::Absent));
        assert_eq!(text.exact_text(), Ok("".into()));
        let number = field(ProtobufValue::Number(0));
        assert_eq!(number.integer(), Ok(Scalar::Absent));
        assert_eq!(number.exact_integer(), Ok(Scalar::Integer(0)));
        assert_eq!(number.flag(), Ok(Scalar::Boolean(false)));
        let negative = field(ProtobufValue::Number(u64::MAX));
        assert_eq!(negative.integer(), Ok(Scalar::Integer(-1)));
        for wrong in [
            number.text(),
            text.integer(),
            field(ProtobufValue::Fixed).flag(),
        ] {
            assert_eq!(wrong, Err(ProtobufError::Type(1)));
        }
    }

    /// Reads a message as each type, and parses what can be read.
    fn read_all(message: &[u8]) {
        let interner = &mut crate::store::Interner::default();
        let _ = from_protobuf::<ServiceObject<'_>>(message).map(|object| object.parse(interner));
        let _ =
            from_protobuf::<EndpointSliceObject<'_>>(message).map(|object| object.parse(interner));
        let _ = from_protobuf::<NodeObject<'_>>(message).map(|object| object.parse(interner));
        let _ = from_protobuf::<NodeLabels<'_>>(message).map(|object| object.parse(interner));
        let _ =
            from_protobuf::<ServiceCidrObject<'_>>(message).map(|object| object.parse(interner));
    }

    /// Fields in fields, with numbers that objects have, and any values.
    fn message() -> impl Strategy<Value = Vec<u8>> {
        let bytes = prop::collection::vec(any::<u8>(), 0..12);
        bytes.prop_recursive(5, 60, 6, |inner| {
            // Up to 31, the head's type takes the first byte and its number two.
            prop::collection::vec((1_u8..32, inner, any::<bool>()), 0..6).prop_map(|fields| {
                let mut message = Vec::new();
                for (number, bytes, is_number) in fields {
                    let kind = if is_number { 0 } else { 2 };
                    message.push((number << 3 | kind) | 0x80);
                    message.push(number >> 4);
                    if !is_number {
                        message.push(u8::try_from(bytes.len()).unwrap_or(0x7f) & 0x7f);
                    }
                    message.extend(bytes);
                }
                message
            })
        })
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(message in message()) {
            read_all(&message);
        }
    }
}
