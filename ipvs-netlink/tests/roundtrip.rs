//! Encoded objects decode to themselves, and no input makes a decoder panic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;

use ipvs_netlink::message::{
    push_change, read_attributes, read_daemon, read_destination, read_service, write_daemon,
    write_destination, write_service, write_service_key,
};
use ipvs_netlink::sys::{
    IPVS_DEST_ATTR_ADDR, IPVS_DEST_ATTR_PORT, IPVS_DEST_ATTR_STATS, IPVS_DEST_ATTR_STATS64,
    IPVS_STATS_ATTR_CONNS, IPVS_STATS_ATTR_INBYTES, IPVS_STATS_ATTR_OUTBYTES, IPVS_SVC_ATTR_STATS,
    IPVS_SVC_ATTR_STATS64,
};
use ipvs_netlink::{
    Change, ClientMask, Daemon, Destination, DestinationKey, Family, Forwarding, Service,
    ServiceFlags, ServiceKey, Stats, Tunnel, TunnelFlags,
};
use netlink::attr::{Attribute, Writer, attributes};
use netlink::batch::Batch;
use netlink::transport::decode_datagram;
use proptest::option;
use proptest::prelude::*;

/// Returns the attributes that `content` writes.
fn written(content: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(16, 0, content).unwrap();
    batch.as_bytes()[16..].to_vec()
}

fn value(bytes: &[u8]) -> Attribute<'_> {
    Attribute {
        kind: 1,
        value: bytes,
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from)
    ]
}

fn key() -> impl Strategy<Value = ServiceKey> {
    let family = prop_oneof![Just(Family::V4), Just(Family::V6)];
    prop_oneof![
        (any::<u16>(), address(), any::<u16>()).prop_map(|(protocol, address, port)| {
            ServiceKey::Address {
                protocol: protocol.into(),
                address,
                port,
            }
        }),
        (family, 1..=u32::MAX).prop_map(|(family, mark)| ServiceKey::Mark { family, mark }),
    ]
}

