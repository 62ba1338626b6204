//! The encoding of values: numbers with seven bits per byte, lists with their length.
//!
//! Only this process reads what it wrote, so the encoding has no version. Reading is fallible all the same,
//! because nothing in this program panics.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use smallvec::{Array, SmallVec};

use super::key::KeyBytes;
use super::shared::{SharedValue, SharedValues};
use crate::cluster::model::{Cidr, Location, ObjectName};

/// A value that can be part of a [`Encoded`](super::encoded::Encoded).
pub trait Encode: Sized {
    fn write(&self, to: &mut ObjectWriter<'_>);

    /// Reads a value; `None` if the bytes are not those of one.
    fn read(from: &mut ObjectReader<'_>) -> Option<Self>;
}

/// An object that is being encoded.
pub struct ObjectWriter<'a> {
    shared: &'a mut SharedValues,
    // With room for nearly all objects.
    pub(super) key: KeyBytes,
    pub(super) numbers: SmallVec<[u8; 64]>,
    pub(super) content: SmallVec<[u8; 256]>,
}

impl<'a> ObjectWriter<'a> {
    pub(super) fn new(key: KeyBytes, shared: &'a mut SharedValues) -> Self {
        Self {
            shared,
            key,
            numbers: SmallVec::new(),
            content: SmallVec::new(),
        }
    }

    pub(super) fn flags<const N: usize>(&mut self, flags: [bool; N]) {
        let bits = flags.into_iter().rev();
        self.content
            .push(bits.fold(0, |bits, flag| bits << 1 | u8::from(flag)));
    }

    pub(super) fn octets(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.content.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => self.content.extend_from_slice(&address.octets()),
        }
    }

    fn number(&mut self, number: impl Into<u64>) {
        push_number(&mut self.content, number.into());
    }

    fn shared(&mut self, value: SharedValue) {
        let number = self.shared.acquire(value);
        push_number(&mut self.numbers, number.into());
    }
}

/// An object that is being decoded.
pub struct ObjectReader<'a> {
    /// The object's name.
    pub(super) name: ObjectName,
    /// The object's group.
    pub(super) group: &'a str,
    pub(super) shared: &'a SharedValues,
    pub(super) numbers: &'a [u8],
    pub(super) content: &'a [u8],
}

impl<'a> ObjectReader<'a> {
    pub(super) fn flags<const N: usize>(&mut self) -> Option<[bool; N]> {
        let (&bits, rest) = self.content.split_first()?;
        self.content = rest;
        Some(std::array::from_fn(|at| bits >> at & 1 == 1))
    }

    pub(super) fn octets(&mut self, is_v6: bool) -> Option<IpAddr> {
        Some(match is_v6 {
            false => IpAddr::from(*self.array::<4>()?),
            true => IpAddr::from(*self.array::<16>()?),
        })
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (array, rest) = self.content.split_first_chunk()?;
        self.content = rest;
        Some(array)
    }

    fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        take_number(&mut self.content)?.try_into().ok()
    }

    fn shared(&mut self) -> Option<&'a SharedValue> {
        let number = take_number(&mut self.numbers)?;
        self.shared.get(number.try_into().ok()?)
    }

    fn list<T: Encode>(&mut self) -> Option<Vec<T>> {
        let length: usize = self.number()?;
        let mut list = Vec::with_capacity(length);
        for _ in 0..length {
            list.push(T::read(self)?);
        }
        Some(list)
    }
}

/// Appends a number.
pub(super) fn push_number(bytes: &mut SmallVec<impl Array<Item = u8>>, mut number: u64) {
    while let low @ 0x80.. = number {
        bytes.push(low.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Takes a number from the beginning of `bytes`.
#[inline]
pub(super) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    match bytes.split_first() {
        // Nearly all numbers.
        Some((&byte, rest)) if byte < 0x80 => {
            *bytes = rest;
            Some(byte.into())
        }
        _ => take_long_number(bytes),
    }
}

fn take_long_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Appends bytes with their length.
pub(super) fn push_bytes(bytes: &mut Vec<u8>, part: &[u8]) {
    push_length(bytes, part.len());
    bytes.extend_from_slice(part);
}

/// Appends the length of bytes that follow.
pub(super) fn push_length(bytes: &mut Vec<u8>, length: usize) {
    let mut number = SmallVec::<[u8; 10]>::new();
    push_number(&mut number, length as u64);
    bytes.extend_from_slice(&number);
}

/// Returns how many bytes [`push_bytes`] appends for a part of `length` bytes.
pub(super) fn length_of_bytes(length: usize) -> usize {
    let bits = usize::BITS - (length | 1).leading_zeros();
    bits.div_ceil(7) as usize + length
}

/// Takes bytes with their length from the beginning of `bytes`.
#[inline]
pub(super) fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_number(bytes)?).ok()?;
    let (part, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(part)
}

/// Implements [`Encode`] for a struct: its fields in order.
macro_rules! encode_struct {
    ($type:ty { $($field:ident),* }) => {
        impl Encode for $type {
            fn write(&self, to: &mut ObjectWriter<'_>) {
                // Names each field, so that a new one cannot be forgotten.
                let Self { $($field),* } = self;
                $($field.write(to);)*
            }

            fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
                Some(Self { $($field: Encode::read(from)?),* })
            }
        }
    };
}

