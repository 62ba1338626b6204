//! The elements of a set or a verdict map.

use std::fmt;

use crate::key::Key;
use crate::packed_map::PackedMap;
use crate::rule::Verdict;
use crate::set::SetKind;
use crate::value::KeyType;

/// An element of a set or of a verdict map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its key.
    pub key: Key,
    /// Its verdict; `None` in a set.
    pub verdict: Option<Verdict>,
}

/// An element of a set, which has no verdict.
impl From<Key> for Element {
    fn from(key: Key) -> Self {
        Self { key, verdict: None }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Some(verdict) => write!(f, "{} : {verdict}", self.key),
            None => write!(f, "{}", self.key),
        }
    }
}

/// Elements in the order of their keys' bytes, as which they are stored.
///
/// A large cluster has hundreds of thousands, nearly all of them without verdicts.
///
/// # Invariant
/// That of [`super::Set`]: all keys have the same types, and the elements of a map have verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    /// Those of a set.
    Keys(PackedMap<()>),
    /// Those of a verdict map.
    Verdicts(PackedMap<Verdict>),
}

impl Elements {
    /// Returns no elements, for a set of this kind with keys of these types.
    pub(crate) fn new(kind: SetKind, types: &[KeyType]) -> Self {
        let width = KeyType::length_of_key(types);
        match kind {
            SetKind::Set | SetKind::Learned { .. } => Self::Keys(PackedMap::new(width)),
            SetKind::Verdicts => Self::Verdicts(PackedMap::new(width)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.len(),
            Self::Verdicts(verdicts) => verdicts.len(),
        }
    }

    pub(crate) fn has_key(&self, key: &Key) -> bool {
        let key = key.encode();
        match self {
            Self::Keys(keys) => keys.get(&key).is_some(),
            Self::Verdicts(verdicts) => verdicts.get(&key).is_some(),
        }
    }

    pub(crate) fn get(&self, key: Key) -> Option<Element> {
        let bytes = key.encode();
        let verdict = match self {
            Self::Keys(keys) => keys.get(&bytes).map(|()| None),
            Self::Verdicts(verdicts) => verdicts.get(&bytes).cloned().map(Some),
        };
        verdict.map(|verdict| Element { key, verdict })
    }

    /// Adds an element. Returns the element with the same key that it replaces.
    pub(crate) fn insert(&mut self, element: Element) -> Option<Element> {
        let Element { key, verdict } = element;
        let bytes = key.encode();
        let replaced = match self {
            Self::Keys(keys) => keys.insert(&bytes, ()).map(|()| None),
            Self::Verdicts(verdicts) => verdicts.insert(&bytes, verdict?).map(Some),
        };
        replaced.map(|verdict| Element { key, verdict })
    }

    /// Removes and returns the element with this key.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Element> {
        let bytes = key.encode();
        let verdict = match self {
            Self::Keys(keys) => keys.remove(&bytes).map(|()| None),
            Self::Verdicts(verdicts) => verdicts.remove(&bytes).map(Some),
        };
        verdict.map(|verdict| Element { key, verdict })
    }

    /// Returns the elements that `other` lacks or has with other verdicts. The keys of both have `types`.
    pub(crate) fn missing_in<'a>(
        &'a self,
        other: Option<&'a Self>,
        types: &'a [KeyType],
    ) -> impl Iterator<Item = Element> + 'a {
        let is_missing = move |(key, verdict): &(&[u8], Option<&Verdict>)| {
            other.is_none_or(|other| !other.has(key, *verdict))
        };
        // Each key decodes, because it was encoded from a key with these types.
        self.iter().filter(is_missing).filter_map(|(key, verdict)| {
            Some(Element {
                key: Key::decode(types, key)?,
                verdict: verdict.cloned(),
            })
        })
    }

    /// Frees the memory that their growth left unused.
    pub(crate) fn pack(&mut self) {
        match self {
            Self::Keys(keys) => keys.pack(),
            Self::Verdicts(verdicts) => verdicts.pack(),
        }
    }

    fn has(&self, key: &[u8], verdict: Option<&Verdict>) -> bool {
        match self {
            Self::Keys(keys) => verdict.is_none() && keys.get(key).is_some(),
            Self::Verdicts(verdicts) => verdict.is_some() && verdicts.get(key) == verdict,
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&Verdict>)> {
        let (keys, verdicts) = match self {
            Self::Keys(keys) => (Some(keys), None),
            Self::Verdicts(verdicts) => (None, Some(verdicts)),
        };
        let keys = keys.into_iter().flat_map(PackedMap::iter);
        let verdicts = verdicts.into_iter().flat_map(PackedMap::iter);
        let keys = keys.map(|(key, ())| (key, None));
        keys.chain(verdicts.map(|(key, verdict)| (key, Some(verdict))))
    }
}
