//! The keys of objects at rest: namespace, group and name as bytes.
//!
//! Objects of a group are neighbours. A name that begins with the group's is shortened by it, as those of nearly
//! all EndpointSlices begin with that of their Service.

use std::ops::Range;

use memchr::{memchr, memchr2};
use smallvec::SmallVec;

use crate::cluster::model::ObjectName;

/// Ends the namespace and the group. Valid names have no such character, nor the other two.
const END: u8 = 0;
/// Ends a group that is not the usual one of the name, which follows whole.
const END_UNUSUAL: u8 = 1;
/// The end of all keys of a group.
const END_OF_GROUP: u8 = 2;

/// A key. Nearly all fit without an allocation.
pub(super) type KeyBytes = SmallVec<[u8; 128]>;

/// A key in parts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectKey<'a> {
    namespace: &'a [u8],
    group: &'a [u8],
    /// Whether an object of this name usually is in the group.
    is_usual: bool,
    /// The name, without the group's if `is_usual`.
    rest: &'a [u8],
}

/// Returns the key of an object in `group`, which is `usual` for nearly all objects.
pub(super) fn encode(name: &ObjectName, group: &str, usual: &str) -> KeyBytes {
    let namespace = name.namespace();
    let (end, rest) = match name.name().strip_prefix(usual) {
        Some(rest) if group == usual => (END, rest),
        _ => (END_UNUSUAL, name.name()),
    };
    let mut key = KeyBytes::new();
    push(&mut key, namespace, END);
    push(&mut key, group, end);
    key.extend_from_slice(rest.as_bytes());
    key
}

/// Returns the range of the keys of a group.
pub(super) fn range(group: &ObjectName) -> Range<KeyBytes> {
    let bound = |end| {
        let mut key = KeyBytes::new();
        push(&mut key, group.namespace(), END);
        push(&mut key, group.name(), end);
        key
    };
    bound(END)..bound(END_OF_GROUP)
}

fn push(key: &mut KeyBytes, part: &str, end: u8) {
    key.extend_from_slice(part.as_bytes());
    key.push(end);
}

impl<'a> ObjectKey<'a> {
    pub(super) fn of(key: &'a [u8]) -> Self {
        let (namespace, _, key) = cut(key, memchr(END, key));
        let (group, end, rest) = cut(key, memchr2(END, END_UNUSUAL, key));
        Self {
            namespace,
            group,
            is_usual: end == Some(END),
            rest,
        }
    }

    pub(super) fn group(&self) -> &'a str {
        text(self.group)
    }

    /// Returns the group's name in the namespace.
    pub(super) fn group_name(&self) -> ObjectName {
        ObjectName::new(text(self.namespace), text(self.group))
    }

    /// Returns the group, unless an object of this name usually is in it.
    pub(super) fn unusual_group(&self) -> Option<&'a str> {
        (!self.is_usual).then(|| self.group())
    }

    /// Returns the object's name.
    pub(super) fn name(&self) -> ObjectName {
        let (namespace, rest) = (text(self.namespace), text(self.rest));
        match self.is_usual {
            true => ObjectName::of_parts(namespace, [text(self.group), rest]),
            false => ObjectName::new(namespace, rest),
        }
    }
}

/// Returns the bytes before the place, the one at the place, and those after it.
fn cut(bytes: &[u8], place: Option<usize>) -> (&[u8], Option<u8>, &[u8]) {
    let (before, after) = bytes.split_at(place.unwrap_or(bytes.len()));
    match after.split_first() {
        Some((&end, after)) => (before, Some(end), after),
        None => (before, None, after),
    }
}

/// Returns the text of a part, which is one because only texts are parts.
fn text(part: &[u8]) -> &str {
    std::str::from_utf8(part).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_the_range_of_its_group_only() {
        let web = ObjectName::new("a", "web");
        for (name, group, usual, is_in_web) in [
            ("web-x7k2p", "web", "web", true),
            ("by-hand", "web", "by", true),
            ("by-hand", "by", "by", false),
            ("web-2-x7k2p", "web-2", "web-2", false),
            ("web", "", "", false),
            // Of an object that cannot be read.
            ("", "", "", false),
            ("-x", "", "", false),
        ] {
            let name = ObjectName::new("a", name);
            let key = encode(&name, group, usual);
            assert_eq!(range(&web).contains(&key), is_in_web, "{name:?}");
            let parts = ObjectKey::of(&key);
            assert_eq!((parts.name(), parts.group()), (name, group));
            assert_eq!(parts.unusual_group().is_none(), group == usual);
        }
        let elsewhere = encode(&ObjectName::new("b", "web-x7k2p"), "web", "web");
        assert!(!range(&web).contains(&elsewhere));
    }
}
