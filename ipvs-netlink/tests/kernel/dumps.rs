//! Dumps: completeness, order and flags.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ipvs_netlink::message::write_header;
use ipvs_netlink::sys::{IPVS_CMD_GET_DEST, IPVS_CMD_GET_SERVICE, IPVS_GENL_VERSION};
use ipvs_netlink::{Change, Errno, Family, ServiceEntry, ServiceKey};

use crate::{client, errno, mark, server, service, tcp};

/// Returns the key of the virtual server `n`.
fn numbered(n: u16) -> ServiceKey {
    tcp(&format!("10.9.{}.{}:80", n / 250, n % 250 + 1))
}

#[test]
fn a_dump_of_thousands_of_services_is_complete() {
    lab::test(|| {
        let mut client = client();
        let keys: BTreeSet<ServiceKey> = (0..3_000_u16).map(numbered).collect();
        let changes: Vec<Change> = keys
            .iter()
            .map(|&key| Change::AddService(service(key, "rr")))
            .collect();
        assert!(client.apply(&changes).unwrap().iter().all(Result::is_ok));
        // No delay: the first dump runs while Linux 7.2 resizes its table in the background. On Linux 6.1, all
        // network namespaces share a table, and a dump continues at a position in it
        // (`ip_vs_genl_dump_services`). So changes by other tests hide an entry from some dumps, and others
        // fail because they list one twice.
        let mut dumps = std::iter::repeat_with(|| client.services())
            .take(100)
            .flatten();
        let listed = dumps.find(|listed| listed.len() == keys.len()).unwrap();
        assert_eq!(
            listed
                .iter()
                .map(|entry| entry.service.key)
                .collect::<BTreeSet<_>>(),
            keys
        );
    });
}

/// On Linux 6.1, all network namespaces share a table, and a dump continues at a position in it.
///
/// The dump of 100 is a full datagram and a few more, that of 400 is five datagrams.
#[test]
fn no_known_service_is_missing_while_another_namespace_changes_its_own() {
    const WALKS: usize = 50;
    lab::test(|| {
        for services in [100, 400] {
            let mut client = client();
            client.flush().unwrap();
            add(&mut client, services);
            // Virtual servers that do not exist may be known, too.
            let known = || (0..services + 50).map(numbered);
            let walk = || {
                let mut length = 0_u16;
                client.walk(known(), |_, _| length += 1).map(|()| length)
            };
            let lengths: Vec<_> =
                beside_changes(|| std::iter::repeat_with(walk).take(WALKS).collect());
            let whole =
                |length: &ipvs_netlink::Result<u16>| matches!(length, Ok(it) if *it == services);
            assert!(lengths.iter().all(whole), "{services}: {lengths:?}");
        }
    });
}

/// On Linux 6.1, a dump that the other namespace grows lists its last virtual servers twice, also if it is
/// a single datagram.
#[test]
fn a_small_table_is_walked_once_while_another_namespace_changes_its_own() {
    const WALKS: usize = 1_000;
    lab::test(|| {
        let mut client = client();
        let mut keys = [numbered(0), mark(Family::V4, 7)];
        keys.sort();
        for key in keys {
            client.add_service(&service(key, "rr")).unwrap();
        }
        let walk = || {
            let mut walked = Vec::new();
            let each = |entry: &ServiceEntry, _: &[_]| walked.push(entry.service.key);
            client.walk([], each).unwrap();
            walked.sort();
            walked
        };
        let walks: Vec<_> = beside_changes(|| std::iter::repeat_with(walk).take(WALKS).collect());
        let wrong: Vec<_> = walks.iter().filter(|&it| *it != keys).collect();
        assert!(wrong.is_empty(), "{} of {WALKS}: {wrong:?}", wrong.len());
    });
}

/// Adds the first virtual servers.
fn add(client: &mut ipvs_netlink::Client, services: u16) {
    let add = |n| Change::AddService(service(numbered(n), "rr"));
    let changes: Vec<Change> = (0..services).map(add).collect();
    assert!(client.apply(&changes).unwrap().iter().all(Result::is_ok));
}

