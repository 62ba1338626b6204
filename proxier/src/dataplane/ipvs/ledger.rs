//! The ledger: the persistent record of what is owned and what drains.
//!
//! ```text
//!  own, disown, drain, end, retire ──▶ Ledger ──flush──▶ LedgerFile (one line of JSON per record, under /run)
//!                                      memory  ◀──open──
//! ```
//!
//! The kernel stores neither the owner of a virtual server nor the deadline of a destination, so the
//! ledger does. Each method changes memory and queues the record of that change. [`Ledger::flush`]
//! appends the queued records to the file. A process that starts replays the file through the same
//! methods.
//!
//! The file is appended to, because the cost of a change must not depend on the size of the table. Connections are
//! counted by polling: IPVS sends no notification when one ends.

use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::cluster::model::ServicePortName;
use crate::dataplane::Failure;
use crate::dataplane::ipvs::filter::Fingerprint;
use crate::dataplane::ipvs::key::LedgerKey;
use crate::dataplane::ipvs::marks::MarkKey;
use crate::dataplane::ipvs::observed::{CountedServer, Observed, ObservedServer};
use crate::dataplane::ipvs::{Wanted, WantedServer};
use crate::util::timer::Timer;

mod drains;
mod file;
mod lock;
mod owned;
mod record;
mod retired;
#[cfg(test)]
mod tests;

pub(crate) use drains::Drain;
pub use drains::Drains;
pub(crate) use file::Error;
pub use file::LedgerFile;
pub(crate) use lock::{LedgerLock, LockError};
pub(crate) use owned::{Owned, Territory};
pub use retired::Retired;

use file::RECORDS_AT_A_TIME;
use record::Record;

/// The owned virtual servers, the draining destinations, and the packet rules that were written last.
#[derive(Debug)]
pub struct Ledger {
    owned: Owned,
    drains: Drains,
    retired: Retired,
    rules: Option<WrittenRules>,
    mark_key: Option<MarkKey>,
    /// Changes of memory that the file does not have yet.
    queue: Vec<Record>,
    file: LedgerFile,
    /// When a flush that failed is tried again.
    retry: Timer,
}

/// The packet rules that were written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenRules {
    /// The generation of the kernel's packet rules after our transaction (`NFTA_GEN_ID`).
    pub generation: u32,
    /// The fingerprint of our table.
    pub fingerprint: Fingerprint,
}

impl Ledger {
    /// Reads the ledger from `file`, which need not exist.
    ///
    /// # Errors
    /// If the file exists and cannot be read. The caller decides what to do, because without the records
    /// our virtual servers outside the service ranges count as foreign.
    pub fn open(mut file: LedgerFile) -> Result<Self, Error> {
        let records = file.read()?;
        let mut ledger = Self {
            owned: Owned::default(),
            drains: Drains::default(),
            retired: Retired::default(),
            rules: None,
            mark_key: None,
            queue: Vec::new(),
            file,
            retry: Timer::retry(),
        };
        for record in records {
            ledger.replay(record);
        }
        // The file has the replayed records already.
        ledger.queue.clear();
        Ok(ledger)
    }

