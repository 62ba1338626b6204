//! Hashes of the bytes that the kernel gets for a part of a table.
//!
//! The userdata of rules in the kernel and the ledger's file keep hashes for later builds of this program.
//! So `std::hash::DefaultHasher` is not used: its algorithm may change with each Rust release. The hashes
//! are of encoded bytes and not of text or `Debug` output, because if another version encodes an unchanged
//! value in other bytes, the hash must differ too.

use netlink::attr::Writer;
use netlink::batch::Batch;

use crate::anonymous::anonymous_sets;
use crate::expression::write_rule;
use crate::key::Key;
use crate::message::{write_chain, write_element, write_set};
use crate::rule::Rule;
use crate::set::{Data, Set};
use crate::sys::*;
use crate::table::{Chain, Table};
use net::stable_hash::{fnv1a, mix};

/// Returns the sum of the hashes of all parts of `table` and its companion.
pub fn table(table: &Table) -> u64 {
    let definitions = sum(table, |table, add| {
        table.sets.values().for_each(|it| add(set(it)))
    });
    definitions.wrapping_add(parts(table))
}

/// Returns the sum of the hashes of the elements and chains of `table` and its companion.
pub fn parts(table: &Table) -> u64 {
    sum(table, |table, add| {
        let mut batch = Batch::new();
        for set in table.sets.values() {
            for (key, data) in set.missing_in(None) {
                add(element(&mut batch, &set.name, key, data));
            }
        }
        table.chains.values().for_each(|it| add(chain(it)));
    })
}

/// Returns the sum of the hashes that `hashes` adds for `table` and for its companion.
fn sum(table: &Table, hashes: impl Fn(&Table, &mut dyn FnMut(u64))) -> u64 {
    let mut sum = 0_u64;
    hashes(table, &mut |hash| sum = sum.wrapping_add(hash));
    if let Some(arp) = &table.arp {
        // Mixed with the family, so that equal parts of both families have different hashes.
        let in_arp = |hash: u64| mix(hash ^ u64::from(NFPROTO_ARP));
        hashes(arp, &mut |hash| sum = sum.wrapping_add(in_arp(hash)));
    }
    sum
}

/// Returns the hash of an element of the set or map `set`. It uses the memory of `batch`, because a start hashes
/// each element of the table.
fn element(batch: &mut Batch, set: &str, key: &Key, data: &Data) -> u64 {
    batch.clear();
    hash_in(batch, NFT_MSG_NEWSETELEM, |writer| {
        writer.string(NFTA_SET_ELEM_LIST_SET, set);
        write_element(writer, key, data);
    })
}

/// Returns the hash of a chain: its name, its hook and its rules.
fn chain(chain: &Chain) -> u64 {
    message(NFT_MSG_NEWCHAIN, |writer| {
        write_chain(writer, "", &chain.name, chain.hook);
        for each in &chain.rules {
            writer.bytes(NFTA_RULE_USERDATA, &rule(each).to_ne_bytes());
        }
    })
}

/// Returns the hash of a set's definition, without its elements.
fn set(set: &Set) -> u64 {
    message(NFT_MSG_NEWSET, |writer| write_set(writer, "", set, 0))
}

/// Returns the hash of a rule and its anonymous sets. The chain does not matter.
pub(crate) fn rule(rule: &Rule) -> u64 {
    // The numbers of anonymous sets differ from transaction to transaction; here they start at 1.
    let sets = anonymous_sets(rule, &mut 1);
    message(NFT_MSG_NEWRULE, |writer| {
        write_rule(writer, rule, &sets);
        for set in &sets {
            set.write(writer, "");
            // One attribute for each element cannot be too long.
            for element in set.elements().chunks(1) {
                set.write_elements(writer, "", element);
            }
        }
    })
}

/// Returns the hash of a message of this type with the attributes that `body` writes.
fn message(kind: u16, body: impl FnOnce(&mut Writer<'_>)) -> u64 {
    hash_in(&mut Batch::new(), kind, body)
}

/// As [`message`], with an empty `batch` for the message.
fn hash_in(batch: &mut Batch, kind: u16, body: impl FnOnce(&mut Writer<'_>)) -> u64 {
    // An attribute longer than 65,535 bytes leaves nothing to hash. No such value reaches the kernel,
    // because its transaction fails for the same reason.
    let _too_long = batch.push(kind, 0, body);
    // Mixed, because the fingerprint of a table is the sum of its hashes: the sum of plain FNV-1a hashes
    // often stays the same if two elements swap their last bytes.
    mix(fnv1a(batch.as_bytes().iter().copied()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rule::{Match, Relation, Verdict};
    use crate::set::SetKind;
    use crate::table::Hook;
    use crate::value::{KeyType, Value};
    use net::{Family, Networks};

    fn element(set: &str, key: &Key, verdict: Option<&Verdict>) -> u64 {
        super::element(&mut Batch::new(), set, key, &verdict.cloned().into())
    }

    fn source(networks: &[&str]) -> Rule {
        let networks = networks.iter().map(|text| text.parse().unwrap());
        let networks = Networks::new(Family::V4, networks);
        Rule::new([Match::Source(Relation::Is, networks).into()])
    }

    #[test]
    fn different_parts_have_different_hashes() {
        let port = |port| Key::new([Value::Port(port)]);
        let goto = |chain: &str| Some(Verdict::Goto(chain.into()));
        let one = source(&["10.0.0.0/8"]);
        let two = source(&["10.0.0.0/8", "192.0.2.0/24"]);
        let more = source(&["10.0.0.0/8", "192.0.2.0/25"]);
        let rules = [&one, &two, &more].map(rule);
        let chains = [
            Chain::new("c", Vec::new()),
            Chain::new("d", Vec::new()),
            Chain::at("c", Hook::Input(0), Vec::new()),
            Chain::at("c", Hook::Input(1), Vec::new()),
            Chain::new("c", [one.clone()]),
            Chain::new("c", [two.clone()]),
            Chain::new("c", [one.clone(), two.clone()]),
            Chain::new("c", [two, one]),
        ];
        let elements = [
            element("s", &port(1), None),
            element("s", &port(2), None),
            element("t", &port(1), None),
            element("s", &port(1), goto("a").as_ref()),
            element("s", &port(1), goto("b").as_ref()),
        ];
        let sets = [
            Set::new("s", [KeyType::Port], SetKind::Set),
            Set::new("s", [KeyType::Mark], SetKind::Set),
            Set::new("s", [KeyType::Port], SetKind::CountingSet),
            Set::new("s", [KeyType::Port], SetKind::Verdicts),
            Set::new("t", [KeyType::Port], SetKind::Set),
        ];
        let chains = chains.iter().map(chain);
        let sets = sets.iter().map(set);
        let all: Vec<u64> = chains.chain(sets).chain(rules).chain(elements).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn swapping_the_verdicts_of_two_elements_changes_the_sum() {
        let sum = |verdicts: [u8; 2]| {
            let ports = [80, 81].map(|port| Key::new([Value::Port(port)]));
            let pairs = ports.iter().zip(verdicts);
            pairs.fold(0_u64, |sum, (key, verdict)| {
                let chain = format!("chain-{}", char::from(verdict));
                sum.wrapping_add(element("s", key, Some(&Verdict::Goto(chain.into()))))
            })
        };
        for one in b'a'..=b'z' {
            for other in b'a'..one {
                assert_ne!(sum([one, other]), sum([other, one]));
            }
        }
    }
}
