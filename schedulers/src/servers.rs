//! The set of servers, in the kernel's order.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use crate::error::{Error, exists};
use crate::options::{Family, Flavour};
use crate::server::{Endpoint, Server, ServerId, WEIGHT_MAX};
use crate::thresholds::Thresholds;

/// The servers of one virtual server.
///
/// # Order
/// A list, newest first, because the kernel inserts at the head (`__ip_vs_update_dest`). A removed
/// server that is added again is inserted at the head, too. There is one server per address and port.
/// Schedulers read the list; [`Balancer`](crate::Balancer) changes it.
///
/// # Cost
/// Adding, removing, changing and finding a server take constant time.
#[derive(Debug)]
pub struct Servers {
    slots: Vec<Slot>,
    by_endpoint: HashMap<Endpoint, u32>,
    first: u32,
    first_free: u32,
    len: usize,
    family: Family,
    flavour: Flavour,
}

#[derive(Debug)]
struct Slot {
    server: Server,
    /// The generation of the server in this slot, or of the next one while the slot is free.
    generation: NonZeroU32,
    /// Neighbours in the list. In a free slot, `next` is the next free slot.
    previous: u32,
    next: u32,
}

/// No slot.
const NIL: u32 = u32::MAX;

impl Servers {
    pub(crate) fn new(family: Family, flavour: Flavour) -> Self {
        Self {
            slots: Vec::new(),
            by_endpoint: HashMap::new(),
            first: NIL,
            first_free: NIL,
            len: 0,
            family,
            flavour,
        }
    }

    /// Returns the number of listed servers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns one more than the greatest [`ServerId::index`] ever used.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the address family of the virtual server.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns the kernel's load formula and threshold rule in use.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Returns the server of this id if it exists: listed, or removed with connections left.
    pub fn get(&self, id: ServerId) -> Option<&Server> {
        self.slots
            .get(id.index())
            .filter(|slot| slot.generation == id.generation)
            .map(|slot| &slot.server)
    }

    /// Returns the server of this id if it is listed.
    pub fn listed(&self, id: ServerId) -> Option<&Server> {
        self.get(id).filter(|server| server.listed)
    }

    /// Returns the id of the listed server with this address and port.
    pub fn find(&self, address: SocketAddr) -> Option<ServerId> {
        let id = self.remembered(address.into())?;
        self.listed(id).map(|_| id)
    }

    /// Returns the id of the server with this address and port, listed or not.
    pub(crate) fn remembered(&self, endpoint: Endpoint) -> Option<ServerId> {
        let &slot = self.by_endpoint.get(&endpoint)?;
        self.id(slot)
    }

    /// Returns the first server of the list: the newest.
    pub fn first(&self) -> Option<ServerId> {
        self.id(self.first)
    }

    /// Returns the next older server. `None` after the last one, or if `id` is not listed.
    pub fn next(&self, id: ServerId) -> Option<ServerId> {
        self.listed(id)?;
        self.id(self.slots[id.index()].next)
    }

