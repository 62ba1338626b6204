//! Our requests equal those of `ipvsadm`, and recorded answers of the kernel decode correctly.
//!
//! `record.sh` made the recordings `data/*.hex`. The tests cover every command in them. Requests
//! are compared byte for byte, except for the deliberate differences in `wire/difference.rs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use ipvs_netlink::message::{
    push_change, read_attributes, read_daemon, read_destination, read_info, read_service,
    read_timeouts, write_daemon, write_daemon_key, write_header, write_service_key, write_timeouts,
};
use ipvs_netlink::sys::*;
use ipvs_netlink::{
    Change, ClientMask, Daemon, DaemonRole, Destination, DestinationEntry, Family, Forwarding,
    Info, Protocol, Service, ServiceEntry, ServiceFlags, ServiceKey, Stats, Timeouts, Tunnel,
    TunnelFlags, TunnelKind,
};
use netlink::attr::{Attribute, Writer};
use netlink::batch::Batch;

use difference::{as_ours, rewritten, unchanged};
use recording::{Direction, hex, recorded};

#[path = "wire/difference.rs"]
mod difference;
#[path = "wire/recording.rs"]
mod recording;

const SERVICES: &str = include_str!("data/services.hex");
const DESTINATIONS: &str = include_str!("data/destinations.hex");
/// The same table, listed by two kernels.
///
/// The lab's 6.1 kernel pads 64-bit counters to 8 bytes (`IPVS_STATS_ATTR_PAD`), as kernels built
/// without `CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS` do.
const LISTS: [&str; 2] = [
    include_str!("data/lists-6.1.hex"),
    include_str!("data/lists-7.2.hex"),
];
const SETTINGS: &str = include_str!("data/settings.hex");

/// The command of the reply to `IPVS_CMD_GET_INFO`; it is never a request.
const IPVS_CMD_SET_INFO: u8 = 14;

/// Compares every request of a recording with ours.
fn check(text: &'static str, expected: &[(&str, Vec<u8>)]) {
    let recorded = recorded(text);
    let commands: Vec<_> = recorded.iter().map(|exchange| exchange.command).collect();
    let expected_commands: Vec<_> = expected.iter().map(|(command, _)| *command).collect();
    assert_eq!(commands, expected_commands);
    for (exchange, (command, ours)) in recorded.iter().zip(expected) {
        let ipvsadms = rewritten(exchange.request(), as_ours);
        assert_eq!(hex(ours), hex(&ipvsadms), "ipvsadm {command}");
    }
}

/// Returns the message that `content` writes, without its netlink header.
fn written(content: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(16, 0, content).unwrap();
    batch.as_bytes()[16..].to_vec()
}

fn change(change: Change) -> Vec<u8> {
    let mut batch = Batch::new();
    push_change(&mut batch, 16, &change).unwrap();
    batch.as_bytes()[16..].to_vec()
}

/// Returns a request that is not a [`Change`], as the client encodes it.
fn request(command: u8, content: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    written(|writer| {
        write_header(writer, command, IPVS_GENL_VERSION);
        content(writer);
    })
}

fn named(writer: &mut Writer<'_>, key: &ServiceKey) {
    writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key));
}

fn key(protocol: Protocol, address: &str) -> ServiceKey {
    let address: SocketAddr = address.parse().unwrap();
    ServiceKey::Address {
        protocol,
        address: address.ip(),
        port: address.port(),
    }
}

fn tcp(address: &str) -> ServiceKey {
    key(Protocol::Tcp, address)
}

fn mark(family: Family) -> ServiceKey {
    ServiceKey::Mark { family, mark: 7 }
}

fn service(key: ServiceKey, scheduler: &str) -> Service {
    Service::new(key, scheduler.parse().unwrap())
}

