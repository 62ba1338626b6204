//! Sets and maps.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use net::Family;

use crate::command::Command;
use crate::key::Key;
use crate::rule::Verdict;
use crate::sys::*;
use crate::value::KeyType;

/// A set or a map.
///
/// # Invariant
/// The parts of each key have the types in `key`. Elements have a verdict in a set of kind
/// [`SetKind::Verdicts`] only, and a target in one of kind [`SetKind::Targets`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name, unique in its table.
    pub name: Arc<str>,
    /// The types of the parts of its keys.
    pub key: Box<[KeyType]>,
    /// The data of its elements.
    pub kind: SetKind,
    /// Empty if packets add the elements ([`SetKind::is_learned`]).
    elements: BTreeMap<Key, Data>,
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
        let data = Data::from(self.verdict.clone());
        write!(f, "{}{data}", self.key)
    }
}

/// The data of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// None: the element of a set.
    None,
    /// A verdict.
    Verdict(Verdict),
    /// A target of destination NAT.
    Target(SocketAddr),
}

impl Data {
    /// Returns a copy of the verdict.
    fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Verdict(verdict) => Some(verdict.clone()),
            Self::None | Self::Target(_) => None,
        }
    }
}

impl From<Option<Verdict>> for Data {
    fn from(verdict: Option<Verdict>) -> Self {
        verdict.map_or(Self::None, Self::Verdict)
    }
}

/// Prints what follows an element's key.
impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Verdict(verdict) => write!(f, " : {verdict}"),
            Self::Target(target) => write!(f, " : {} . {}", target.ip(), target.port()),
        }
    }
}

