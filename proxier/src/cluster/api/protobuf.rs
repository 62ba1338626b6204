//! Reading of protobuf messages.
//!
//! A message is a sequence of fields, and a field is a number with a value. A type on the wire has a table of the fields
//! that it holds; all others are skipped, which costs a few instructions each. No bytes cause a panic, and the depth of
//! calls is that of the types, not that of the message.
//!
//! Kubernetes' encoder writes each field of a Go type that is not a pointer, even if it is empty or 0. Its JSON lacks these
//! fields. So an empty text and the number 0 are read as absent. The API server accepts neither in a pointer that is read
//! here, except as the name of a port, where they mean the same.
//!
//! A reader of our own, because generated types decode every field and copy its strings. Much of an object is managed
//! fields, owners and references to Pods, which the reader skips by their length; strings borrow from the message.

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

use super::scalar::Scalar;

/// A type that is read from a protobuf message.
pub trait FromProtobuf<'a>: Default + 'a {
    /// The fields that the type holds.
    const FIELDS: Fields<'a, Self>;
}

/// The numbers of the fields of a type, each with the function that reads it into the type.
pub(crate) type Fields<'a, T> = &'a [(u32, ReadField<'a, T>)];

/// Reads the value of a field.
type ReadField<'a, T> = fn(&mut T, ProtobufField<'a>) -> Result<(), ProtobufError>;

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
fn merge<'a, T: FromProtobuf<'a>>(
    value: &mut T,
    mut message: &'a [u8],
) -> Result<(), ProtobufError> {
    while let Some(field) = ProtobufField::take(&mut message)? {
        let mut held = T::FIELDS.iter();
        if let Some((_, read)) = held.find(|(number, _)| *number == field.number) {
            read(value, field)?;
        }
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
    find(message, number)?.map_or(Ok(&[]), ProtobufField::bytes)
}

fn find(mut message: &[u8], number: u32) -> Result<Option<ProtobufField<'_>>, ProtobufError> {
    while let Some(field) = ProtobufField::take(&mut message)? {
        if field.number == number {
            return Ok(Some(field));
        }
    }
    Ok(None)
}

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
            0 => FieldContent::Varint(take_varint(bytes)?),
            1 => FieldContent::Fixed(8),
            2 => FieldContent::Bytes(take_varint(bytes)?),
            5 => FieldContent::Fixed(4),
            // Groups, 3 and 4, are obsolete; Kubernetes has none.
            _ => return Err(ProtobufError::Key),
        };
        Ok(Self { number, content })
    }
}

/// Takes a number of variable length off the front of `bytes`.
fn take_varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    // Nearly all have one byte.
    if let [number @ 0..0x80, rest @ ..] = *bytes {
        *bytes = rest;
        return Ok(u64::from(*number));
    }
    take_long_varint(bytes)
}