fn persistent(key: ServiceKey, scheduler: &str, timeout_secs: u32, mask: ClientMask) -> Service {
    Service {
        flags: ServiceFlags::PERSISTENT,
        timeout_secs,
        client_mask: mask,
        ..service(key, scheduler)
    }
}

fn with_flags(service: Service, flags: ServiceFlags) -> Service {
    let flags = service.flags | flags;
    Service { flags, ..service }
}

fn masqueraded(address: &str, weight: u32) -> Destination {
    Destination::new(address.parse::<SocketAddr>().unwrap().into(), weight)
}

fn routed(address: &str, weight: u32) -> Destination {
    Destination {
        forwarding: Forwarding::Route,
        ..masqueraded(address, weight)
    }
}

fn tunnelled(address: &str, kind: TunnelKind, port: u16, flags: TunnelFlags) -> Destination {
    Destination {
        forwarding: Forwarding::Tunnel,
        tunnel: Tunnel { kind, port, flags },
        ..masqueraded(address, 1)
    }
}

const NO_FLAGS: TunnelFlags = TunnelFlags::from_bits(0);
const HOST: ClientMask = ClientMask::host(Family::V4);
/// `sh-fallback,sh-port`.
const BOTH: ServiceFlags = ServiceFlags::from_bits(0x18);

fn all_ports() -> Service {
    persistent(tcp("192.0.2.3:0"), "wrr", 300, ClientMask::V4(0xffff_ff00))
}

fn maglev() -> Service {
    let by_network = persistent(tcp("[2001:db8::2]:80"), "mh", 60, ClientMask::V6(48));
    with_flags(by_network, ServiceFlags::SCHED2)
}

fn sctp() -> Service {
    service(key(Protocol::Sctp, "192.0.2.2:2905"), "lc")
}

#[test]
fn service_requests_equal_those_of_ipvsadm() {
    use Change::{AddService as Add, DeleteService as Delete, SetService as Set};
    let dns = key(Protocol::Udp, "192.0.2.1:53");
    let (web, web6) = (tcp("192.0.2.1:80"), tcp("[2001:db8::1]:443"));
    let marked6 = persistent(mark(Family::V6), "wrr", 600, ClientMask::V6(64));
    let one_packet = with_flags(service(dns, "wlc"), ServiceFlags::ONE_PACKET);
    let expected = [
        ("-A -t 192.0.2.1:80 -s rr", Add(service(web, "rr"))),
        ("-A -u 192.0.2.1:53 -s wlc -o", Add(one_packet)),
        ("-A --sctp-service 192.0.2.2:2905 -s lc", Add(sctp())),
        (
            "-A -t [2001:db8::1]:443 -s sh -b sh-fallback,sh-port",
            Add(with_flags(service(web6, "sh"), BOTH)),
        ),
        (
            "-A -t 192.0.2.3:0 -s wrr -p 300 -M 255.255.255.0",
            Add(all_ports()),
        ),
        (
            "-A -t [2001:db8::2]:80 -s mh -p 60 -M 48 -b mh-port",
            Add(maglev()),
        ),
        ("-A -f 7 -s wrr", Add(service(mark(Family::V4), "wrr"))),
        ("-A -f 7 -6 -s wrr -p 600 -M 64", Add(marked6)),
        (
            "-E -t 192.0.2.1:80 -s wlc -p 120",
            Set(persistent(web, "wlc", 120, HOST)),
        ),
        ("-E -f 7 -s rr", Set(service(mark(Family::V4), "rr"))),
        ("-D -u 192.0.2.1:53", Delete(dns)),
        ("-D -f 7 -6", Delete(mark(Family::V6))),
    ];
    check(SERVICES, &expected.map(|(command, c)| (command, change(c))));
}