fn service() -> impl Strategy<Value = Service> {
    // The kernel reports "none" for a service without scheduler, so it decodes to `None`.
    let scheduler = option::of("[a-z]{1,15}".prop_filter("means no scheduler", |n| n != "none"));
    let engine = option::of("[a-z]{1,16}");
    (
        key(),
        scheduler,
        engine,
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(
            |(key, scheduler, engine, flags, timeout_secs, mask)| Service {
                key,
                scheduler: scheduler.map(|name| name.parse().unwrap()),
                flags: ServiceFlags::from_bits(flags).without(ServiceFlags::HASHED),
                timeout_secs,
                client_mask: match key.family() {
                    Family::V4 => ClientMask::V4(mask),
                    Family::V6 => ClientMask::V6(mask),
                },
                engine: engine.map(|name| name.parse().unwrap()),
            },
        )
}

fn destination() -> impl Strategy<Value = Destination> {
    let tunnel = (any::<u8>(), any::<u16>(), any::<u16>()).prop_map(|(kind, port, flags)| Tunnel {
        kind: kind.into(),
        port,
        flags: TunnelFlags::from_bits(flags),
    });
    let key =
        (address(), any::<u16>()).prop_map(|(address, port)| DestinationKey { address, port });
    (key, any::<u8>(), any::<[u32; 3]>(), tunnel).prop_map(|(key, forwarding, numbers, tunnel)| {
        Destination {
            key,
            forwarding: forwarding.into(),
            weight: numbers[0],
            upper_threshold: numbers[1],
            lower_threshold: numbers[2],
            tunnel,
        }
    })
}

fn daemon() -> impl Strategy<Value = Daemon> {
    let optional = (
        option::of(any::<u16>()),
        option::of(address()),
        option::of(any::<u16>()),
        option::of(any::<u8>()),
    );
    (any::<u32>(), "[a-z0-9]{1,15}", any::<u32>(), optional).prop_map(
        |(role, interface, sync_id, (max_length, group, port, ttl))| Daemon {
            role: role.into(),
            interface: interface.parse().unwrap(),
            sync_id,
            max_length,
            group,
            port,
            ttl,
        },
    )
}

proptest! {
    #[test]
    fn services_decode_to_themselves(service in service()) {
        let bytes = written(|writer| write_service(writer, &service));
        prop_assert_eq!(read_service(&value(&bytes)).unwrap().service, service);
    }

    #[test]
    fn destinations_decode_to_themselves(destination in destination()) {
        let bytes = written(|writer| write_destination(writer, &destination));
        // The destination's own family takes precedence over the virtual server's.
        for family in [Family::V4, Family::V6] {
            let read = read_destination(&value(&bytes), family).unwrap();
            prop_assert_eq!(read.destination, destination);
        }
    }

    #[test]
    fn daemons_decode_to_themselves(daemon in daemon()) {
        let bytes = written(|writer| write_daemon(writer, &daemon));
        prop_assert_eq!(read_daemon(&value(&bytes)).unwrap(), daemon);
    }

    #[test]
    fn truncated_input_does_not_panic(
        service in service(), destination in destination(), daemon in daemon()
    ) {
        let bytes = written(|writer| write_service(writer, &service));
        for cut in 0..bytes.len() {
            let _ = read_service(&value(&bytes[..cut]));
        }
        let bytes = written(|writer| write_destination(writer, &destination));
        for cut in 0..bytes.len() {
            let _ = read_destination(&value(&bytes[..cut]), Family::V4);
        }
        let bytes = written(|writer| write_daemon(writer, &daemon));
        for cut in 0..bytes.len() {
            let _ = read_daemon(&value(&bytes[..cut]));
        }
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = attributes(&bytes).count();
        let _ = read_service(&value(&bytes));
        let _ = read_destination(&value(&bytes), Family::V6);
        let _ = read_daemon(&value(&bytes));
        let _ = decode_datagram(&bytes, 0, 4);
    }

    #[test]
    fn a_service_ignores_unknown_attributes_and_takes_the_last_duplicate(
        service in service(),
        other in service(),
        unknown in 100..0x4000_u16,
        content in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        // Both have the same key, because a message with an address and a mark is ambiguous.
        let other = Service { key: service.key, client_mask: service.client_mask, ..other };
        let bytes = written(|writer| {
            writer.bytes(unknown, &content);
            write_service(writer, &other);
            write_service(writer, &service);
        });
        let read = read_service(&value(&bytes)).unwrap().service;
        // The engine is optional, so the first service's remains if the second has none.
        let expected = Service { engine: service.engine.or(other.engine), ..service };
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn destinations_and_daemons_take_the_last_duplicate(
        destinations in [destination(), destination()],
        daemons in [daemon(), daemon()],
        unknown in 100..0x4000_u16,
    ) {
        // Both are tunnels, because other destinations may omit the tunnel parameters.
        let [first, last] = destinations.map(|destination| Destination {
            forwarding: Forwarding::Tunnel,
            ..destination
        });
        let bytes = written(|writer| {
            write_destination(writer, &first);
            writer.bytes(unknown, b"?");
            write_destination(writer, &last);
        });
        let read = read_destination(&value(&bytes), Family::V4).unwrap();
        prop_assert_eq!(read.destination, last);

        let [first, last] = daemons;
        let bytes = written(|writer| {
            write_daemon(writer, &first);
            writer.bytes(unknown, b"?");
            write_daemon(writer, &last);
        });
        // Optional fields of the first daemon remain if the second has none.
        let expected = Daemon {
            max_length: last.max_length.or(first.max_length),
            group: last.group.or(first.group),
            port: last.port.or(first.port),
            ttl: last.ttl.or(first.ttl),
            ..last
        };
        prop_assert_eq!(read_daemon(&value(&bytes)).unwrap(), expected);
    }

    #[test]
    fn the_nested_bit_is_optional(destination in destination()) {
        let mut bytes = written(|writer| {
            writer.nested(2, |inner| write_destination(inner, &destination));
        });
        let mut read = |flags: u16| {
            bytes[2..4].copy_from_slice(&(2 | flags).to_ne_bytes());
            let attribute = attributes(&bytes).next().unwrap().unwrap();
            assert_eq!(attribute.kind, 2);
            read_destination(&attribute, Family::V4).unwrap().destination
        };
        prop_assert_eq!(read(0x8000), destination);
        prop_assert_eq!(read(0), destination);
    }

    #[test]
    fn a_batch_is_a_sequence_of_numbered_messages(
        services in proptest::collection::vec(service(), 1..200),
        first in any::<u32>(),
        family in 17..u16::MAX,
    ) {
        let mut batch = Batch::new();
        for service in &services {
            push_change(&mut batch, family, &Change::AddService(*service)).unwrap();
        }
        batch.number_from(first);
        let mut rest = batch.as_bytes();
        for (index, service) in (0_u32..).zip(&services) {
            let half = |at| u16::from_ne_bytes([rest[at], rest[at + 1]]);
            let word = |at| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
            let (length, kind, flags) = (word(0) as usize, half(4), half(6));
            let is_last = length == rest.len();
            prop_assert_eq!(is_last, index as usize + 1 == services.len());
            prop_assert_eq!(length % 4, 0);
            prop_assert_eq!(kind, family);
            // NLM_F_REQUEST (1), and in the last message NLM_F_ACK (4).
            prop_assert_eq!(flags, if is_last { 5 } else { 1 });
            prop_assert_eq!(word(8), first.wrapping_add(index));
            let attribute = read_attributes(&rest[16..length]).unwrap().next();
            let read = read_service(&attribute.unwrap().unwrap()).unwrap();
            prop_assert_eq!(&read.service, service);
            rest = &rest[length..];
        }
    }

    #[test]
    fn counters_are_decoded_at_any_alignment(numbers in any::<[u64; 10]>(), is_wide: bool) {
        let kind = if is_wide { IPVS_SVC_ATTR_STATS64 } else { IPVS_SVC_ATTR_STATS };
        let numbers = numbers.map(|number| if is_wide { number } else { number >> 32 });
        let bytes = written(|writer| {
            write_service_key(writer, &ServiceKey::Mark { family: Family::V4, mark: 1 });
            writer.nested(kind, |stats| {
                for (attribute, &number) in (IPVS_STATS_ATTR_CONNS..).zip(&numbers) {
                    // IPVS_STATS_ATTR_PAD, and an attribute that no kernel has yet.
                    stats.bytes(11, &[]);
                    stats.u64(99, 1);
                    let narrow = u32::try_from(number).ok();
                    let is_bytes = (IPVS_STATS_ATTR_INBYTES..=IPVS_STATS_ATTR_OUTBYTES)
                        .contains(&attribute);
                    match narrow {
                        Some(number) if !is_wide && !is_bytes => stats.u32(attribute, number),
                        _ => stats.u64(attribute, number),
                    }
                }
            });
        });
        let expected = Stats {
            connections: numbers[0],
            packets_in: numbers[1],
            packets_out: numbers[2],
            bytes_in: numbers[3],
            bytes_out: numbers[4],
            connection_rate: numbers[5],
            packet_rate_in: numbers[6],
            packet_rate_out: numbers[7],
            byte_rate_in: numbers[8],
            byte_rate_out: numbers[9],
        };
        // Netlink aligns attributes to 4 bytes only.
        for shift in 0..8 {
            let shifted = [vec![0; shift], bytes.clone()].concat();
            let read = read_service(&value(&shifted[shift..])).unwrap();
            prop_assert_eq!(read.stats, expected);
        }
    }
}

/// Decodes a destination with the counter attributes `kinds`; returns its connections.
fn connections(kinds: &[u16]) -> u64 {
    let bytes = written(|writer| {
        writer.bytes(IPVS_DEST_ATTR_ADDR, &[10, 0, 0, 1]);
        writer.u16_be(IPVS_DEST_ATTR_PORT, 80);
        for &kind in kinds {
            writer.nested(kind, |stats| match kind {
                IPVS_DEST_ATTR_STATS => stats.u32(IPVS_STATS_ATTR_CONNS, 1),
                _ => stats.u64(IPVS_STATS_ATTR_CONNS, 1 << 40),
            });
        }
    });
    read_destination(&value(&bytes), Family::V4)
        .unwrap()
        .stats
        .connections
}

#[test]
fn counters_with_64_bits_take_precedence_in_any_order() {
    assert_eq!(connections(&[]), 0);
    assert_eq!(connections(&[IPVS_DEST_ATTR_STATS]), 1);
    assert_eq!(
        connections(&[IPVS_DEST_ATTR_STATS, IPVS_DEST_ATTR_STATS64]),
        1 << 40
    );
    assert_eq!(
        connections(&[IPVS_DEST_ATTR_STATS64, IPVS_DEST_ATTR_STATS]),
        1 << 40
    );
}

#[test]
fn a_request_with_a_too_long_attribute_leaves_the_batch_unchanged() {
    let mut batch = Batch::new();
    batch.push(16, 0, |writer| writer.u32(1, 7)).unwrap();
    let before = batch.as_bytes().to_vec();
    let error = batch
        .push(16, 0, |writer| writer.bytes(9, &[0; 70_000]))
        .unwrap_err();
    assert_eq!(error.to_string(), "attribute 9 is longer than 65535 bytes");
    assert_eq!((batch.len(), batch.as_bytes()), (1, &before[..]));
}
