//! A rule of somebody's, as the answer of an endpoint meets it.
//!
//! Of the answer only that is known which all answers have in common: it belongs to an established
//! connection. With this the expressions are gone through as the kernel does. Where one of them wants
//! to know more, the rule proves nothing.

use ipvs_netlink::Error;
use ipvs_netlink::attr::{Attribute, find};

use super::elements::{Sets, State};
use super::extension;
use crate::nftables::expression::read_verdict;
use crate::nftables::rule::Verdict;
use crate::nftables::sys::*;

/// What is sure of a rule.
#[derive(Debug, Default)]
pub(super) struct Rule {
    /// The sets that have to have the packet, or must not, before anything is done with it.
    conditions: Vec<(Lookup, bool)>,
    end: End,
}

/// What becomes of the packet.
#[derive(Debug, Default)]
enum End {
    /// Nothing that could be proven.
    #[default]
    Unknown,
    Verdict(Verdict),
    /// What a map says.
    Map(Lookup),
}

#[derive(Debug)]
struct Lookup {
    set: String,
    key: State,
}

impl Rule {
    /// Reads the expressions of a rule.
    pub(super) fn read(expressions: &Attribute<'_>) -> Result<Self, Error> {
        let mut rule = Self::default();
        // The register that has something of the packet's state, and what.
        let mut loaded: Option<(u32, State)> = None;
        for item in expressions.nested() {
            let expression = Expression::read(&item?)?;
            let number = |kind| expression.number(kind);
            match expression.name {
                "counter" => {}
                "ct" => match (number(NFTA_CT_KEY)?, number(NFTA_CT_DREG)?) {
                    (Some(NFT_CT_STATE), Some(register)) => {
                        loaded = Some((register, NF_CT_STATE_ESTABLISHED.to_ne_bytes()));
                    }
                    _ => return Ok(rule),
                },
                "bitwise" => {
                    let value = expression.source(NFTA_BITWISE_SREG, loaded)?;
                    let operation = number(NFTA_BITWISE_OP)?.unwrap_or(NFT_BITWISE_MASK_XOR);
                    let mask = expression.value(NFTA_BITWISE_MASK)?;
                    let xor = expression.value(NFTA_BITWISE_XOR)?;
                    let (Some(value), Some(mask), Some(xor), NFT_BITWISE_MASK_XOR) =
                        (value, mask, xor, operation)
                    else {
                        return Ok(rule);
                    };
                    let value = std::array::from_fn(|i| value[i] & mask[i] ^ xor[i]);
                    loaded = number(NFTA_BITWISE_DREG)?.map(|register| (register, value));
                }
                "cmp" => {
                    let value = expression.source(NFTA_CMP_SREG, loaded)?;
                    let other = expression.value(NFTA_CMP_DATA)?;
                    let (Some(value), Some(other)) = (value, other) else {
                        return Ok(rule);
                    };
                    let holds = match number(NFTA_CMP_OP)? {
                        Some(NFT_CMP_EQ) => value == other,
                        Some(NFT_CMP_NEQ) => value != other,
                        _ => false,
                    };
                    if !holds {
                        return Ok(rule);
                    }
                }
                "lookup" => {
                    let key = expression.source(NFTA_LOOKUP_SREG, loaded)?;
                    let set = expression.string(NFTA_LOOKUP_SET)?;
                    let (Some(key), Some(set)) = (key, set) else {
                        return Ok(rule);
                    };
                    let set = set.into();
                    let lookup = Lookup { set, key };
                    match number(NFTA_LOOKUP_DREG)? {
                        Some(VERDICT) => {
                            rule.end = End::Map(lookup);
                            return Ok(rule);
                        }
                        Some(_) => return Ok(rule),
                        None => {
                            let flags = number(NFTA_LOOKUP_FLAGS)?.unwrap_or_default();
                            let should_have = flags & NFT_LOOKUP_F_INV == 0;
                            rule.conditions.push((lookup, should_have));
                        }
                    }
                }
                // One of iptables' extensions.
                "match" => {
                    let name = expression.string(NFTA_MATCH_NAME)?.unwrap_or_default();
                    let revision = number(NFTA_MATCH_REV)?.unwrap_or_default();
                    let info = expression.part(NFTA_MATCH_INFO)?;
                    let info = info.map_or(&[][..], |info| info.value);
                    if !extension::is_for_established(name, revision, info) {
                        return Ok(rule);
                    }
                }
                "reject" => {
                    rule.end = End::Verdict(Verdict::Drop);
                    return Ok(rule);
                }
                "immediate" => {
                    let data = expression.part(NFTA_IMMEDIATE_DATA)?;
                    let verdict = data.map(|data| read_verdict(&data)).transpose()?;
                    if let Some(verdict) = verdict.flatten() {
                        rule.end = End::Verdict(verdict);
                    }
                    return Ok(rule);
                }
                _ => return Ok(rule),
            }
        }
        Ok(rule)
    }