#[test]
fn destination_requests_equal_those_of_ipvsadm() {
    use Change::{AddDestination as Add, DeleteDestination as Delete, SetDestination as Set};
    let (web, web6) = (tcp("192.0.2.1:80"), tcp("[2001:db8::1]:443"));
    let limited = Destination {
        upper_threshold: 100,
        lower_threshold: 50,
        ..masqueraded("10.0.0.1:8080", 5)
    };
    let ipip = |address| tunnelled(address, TunnelKind::Ipip, 0, NO_FLAGS);
    let gue = |address, flags| tunnelled(address, TunnelKind::Gue, 6080, flags);
    let gre = tunnelled("10.0.0.6:80", TunnelKind::Gre, 0, TunnelFlags::CHECKSUM);
    let remote = TunnelFlags::REMOTE_CHECKSUM;
    let server6 = masqueraded("[fd00::1]:8443", 3);
    let expected = [
        (
            "-a -t 192.0.2.1:80 -r 10.0.0.1:8080 -m -w 5 -x 100 -y 50",
            Add(web, limited),
        ),
        (
            "-a -t 192.0.2.1:80 -r 10.0.0.2 -g -w 0",
            Add(web, routed("10.0.0.2:80", 0)),
        ),
        (
            "-a -t 192.0.2.1:80 -r 10.0.0.3 -i -w 1",
            Add(web, ipip("10.0.0.3:80")),
        ),
        (
            "-a -t 192.0.2.1:80 -r 10.0.0.4 -i --tun-type gue --tun-port 6080 --tun-remcsum",
            Add(web, gue("10.0.0.4:80", remote)),
        ),
        (
            "-a -t 192.0.2.1:80 -r 10.0.0.5 -i --tun-type gue --tun-port 6080 --tun-nocsum",
            Add(web, gue("10.0.0.5:80", NO_FLAGS)),
        ),
        (
            "-a -t 192.0.2.1:80 -r 10.0.0.6 -i --tun-type gre --tun-csum",
            Add(web, gre),
        ),
        (
            "-a -t [2001:db8::1]:443 -r [fd00::1]:8443 -m -w 3",
            Add(web6, server6),
        ),
        (
            "-a -t [2001:db8::1]:443 -r 10.0.0.7:443 -i",
            Add(web6, ipip("10.0.0.7:443")),
        ),
        (
            "-a -f 7 -r 10.0.0.8:80 -g -w 2",
            Add(mark(Family::V4), routed("10.0.0.8:80", 2)),
        ),
        (
            "-e -t 192.0.2.1:80 -r 10.0.0.1:8080 -m -w 9",
            Set(web, masqueraded("10.0.0.1:8080", 9)),
        ),
        (
            "-d -t 192.0.2.1:80 -r 10.0.0.2",
            Delete(web, routed("10.0.0.2:80", 0).key),
        ),
        (
            "-d -t [2001:db8::1]:443 -r [fd00::1]:8443",
            Delete(web6, server6.key),
        ),
    ];
    check(
        DESTINATIONS,
        &expected.map(|(command, c)| (command, change(c))),
    );
}

/// Returns the daemons of the recording.
///
/// A master with default values, an IPv4 backup without and an IPv6 backup with default values.
fn daemons() -> [Daemon; 3] {
    let dummy = "dummy0".parse().unwrap();
    let backup = Daemon {
        max_length: Some(1400),
        group: Some("224.0.0.82".parse().unwrap()),
        port: Some(9000),
        ttl: Some(2),
        ..Daemon::new(DaemonRole::Backup, dummy, 4)
    };
    let backup6 = Daemon {
        group: Some("ff02::81".parse().unwrap()),
        ..Daemon::new(DaemonRole::Backup, dummy, 0)
    };
    [Daemon::new(DaemonRole::Master, dummy, 3), backup, backup6]
}

const TIMEOUTS: Timeouts = Timeouts {
    tcp_secs: 100,
    tcp_fin_secs: 20,
    udp_secs: 30,
};

