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

use std::collections::BTreeSet;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::dataplane::Failure;
use crate::filter::Fingerprint;
use crate::frontend::LedgerKey;
use crate::joined::joined;
use crate::model::ServicePortName;
use crate::observed::{CountedServer, Observed, ObservedServer};
use crate::plan::{Desired, VirtualServer};
use crate::timer::Timer;

mod drains;
mod file;
mod lock;
mod owned;
mod record;
mod retired;

pub(crate) use drains::Drain;
pub use drains::Drains;
pub(crate) use file::Error;
pub use file::LedgerFile;
pub(crate) use lock::{LedgerLock, LockError};
pub(crate) use owned::{Owned, Territory};
pub use retired::Retired;

use record::Record;

/// What is owned, what drains, and which packet rules were written last.
#[derive(Debug)]
pub struct Ledger {
    owned: Owned,
    drains: Drains,
    retired: Retired,
    rules: Option<WrittenRules>,
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
    /// If the file exists and cannot be read. A ledger without its records would treat our virtual
    /// servers outside the service ranges as foreign, so the caller decides.
    pub fn open(mut file: LedgerFile) -> Result<Self, Error> {
        let records = file.read()?;
        let mut ledger = Self {
            owned: Owned::default(),
            drains: Drains::default(),
            retired: Retired::default(),
            rules: None,
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

    /// Records that a virtual server is owned and serves `owner`. Returns whether that is new.
    pub fn own(&mut self, key: ipvs::ServiceKey, owner: &ServicePortName) -> bool {
        if self.owned.is_for(&key, owner) {
            return false;
        }
        self.insert(key, owner.to_string().into());
        true
    }

    /// Records the desired virtual servers that the kernel has as owned.
    ///
    /// They are recorded already, unless the file was lost. Then only virtual servers that need an Op
    /// would be recorded again.
    pub fn adopt(&mut self, desired: &Desired, observed: &Observed) {
        let before = self.owned.len();
        for (key, wanted, found) in joined(&desired.virtual_servers, &observed.virtual_servers) {
            if let (Some(wanted), Some(_)) = (wanted, found) {
                self.own(*key, &wanted.owner);
            }
        }
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

    /// Records that a destination has weight 0 since `now` and drains until `deadline`.
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

    /// Ends the retirement of a virtual server that is desired again, and the drains of its
    /// destinations that are.
    pub fn end_desired(&mut self, key: &ipvs::ServiceKey, desired: &Desired) {
        let Some(wanted) = desired.virtual_servers.get(key) else {
            return;
        };
        self.end_retirement(key);
        for destination in self.drains.of(key) {
            if wanted.has_destination(&destination) {
                self.end(key, &destination);
            }
        }
    }

    /// Begins the drains that are not recorded: of stale destinations with weight 0.
    ///
    /// Such destinations remain if a process was killed after its Op, or if the kernel refused to
    /// restore the weight of a destination that is stale again.
    pub fn recognise_drains(
        &mut self,
        key: &ipvs::ServiceKey,
        desired: &Desired,
        observed: &Observed,
        now: Duration,
    ) {
        let wanted = desired.virtual_servers.get(key);
        let found = observed.virtual_servers.get(key);
        let (Some(wanted), Some(found)) = (wanted, found) else {
            return;
        };
        self.recognise(key, wanted, found, now);
    }

    /// Does the same for all virtual servers.
    pub fn recognise_all_drains(&mut self, desired: &Desired, observed: &Observed, now: Duration) {
        for (key, wanted, found) in joined(&desired.virtual_servers, &observed.virtual_servers) {
            if let (Some(wanted), Some(found)) = (wanted, found) {
                self.recognise(key, wanted, found, now);
            }
        }
    }

    fn recognise(
        &mut self,
        key: &ipvs::ServiceKey,
        wanted: &VirtualServer,
        found: &ObservedServer,
        now: Duration,
    ) {
        if found.destinations.are(&wanted.destinations) {
            return;
        }
        for destination in found.destinations.iter() {
            if destination.weight == 0 && !wanted.has_destination(&destination.key) {
                self.drain(*key, destination.key, now, now + wanted.drain);
            }
        }
    }

    /// Updates the drains of a virtual server by `found`, its connections at `now`.
    ///
    /// `None` if the kernel no longer has the virtual server. The drain of a destination without
    /// connections, or past its deadline, is over. A destination that another program deleted no
    /// longer drains.
    pub fn count(&mut self, key: &ipvs::ServiceKey, found: Option<&CountedServer>, now: Duration) {
        for destination in self.drains.counted(key, found, now) {
            self.enqueue(Record::drained(*key, destination));
        }
    }

    /// Records the packet rules that a transaction of ours led to.
    pub fn set_rules(&mut self, rules: WrittenRules) {
        self.rules = Some(rules);
        self.enqueue(Some(Record::from(rules)));
    }

    /// Checks the file. If another program changed it, the next flush writes the whole ledger.
    pub fn check_file(&mut self) {
        self.file.check();
    }

    /// Appends the queued records to the file.
    ///
    /// Costs three system calls for up to 1,000 records, two for each further 1,000, none without any.
    ///
    /// # Errors
    /// If the file cannot be written. Memory keeps everything, and the next flush that succeeds writes
    /// the whole ledger.
    pub fn flush(&mut self, now: Duration) -> Result<(), Failure> {
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
            // A round flushes up to twice. Two failures of a round count as one.
            Err(_) if self.retry.is_waiting(now) => {}
            Err(_) => self.retry.back_off(now),
        }
        Ok(written?)
    }

    /// Rewrites the file if most of its lines are revoked by later ones.
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

    /// Frees the memory that insertions in order of the keys left unused. Useful after many.
    pub fn pack(&mut self) {
        self.owned.pack();
    }

    /// Returns the virtual servers whose connections are to be counted at `now`.
    pub fn due(&self, now: Duration) -> BTreeSet<ipvs::ServiceKey> {
        self.drains.due(now).chain(self.retired.due(now)).collect()
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
        let owned = owned.filter_map(|(key, service)| Record::own(*key, service.into()));
        let drains = self.drains.iter();
        let drains = drains.filter_map(|(key, destination, drain)| {
            Record::drain(key, destination, drain.deadline)
        });
        let retired = self.retired.iter();
        let retired = retired.filter_map(|(key, drain)| Record::retire(key, drain.deadline));
        let rules = self.rules.map(Record::from);
        let all: Vec<Record> = owned.chain(drains).chain(retired).chain(rules).collect();
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
            Record::Rules {
                generation,
                fingerprint,
            } => self.set_rules(WrittenRules {
                generation,
                fingerprint,
            }),
        }
    }

    fn insert(&mut self, key: ipvs::ServiceKey, service: Box<str>) {
        let record = Record::own(key, service.clone());
        self.owned.insert(key, service);
        self.enqueue(record);
    }

    fn enqueue(&mut self, record: Option<Record>) {
        self.queue.extend(record);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::Path;

    use super::*;
    use crate::model::ObjectName;

    const NOW: Duration = Duration::from_secs(1);

    fn key(last: u8) -> ipvs::ServiceKey {
        ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 0, last].into(),
            port: 80,
        }
    }