    /// What becomes of the answer; `None` where the next rule has to say, or nothing is sure.
    ///
    /// # Errors
    /// The name of a set that is not among `sets` and has to be.
    pub(super) fn verdict<'a>(&'a self, sets: &'a Sets) -> Result<Option<&'a Verdict>, &'a str> {
        let find = |lookup: &'a Lookup| sets.get(&lookup.set).ok_or(&*lookup.set);
        for (lookup, should_have) in &self.conditions {
            if find(lookup)?.has(lookup.key) != Some(*should_have) {
                return Ok(None);
            }
        }
        Ok(match &self.end {
            End::Unknown => None,
            End::Verdict(verdict) => Some(verdict),
            End::Map(lookup) => find(lookup)?.verdict(lookup.key),
        })
    }

    #[cfg(test)]
    pub(super) fn ending(verdict: Option<Verdict>) -> Self {
        Self {
            conditions: Vec::new(),
            end: verdict.map_or(End::Unknown, End::Verdict),
        }
    }
}

/// The register of verdicts (`NFT_REG_VERDICT`).
const VERDICT: u32 = 0;

/// One expression, and where its parts are.
struct Expression<'a> {
    name: &'a str,
    data: Option<Attribute<'a>>,
}

impl<'a> Expression<'a> {
    fn read(item: &Attribute<'a>) -> Result<Self, Error> {
        let (mut name, mut data) = ("", None);
        for attribute in item.nested() {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_EXPR_NAME => name = attribute.string()?,
                NFTA_EXPR_DATA => data = Some(attribute),
                _ => {}
            }
        }
        Ok(Self { name, data })
    }

    fn part(&self, kind: u16) -> Result<Option<Attribute<'a>>, Error> {
        match self.data {
            Some(data) => find(data.nested(), kind),
            None => Ok(None),
        }
    }

    fn number(&self, kind: u16) -> Result<Option<u32>, Error> {
        self.part(kind)?.map(|it| it.u32_be()).transpose()
    }

    fn string(&self, kind: u16) -> Result<Option<&'a str>, Error> {
        self.part(kind)?.map(|it| it.string()).transpose()
    }

    /// A value that is as long as a state.
    fn value(&self, kind: u16) -> Result<Option<State>, Error> {
        let Some(data) = self.part(kind)? else {
            return Ok(None);
        };
        let value = find(data.nested(), NFTA_DATA_VALUE)?;
        Ok(value.and_then(|value| value.value.try_into().ok()))
    }

    /// What is in the register that part `kind` names, if that is what was `loaded`.
    fn source(&self, kind: u16, loaded: Option<(u32, State)>) -> Result<Option<State>, Error> {
        let register = self.number(kind)?;
        let loaded = loaded.filter(|(loaded, _)| register == Some(*loaded));
        Ok(loaded.map(|(_, value)| value))
    }
}