#[test]
fn settings_and_daemon_requests_equal_those_of_ipvsadm() {
    let nested = |command, content: &dyn Fn(&mut Writer<'_>)| {
        request(command, |writer| {
            writer.nested(IPVS_CMD_ATTR_DAEMON, |inner| content(inner));
        })
    };
    let start = |daemon: Daemon| nested(IPVS_CMD_NEW_DAEMON, &|inner| write_daemon(inner, &daemon));
    let stop = |role| nested(IPVS_CMD_DEL_DAEMON, &|inner| write_daemon_key(inner, role));
    let [master, backup, backup6] = daemons();
    let web = tcp("192.0.2.1:80");
    let expected = [
        (
            "-Z -t 192.0.2.1:80",
            request(IPVS_CMD_ZERO, |writer| named(writer, &web)),
        ),
        ("-Z", request(IPVS_CMD_ZERO, |_| {})),
        ("-C", request(IPVS_CMD_FLUSH, |_| {})),
        (
            "--set 100 20 30",
            request(IPVS_CMD_SET_CONFIG, |writer| {
                write_timeouts(writer, &TIMEOUTS)
            }),
        ),
        ("-L --timeout", request(IPVS_CMD_GET_CONFIG, |_| {})),
        (
            "--start-daemon master --mcast-interface dummy0 --syncid 3",
            start(master),
        ),
        (
            "--start-daemon backup --mcast-interface dummy0 --syncid 4 --sync-maxlen 1400 \
             --mcast-group 224.0.0.82 --mcast-port 9000 --mcast-ttl 2",
            start(backup),
        ),
        ("-L --daemon", request(IPVS_CMD_GET_DAEMON, |_| {})),
        ("--stop-daemon backup", stop(DaemonRole::Backup)),
        (
            "--start-daemon backup --mcast-interface dummy0 --mcast-group ff02::81",
            start(backup6),
        ),
        ("-L --daemon", request(IPVS_CMD_GET_DAEMON, |_| {})),
        ("--stop-daemon master", stop(DaemonRole::Master)),
    ];
    check(SETTINGS, &expected);
}

/// Checks `rewritten`, which all comparisons use.
#[test]
fn rewriting_without_a_revision_changes_nothing() {
    for text in [SERVICES, DESTINATIONS, LISTS[0], LISTS[1], SETTINGS] {
        for exchange in recorded(text) {
            for request in exchange.all(Direction::ToKernel) {
                let same = rewritten(request, unchanged);
                assert_eq!(hex(request), hex(&same), "ipvsadm {}", exchange.command);
            }
        }
    }
}

#[test]
fn replies_about_version_timeouts_and_daemons_are_decoded() {
    let [master, backup, backup6] = daemons();
    // The kernel reports its defaults. The default maximum length is the MTU (1500) less the IP and
    // UDP headers.
    let running = |daemon: Daemon, max_length, group: &str| Daemon {
        max_length: daemon.max_length.or(Some(max_length)),
        group: daemon.group.or_else(|| group.parse().ok()),
        port: daemon.port.or(Some(8848)),
        ttl: daemon.ttl.or(Some(1)),
        ..daemon
    };
    let master = running(master, 1472, "224.0.0.81");
    let expected = [
        [master, backup],
        [master, running(backup6, 1452, "ff02::81")],
    ];
    let mut listed = Vec::new();
    for exchange in recorded(SETTINGS) {
        for reply in exchange.all(Direction::FromKernel) {
            match reply[0] {
                IPVS_CMD_SET_INFO => {
                    let info = Info {
                        version: (1, 2, 1),
                        connection_table_size: 256,
                    };
                    assert_eq!(read_info(reply).unwrap(), info);
                }
                IPVS_CMD_SET_CONFIG => assert_eq!(read_timeouts(reply).unwrap(), TIMEOUTS),
                command => {
                    assert_eq!(command, IPVS_CMD_NEW_DAEMON);
                    listed.push(read_daemon(&only(reply, IPVS_CMD_ATTR_DAEMON)).unwrap());
                }
            }
        }
    }
    assert_eq!(listed, expected.concat());
}

