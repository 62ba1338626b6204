//! What the rules of others do with packets of established connections.

use std::collections::BTreeMap;

use ipvs_netlink::Error;

use super::elements::Sets;
use super::opening::is_ours;
use super::rule::Rule;
use crate::nftables::message::contents;
use crate::nftables::rule::Verdict;
use crate::nftables::sys::*;

/// The rules of one chain, or of all of a table.
#[derive(Debug, Default)]
pub(super) struct Rules {
    chains: BTreeMap<String, Vec<Rule>>,
    /// Whether chains that are not here have no rules.
    are_all: bool,
    /// The handles of our own, which are not among the others.
    pub(super) ours: Vec<u64>,
}

/// What has to be read first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// The table's other chains.
    Rules,
    /// The elements of the set of this name.
    Set(String),
}

/// Where a chain leaves a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Accepted,
    Dropped,
    /// Back where the chain was called; from the first one, to its policy.
    Returned,
}

impl Rules {
    /// To be filled with the rules of all chains.
    pub(super) fn all() -> Self {
        Self {
            are_all: true,
            ..Self::default()
        }
    }

    pub(super) fn clear(&mut self) {
        self.chains.clear();
        self.ours.clear();
    }

    /// Adds the rule that a message describes.
    pub(super) fn read(&mut self, payload: &[u8]) -> Result<(), Error> {
        let (mut name, mut rule, mut handle) = ("", Rule::default(), None);
        for attribute in contents(payload) {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_RULE_CHAIN => name = attribute.string()?,
                NFTA_RULE_HANDLE => handle = Some(u64::from_be_bytes(attribute.array()?)),
                NFTA_RULE_EXPRESSIONS => rule = Rule::read(&attribute)?,
                _ => {}
            }
        }
        match handle {
            Some(handle) if is_ours(payload) => self.ours.push(handle),
            _ => self.chains.entry(name.into()).or_default().push(rule),
        }
        Ok(())
    }

    /// Whether `chain`, with those that it calls, is sure to accept what belongs to established
    /// connections, but for packets that it drops for other reasons before.
    ///
    /// # Errors
    /// What has to be read to tell.
    pub(super) fn accept(&self, chain: &str, sets: &Sets) -> Result<bool, Missing> {
        if !self.chains.contains_key(chain) {
            return Ok(false);
        }
        let mut walk = Walk {
            rules: self,
            sets,
            fates: BTreeMap::new(),
        };
        Ok(walk.fate(chain)? == Fate::Accepted)
    }
}

/// A packet's way.
struct Walk<'a> {
    rules: &'a Rules,
    sets: &'a Sets,
    /// Of the chains that were gone through.
    fates: BTreeMap<&'a str, Fate>,
}

impl<'a> Walk<'a> {
    /// The kernel has chains call each other up to 16 deep (`NFT_JUMP_STACK_SIZE`).
    fn fate(&mut self, chain: &'a str) -> Result<Fate, Missing> {
        if let Some(&fate) = self.fates.get(chain) {
            return Ok(fate);
        }
        let rules = match self.rules.chains.get(chain) {
            Some(rules) => &rules[..],
            None if self.rules.are_all => &[],
            None => return Err(Missing::Rules),
        };
        // It allows no circles; should there be one, it ends here.
        self.fates.insert(chain, Fate::Returned);
        let mut fate = Fate::Returned;
        for rule in rules {
            let verdict = rule.verdict(self.sets);
            fate = match verdict.map_err(|set| Missing::Set(set.into()))? {
                None => continue,
                Some(Verdict::Accept) => Fate::Accepted,
                Some(Verdict::Drop) => Fate::Dropped,
                Some(Verdict::Return) => Fate::Returned,
                Some(Verdict::Goto(next)) => self.fate(next)?,
                Some(Verdict::Jump(next)) => match self.fate(next)? {
                    Fate::Returned => continue,
                    fate => fate,
                },
            };
            break;
        }
        self.fates.insert(chain, fate);
        Ok(fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(are_all: bool, last: Verdict) -> Rules {
        let jump = |name: &str| Some(Verdict::Jump(name.into()));
        let chains = [
            ("a", vec![None, jump("b"), Some(last.clone())]),
            ("b", vec![jump("c"), jump("a")]),
            ("c", vec![Some(last)]),
        ];
        let chains = chains.map(|(name, verdicts)| {
            let rules = verdicts.into_iter().map(Rule::ending);
            (name.to_owned(), rules.collect())
        });
        Rules {
            chains: chains.into(),
            are_all,
            ours: Vec::new(),
        }
    }

    #[test]
    fn jumps_are_followed_and_circles_left() {
        for (last, expected) in [
            (Verdict::Accept, Ok(true)),
            (Verdict::Drop, Ok(false)),
            (Verdict::Return, Ok(false)),
            (Verdict::Goto("d".into()), Err(Missing::Rules)),
            (Verdict::Jump("d".into()), Err(Missing::Rules)),
        ] {
            let found = rules(false, last.clone()).accept("a", &Sets::new());
            assert_eq!(found, expected, "{last}");
        }
        let all = rules(true, Verdict::Jump("d".into()));
        assert_eq!(all.accept("a", &Sets::new()), Ok(false));
        assert_eq!(Rules::default().accept("a", &Sets::new()), Ok(false));
    }
}
