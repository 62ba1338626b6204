//! Notices of changes that other programs make to our table.

use std::sync::Arc;
use std::time::Duration;

use nftables::{Command, Element, Key, RulesClient, RulesWatch, Tampering, Value};
use proxier::testing::filter::TABLE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::rules::{everything, modes};
use crate::{FOREIGN, nft};

/// Waits until the watch is readable. Returns whether it is before `patience` ends.
fn wait(watch: &RulesWatch, patience: Duration) -> bool {
    let mut fds = [PollFd::new(watch, PollFlags::IN)];
    let patience = Timespec::try_from(lab::patience(patience)).unwrap();
    poll(&mut fds, Some(&patience)).unwrap() > 0
}

#[test]
fn changes_of_our_table_by_other_programs_are_noticed() {
    lab::test(|| {
        let table = everything(modes()[0].clone());
        let mut client = RulesClient::open(TABLE).unwrap();
        let mut watch = RulesWatch::open(TABLE, client.port(), |_, _| false).unwrap();
        client.replace(&table).unwrap();
        client
            .apply(&[Command::FlushChain("refuse".into())])
            .unwrap();
        nft(&["-f", "-"], FOREIGN).unwrap();
        nft(&["delete", "table", "ip", TABLE], "").unwrap();
        assert_eq!(
            watch.read().unwrap(),
            [],
            "our changes and those of foreign tables are not reported"
        );

        for (command, change) in [
            ("flush ruleset", "table deleted"),
            ("delete table inet ipvs-proxier", "table deleted"),
            ("flush table inet ipvs-proxier", "rule deleted"),
            (
                "add element inet ipvs-proxier pingable-4 { 10.0.0.9 }",
                "element added",
            ),
            ("insert rule inet ipvs-proxier input drop", "rule added"),
            ("delete table arp ipvs-proxier", "table deleted"),
            (
                "flush set arp ipvs-proxier service-addresses",
                "element deleted",
            ),
        ] {
            client.replace(&table).unwrap();
            assert_eq!(watch.read().unwrap(), []);
            nft(&["-f", "-"], command).unwrap();
            assert!(wait(&watch, Duration::from_secs(20)), "{command}");
            let notices = watch.read().unwrap();
            let [notice] = &notices[..] else {
                panic!("{notices:?}");
            };
            let notice = notice.to_string();
            assert!(
                notice.starts_with(&format!("{change} by nft (")),
                "{command}: {notice}"
            );
        }
        // An overflow of the socket's buffer is reported, and later changes are noticed again.
        let mut other = RulesClient::open(TABLE).unwrap();
        let set = Arc::<str>::from("pingable-4");
        let address = |it: u32| Value::V4((0x0b00_0000 + it).into());
        let keys: Vec<Key> = (0..30_000).map(|it| Key::new([address(it)])).collect();
        let add = |key: &Key| {
            let element = Element {
                key: key.clone(),
                verdict: None,
            };
            Command::AddElement(set.clone(), element)
        };
        let delete = |key: &Key| Command::DeleteElement(set.clone(), key.clone());
        for _ in 0..2 {
            let changes: Vec<Command> = keys.iter().map(add).collect();
            other.apply(&changes).unwrap();
            let changes: Vec<Command> = keys.iter().map(delete).collect();
            other.apply(&changes).unwrap();
        }
        assert!(wait(&watch, Duration::from_secs(20)));
        assert!(watch.read().unwrap().contains(&Tampering::Unknown));
        client.replace(&table).unwrap();
        let _own = watch.read().unwrap();
        nft(&["flush", "ruleset"], "").unwrap();
        assert_eq!(watch.read().unwrap().len(), 1);
    });
}