/// Runs `work`, which must not panic, while another network namespace adds and deletes 50 virtual servers.
fn beside_changes<T>(work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            lab::in_fresh_network(|| {
                let mut other = client();
                while !is_over.load(Ordering::Relaxed) {
                    add(&mut other, 50);
                    thread::sleep(Duration::from_micros(300));
                    other.flush().unwrap();
                    thread::sleep(Duration::from_micros(300));
                }
            })
            .unwrap();
        });
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn destinations_are_listed_newest_first() {
    lab::test(|| {
        let mut client = client();
        let key = tcp("10.9.0.1:80");
        client.add_service(&service(key, "rr")).unwrap();
        let servers: Vec<_> = (1..=700)
            .map(|n| server(&format!("10.9.1.1:{n}"), n))
            .collect();
        let changes: Vec<Change> = servers
            .iter()
            .map(|&server| Change::AddDestination(key, server))
            .collect();
        assert!(client.apply(&changes).unwrap().iter().all(Result::is_ok));
        let listed: Vec<_> = client
            .destinations(&key)
            .unwrap()
            .iter()
            .map(|entry| entry.destination)
            .collect();
        assert!(listed.iter().eq(servers.iter().rev()));
        let mut walked = Vec::new();
        client
            .walk([], |service, destinations| {
                walked.push((service.service.key, destinations.len()))
            })
            .unwrap();
        assert_eq!(walked, [(key, 700)]);
        assert_eq!(client.table().unwrap()[0].1.len(), 700);
    });
}

#[test]
fn dumps_of_an_empty_table_and_of_a_missing_service_are_empty() {
    lab::test(|| {
        let mut client = client();
        assert_eq!(client.services().unwrap(), []);
        assert_eq!(client.destinations(&tcp("10.9.0.1:80")).unwrap(), []);
        assert_eq!(client.daemons().unwrap(), []);
    });
}

/// Dump commands need the dump flags, and other commands reject them.
#[test]
fn wrong_dump_flags_and_unknown_commands_are_unsupported() {
    lab::test(|| {
        let mut client = client();
        let family = client.family();
        let answer =
            client
                .transport()
                .request(family, 0, "a dump command without flags", |writer| {
                    write_header(writer, IPVS_CMD_GET_DEST, IPVS_GENL_VERSION);
                });
        assert_eq!(errno(answer), Some(Errno::OPNOTSUPP));
        for command in [0, 14, 18, 200] {
            let answer = client
                .transport()
                .request(family, 0, "an unknown command", |writer| {
                    write_header(writer, command, IPVS_GENL_VERSION);
                });
            assert!(answer.unwrap_err().is_unsupported(), "{command}");
        }
        // NLM_F_REPLACE (0x100) and NLM_F_EXCL (0x200) together equal NLM_F_DUMP.
        let answer = client
            .transport()
            .request(family, 0x300, "flushing", |writer| {
                write_header(writer, 17, IPVS_GENL_VERSION);
            });
        assert_eq!(errno(answer), Some(Errno::OPNOTSUPP));
    });
}

/// The second dump fails with `EBUSY`, and the first continues.
#[test]
fn a_second_dump_on_the_same_socket_is_rejected() {
    use netlink::NLM_F_DUMP;

    lab::test(|| {
        let mut client = client();
        let changes: Vec<Change> = (1..=250)
            .map(|n| Change::AddService(service(tcp(&format!("10.9.0.{n}:80")), "rr")))
            .collect();
        assert!(client.apply(&changes).unwrap().iter().all(Result::is_ok));
        let family = client.family();
        let mut batch = netlink::batch::Batch::new();
        for _ in 0..2 {
            batch
                .push(family, NLM_F_DUMP, |writer| {
                    write_header(writer, IPVS_CMD_GET_SERVICE, IPVS_GENL_VERSION);
                })
                .unwrap();
        }
        let answers = client.transport().run(&mut batch).unwrap();
        let refused = |answer: &netlink::transport::Answer| {
            matches!(answer, Err(netlink::transport::RequestError::Refused(refusal))
                if refusal.errno == Errno::BUSY)
        };
        assert!(refused(&answers[1]), "{answers:?}");
        // The unread rest of the first dump does not disturb later requests.
        let key = tcp("10.9.0.250:80");
        assert_eq!(client.service(&key).unwrap().service.key, key);
    });
}
