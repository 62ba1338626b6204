//! An object at rest.

use std::borrow::Borrow;
use std::cmp::Ordering;

use smallvec::SmallVec;

use super::blocks::Blocks;
use super::encoding::{
    ObjectReader, ObjectWriter, length_of_bytes, push_bytes, push_number, take_bytes, take_number,
};
use super::key::{self, ObjectKey};
use super::kinds::ObjectKind;
use super::shared::{Renumbering, SharedValues};
use crate::cluster::model::ObjectName;

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
        Self::of(&ObjectParts::written(&write(name, object, shared)))
    }

    /// Encodes an object at the end of a list.
    pub(super) fn append<T: ObjectKind>(
        name: &ObjectName,
        object: Option<&T>,
        shared: &mut SharedValues,
        list: &mut Blocks,
    ) {
        let writer = write(name, object, shared);
        let parts = ObjectParts::written(&writer);
        list.push_written(parts.len(), |block| parts.append(block));
    }

    /// Returns an object with these [`bytes`](Self::bytes).
    pub(super) fn copied(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns an object with these [`bytes`](Self::bytes) of a list. Each of its shared values gets a user in
    /// `to`, and its number there.
    pub(super) fn renumbered(
        bytes: &[u8],
        numbers: &mut Renumbering<'_>,
        to: &mut SharedValues,
    ) -> Self {
        let before = ObjectParts::of(bytes);
        let mut after = SmallVec::<[u8; 64]>::new();
        for number in each_number(before.numbers) {
            if let Some(number) = numbers.acquire(number, to) {
                push_number(&mut after, number.into());
            }
        }
        Self::of(&ObjectParts {
            numbers: &after,
            ..before
        })
    }

    fn of(parts: &ObjectParts<'_>) -> Self {
        let mut bytes = Vec::with_capacity(parts.len());
        parts.append(&mut bytes);
        Self(bytes.into())
    }

    /// Returns the bytes of the object, which can be moved.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether this node uses a part of the object.
    pub(super) fn has_content(&self) -> bool {
        !self.content().is_empty()
    }

    /// Returns the bytes of the parts that this node uses.
    pub(super) fn content(&self) -> &[u8] {
        ObjectParts::of(&self.0).content
    }

    /// Decodes the object, whose name is `name`; `None` if this node uses no part of it.
    pub(super) fn decode<T: ObjectKind>(
        &self,
        name: ObjectName,
        shared: &SharedValues,
    ) -> Option<T> {
        let ObjectParts {
            key,
            numbers,
            content,
        } = ObjectParts::of(&self.0);
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
        self.has_content()
            .then(|| ObjectKey::of(self.key()).group_name())
    }

    /// Returns the group, unless an object of this name usually is in it.
    pub(super) fn unusual_group(&self) -> Option<&str> {
        ObjectKey::of(self.key()).unusual_group()
    }

    /// Returns the number of each use of a shared value.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        each_number(ObjectParts::of(&self.0).numbers)
    }

    /// Returns the key, by which objects are ordered.
    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        take_bytes(&mut &*self.0).unwrap_or_default()
    }
}

/// An object in parts.
#[derive(Clone, Copy)]
struct ObjectParts<'a> {
    key: &'a [u8],
    numbers: &'a [u8],
    content: &'a [u8],
}

impl<'a> ObjectParts<'a> {
    fn of(mut bytes: &'a [u8]) -> Self {
        Self {
            key: take_bytes(&mut bytes).unwrap_or_default(),
            numbers: take_bytes(&mut bytes).unwrap_or_default(),
            content: bytes,
        }
    }

    fn written(writer: &'a ObjectWriter<'_>) -> Self {
        Self {
            key: &writer.key,
            numbers: &writer.numbers,
            content: &writer.content,
        }
    }

    /// Returns the number of bytes of the object.
    fn len(&self) -> usize {
        length_of_bytes(self.key.len()) + length_of_bytes(self.numbers.len()) + self.content.len()
    }

    fn append(&self, to: &mut Vec<u8>) {
        push_bytes(to, self.key);
        push_bytes(to, self.numbers);
        to.extend_from_slice(self.content);
    }
}

fn write<'a, T: ObjectKind>(
    name: &ObjectName,
    object: Option<&T>,
    shared: &'a mut SharedValues,
) -> ObjectWriter<'a> {
    let group = object.map_or("", T::group);
    let key = key::encode(name, group, T::usual_group(name.name()));
    let mut writer = ObjectWriter::new(key, shared);
    if let Some(object) = object {
        object.write(&mut writer);
    }
    writer
}

fn each_number(mut numbers: &[u8]) -> impl Iterator<Item = u32> + '_ {
    std::iter::from_fn(move || u32::try_from(take_number(&mut numbers)?).ok())
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
