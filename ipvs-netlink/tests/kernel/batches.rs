//! Batches: order, errors and the limits of a datagram.

use ipvs_netlink::{Change, Errno};

use crate::{client, server, service, tcp};

#[test]
fn each_of_ten_thousand_changes_has_its_outcome() {
    lab::test(|| {
        let mut client = client();
        let key = tcp("10.9.0.1:80");
        client.add_service(&service(key, "rr")).unwrap();
        // Every 37th change repeats its predecessor, every 41st names a missing service.
        let mut changes = Vec::new();
        let mut expected = Vec::new();
        for n in 0..10_000_u32 {
            let address = format!("10.9.{}.{}:80", 1 + n / 250, 1 + n % 250);
            let (change, errno) = match n {
                n if n > 0 && n % 37 == 0 => (changes[n as usize - 1], Some(Errno::EXIST)),
                n if n % 41 == 0 => {
                    let missing = tcp("10.9.0.2:80");
                    (
                        Change::DeleteDestination(missing, server(&address, 1).key),
                        Some(Errno::SRCH),
                    )
                }
                _ => (Change::AddDestination(key, server(&address, 1)), None),
            };
            // A repeated deletion fails like the first.
            let errno = match (errno, expected.last()) {
                (Some(Errno::EXIST), Some(&Some(Errno::SRCH))) => Some(Errno::SRCH),
                (errno, _) => errno,
            };
            changes.push(change);
            expected.push(errno);
        }
        let outcomes = client.apply(&changes).unwrap();
        let errnos: Vec<_> = outcomes
            .iter()
            .map(|outcome| outcome.as_ref().err().and_then(|e| e.errno()))
            .collect();
        assert_eq!(errnos, expected);
        let added = expected.iter().filter(|errno| errno.is_none()).count();
        assert_eq!(client.destinations(&key).unwrap().len(), added);
    });
}

#[test]
fn no_answer_is_lost_if_every_change_fails() {
    lab::test(|| {
        let mut client = client();
        let changes = vec![Change::DeleteService(tcp("10.9.0.1:80")); 2_000];
        let outcomes = client.apply(&changes).unwrap();
        assert_eq!(outcomes.len(), 2_000);
        assert!(
            outcomes
                .iter()
                .all(|o| o.as_ref().unwrap_err().is_no_such_service())
        );
        // The client still works.
        client
            .add_service(&service(tcp("10.9.0.1:80"), "rr"))
            .unwrap();
        assert_eq!(client.services().unwrap().len(), 1);
    });
}

/// Tests the first and last change and both sides of the datagrams' ends (128 changes each).
#[test]
fn a_failed_change_is_identified_at_every_position() {
    lab::test(|| {
        let mut client = client();
        for position in [0, 1, 126, 127, 128, 129, 254, 255, 256, 299] {
            client.flush().unwrap();
            let mut changes: Vec<Change> = (0..300)
                .map(|n| Change::AddService(service(tcp(&format!("10.9.0.1:{}", 1_000 + n)), "rr")))
                .collect();
            changes[position] = Change::DeleteService(tcp("10.9.0.2:80"));
            let outcomes = client.apply(&changes).unwrap();
            let failed: Vec<usize> = (0..300).filter(|&n| outcomes[n].is_err()).collect();
            assert_eq!(failed, [position]);
        }
        assert!(client.apply(&[]).unwrap().is_empty());
    });
}