    /// Returns whether the file existed, was readable whole and lacked no record when it was opened, or has what it
    /// lacked since then.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.was_whole()
    }

    /// Notes that what the file lacked is known or gone.
    pub(crate) fn complete(&mut self) {
        self.file.renew();
    }

    /// Returns the owned virtual servers.
    pub fn owned(&self) -> &Owned {
        &self.owned
    }

    /// Returns the draining destinations.
    pub fn drains(&self) -> &Drains {
        &self.drains
    }

    /// Returns the packet rules that were written last.
    pub fn rules(&self) -> Option<WrittenRules> {
        self.rules
    }

    /// Returns the key of the firewall marks; `None` if none was drawn yet.
    pub(crate) fn mark_key(&self) -> Option<MarkKey> {
        self.mark_key
    }

    /// Records the key of the firewall marks.
    pub(crate) fn set_mark_key(&mut self, key: MarkKey) {
        self.mark_key = Some(key);
        self.enqueue(Some(Record::mark_key(key)));
    }

    /// Records that a virtual server is owned and serves `owner`. Returns whether that is new.
    pub fn own(&mut self, key: ipvs::ServiceKey, owner: &ServicePortName) -> bool {
        if self.owned.is_for(&key, owner) {
            return false;
        }
        self.insert(key, owner.clone());
        true
    }

    /// Records each virtual server that is both desired and observed as owned, and begins the drains that
    /// are not recorded.
    ///
    /// All of them are recorded already, unless the file was lost.
    pub fn adopt(&mut self, wanted: Wanted<'_>, observed: &Observed, now: Duration) {
        let before = self.owned.len();
        for (key, server) in wanted.iter() {
            if let Some(found) = observed.virtual_servers.get(&key) {
                self.own(key, server.owner());
                self.recognise_drains(key, &server, found, now);
            }
        }
        // Only after the loss of the file: packing copies the whole map.
        if self.owned.len() > 2 * before {
            self.pack();
        }
    }

    /// Records that a virtual server is deleted, and its destinations with it.
    pub fn disown(&mut self, key: &ipvs::ServiceKey) {
        self.drains.end_all(key);
        self.retired.end(key);
        if self.owned.remove(key) {
            self.enqueue(LedgerKey::new(*key).map(|server| Record::Disown { server }));
        }
    }

    /// Records that a destination drains from `now` until `deadline`.
    ///
    /// A destination that drains already keeps its first deadline.
    pub fn drain(
        &mut self,
        key: ipvs::ServiceKey,
        destination: ipvs::DestinationKey,
        now: Duration,
        deadline: Duration,
    ) {
        if self.drains.begin(key, destination, now, deadline) {
            self.enqueue(Record::drain(key, destination, deadline));
        }
    }

    /// Records that a destination no longer drains: it is desired again, or deleted.
    pub fn end(&mut self, key: &ipvs::ServiceKey, destination: &ipvs::DestinationKey) {
        if self.drains.end(key, destination) {
            self.enqueue(Record::drained(*key, *destination));
        }
    }

    /// Ends the retirement of a virtual server that is desired again, and the drains of its destinations
    /// that are desired again.
    pub fn end_desired(&mut self, key: &ipvs::ServiceKey, wanted: &WantedServer<'_>) {
        self.end_retirement(key);
        let draining: Vec<_> = self.drains.of(key).collect();
        for (destination, _) in draining {
            if wanted.has_destination(&destination) {
                self.end(key, &destination);
            }
        }
    }

    /// Begins the drains of stale destinations with weight 0 that are not recorded.
    ///
    /// There are such destinations if a process was killed after its Op, or if the kernel refused to
    /// restore the weight of a destination that is stale again.
    pub fn recognise_drains(
        &mut self,
        key: ipvs::ServiceKey,
        wanted: &WantedServer<'_>,
        found: &ObservedServer,
        now: Duration,
    ) {
        // Nearly all virtual servers: comparing two pointers is enough.
        if found.destinations.share(wanted.endpoints) {
            return;
        }
        for destination in found.destinations.iter() {
            if destination.weight == 0 && !wanted.has_destination(&destination.key) {
                let deadline = now + wanted.plan.profile.drain;
                self.drain(key, destination.key, now, deadline);
            }
        }
    }

    /// Updates the drains of a virtual server by its connections `found` at `now`.
    ///
    /// `found` is `None` if the kernel no longer has the virtual server. The drain of a destination without
    /// connections, or past its deadline, is over. A destination that another program deleted no longer
    /// drains.
    pub fn count(&mut self, key: &ipvs::ServiceKey, found: Option<&CountedServer>, now: Duration) {
        for destination in self.drains.counted(key, found, now) {
            self.enqueue(Record::drained(*key, destination));
        }
    }

    /// Records the packet rules that our last transaction wrote.
    pub fn set_rules(&mut self, rules: WrittenRules) {
        self.rules = Some(rules);
        self.enqueue(Some(Record::from(rules)));
    }

    /// Checks the file. If another program changed it, the next flush writes the whole ledger.
    pub fn check_file(&mut self) {
        self.file.check();
    }

    /// Returns whether the queue has enough records for a flush of its own.
    ///
    /// Not after a failure: each flush would try to write the whole ledger.
    pub fn is_queue_full(&self) -> bool {
        self.queue.len() >= RECORDS_AT_A_TIME && !self.file.is_behind()
    }

    /// Appends the queued records to the file.
    ///
    /// Costs no system call without records, three for up to 400, and two for each further 400.
    ///
    /// # Errors
    /// If the file cannot be written. Memory keeps everything, and the next flush that succeeds writes
    /// the whole ledger.
    pub fn flush(&mut self, now: Duration) -> Result<(), Failure> {
        // Taken, even if the write fails: then the next flush writes the whole ledger from memory, and a
        // kept queue would grow while the disk is full.
        let queued = std::mem::take(&mut self.queue);
        if !queued.is_empty() {
            self.check_file();
        }
        let written = match self.file.is_behind() {
            true => self.rewrite(),
            false => self.file.append(&queued),
        };
        match &written {
            Ok(()) => self.retry.reset(),
            // A round flushes several times. Its failures count as one.
            Err(_) if self.retry.is_waiting(now) => {}
            Err(_) => self.retry.back_off(now),
        }
        Ok(written?)
    }

    /// Rewrites the file if later lines revoke most of its lines.
    ///
    /// # Errors
    /// If the file cannot be written. The old one stays.
    pub fn compact(&mut self) -> Result<(), Failure> {
        let needed = self.owned.len() + self.drains.iter().count() + self.retired.iter().count();
        if self.file.is_worth_rewriting(needed) {
            self.rewrite()?;
        }
        Ok(())
    }

    /// Frees the memory that many insertions in order of the keys left unused.
    pub fn pack(&mut self) {
        self.owned.pack();
    }

    /// Returns the virtual servers whose connections are to be counted at `now`. One may appear twice.
    pub fn due(&self, now: Duration) -> impl Iterator<Item = ipvs::ServiceKey> + '_ {
        self.drains.due(now).chain(self.retired.due(now))
    }

    /// Returns when to try a flush again, or to count connections.
    pub fn next_due(&self) -> Option<Duration> {
        let counts = [self.drains.next_due(), self.retired.next_due()];
        let timers = counts.into_iter().chain([self.retry.due()]);
        timers.flatten().min()
    }

    /// Continues in another file, as if the first one had become unwritable.
    #[cfg(test)]
    pub(crate) fn move_to(&mut self, file: LedgerFile) {
        self.file = file;
    }

    fn rewrite(&mut self) -> Result<(), Error> {
        let owned = self.owned.iter();
        let owned = owned.filter_map(|(key, service)| Record::own(key, service.clone()));
        let drains = self.drains.iter();
        let drains = drains.filter_map(|(key, destination, drain)| {
            Record::drain(key, destination, drain.deadline)
        });
        let retired = self.retired.iter();
        let retired = retired.filter_map(|(key, drain)| Record::retire(key, drain.deadline));
        let rules = self.rules.map(Record::from);
        let mark_key = self.mark_key.map(Record::mark_key);
        let single = mark_key.into_iter().chain(rules);
        let all: Vec<Record> = owned.chain(drains).chain(retired).chain(single).collect();
        self.file.rewrite(&all)
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Own { server, service } => self.insert(server.into(), service),
            Record::Disown { server } => self.disown(&server.into()),
            Record::Drain {
                server,
                destination,
                until,
            } => {
                let deadline = Duration::from_secs(until);
                // At time 0 no deadline is over, and the first count is due at once.
                self.drain(server.into(), destination.into(), Duration::ZERO, deadline);
            }
            Record::Drained {
                server,
                destination,
            } => self.end(&server.into(), &destination.into()),
            Record::Retire { server, until } => {
                let deadline = Duration::from_secs(until);
                self.retire(server.into(), Duration::ZERO, deadline);
            }
            Record::Unretire { server } => self.end_retirement(&server.into()),
            // An unreadable key is as a lost one: the next round draws another.
            Record::MarkKey { key } => self.mark_key = MarkKey::parse(&key),
            Record::Rules {
                generation,
                fingerprint,
            } => self.set_rules(WrittenRules {
                generation,
                fingerprint,
            }),
        }
    }

    fn insert(&mut self, key: ipvs::ServiceKey, service: ServicePortName) {
        let record = Record::own(key, service.clone());
        self.owned.insert(key, service);
        self.enqueue(record);
    }

    fn enqueue(&mut self, record: Option<Record>) {
        self.queue.extend(record);
    }
}