    /// Returns the servers from newest to oldest.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            slots: &self.slots,
            slot: self.first,
        }
    }

    /// Returns the servers after `id`: all if `id` is `None`, none if `id` is not listed.
    pub fn after(&self, id: Option<ServerId>) -> Iter<'_> {
        let slot = match id {
            None => self.first,
            Some(id) => self.next(id).map_or(NIL, |next| next.slot),
        };
        Iter {
            slots: &self.slots,
            slot,
        }
    }

    pub(crate) fn add(
        &mut self,
        address: SocketAddr,
        weight: u32,
        thresholds: Thresholds,
    ) -> Result<ServerId, Error> {
        let endpoint = Endpoint::from(address);
        let weight = kernel_weight(weight)?;
        let slot = match self.by_endpoint.get(&endpoint) {
            Some(&slot) => {
                // An unlisted server was removed while it had connections. It keeps its counts, as a
                // destination from the kernel's trash does (`ip_vs_trash_get_dest`).
                if self.slots[slot as usize].server.listed {
                    return Err(exists(endpoint.address, endpoint.port));
                }
                slot
            }
            None => self.occupy(Server::new(endpoint, weight))?,
        };
        let flavour = self.flavour;
        let server = &mut self.slots[slot as usize].server;
        server.listed = true;
        server.weight = weight;
        server.last_weight = weight;
        set_thresholds(server, flavour, thresholds);
        self.link_first(slot);
        self.len += 1;
        Ok(ServerId {
            slot,
            generation: self.slots[slot as usize].generation,
        })
    }

    /// Removes a server from the list and returns its predecessor.
    ///
    /// The server exists until [`Servers::forget_if_unused`] is called.
    pub(crate) fn unlist(&mut self, id: ServerId) -> Result<Option<ServerId>, Error> {
        self.listed(id).ok_or(Error::NotFound)?;
        let predecessor = self.id(self.slots[id.index()].previous);
        self.unlink(id.slot);
        self.len -= 1;
        self.slots[id.index()].server.listed = false;
        Ok(predecessor)
    }

    pub(crate) fn set_weight(&mut self, id: ServerId, weight: u32) -> Result<(), Error> {
        let weight = kernel_weight(weight)?;
        let server = self.listed_mut(id)?;
        server.weight = weight;
        // As in `__ip_vs_update_dest`: weight 0 drains a server and must not move mh's clients.
        if weight != 0 {
            server.last_weight = weight;
        }
        Ok(())
    }

    pub(crate) fn set_thresholds(&mut self, id: ServerId, to: Thresholds) -> Result<(), Error> {
        let flavour = self.flavour;
        set_thresholds(self.listed_mut(id)?, flavour, to);
        Ok(())
    }

    pub(crate) fn set_overloaded(&mut self, id: ServerId, overloaded: bool) -> Result<(), Error> {
        self.listed_mut(id)?.overloaded = overloaded;
        Ok(())
    }

    pub(crate) fn set_connections(
        &mut self,
        id: ServerId,
        active: u32,
        inactive: u32,
    ) -> Result<(), Error> {
        let server = self.get_mut(id)?;
        server.active = active;
        server.inactive = inactive;
        self.forget_if_unused(id);
        Ok(())
    }

    pub(crate) fn opened(&mut self, id: ServerId, active: bool) -> Result<(), Error> {
        let flavour = self.flavour;
        let server = self.get_mut(id)?;
        let count = server.count_mut(active);
        *count = count.saturating_add(1);
        let connections = server.connections();
        server.overloaded = server
            .thresholds
            .opened(flavour, connections, server.overloaded);
        Ok(())
    }

    pub(crate) fn moved(&mut self, id: ServerId, to_active: bool) -> Result<(), Error> {
        let server = self.get_mut(id)?;
        let (from, to) = if to_active {
            (&mut server.inactive, &mut server.active)
        } else {
            (&mut server.active, &mut server.inactive)
        };
        // Saturates as in `closed`: `set_connections` may have lowered the counts meanwhile.
        *from = from.saturating_sub(1);
        *to = to.saturating_add(1);
        Ok(())
    }

    pub(crate) fn closed(&mut self, id: ServerId, active: bool) -> Result<(), Error> {
        let flavour = self.flavour;
        let server = self.get_mut(id)?;
        let count = server.count_mut(active);
        // A caller that closes more connections than it opened must not turn 0 into four billion,
        // which would keep the server in use for ever.
        *count = count.saturating_sub(1);
        let connections = server.connections();
        server.overloaded = server
            .thresholds
            .closed(flavour, connections, server.overloaded);
        self.forget_if_unused(id);
        Ok(())
    }

    pub(crate) fn id(&self, slot: u32) -> Option<ServerId> {
        let entry = self.slots.get(slot as usize)?;
        Some(ServerId {
            slot,
            generation: entry.generation,
        })
    }

    fn get_mut(&mut self, id: ServerId) -> Result<&mut Server, Error> {
        self.slots
            .get_mut(id.index())
            .filter(|slot| slot.generation == id.generation)
            .map(|slot| &mut slot.server)
            .ok_or(Error::NotFound)
    }

    fn listed_mut(&mut self, id: ServerId) -> Result<&mut Server, Error> {
        self.get_mut(id)
            .ok()
            .filter(|server| server.listed)
            .ok_or(Error::NotFound)
    }

    /// Puts `server` into a free slot. It is not listed yet.
    fn occupy(&mut self, server: Server) -> Result<u32, Error> {
        let endpoint = server.endpoint;
        let slot = if let Some(entry) = self.slots.get_mut(self.first_free as usize) {
            let slot = self.first_free;
            self.first_free = entry.next;
            entry.server = server;
            slot
        } else {
            let slot = u32::try_from(self.slots.len())
                .ok()
                .filter(|&slot| slot != NIL)
                .ok_or(Error::Full)?;
            self.slots.push(Slot {
                server,
                generation: NonZeroU32::MIN,
                previous: NIL,
                next: NIL,
            });
            slot
        };
        self.by_endpoint.insert(endpoint, slot);
        Ok(slot)
    }

    /// Frees the slot of a server that is not listed and has no connections.
    pub(crate) fn forget_if_unused(&mut self, id: ServerId) {
        let entry = &mut self.slots[id.index()];
        if entry.server.listed || entry.server.connections() != 0 {
            return;
        }
        entry.generation = entry.generation.saturating_add(1);
        // After 2^32 generations an old id would match a new server, so the slot is not used again.
        if entry.generation != NonZeroU32::MAX {
            entry.next = self.first_free;
            self.first_free = id.slot;
        }
        self.by_endpoint.remove(&entry.server.endpoint);
    }

    /// Inserts the slot at the head, as `list_add_rcu` in `__ip_vs_update_dest`: new servers win ties.
    fn link_first(&mut self, slot: u32) {
        let next = std::mem::replace(&mut self.first, slot);
        if let Some(entry) = self.slots.get_mut(next as usize) {
            entry.previous = slot;
        }
        let entry = &mut self.slots[slot as usize];
        entry.previous = NIL;
        entry.next = next;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { previous, next, .. } = self.slots[slot as usize];
        match self.slots.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None => self.first = next,
        }
        if let Some(entry) = self.slots.get_mut(next as usize) {
            entry.previous = previous;
        }
    }
}

impl<'a> IntoIterator for &'a Servers {
    type Item = (ServerId, &'a Server);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterates over servers from newest to oldest.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    slots: &'a [Slot],
    slot: u32,
}

impl<'a> Iterator for Iter<'a> {
    type Item = (ServerId, &'a Server);

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.slots.get(self.slot as usize)?;
        let id = ServerId {
            slot: self.slot,
            generation: entry.generation,
        };
        self.slot = entry.next;
        Some((id, &entry.server))
    }
}

fn kernel_weight(weight: u32) -> Result<i32, Error> {
    debug_assert_eq!(WEIGHT_MAX, 0x7fff_ffff);
    i32::try_from(weight).map_err(|_| Error::Weight(weight))
}

fn set_thresholds(server: &mut Server, flavour: Flavour, to: Thresholds) {
    server.overloaded = to.replaced(
        flavour,
        server.thresholds,
        server.connections(),
        server.overloaded,
    );
    server.thresholds = to;
}
