//! What the rules of others do with packets of established connections.

use std::collections::{BTreeMap, BTreeSet};

use ipvs_netlink::Error;
use ipvs_netlink::attr::{Attribute, find};

use super::opening::is_ours;
use crate::nftables::expression::read_verdict;
use crate::nftables::message::contents;
use crate::nftables::rule::Verdict;
use crate::nftables::sys::*;

/// The rules of one chain or of several.
#[derive(Debug, Default)]
pub(super) struct Rules {
    chains: BTreeMap<String, Vec<Step>>,
    /// The handles of our own, which are not among the others.
    pub(super) ours: Vec<u64>,
}

/// What a rule does with packets of established connections.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Accept,
    Jump(String),
    /// Something else, or only with some of them.
    Other,
}

impl Rules {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds the rule that a message describes.
    pub(super) fn read(&mut self, payload: &[u8]) -> Result<(), Error> {
        let (mut name, mut step, mut handle) = ("", Step::Other, None);
        for attribute in contents(payload) {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_RULE_CHAIN => name = attribute.string()?,
                NFTA_RULE_HANDLE => handle = Some(u64::from_be_bytes(attribute.array()?)),
                NFTA_RULE_EXPRESSIONS => step = read_rule(&attribute)?,
                _ => {}
            }
        }
        match handle {
            Some(handle) if is_ours(payload) => self.ours.push(handle),
            _ => self.chains.entry(name.into()).or_default().push(step),
        }
        Ok(())
    }

    /// Whether `chain`, or one that it jumps to, accepts established connections; `None` when that
    /// is for chains to say that are not here.
    pub(super) fn accept(&self, chain: &str) -> Option<bool> {
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![chain]);
        let mut is_missing = false;
        while let Some(chain) = waiting.pop() {
            if !seen.insert(chain) {
                continue;
            }
            let steps = self.chains.get(chain);
            // The first one may be empty.
            is_missing |= steps.is_none() && seen.len() > 1;
            for step in steps.into_iter().flatten() {
                match step {
                    Step::Accept => return Some(true),
                    Step::Jump(next) => waiting.push(next),
                    Step::Other => {}
                }
            }
        }
        (!is_missing).then_some(false)
    }
}

fn read_rule(expressions: &Attribute<'_>) -> Result<Step, Error> {
    let mut step = Step::Other;
    for item in expressions.nested() {
        let (mut name, mut data) = ("", None);
        for attribute in item?.nested() {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_EXPR_NAME => name = attribute.string()?,
                NFTA_EXPR_DATA => data = Some(attribute),
                _ => {}
            }
        }
        let part = |kind| match data {
            Some(data) => find(data.nested(), kind),
            None => Ok(None),
        };
        match name {
            "counter" | "cmp" => {}
            // The comparison is about what was loaded before, which is seen to here.
            "ct" => {
                let key = part(NFTA_CT_KEY)?.map(|key| key.u32_be()).transpose()?;
                if key != Some(NFT_CT_STATE) {
                    return Ok(Step::Other);
                }
            }
            "bitwise" => {
                let mask = part(NFTA_BITWISE_MASK)?;
                let mask = mask
                    .map(|it| find(it.nested(), NFTA_DATA_VALUE))
                    .transpose()?;
                let mask = mask.flatten().map(|mask| mask.u32()).transpose()?;
                if mask.is_some_and(|mask| mask & NF_CT_STATE_ESTABLISHED == 0) {
                    return Ok(Step::Other);
                }
            }
            // A set or a map of states, which nobody writes without the established ones.
            "lookup" => {
                if part(NFTA_LOOKUP_DREG)?.is_some() {
                    step = Step::Accept;
                }
            }
            // One of iptables' extensions.
            "match" => {
                let extension = part(NFTA_MATCH_NAME)?.map(|it| it.string()).transpose()?;
                if !matches!(extension, Some("conntrack" | "state" | "comment")) {
                    return Ok(Step::Other);
                }
            }
            "immediate" => step = self::step(part(NFTA_IMMEDIATE_DATA)?)?,
            _ => return Ok(Step::Other),
        }
    }
    Ok(step)
}

fn step(data: Option<Attribute<'_>>) -> Result<Step, Error> {
    let verdict = data.map(|data| read_verdict(&data)).transpose()?;
    Ok(match verdict.flatten() {
        Some(Verdict::Accept) => Step::Accept,
        Some(Verdict::Jump(chain) | Verdict::Goto(chain)) => Step::Jump(chain.to_string()),
        _ => Step::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_followed_and_circles_left() {
        let rules = |step| {
            let jump = |name: &str| Step::Jump(name.into());
            let chains = [
                ("a", vec![Step::Other, jump("b")]),
                ("b", vec![jump("c"), jump("a")]),
                ("c", vec![step]),
            ];
            let chains = chains.map(|(name, steps)| (name.into(), steps));
            let (chains, ours) = (chains.into(), Vec::new());
            Rules { chains, ours }
        };
        assert_eq!(rules(Step::Accept).accept("a"), Some(true));
        assert_eq!(rules(Step::Other).accept("a"), Some(false));
        assert_eq!(rules(Step::Jump("d".into())).accept("a"), None);
        assert_eq!(Rules::default().accept("a"), Some(false));
    }
}
