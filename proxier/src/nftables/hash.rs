//! TEMP
use super::{Chain, Key, Set, Verdict};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
fn h(s: String) -> u64 {
    let mut h = DefaultHasher::new();
    s.hash(&mut h);
    h.finish()
}
/// .
pub fn element(set: &str, key: &Key, verdict: Option<&Verdict>) -> u64 {
    h(format!("{set}{key:?}{verdict:?}"))
}
/// .
pub fn chain(chain: &Chain) -> u64 {
    h(format!("{chain:?}"))
}
/// .
pub fn set(set: &Set) -> u64 {
    h(format!("{} {:?} {:?}", set.name, set.key, set.kind))
}
