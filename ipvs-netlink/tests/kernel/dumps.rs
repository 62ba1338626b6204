//! Dumps (section 6).

use std::collections::BTreeSet;

use ipvs_netlink::message::write_header;
use ipvs_netlink::sys::{IPVS_CMD_GET_DEST, IPVS_CMD_GET_SERVICE, IPVS_GENL_VERSION};
use ipvs_netlink::{Change, Errno, ServiceKey};

use crate::{client, errno, server, service, tcp};

#[test]
fn thousands_of_services_come_back_complete() {
    lab::test(|| {
        let mut client = client();
        let keys: BTreeSet<ServiceKey> = (0..3_000_u16)
            .map(|n| tcp(&format!("10.9.{}.{}:80", n / 250, n % 250 + 1)))
            .collect();
        let changes: Vec<Change> = keys
            .iter()
            .map(|&key| Change::AddService(service(key, "rr")))
            .collect();
        assert!(client.apply(&changes).unwrap().iter().all(Result::is_ok));
        // Right away, while 7.2 moves its table to a larger one in the background.
        let listed = client.services().unwrap();
        assert_eq!(listed.len(), keys.len());
        assert_eq!(
            listed
                .iter()
                .map(|entry| entry.service.key)
                .collect::<BTreeSet<_>>(),
            keys
        );
    });
}

#[test]
fn destinations_come_newest_first() {
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
            .walk(|service, destinations| walked.push((service.service.key, destinations.len())))
            .unwrap();
        assert_eq!(walked, [(key, 700)]);
        assert_eq!(client.table().unwrap()[0].1.len(), 700);
    });
}

#[test]
fn nothing_is_an_empty_dump_and_so_is_an_unknown_service() {
    lab::test(|| {
        let mut client = client();
        assert_eq!(client.services().unwrap(), []);
        assert_eq!(client.destinations(&tcp("10.9.0.1:80")).unwrap(), []);
        assert_eq!(client.daemons().unwrap(), []);
    });
}

/// A command that only dumps cannot be asked otherwise, and the other way round.
#[test]
fn dump_flags_are_checked() {
    lab::test(|| {
        let mut client = client();
        let family = client.family();
        let answer = client
            .transport()
            .request(family, 0, "asking without dump", |writer| {
                write_header(writer, IPVS_CMD_GET_DEST, IPVS_GENL_VERSION);
            });
        assert_eq!(errno(answer), Some(Errno::OPNOTSUPP));
        for command in [0, 14, 18, 200] {
            let answer = client
                .transport()
                .request(family, 0, "asking nonsense", |writer| {
                    write_header(writer, command, IPVS_GENL_VERSION);
                });
            assert!(answer.unwrap_err().is_unsupported(), "{command}");
        }
        // NLM_F_REPLACE and NLM_F_EXCL together are the flags of a dump.
        let answer = client
            .transport()
            .request(family, 0x300, "flushing", |writer| {
                write_header(writer, 17, IPVS_GENL_VERSION);
            });
        assert_eq!(errno(answer), Some(Errno::OPNOTSUPP));
    });
}

/// A second dump on a socket whose first is unfinished is refused; the first goes on.
#[test]
fn one_dump_at_a_time() {
    use netlink_packet_core::NLM_F_DUMP;

    lab::test(|| {
        let mut client = client();
        let changes: Vec<Change> = (1..=250)
            .map(|n| Change::AddService(service(tcp(&format!("10.9.0.{n}:80")), "rr")))
            .collect();
        assert!(client.apply(&changes).unwrap().iter().all(Result::is_ok));
        let family = client.family();
        let mut batch = ipvs_netlink::batch::Batch::new();
        for _ in 0..2 {
            batch
                .push(family, NLM_F_DUMP, |writer| {
                    write_header(writer, IPVS_CMD_GET_SERVICE, IPVS_GENL_VERSION);
                })
                .unwrap();
        }
        let answers = client.transport().run(&mut batch).unwrap();
        let refused = |answer: &ipvs_netlink::transport::Answer| {
            matches!(answer, Err(ipvs_netlink::transport::NoAnswer::Refused(refusal))
                if refusal.errno == Errno::BUSY)
        };
        assert!(refused(&answers[1]), "{answers:?}");
        // What is left of the first dump does not disturb what follows.
        assert_eq!(client.services().map(|all| all.len()).unwrap_or(250), 250);
    });
}
