//! Service addresses of a relay: local routes on `lo`, if it may write them.
//!
//! Loopback addresses are always local. Without privileges, other addresses serve only if the machine has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rustix::io::Errno;

use super::change::{AddressChange, Change};
use crate::dataplane::Failure;
use crate::dataplane::ipvs::linux::AddressTable;
use crate::dataplane::namespace_lock::NamespaceLock;
use crate::plan::{Desired, Machine, Peers};

/// The service addresses of this network namespace.
#[derive(Debug)]
pub(super) struct Addresses {
    table: AddressTable,
    is_privileged: bool,
    /// Held from the first address to the end: relays that serve loopback addresses do not disturb each other.
    namespace: Option<NamespaceLock>,
    /// Those that are local, each with its preferred source.
    present: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Whether `present` was read, and no answer was lost since then.
    pub(super) is_known: bool,
    /// Whether another program may have changed some.
    pub(super) are_suspect: bool,
    /// Those that the next round compares.
    pub(super) pending: BTreeSet<IpAddr>,
}

impl Addresses {
    pub(super) fn open(is_privileged: bool) -> Result<Self, Failure> {
        Ok(Self {
            table: AddressTable::open(&[])?,
            is_privileged,
            namespace: None,
            present: BTreeMap::new(),
            is_known: false,
            are_suspect: false,
            pending: BTreeSet::new(),
        })
    }

    /// Returns the netlink port of our changes, which notifications carry.
    pub(super) fn port(&self) -> u32 {
        self.table.port()
    }

    pub(super) fn machine(&mut self) -> Result<Machine, Failure> {
        self.table.read_machine()
    }

    pub(super) fn peers(&mut self) -> Peers {
        self.table.read_peers()
    }

    pub(super) fn has(&self, address: &IpAddr) -> bool {
        self.present.contains_key(address)
    }

    /// Reads the routes. Returns those that another program changed. An earlier process may have left some.
    pub(super) fn read(&mut self) -> Result<BTreeSet<IpAddr>, Failure> {
        let was_known = std::mem::take(&mut self.is_known);
        let mut differing = BTreeSet::new();
        if self.is_privileged {
            let found: BTreeMap<_, _> = self.table.read_routes()?.into_entries().collect();
            let before = std::mem::replace(&mut self.present, found);
            let both = before.keys().chain(self.present.keys());
            let differs = |it: &&IpAddr| before.get(it) != self.present.get(it);
            differing.extend(both.filter(differs));
        }
        let drifted = match was_known {
            true => &differing - &self.pending,
            false => BTreeSet::new(),
        };
        self.pending.extend(differing);
        self.is_known = true;
        self.are_suspect = false;
        Ok(drifted)
    }

    /// Appends the changes of the pending addresses.
    pub(super) fn compare(&mut self, desired: &Desired, changes: &mut Vec<Change>) {
        for address in std::mem::take(&mut self.pending) {
            let planned = desired.addresses.get(&address).copied();
            let change = match (planned, self.present.get(&address)) {
                (Some(source), None) => AddressChange::Add(source),
                (Some(source), Some(found)) if source != *found => AddressChange::Set(source),
                (None, Some(_)) => AddressChange::Delete,
                _ => continue,
            };
            if !address.is_loopback() {
                changes.push(Change::Address(address, change));
            }
        }
    }

    /// Makes an address local, or no longer.
    pub(super) fn apply(&mut self, address: IpAddr, change: AddressChange) -> Result<(), Failure> {
        let written = if self.is_privileged {
            self.write(address, change)
        } else {
            self.check(address, change)
        };
        // Without an answer, only a read tells whether it took effect.
        self.is_known &= !written.as_ref().is_err_and(|it| it.errno.is_none());
        written?;
        match change {
            AddressChange::Add(source) | AddressChange::Set(source) => {
                self.present.insert(address, source);
            }
            AddressChange::Delete => _ = self.present.remove(&address),
        }
        Ok(())
    }

    fn write(&mut self, address: IpAddr, change: AddressChange) -> Result<(), Failure> {
        if self.namespace.is_none() {
            let acquired = NamespaceLock::acquire();
            self.namespace = Some(acquired.map_err(|held| Failure {
                errno: Some(Errno::BUSY),
                message: format!("making {address} local: {held}"),
            })?);
        }
        match change {
            AddressChange::Add(source) => self.table.add(address, source),
            AddressChange::Set(source) => self.table.set(address, source),
            AddressChange::Delete => self.table.delete(address),
        }
    }

    /// Fails if the machine lacks an address that should be local.
    fn check(&mut self, address: IpAddr, change: AddressChange) -> Result<(), Failure> {
        if change == AddressChange::Delete || self.table.read_machine()?.has(&address) {
            return Ok(());
        }
        Err(Failure {
            errno: Some(Errno::ADDRNOTAVAIL),
            message: format!("{address}: only a process with CAP_NET_ADMIN can make it local"),
        })
    }
}
