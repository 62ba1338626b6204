//! Targets that packets added: reading and deleting them.

use std::net::SocketAddr;

use netlink::Error;

use crate::client::{RulesClient, TransactionError};
use crate::command::Command;
use crate::existing::{dump_elements, read_target};
use crate::key::Key;
use crate::set::{Set, SetKind};
use crate::sys::*;

/// The number of times that the map is read if its elements end meanwhile.
const READS: u32 = 8;

/// The most elements that one transaction deletes. If one of them has ended, all of them stay.
const MOST_DELETED: usize = 512;

impl RulesClient {
    /// Deletes the elements of the kernel's map `map` (of kind [`SetKind::LearnedTargets`]) that `is_gone`.
    ///
    /// Packets may add such elements again until no rule leads to their targets, so change the rules first. Costs a
    /// dump of the map.
    ///
    /// # Errors
    /// Those of the socket and of the kernel. Some elements may be deleted then.
    pub fn forget(
        &mut self,
        map: &Set,
        mut is_gone: impl FnMut(&Key, SocketAddr) -> bool,
    ) -> Result<(), TransactionError> {
        let mut result = Ok(());
        for _ in 0..READS {
            let gone = self.learned(map, &mut is_gone)?;
            result = gone
                .chunks(MOST_DELETED)
                .try_for_each(|part| self.apply(part));
            match &result {
                // An element ended between the dump and the transaction.
                Err(error) if error.is_out_of_step() => {}
                _ => break,
            }
        }
        result
    }

    /// Returns the commands that delete these elements.
    fn learned(
        &mut self,
        map: &Set,
        is_gone: &mut impl FnMut(&Key, SocketAddr) -> bool,
    ) -> Result<Vec<Command>, Error> {
        let SetKind::LearnedTargets { family, .. } = map.kind else {
            return Ok(Vec::new());
        };
        let table = Box::<str>::from(self.table());
        let mut found = Vec::new();
        dump_elements(
            self.transport(),
            (NFPROTO_INET, &table, &map.name),
            Vec::clear,
            &mut found,
            |found, element| {
                let target = read_target(element, map, family)?;
                if let Some((key, target)) = target
                    && is_gone(&key, target)
                {
                    found.push(Command::DeleteElement(map.name.clone(), key));
                }
                Ok(())
            },
        )?;
        Ok(found)
    }
}
