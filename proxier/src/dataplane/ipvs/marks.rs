//! The firewall marks by which IPVS finds the endpoints for clients inside the cluster.
//!
//! IPVS compares a packet's whole mark before its address (`ip_vs_service_find`, Linux 6.1). So a mark that
//! the author of a Service can choose or predict would take the packets of other Services and programs.
//! Marks therefore depend on a key that is drawn at random on each node.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hasher;
use std::ops::RangeInclusive;

use siphasher::sip::SipHasher24;

use crate::cluster::model::{Family, Protocol, ServicePortName};

/// The bits that each byte of a mark may have set.
///
/// Known programs use marks with few bits, or with bytes that are 0: kube-proxy, portmap and Tailscale
/// single bits, WireGuard and kube-vip two bytes, Calico the upper two bytes, Cilium the lowest bits of
/// the second byte.
const BITS_OF_A_BYTE: RangeInclusive<u32> = 3..=5;

/// The number of candidates among which [`Marks::may_be_of`] looks. With four bits of one byte to avoid, a mark is
/// among them in all but one of 10^12 cases.
const CANDIDATES: usize = 1_024;

/// The key of a node's marks: 16 random bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct MarkKey([u8; 16]);

impl MarkKey {
    /// Returns the key with these bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the key that `text` names in hexadecimal digits; `None` if it is not 32 of them.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u128::from_str_radix(text, 16));
        Some(Self(number?.ok()?.to_be_bytes()))
    }
}

/// The hexadecimal digits that [`MarkKey::parse`] reads.
impl fmt::Display for MarkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Without the bytes, which no log may show.
impl fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkKey")
    }
}

/// The marks of a node: a function of a Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    key: MarkKey,
    /// The bits that no mark has, because they have a meaning of their own on this node.
    avoided: u32,
    taken: BTreeSet<u32>,
}

impl Marks {
    /// Returns the marks that `key` decides, without the bits in `avoided`.
    pub fn new(key: MarkKey, avoided: u32) -> Self {
        Self {
            key,
            avoided,
            taken: BTreeSet::new(),
        }
    }

    /// Sets the key and the bits to avoid. Returns whether one changed; otherwise the excluded marks stay excluded.
    pub(crate) fn set(&mut self, key: MarkKey, avoided: u32) -> bool {
        let is_new = (self.key, self.avoided) != (key, avoided);
        if is_new {
            *self = Self::new(key, avoided);
        }
        is_new
    }

    /// Returns the mark of a Service port. Another one has the same mark in one of 30,000,000 cases.
    pub fn of(&self, owner: &ServicePortName, protocol: Protocol, family: Family) -> u32 {
        let mut candidates = self.candidates(owner, protocol, family);
        // The candidates never end.
        candidates
            .find(|mark| mark & self.avoided == 0 && !self.taken.contains(mark))
            .unwrap_or_default()
    }

    /// Excludes a mark, so that its Service ports get other ones. Returns whether that is new.
    ///
    /// Another program has a virtual server with the mark, or two Service ports have it.
    pub fn exclude(&mut self, mark: u32) -> bool {
        self.taken.insert(mark)
    }

    /// Returns whether `mark` is or was a mark of the Service port: in this version, or in versions in which
    /// marks had no key.
    pub fn may_be_of(
        &self,
        mark: u32,
        owner: &ServicePortName,
        protocol: Protocol,
        family: Family,
    ) -> bool {
        let mut candidates = self.candidates(owner, protocol, family).take(CANDIDATES);
        candidates.any(|candidate| candidate == mark)
            || mark == without_key(owner, protocol, family)
    }

    /// Returns the marks that the Service port has with any choice of avoided bits, in order of preference.
    fn candidates(
        &self,
        owner: &ServicePortName,
        protocol: Protocol,
        family: Family,
    ) -> impl Iterator<Item = u32> {
        let text = text(owner, protocol, family);
        let hash = move |attempt: u64| {
            let mut hasher = SipHasher24::new_with_key(&self.key.0);
            hasher.write(text.as_bytes());
            hasher.write(&attempt.to_be_bytes());
            hasher.finish()
        };
        let numbers = (0..).map(hash).flat_map(|hash| {
            let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
            [[a, b, c, d], [e, f, g, h]]
        });
        let is_private = |bytes: &[u8; 4]| {
            let mut bits = bytes.iter().map(|byte| byte.count_ones());
            bits.all(|bits| BITS_OF_A_BYTE.contains(&bits))
        };
        numbers.filter(is_private).map(u32::from_be_bytes)
    }
}

