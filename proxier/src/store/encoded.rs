//! An object at rest.

use std::borrow::Borrow;
use std::cmp::Ordering;

use super::encoding::{ObjectReader, ObjectWriter, push_bytes, take_bytes, take_number};
use super::key::{self, ObjectKey};
use super::kinds::ObjectKind;
use super::shared::SharedValues;
use crate::model::ObjectName;

/// An object at rest in one allocation: its key, the numbers of its shared values, its content.
///
/// Ordered by key, so that a set of encoded is a map. The numbers are apart from the content, so that they
/// can be released without the kind of the object. An object of which this node uses no part has no content.
#[derive(Clone, Debug)]
pub(super) struct Encoded(Box<[u8]>);

impl Encoded {
    /// Encodes an object; each of its shared values gets a user.
    pub(super) fn encode<T: ObjectKind>(
        name: &ObjectName,
        object: Option<&T>,
        shared: &mut SharedValues,
    ) -> Self {
        let mut writer = ObjectWriter::new(shared);
        if let Some(object) = object {
            object.write(&mut writer);
        }
        let key = key::encode(
            name,
            object.map_or("", T::group),
            T::usual_group(name.name()),
        );
        // The two lengths take a byte each in most objects.
        let length = key.len() + writer.numbers.len() + writer.content.len() + 2;
        let mut bytes = Vec::with_capacity(length);
        push_bytes(&mut bytes, &key);
        push_bytes(&mut bytes, &writer.numbers);
        bytes.extend_from_slice(&writer.content);
        Self(bytes.into())
    }

    /// Decodes the object, whose name is `name`; `None` if this node uses no part of it.
    pub(super) fn decode<T: ObjectKind>(
        &self,
        name: ObjectName,
        shared: &SharedValues,
    ) -> Option<T> {
        let (key, numbers, content) = self.parts();
        if content.is_empty() {
            return None;
        }
        T::read(&mut ObjectReader {
            name,
            group: ObjectKey::of(key).group(),
            shared,
            numbers,
            content,
        })
    }

    /// Returns the object's name.
    pub(super) fn name(&self) -> ObjectName {
        ObjectKey::of(self.key()).name()
    }

    /// Returns the object's group as a name in its namespace; `None` if this node uses no part of the object.
    pub(super) fn group(&self) -> Option<ObjectName> {
        let (key, _, content) = self.parts();
        (!content.is_empty()).then(|| ObjectKey::of(key).group_name())
    }

    /// Returns the group, unless an object of this name usually is in it.
    pub(super) fn unusual_group(&self) -> Option<&str> {
        ObjectKey::of(self.key()).unusual_group()
    }

    /// Returns the number of each use of a shared value.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let (_, mut numbers, _) = self.parts();
        std::iter::from_fn(move || u32::try_from(take_number(&mut numbers)?).ok())
    }

    /// Returns whether both are the same object with the same content.
    pub(super) fn equals(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn key(&self) -> &[u8] {
        take_bytes(&mut &*self.0).unwrap_or_default()
    }

    fn parts(&self) -> (&[u8], &[u8], &[u8]) {
        let mut rest = &*self.0;
        let key = take_bytes(&mut rest).unwrap_or_default();
        let numbers = take_bytes(&mut rest).unwrap_or_default();
        (key, numbers, rest)
    }
}

impl Borrow<[u8]> for Encoded {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl Ord for Encoded {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl PartialOrd for Encoded {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Encoded {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Encoded {}
