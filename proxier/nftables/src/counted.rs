//! The counters of the elements of our sets.

use netlink::Error;
use netlink::attr::find;

use crate::client::RulesClient;
use crate::existing::{dump_elements, key_and_data};
use crate::key::Key;
use crate::set::Set;
use crate::sys::*;

impl RulesClient {
    /// Returns the elements of the kernel's set `set` (of kind [`crate::SetKind::CountingSet`]), each with the number of
    /// packets that it counted.
    ///
    /// # Errors
    /// Those of the socket and of the dump; `ENOENT` if the set does not exist.
    pub fn read_counters(&mut self, set: &Set) -> Result<Vec<(Key, u64)>, Error> {
        let table = Box::<str>::from(self.table());
        let mut found = Vec::new();
        dump_elements(
            self.transport(),
            (NFPROTO_INET, &table, &set.name),
            Vec::clear,
            &mut found,
            |found, element| {
                let (key, _) = key_and_data(element, set)?;
                let Some(counter) = find(element.nested(), NFTA_SET_ELEM_EXPR)? else {
                    return Ok(());
                };
                let data = find(counter.nested(), NFTA_EXPR_DATA)?;
                let packets = match &data {
                    Some(data) => find(data.nested(), NFTA_COUNTER_PACKETS)?,
                    None => None,
                };
                if let (Some(key), Some(packets)) = (key, packets) {
                    found.push((key, u64::from_be_bytes(packets.array()?)));
                }
                Ok(())
            },
        )?;
        Ok(found)
    }
}