/// The data that the elements of a set have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// No data: a set.
    Set,
    /// No data: a set that counts the packets for which a rule finds each element.
    CountingSet,
    /// Verdicts: a verdict map.
    Verdicts,
    /// Targets of destination NAT: an address of this family and a port.
    Targets(Family),
    /// The same, that [`super::Statement::Learn`] adds, each with a timeout of its own.
    LearnedTargets {
        /// The family of the addresses.
        family: Family,
        /// The maximum number of elements.
        size: u32,
    },
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
            Self::Set | Self::CountingSet => 0,
            Self::Verdicts | Self::Targets(_) => NFT_SET_MAP,
            // `EVAL` is nft's `dynamic`. Without it, no rule may add an element.
            Self::LearnedTargets { .. } | Self::Learned { .. } => {
                NFT_SET_MAP | NFT_SET_TIMEOUT | NFT_SET_EVAL
            }
        }
    }

    /// Returns the timeout of elements in milliseconds, if all have the same.
    pub(crate) fn timeout(self) -> Option<u64> {
        match self {
            Self::Learned { timeout, .. } => {
                Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))
            }
            _ => None,
        }
    }

    /// Returns the maximum number of elements, if there is one.
    pub(crate) fn size(self) -> Option<u32> {
        match self {
            Self::Learned { size, .. } | Self::LearnedTargets { size, .. } => Some(size),
            _ => None,
        }
    }

    /// Returns nft's number for the type of the data, and the kernel's length of it; `None` in a set.
    ///
    /// Verdicts have no length.
    pub(crate) fn data_type(self) -> Option<(u32, Option<u32>)> {
        match self {
            Self::Set | Self::CountingSet => None,
            Self::Verdicts => Some((NFT_DATA_VERDICT, None)),
            Self::Targets(family) | Self::LearnedTargets { family, .. } => {
                let types = target_types(family);
                let length = KeyType::length_of_key(&types);
                Some((type_number(&types), u32::try_from(length).ok()))
            }
            Self::Learned { .. } => Some((KeyType::Mark.number(), Some(4))),
        }
    }

    /// Returns whether packets add the elements, so that no plan has them.
    pub(crate) fn is_learned(self) -> bool {
        self.size().is_some()
    }

    /// Returns whether nft calls it a map.
    pub(crate) fn is_map(self) -> bool {
        !matches!(self, Self::Set | Self::CountingSet)
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

    /// Returns the verdict of this key.
    pub fn verdict(&self, key: &Key) -> Option<&Verdict> {
        match self.elements.get(key)? {
            Data::Verdict(verdict) => Some(verdict),
            Data::None | Data::Target(_) => None,
        }
    }

    /// Returns the target of this key.
    pub fn target(&self, key: &Key) -> Option<SocketAddr> {
        match self.elements.get(key)? {
            Data::Target(target) => Some(*target),
            Data::None | Data::Verdict(_) => None,
        }
    }

    /// Adds an element, or replaces the element with the same key.
    pub fn insert(&mut self, element: Element) {
        self.elements.insert(element.key, element.verdict.into());
    }

    /// Sets the target of a key in a map of kind [`SetKind::Targets`].
    pub fn insert_target(&mut self, key: Key, target: SocketAddr) {
        self.elements.insert(key, Data::Target(target));
    }

    /// Frees the memory that insertions in order of the keys left unused: they leave the nodes of a map half empty.
    ///
    /// # Cost
    /// Linear in the elements.
    pub fn pack(&mut self) {
        let mut old = std::mem::take(&mut self.elements);
        // `append` to an empty map only swaps the two.
        self.elements.extend(old.pop_first());
        self.elements.append(&mut old);
    }

    /// Removes the element with this key.
    pub fn remove(&mut self, key: &Key) {
        self.elements.remove(key);
    }

    /// Returns the elements in the order of their keys, without their targets.
    pub fn elements(&self) -> impl Iterator<Item = Element> + '_ {
        self.missing_in(None).map(|(key, data)| Element {
            key: key.clone(),
            verdict: data.verdict(),
        })
    }

    /// Returns the keys with targets, in their order.
    pub fn targets(&self) -> impl Iterator<Item = (&Key, SocketAddr)> {
        self.elements.iter().filter_map(|(key, data)| match data {
            Data::Target(target) => Some((key, *target)),
            Data::None | Data::Verdict(_) => None,
        })
    }

    /// Returns the commands that add the elements that `other` lacks or has with other data.
    pub(crate) fn additions_to<'a>(
        &'a self,
        other: Option<&'a Self>,
    ) -> impl Iterator<Item = Command> + 'a {
        self.missing_in(other).map(|(key, data)| {
            let (name, key) = (self.name.clone(), key.clone());
            match data {
                Data::Target(target) => Command::AddTarget(name, key, *target),
                other => {
                    let verdict = other.verdict();
                    Command::AddElement(name, Element { key, verdict })
                }
            }
        })
    }

    /// Returns the elements that `other` lacks or has with other data; all if there is no other set.
    pub(crate) fn missing_in<'a>(
        &'a self,
        other: Option<&'a Self>,
    ) -> impl Iterator<Item = (&'a Key, &'a Data)> + 'a {
        let other = other.map(|other| &other.elements);
        self.elements
            .iter()
            .filter(move |(key, data)| other.is_none_or(|other| other.get(key) != Some(*data)))
    }

    /// Returns whether `other` has the same name, key types and kind.
    pub(crate) fn is_defined_as(&self, other: &Self) -> bool {
        (&self.name, &self.key, self.kind) == (&other.name, &other.key, other.kind)
    }

    /// Returns nft's number for the type of its keys: 6 bits for each part.
    pub(crate) fn key_type(&self) -> u32 {
        type_number(&self.key)
    }

    /// Returns the definition as nft prints it between a set's braces, without the elements.
    pub(crate) fn definition(&self) -> impl fmt::Display {
        Definition(self)
    }
}

/// Returns the types of the parts of a target.
pub(crate) fn target_types(family: Family) -> [KeyType; 2] {
    [KeyType::Address(family), KeyType::Port]
}

fn type_number(types: &[KeyType]) -> u32 {
    let number = |all: u32, part: &KeyType| (all << 6) | part.number();
    types.iter().fold(0, number)
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
            SetKind::CountingSet => f.write_str("; counter"),
            SetKind::Verdicts => f.write_str(" : verdict"),
            SetKind::Targets(family) => {
                f.write_str(" : ")?;
                write_joined(f, &target_types(*family), " . ")
            }
            SetKind::LearnedTargets { family, size } => {
                f.write_str(" : ")?;
                write_joined(f, &target_types(*family), " . ")?;
                write!(f, "; size {size}; flags dynamic,timeout")
            }
            SetKind::Learned { timeout, size } => {
                let mark = if is_typeof { "meta mark" } else { "mark" };
                write!(f, " : {mark}; size {size}; flags dynamic,timeout; timeout ")?;
                write_duration(f, *timeout)
            }
        }
    }
}

/// Writes a duration as nft does: 90 seconds as `1m30s`, 1.5 seconds as `1s500ms`.
pub(crate) fn write_duration(f: &mut fmt::Formatter<'_>, duration: Duration) -> fmt::Result {
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
