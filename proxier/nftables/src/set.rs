//! Sets and maps.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::rule::Verdict;
use crate::sys::*;
use crate::value::KeyType;

/// A set or a map.
///
/// # Invariant
/// The parts of each key have the types in `key`. Elements have a verdict in a set of kind
/// [`SetKind::Verdicts`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name, unique in its table.
    pub name: Arc<str>,
    /// The types of the parts of its keys.
    pub key: Box<[KeyType]>,
    /// The data of its elements.
    pub kind: SetKind,
    /// Empty if packets add the elements ([`SetKind::Learned`]).
    elements: BTreeMap<Key, Option<Verdict>>,
}

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

/// The data that the elements of a set have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// No data: a set.
    Set,
    /// Verdicts: a verdict map.
    Verdicts,
    /// Packet marks that [`super::Statement::Remember`] adds.
    Learned {
        /// The time from an element's last update to its removal, in whole milliseconds.
        timeout: Duration,
        /// The maximum number of elements.
        size: u32,
    },
}

impl SetKind {
    /// Returns the kernel's flags of such a set.
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Set => 0,
            Self::Verdicts => NFT_SET_MAP,
            // `EVAL` is nft's `dynamic`. Without it, no rule may add an element.
            Self::Learned { .. } => NFT_SET_MAP | NFT_SET_TIMEOUT | NFT_SET_EVAL,
        }
    }

    /// Returns the timeout in milliseconds and the size of [`SetKind::Learned`].
    pub(crate) fn limits(self) -> Option<(u64, u32)> {
        let Self::Learned { timeout, size } = self else {
            return None;
        };
        Some((u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), size))
    }

    /// Returns whether nft calls it a map.
    pub(crate) fn is_map(self) -> bool {
        self != Self::Set
    }
}

impl Set {
    /// Returns a set or map without elements.
    pub fn new(name: impl Into<Arc<str>>, key: impl Into<Box<[KeyType]>>, kind: SetKind) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            kind,
            elements: BTreeMap::new(),
        }
    }

    /// Returns a set with the same definition and without elements.
    pub fn without_elements(&self) -> Self {
        Self::new(self.name.clone(), self.key.clone(), self.kind)
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Returns whether an element has this key.
    pub fn contains(&self, key: &Key) -> bool {
        self.elements.contains_key(key)
    }

    /// Adds an element, or replaces the element with the same key.
    pub fn insert(&mut self, element: Element) {
        self.elements.insert(element.key, element.verdict);
    }

    /// Removes the element with this key.
    pub fn remove(&mut self, key: &Key) {
        self.elements.remove(key);
    }

    /// Returns the elements in the order of their keys.
    pub fn elements(&self) -> impl Iterator<Item = Element> + '_ {
        self.missing_in(None)
    }

    /// Returns the elements that `other` lacks or has with other verdicts; all if there is no other set.
    pub(crate) fn missing_in<'a>(
        &'a self,
        other: Option<&'a Self>,
    ) -> impl Iterator<Item = Element> + 'a {
        let other = other.map(|other| &other.elements);
        let missing = self.elements.iter().filter(move |(key, verdict)| {
            other.is_none_or(|other| other.get(key) != Some(*verdict))
        });
        missing.map(|(key, verdict)| Element {
            key: key.clone(),
            verdict: verdict.clone(),
        })
    }

    /// Returns whether `other` has the same name, key types and kind.
    pub(crate) fn is_defined_as(&self, other: &Self) -> bool {
        (&self.name, &self.key, self.kind) == (&other.name, &other.key, other.kind)
    }

    /// Returns nft's number for the type of its keys: 6 bits for each part.
    pub(crate) fn key_type(&self) -> u32 {
        let number = |all: u32, part: &KeyType| (all << 6) | part.number();
        self.key.iter().fold(0, number)
    }

    /// Returns the definition as nft prints it between a set's braces, without the elements.
    pub(crate) fn definition(&self) -> impl fmt::Display {
        Definition(self)
    }
}

struct Definition<'a>(&'a Set);

impl fmt::Display for Definition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Set { key, kind, .. } = self.0;
        // nft's type of `ct id` is an integer without a length, which `type` cannot declare.
        let is_typeof = key.contains(&KeyType::ConnectionId);
        f.write_str(if is_typeof { "typeof " } else { "type " })?;
        write_joined(f, key, " . ")?;
        match kind {
            SetKind::Set => Ok(()),
            SetKind::Verdicts => f.write_str(" : verdict"),
            SetKind::Learned { timeout, size } => {
                let mark = if is_typeof { "meta mark" } else { "mark" };
                write!(f, " : {mark}; size {size}; flags dynamic,timeout; timeout ")?;
                write_duration(f, *timeout)
            }
        }
    }
}

/// Writes a duration as nft does: 90 seconds as `1m30s`, 1.5 seconds as `1s500ms`.
fn write_duration(f: &mut fmt::Formatter<'_>, duration: Duration) -> fmt::Result {
    let mut left = duration.as_millis();
    for (unit, millis) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ] {
        if left >= millis {
            write!(f, "{}{unit}", left / millis)?;
            left %= millis;
        }
    }
    Ok(())
}

fn write_joined(
    f: &mut fmt::Formatter<'_>,
    parts: &[impl fmt::Display],
    separator: &str,
) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        part.fmt(f)?;
    }
    Ok(())
}