fn take_long_varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
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

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct ProtobufField<'a> {
    /// The field's number in the type of the message.
    number: u32,
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
    /// Takes the next field off the front of `message`; `None` at its end.
    fn take(message: &mut &'a [u8]) -> Result<Option<Self>, ProtobufError> {
        if message.is_empty() {
            return Ok(None);
        }
        let FieldHead { number, content } = FieldHead::take(message)?;
        let mut take = |length| {
            let length = usize::try_from(length).map_err(|_| ProtobufError::Cut)?;
            let (bytes, rest) = message.split_at_checked(length).ok_or(ProtobufError::Cut)?;
            *message = rest;
            Ok(bytes)
        };
        let value = match content {
            FieldContent::Varint(value) => ProtobufValue::Number(value),
            FieldContent::Bytes(length) => ProtobufValue::Bytes(take(length)?),
            FieldContent::Fixed(length) => take(length).map(|_| ProtobufValue::Fixed)?,
        };
        Ok(Some(Self { number, value }))
    }

    fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self.value {
            ProtobufValue::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Type(self.number)),
        }
    }

    /// Returns a whole number.
    pub(crate) fn number(self) -> Result<i64, ProtobufError> {
        match self.value {
            // Protobuf encodes negative numbers as their 64 bits.
            ProtobufValue::Number(number) => Ok(number.cast_signed()),
            _ => Err(ProtobufError::Type(self.number)),
        }
    }

    /// Returns a string, which is absent if it is empty.
    fn scalar(self) -> Result<Scalar<'a>, ProtobufError> {
        let text = std::str::from_utf8(self.bytes()?);
        Ok(match text.map_err(|_| ProtobufError::Text(self.number))? {
            "" => Scalar::Absent,
            text => text.into(),
        })
    }

    /// Reads a string, which is absent if it is empty.
    pub(crate) fn text(self, to: &mut Scalar<'a>) -> Result<(), ProtobufError> {
        *to = self.scalar()?;
        Ok(())
    }

    /// Reads a string that must outlive the message; bytes that are not UTF-8 are replaced.
    pub(crate) fn string(self, to: &mut String) -> Result<(), ProtobufError> {
        *to = lossy(self.bytes()?).into_owned();
        Ok(())
    }

    /// Reads a whole number, which is absent if it is 0.
    pub(super) fn integer(self, to: &mut Scalar<'a>) -> Result<(), ProtobufError> {
        *to = match self.number()? {
            0 => Scalar::Absent,
            number => Scalar::Integer(number),
        };
        Ok(())
    }

    /// Reads a boolean.
    pub(super) fn flag(self, to: &mut Scalar<'a>) -> Result<(), ProtobufError> {
        *to = Scalar::Boolean(self.number()? != 0);
        Ok(())
    }

    /// Reads a `meta.k8s.io/v1` `Time` as its text in JSON, without the fraction of the second. The zero value is absent.
    ///
    /// A year before 1970 or after 9999 remains a number, which is no valid time.
    pub(super) fn time(self, to: &mut Scalar<'a>) -> Result<(), ProtobufError> {
        /// The beginning of the year 10000.
        const END: u64 = 253_402_300_800;
        let Some(seconds) = find(self.bytes()?, 1)? else {
            *to = Scalar::Absent;
            return Ok(());
        };
        let seconds = seconds.number()?;
        *to = match u64::try_from(seconds) {
            Ok(secs) if secs < END => {
                let time = UNIX_EPOCH + Duration::from_secs(secs);
                humantime::format_rfc3339_seconds(time).to_string().into()
            }
            _ => Scalar::Integer(seconds),
        };
        Ok(())
    }

    /// Reads a message, of which `to` may have fields from an earlier part.
    pub(crate) fn merge<T: FromProtobuf<'a>>(self, to: &mut T) -> Result<(), ProtobufError> {
        merge(to, self.bytes()?)
    }

    /// Reads a message into a new element of a list.
    pub(crate) fn push<T: FromProtobuf<'a>>(self, to: &mut Vec<T>) -> Result<(), ProtobufError> {
        let message = self.bytes()?;
        to.push(T::default());
        to.last_mut().map_or(Ok(()), |it| merge(it, message))
    }

    /// Reads a string into a new element of a list.
    pub(super) fn push_text(self, to: &mut Vec<Scalar<'a>>) -> Result<(), ProtobufError> {
        to.push(self.scalar()?);
        Ok(())
    }

    /// Reads an entry of a map of strings to the place that `place` returns for the entry's name, if it returns one.
    pub(crate) fn entry<'p>(
        self,
        place: impl FnOnce(&str) -> Option<&'p mut Scalar<'a>>,
    ) -> Result<(), ProtobufError>
    where
        'a: 'p,
    {
        let entry = self.bytes()?;
        if let Some(place) = place(&lossy(first_field(entry, 1)?)) {
            *place = lossy(first_field(entry, 2)?).into();
        }
        Ok(())
    }
}

/// Returns a string. Bytes that are not UTF-8 are replaced, as the API server does in JSON: it does not check
/// annotations, and any client may write one.
fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    // The check of the whole is faster than that of `from_utf8_lossy`.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::api::{
        EndpointSliceObject, NodeLabels, NodeObject, ServiceCidrObject, ServiceObject,
        WireObject as _,
    };

    #[test]
    fn an_unusual_time_is_the_number_that_it_is() {
        let time = |message: &[u8]| {
            let value = ProtobufValue::Bytes(message);
            let mut time = Scalar::Absent;
            ProtobufField { number: 8, value }.time(&mut time).unwrap();
            time.to_string()
        };
        assert_eq!(time(b"\x08\x00\x10\x00"), "1970-01-01T00:00:00Z");
        assert_eq!(time(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "-1");
        assert_eq!(time(b"\x08\x80\x83\xd1\xff\xaf\x07"), "253402300800");
    }

    #[test]
    fn a_value_of_another_type_is_an_error() {
        let field = |value| ProtobufField { number: 1, value };
        let scalar = &mut Scalar::Absent;
        for result in [
            field(ProtobufValue::Number(0)).text(scalar),
            field(ProtobufValue::Bytes(b"")).integer(scalar),
            field(ProtobufValue::Fixed).flag(scalar),
        ] {
            assert_eq!(result, Err(ProtobufError::Type(1)));
        }
    }

    /// Reads a message as each type, and parses what can be read.
    fn read_all(message: &[u8]) {
        let interner = &mut crate::cluster::store::Interner::default();
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