/// Implements [`Encode`] for an enum without fields: the place of the variant.
macro_rules! encode_enum {
    ($type:ty: $($variant:ident),*) => {
        impl Encode for $type {
            fn write(&self, to: &mut ObjectWriter<'_>) {
                // Names each variant, so that a new one cannot be forgotten.
                match self { $(Self::$variant => {})* }
                let all = [$(Self::$variant),*];
                all.iter().take_while(|one| *one != self).count().write(to);
            }

            fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
                [$(Self::$variant),*].get(usize::read(from)?).copied()
            }
        }
    };
}

macro_rules! encode_numbers {
    ($($type:ty),*) => {$(
        impl Encode for $type {
            fn write(&self, to: &mut ObjectWriter<'_>) {
                to.number(*self as u64);
            }

            fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
                from.number()
            }
        }
    )*};
}

pub(super) use {encode_enum, encode_struct};

encode_numbers!(u8, u16, u32, u64, usize);

impl Encode for bool {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        to.flags([*self]);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        let [flag] = from.flags()?;
        Some(flag)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        self.is_some().write(to);
        if let Some(value) = self {
            value.write(to);
        }
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        Some(match bool::read(from)? {
            true => Some(T::read(from)?),
            false => None,
        })
    }
}

impl<T: Encode> Encode for Box<T> {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        (**self).write(to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        T::read(from).map(Self::new)
    }
}

impl<T: Encode> Encode for Box<[T]> {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        write_list(self, to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        from.list().map(Vec::into)
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        write_list(self, to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        from.list()
    }
}

fn write_list<T: Encode>(list: &[T], to: &mut ObjectWriter<'_>) {
    list.len().write(to);
    list.iter().for_each(|value| value.write(to));
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        self.0.write(to);
        self.1.write(to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        Some((A::read(from)?, B::read(from)?))
    }
}

impl Encode for Box<str> {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        self.len().write(to);
        to.content.extend_from_slice(self.as_bytes());
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        let bytes = take_bytes(&mut from.content)?;
        std::str::from_utf8(bytes).ok().map(Self::from)
    }
}

/// In the model, texts that many objects have are of this type.
impl Encode for Arc<str> {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        to.shared(SharedValue::Text(self.clone()));
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        match from.shared()? {
            SharedValue::Text(text) => Some(text.clone()),
            SharedValue::Location(_) => None,
        }
    }
}

impl Encode for Arc<Location> {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        to.shared(SharedValue::Location(self.clone()));
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        match from.shared()? {
            SharedValue::Location(location) => Some(location.clone()),
            SharedValue::Text(_) => None,
        }
    }
}

impl Encode for IpAddr {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        self.is_ipv6().write(to);
        to.octets(*self);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        let is_v6 = bool::read(from)?;
        from.octets(is_v6)
    }
}

impl Encode for Cidr {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        self.network().write(to);
        self.prefix_len().write(to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        Self::new(IpAddr::read(from)?, u8::read(from)?).ok()
    }
}

impl Encode for SystemTime {
    fn write(&self, to: &mut ObjectWriter<'_>) {
        let after = self.duration_since(Self::UNIX_EPOCH);
        after.is_ok().write(to);
        let distance = after.unwrap_or_else(|before| before.duration());
        distance.as_secs().write(to);
        distance.subsec_nanos().write(to);
    }

    fn read(from: &mut ObjectReader<'_>) -> Option<Self> {
        let is_after = bool::read(from)?;
        let distance = Duration::new(u64::read(from)?, u32::read(from)?);
        match is_after {
            true => Self::UNIX_EPOCH.checked_add(distance),
            false => Self::UNIX_EPOCH.checked_sub(distance),
        }
    }
}