    fn owner(name: &str) -> ServicePortName {
        ServicePortName {
            service: ObjectName::new("a", name),
            port: "".into(),
        }
    }

    fn destination() -> ipvs::DestinationKey {
        ipvs::DestinationKey {
            address: IpAddr::from([10, 244, 0, 1]),
            port: 8080,
        }
    }

    fn open(path: &Path) -> Ledger {
        Ledger::open(LedgerFile::new(path)).unwrap()
    }

    fn names(ledger: &Ledger) -> Vec<&str> {
        ledger.owned.iter().map(|(_, name)| name).collect()
    }

    fn drain(ledger: &mut Ledger, last: u8, until: u64) {
        ledger.drain(key(last), destination(), NOW, Duration::from_secs(until));
    }

    #[test]
    fn a_new_process_reads_the_flushed_records() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/ledger");
        let mut ledger = open(&path);
        assert!(ledger.own(key(1), &owner("b")) && ledger.own(key(2), &owner("c")));
        assert!(!ledger.own(key(2), &owner("c")));
        drain(&mut ledger, 2, 70);
        ledger.flush(NOW).unwrap();
        ledger.disown(&key(1));
        drain(&mut ledger, 2, 90);
        let mark = ipvs::ServiceKey::Mark {
            family: ipvs::Family::V6,
            mark: 7,
        };
        ledger.own(mark, &owner("d"));
        let rules = WrittenRules {
            generation: 3,
            fingerprint: 4,
        };
        ledger.set_rules(rules);
        ledger.flush(NOW).unwrap();
        let read = open(&path);
        assert_eq!(names(&read), ["a/c", "a/d"]);
        assert_eq!(read.rules(), Some(rules));
        let drains: Vec<_> = read.drains.iter().collect();
        let (server, _, drain) = drains[0];
        assert_eq!((drains.len(), server), (1, key(2)));
        assert_eq!(
            drain.deadline,
            Duration::from_secs(70),
            "a drain keeps its first deadline"
        );
    }

    #[test]
    fn a_new_process_does_not_read_drains_that_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let mut ledger = open(&path);
        for last in [1, 2, 3] {
            ledger.own(key(last), &owner("b"));
            drain(&mut ledger, last, 70);
        }
        ledger.end(&key(1), &destination());
        ledger.disown(&key(2));
        // The kernel no longer has the third virtual server.
        ledger.count(&key(3), None, NOW);
        ledger.flush(NOW).unwrap();
        assert_eq!(open(&path).drains().iter().count(), 0);
    }

    #[test]
    fn the_file_is_compacted_when_most_of_it_is_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let mut ledger = open(&path);
        for _ in 0..600 {
            ledger.own(key(9), &owner("x"));
            ledger.disown(&key(9));
        }
        ledger.own(key(1), &owner("b"));
        drain(&mut ledger, 1, 5);
        ledger.flush(NOW).unwrap();
        ledger.compact().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        ledger.own(key(2), &owner("c"));
        ledger.flush(NOW).unwrap();
        let read = open(&path);
        assert_eq!(names(&read), ["a/b", "a/c"]);
        assert_eq!(read.drains.iter().count(), 1);
    }

    #[test]
    fn the_flush_after_a_failed_one_writes_the_whole_ledger() {
        let directory = tempfile::tempdir().unwrap();
        let blocked = directory.path().join("run");
        std::fs::write(&blocked, "not a folder").unwrap();
        let path = blocked.join("ledger");
        let mut ledger = open(&directory.path().join("none"));
        ledger.file = LedgerFile::new(&path);
        for (last, name) in [(1, "b"), (2, "c")] {
            ledger.own(key(last), &owner(name));
            ledger.flush(NOW).unwrap_err();
            assert!(ledger.queue.is_empty(), "a queue would grow without bound");
        }
        // Although the queue is empty, the file lacks records.
        ledger.flush(NOW).unwrap_err();
        assert!(ledger.next_due().is_some());
        std::fs::remove_file(blocked).unwrap();
        ledger.flush(NOW).unwrap();
        assert_eq!(ledger.next_due(), None);
        ledger.own(key(3), &owner("d"));
        ledger.flush(NOW).unwrap();
        assert_eq!(names(&open(&path)), ["a/b", "a/c", "a/d"]);
    }
}
