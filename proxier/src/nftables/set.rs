//! Sets and maps.

use std::collections::BTreeMap;
use std::fmt::{self, Display as _};
use std::sync::Arc;
use std::time::Duration;

use super::rule::Verdict;
use super::sys::*;
use super::value::{Type, Value};

/// A set, or a map, of any number of elements.
///
/// # Invariant
/// Keys have as many parts as `key`, each of the type there; data are as `kind` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name, unique in its table.
    pub name: Arc<str>,
    /// The types of the parts of its keys.
    pub key: Box<[Type]>,
    /// What a key leads to.
    pub kind: SetKind,
    /// Its elements; none where packets make them ([`SetKind::Learned`]).
    pub elements: BTreeMap<Key, Option<Verdict>>,
}

/// What a key of a set leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// Nothing: a set.
    Set,
    /// A verdict.
    Verdicts,
    /// A packet mark that rules put in and that is forgotten some time later.
    Learned {
        /// How long after its last use; whole milliseconds.
        timeout: Duration,
        /// How many there can be at most.
        size: u32,
    },
}

impl SetKind {
    /// The kernel's flags of such a set.
    pub(super) fn flags(self) -> u32 {
        match self {
            Self::Set => 0,
            Self::Verdicts => NFT_SET_MAP,
            Self::Learned { .. } => NFT_SET_MAP | NFT_SET_TIMEOUT | NFT_SET_EVAL,
        }
    }

    /// The milliseconds for which it remembers an element, and how many at most.
    pub(super) fn limits(self) -> Option<(u64, u32)> {
        let Self::Learned { timeout, size } = self else {
            return None;
        };
        Some((u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), size))
    }

    /// Whether it is a map in nft's words.
    pub(super) fn is_map(self) -> bool {
        self != Self::Set
    }
}

/// A key: one value, or several concatenated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[Value]>);

impl Key {
    /// The key that consists of `parts`.
    pub fn new(parts: impl IntoIterator<Item = Value>) -> Self {
        Self(parts.into_iter().collect())
    }

    /// Its parts.
    pub fn parts(&self) -> &[Value] {
        &self.0
    }

    /// Its bytes. In a concatenation, each part begins on a multiple of four.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(24);
        for part in &self.0 {
            part.encode(&mut bytes);
            if self.0.len() > 1 {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
        }
        bytes
    }

    /// The key of parts of these `types` that has these bytes, if one has.
    pub(super) fn decode(types: &[Type], mut bytes: &[u8]) -> Option<Self> {
        let mut parts = Vec::with_capacity(types.len());
        for part in types {
            let (value, rest) = bytes.split_at_checked(part.length())?;
            parts.push(Value::decode(*part, value)?);
            let padding = match types.len() {
                1 => 0,
                _ => part.length().next_multiple_of(4) - part.length(),
            };
            bytes = rest.get(padding..)?;
        }
        bytes.is_empty().then(|| Self(parts.into()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_joined(f, &self.0, " . ")
    }
}

/// An element of a set, with its verdict where it is a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its key.
    pub key: Key,
    /// What the key leads to.
    pub verdict: Option<Verdict>,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_element(f, &self.key, self.verdict.as_ref())
    }
}

pub(super) fn write_element(
    f: &mut fmt::Formatter<'_>,
    key: &Key,
    verdict: Option<&Verdict>,
) -> fmt::Result {
    match verdict {
        Some(verdict) => write!(f, "{key} : {verdict}"),
        None => key.fmt(f),
    }
}

impl Set {
    /// A set or map without elements.
    pub fn new(name: impl Into<Arc<str>>, key: impl Into<Box<[Type]>>, kind: SetKind) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            kind,
            elements: BTreeMap::new(),
        }
    }

    /// Whether `other` differs in its elements only.
    pub(super) fn is_defined_as(&self, other: &Self) -> bool {
        (&self.name, &self.key, self.kind) == (&other.name, &other.key, other.kind)
    }

    /// The types of its keys as nft numbers them, 6 bits each.
    pub(super) fn key_type(&self) -> u32 {
        let number = |all: u32, part: &Type| (all << 6) | part.number();
        self.key.iter().fold(0, number)
    }

    /// `type ..` and what else nft writes about a set beside its elements.
    pub(super) fn definition(&self) -> Definition<'_> {
        Definition(self)
    }
}

/// Prints as the lines between a set's braces, its elements excepted.
pub(super) struct Definition<'a>(&'a Set);

impl fmt::Display for Definition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Set { key, kind, .. } = self.0;
        let is_typeof = key.contains(&Type::ConnectionId);
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

/// `1m`, `90s` as `1m30s`, 1.5 seconds as `1s500ms`.
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
    between: &str,
) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(between)?;
        }
        part.fmt(f)?;
    }
    Ok(())
}
