//! The elements of a set or map of states.

use std::collections::BTreeMap;

use ipvs_netlink::Error;
use ipvs_netlink::attr::{Attribute, find};

use crate::nftables::expression::read_verdict;
use crate::nftables::message::contents;
use crate::nftables::rule::Verdict;
use crate::nftables::sys::*;

/// `ct state`, or what became of it in a register.
pub(super) type State = [u8; 4];

/// The sets that rules name, as far as they were read.
pub(super) type Sets = BTreeMap<String, Elements>;

/// What a set has.
#[derive(Debug, Default)]
pub(super) struct Elements {
    /// Single states, each with what a map says for it.
    states: BTreeMap<State, Option<Verdict>>,
    /// Whether there are others: for any state, of an interval, of a longer key, with a condition of
    /// their own, or not there to stay.
    has_others: bool,
}

impl Elements {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds the elements of a message.
    pub(super) fn read(&mut self, payload: &[u8]) -> Result<(), Error> {
        let list = find(contents(payload), NFTA_SET_ELEM_LIST_ELEMENTS)?;
        for element in list.iter().flat_map(Attribute::nested) {
            match read_element(&element?)? {
                Some((state, verdict)) => drop(self.states.insert(state, verdict)),
                None => self.has_others = true,
            }
        }
        Ok(())
    }

    /// Whether `state` is in the set, if that is sure.
    pub(super) fn has(&self, state: State) -> Option<bool> {
        let has = self.states.contains_key(&state);
        (has || !self.has_others).then_some(has)
    }

    /// What the map says for `state`, if that is sure.
    pub(super) fn verdict(&self, state: State) -> Option<&Verdict> {
        self.states.get(&state)?.as_ref()
    }
}

fn read_element(element: &Attribute<'_>) -> Result<Option<(State, Option<Verdict>)>, Error> {
    let (mut state, mut verdict) = (None, None);
    for part in element.nested() {
        let part = part?;
        match part.kind {
            NFTA_SET_ELEM_KEY => {
                let key = find(part.nested(), NFTA_DATA_VALUE)?;
                state = key.and_then(|key| key.value.try_into().ok());
            }
            NFTA_SET_ELEM_DATA => verdict = read_verdict(&part)?,
            NFTA_SET_ELEM_FLAGS if part.u32_be()? == 0 => {}
            NFTA_SET_ELEM_USERDATA => {}
            _ => return Ok(None),
        }
    }
    Ok(state.map(|state| (state, verdict)))
}