fn text(owner: &ServicePortName, protocol: Protocol, family: Family) -> String {
    format!("{owner}/{protocol}/{family:?}")
}

/// Returns the mark in versions without a key: the FNV-1a hash of the name.
///
/// After an upgrade, the virtual servers of these marks drain.
fn without_key(owner: &ServicePortName, protocol: Protocol, family: Family) -> u32 {
    let text = text(owner, protocol, family);
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(index: u32) -> ServicePortName {
        ServicePortName::from(format!("default/web-{index}:http").as_str())
    }

    fn of(marks: &Marks, owner: &ServicePortName) -> u32 {
        marks.of(owner, Protocol::Tcp, Family::V4)
    }

    #[test]
    fn no_mark_has_the_shape_of_a_known_program() {
        let marks = Marks::new(MarkKey::default(), 0x5000);
        for index in 0..10_000 {
            let mark = of(&marks, &owner(index));
            for byte in mark.to_be_bytes() {
                assert!((3..=5).contains(&byte.count_ones()), "{mark:#x}");
            }
            // Single bits, two bytes, Calico's upper half, Cilium's magic values, Mullvad.
            assert!(mark.count_ones() >= 12);
            assert!(mark > 0xffff && mark & 0xffff != 0);
            assert_ne!(mark, 0x6d6f_6c65);
            assert_eq!(mark & 0x5000, 0);
            assert!(marks.may_be_of(mark, &owner(index), Protocol::Tcp, Family::V4));
        }
    }

    #[test]
    fn marks_depend_on_the_key_and_on_each_part_of_the_name() {
        let marks = Marks::default();
        let mark = of(&marks, &owner(1));
        assert_eq!(mark, of(&marks.clone(), &owner(1)));
        let other = Marks::new(MarkKey::new([1; 16]), 0);
        let others = [
            of(&other, &owner(1)),
            of(&marks, &owner(2)),
            marks.of(&owner(1), Protocol::Udp, Family::V4),
            marks.of(&owner(1), Protocol::Tcp, Family::V6),
        ];
        assert!(!others.contains(&mark));
    }

    #[test]
    fn an_excluded_mark_is_replaced_and_is_still_recognised() {
        let mut marks = Marks::default();
        let before = of(&marks, &owner(1));
        assert!(marks.exclude(before) && !marks.exclude(before));
        let after = of(&marks, &owner(1));
        assert_ne!(before, after);
        let is_of = |mark, index| marks.may_be_of(mark, &owner(index), Protocol::Tcp, Family::V4);
        assert!(is_of(before, 1) && is_of(after, 1));
        assert!(is_of(without_key(&owner(1), Protocol::Tcp, Family::V4), 1));
        assert!(!is_of(before, 2) && !is_of(7, 1));
    }

    #[test]
    fn a_key_is_read_as_it_is_printed() {
        let key = MarkKey::new(std::array::from_fn(|index| {
            u8::try_from(index).unwrap().wrapping_mul(37)
        }));
        assert_eq!(MarkKey::parse(&key.to_string()), Some(key));
        assert_eq!(format!("{key:?}"), "MarkKey");
        for text in [
            "",
            "12",
            "+0000000000000000000000000000001",
            &"g".repeat(32),
        ] {
            assert_eq!(MarkKey::parse(text), None, "{text}");
        }
    }

    /// The values are in ledgers' virtual servers: a version that computes other ones replaces them all.
    #[test]
    fn marks_stay_the_same_in_every_version() {
        let marks = Marks::new(MarkKey::new([7; 16]), 0);
        assert_eq!(of(&marks, &owner(1)), 2_369_368_461);
        assert_eq!(
            without_key(&owner(1), Protocol::Tcp, Family::V4),
            343_903_016
        );
    }
}
