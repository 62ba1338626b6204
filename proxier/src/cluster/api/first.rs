//! The first element of a list.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use super::protobuf::{ProtobufError, ProtobufField};
use super::scalar::Scalar;

/// The first element of a list whose other elements have no use. They must be of the same type.
#[derive(Clone, Debug)]
pub(super) struct First<T>(pub(super) Option<T>);

impl<T> Default for First<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'a> First<Scalar<'a>> {
    /// Reads the next element of a repeated field.
    pub(super) fn offer(&mut self, field: ProtobufField<'a>) -> Result<(), ProtobufError> {
        let element = field.scalar()?;
        self.0.get_or_insert(element);
        Ok(())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FirstVisitor(PhantomData))
    }
}

struct FirstVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FirstVisitor<T> {
    type Value = First<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<First<T>, A::Error> {
        let first = list.next_element()?;
        while list.next_element::<T>()?.is_some() {}
        Ok(First(first))
    }
}
