//! Tests of the ledger and its file.

use std::net::IpAddr;
use std::path::Path;

use super::*;
use crate::cluster::model::ObjectName;

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

fn names(ledger: &Ledger) -> Vec<String> {
    let owners = ledger.owned.iter().map(|(_, owner)| owner);
    owners.map(ServicePortName::to_string).collect()
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
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), 2);
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

#[test]
fn a_full_queue_is_reported_unless_a_write_failed() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(&directory.path().join("ledger"));
    let fill = |ledger: &mut Ledger| {
        for _ in 0..RECORDS_AT_A_TIME / 2 {
            assert!(!ledger.is_queue_full());
            ledger.own(key(1), &owner("b"));
            ledger.disown(&key(1));
        }
    };
    fill(&mut ledger);
    assert!(ledger.is_queue_full());
    ledger.flush(NOW).unwrap();
    // A file in a file cannot be written.
    ledger.file = LedgerFile::new(directory.path().join("ledger/other"));
    fill(&mut ledger);
    ledger.flush(NOW).unwrap_err();
    fill(&mut ledger);
    assert!(!ledger.is_queue_full());
}
