//! An object at rest.

use std::borrow::Borrow;
use std::cmp::Ordering;

use super::encoding::{
    ObjectReader, ObjectWriter, push_bytes, push_number, take_bytes, take_number,
};
use super::key::{self, ObjectKey};
use super::kinds::ObjectKind;
use super::shared::SharedValues;
use crate::model::ObjectName;

/// An object at rest in one allocation: its key, the numbers of its shared values, its content.
///
/// Ordered by key, so that a set of them is a map. The numbers are apart from the content, so that they
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
        Self::of(&key, &writer.numbers, &writer.content)
    }

    /// Returns an object with these [`bytes`](Self::bytes).
    pub(super) fn copied(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns an object with these [`bytes`](Self::bytes), after a change of the numbers `from` one table to
    /// another. Each of its shared values gets a user there.
    pub(super) fn renumbered(bytes: &[u8], from: &SharedValues, to: &mut SharedValues) -> Self {
        let (key, mut before, content) = parts(bytes);
        let mut numbers = Vec::with_capacity(before.len() + 2);
        while let Some(number) = take_number(&mut before) {
            let value = u32::try_from(number)
                .ok()
                .and_then(|number| from.get(number));
            if let Some(value) = value {
                push_number(&mut numbers, to.acquire(value.clone()).into());
            }
        }
        Self::of(key, &numbers, content)
    }

    fn of(key: &[u8], numbers: &[u8], content: &[u8]) -> Self {
        // The two lengths take a byte each in most objects.
        let mut bytes = Vec::with_capacity(key.len() + numbers.len() + content.len() + 2);
        push_bytes(&mut bytes, key);
        push_bytes(&mut bytes, numbers);
        bytes.extend_from_slice(content);
        Self(bytes.into())
    }

    /// Returns the bytes of the object, which can be moved.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether this node uses a part of the object.
    pub(super) fn has_content(&self) -> bool {
        !parts(&self.0).2.is_empty()
    }

    /// Decodes the object, whose name is `name`; `None` if this node uses no part of it.
    pub(super) fn decode<T: ObjectKind>(
        &self,
        name: ObjectName,
        shared: &SharedValues,
    ) -> Option<T> {
        let (key, numbers, content) = parts(&self.0);
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
        let (key, _, content) = parts(&self.0);
        (!content.is_empty()).then(|| ObjectKey::of(key).group_name())
    }

    /// Returns the group, unless an object of this name usually is in it.
    pub(super) fn unusual_group(&self) -> Option<&str> {
        ObjectKey::of(self.key()).unusual_group()
    }

    /// Returns the number of each use of a shared value.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let (_, mut numbers, _) = parts(&self.0);
        std::iter::from_fn(move || u32::try_from(take_number(&mut numbers)?).ok())
    }

    fn key(&self) -> &[u8] {
        take_bytes(&mut &*self.0).unwrap_or_default()
    }
}

/// Returns key, numbers and content.
fn parts(mut bytes: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let key = take_bytes(&mut bytes).unwrap_or_default();
    let numbers = take_bytes(&mut bytes).unwrap_or_default();
    (key, numbers, bytes)
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