/// Returns the table after the recorded commands.
fn table() -> Vec<(Service, Vec<Destination>)> {
    let (web, web6) = (tcp("192.0.2.1:80"), tcp("[2001:db8::1]:443"));
    let gue = |address, flags| tunnelled(address, TunnelKind::Gue, 6080, flags);
    let servers = vec![
        masqueraded("10.0.0.1:8080", 9),
        tunnelled("10.0.0.3:80", TunnelKind::Ipip, 0, NO_FLAGS),
        gue("10.0.0.4:80", TunnelFlags::REMOTE_CHECKSUM),
        gue("10.0.0.5:80", NO_FLAGS),
        tunnelled("10.0.0.6:80", TunnelKind::Gre, 0, TunnelFlags::CHECKSUM),
    ];
    let server4 = tunnelled("10.0.0.7:443", TunnelKind::Ipip, 0, NO_FLAGS);
    let marked = service(mark(Family::V4), "rr");
    let mut table = vec![
        (persistent(web, "wlc", 120, HOST), servers),
        (with_flags(service(web6, "sh"), BOTH), vec![server4]),
        (marked, vec![routed("10.0.0.8:80", 2)]),
        (maglev(), vec![]),
        (all_ports(), vec![]),
        (sctp(), vec![]),
    ];
    table.sort();
    table
}

#[test]
fn lists_of_both_kernels_are_decoded() {
    for text in LISTS {
        assert_eq!(listed(text), table());
    }
}

/// Decodes a recorded list.
fn listed(text: &'static str) -> Vec<(Service, Vec<Destination>)> {
    let exchange = recorded(text).remove(0);
    let mut listed: Vec<(Service, Vec<Destination>)> = Vec::new();
    let mut requested = None;
    for (direction, bytes) in &exchange.messages {
        match (direction, bytes[0]) {
            (Direction::ToKernel, IPVS_CMD_GET_SERVICE) => {
                assert_eq!(hex(bytes), hex(&request(IPVS_CMD_GET_SERVICE, |_| {})));
            }
            (Direction::ToKernel, IPVS_CMD_GET_DEST) => {
                let service = read_service(&only(bytes, IPVS_CMD_ATTR_SERVICE)).unwrap();
                let key = service.service.key;
                let ours = request(IPVS_CMD_GET_DEST, |writer| named(writer, &key));
                assert_eq!(hex(bytes), hex(&ours));
                requested = Some(key);
            }
            (Direction::FromKernel, IPVS_CMD_NEW_SERVICE) => {
                let entry = read_service(&only(bytes, IPVS_CMD_ATTR_SERVICE)).unwrap();
                let ServiceEntry { service, stats } = entry;
                assert_eq!(stats, Stats::default());
                listed.push((service, Vec::new()));
            }
            (Direction::FromKernel, IPVS_CMD_NEW_DEST) => {
                let key = requested.unwrap();
                let attribute = only(bytes, IPVS_CMD_ATTR_DEST);
                let entry = read_destination(&attribute, key.family()).unwrap();
                let idle = DestinationEntry {
                    destination: entry.destination,
                    active_connections: 0,
                    inactive_connections: 0,
                    persistent_connections: 0,
                    stats: Stats::default(),
                };
                assert_eq!(entry, idle);
                let of_key = listed.iter_mut().find(|(service, _)| service.key == key);
                of_key.unwrap().1.push(entry.destination);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    listed.sort();
    listed
        .iter_mut()
        .for_each(|(_, destinations)| destinations.sort());
    listed
}

/// Returns the only attribute of a message.
fn only(message: &[u8], kind: u16) -> Attribute<'_> {
    let attributes: Vec<_> = read_attributes(message)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(attributes.len(), 1);
    assert_eq!(attributes[0].kind, kind);
    attributes[0]
}
