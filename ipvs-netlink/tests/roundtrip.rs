//! What is encoded is decoded, and nothing that is received makes a decoder panic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;

use ipvs_netlink::attr::{Attribute, Writer, attributes};
use ipvs_netlink::batch::Batch;
use ipvs_netlink::message::{
    read_daemon, read_destination, read_service, write_daemon, write_destination, write_service,
};
use ipvs_netlink::sys::{
    IPVS_DEST_ATTR_ADDR, IPVS_DEST_ATTR_PORT, IPVS_DEST_ATTR_STATS, IPVS_DEST_ATTR_STATS64,
    IPVS_STATS_ATTR_CONNS, IPVS_STATS_ATTR_INBYTES,
};
use ipvs_netlink::{
    ClientMask, Daemon, Destination, DestinationKey, Family, Service, ServiceFlags, ServiceKey,
    Tunnel, TunnelFlags,
};
use proptest::option;
use proptest::prelude::*;

/// The attribute whose value `content` writes.
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
    let scheduler = option::of("[a-z]{1,15}".prop_filter("the kernel's word", |n| n != "none"));
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
    (key, any::<u32>(), any::<[u32; 3]>(), tunnel).prop_map(|(key, forwarding, numbers, tunnel)| {
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
    fn services(service in service()) {
        let bytes = written(|writer| write_service(writer, &service));
        prop_assert_eq!(read_service(&value(&bytes)).unwrap().service, service);
    }

    #[test]
    fn destinations(destination in destination()) {
        let bytes = written(|writer| write_destination(writer, &destination));
        // Whatever the family of the service: a destination says its own.
        for family in [Family::V4, Family::V6] {
            let read = read_destination(&value(&bytes), family).unwrap();
            prop_assert_eq!(read.destination, destination);
        }
    }

    #[test]
    fn daemons(daemon in daemon()) {
        let bytes = written(|writer| write_daemon(writer, &daemon));
        prop_assert_eq!(read_daemon(&value(&bytes)).unwrap(), daemon);
    }

    #[test]
    fn cut_short_anywhere_is_an_error_or_less_but_no_panic(service in service(), cut in 0..200_usize) {
        let bytes = written(|writer| write_service(writer, &service));
        let cut = cut.min(bytes.len());
        let _ = read_service(&value(&bytes[..cut]));
    }

    #[test]
    fn garbage_is_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = attributes(&bytes).count();
        let _ = read_service(&value(&bytes));
        let _ = read_destination(&value(&bytes), Family::V6);
        let _ = read_daemon(&value(&bytes));
    }

    #[test]
    fn unknown_attributes_are_skipped_and_the_last_of_two_counts(
        service in service(),
        other in service(),
        unknown in 100..0x4000_u16,
        content in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        // Keys of two kinds would mix: give both services the same one.
        let other = Service { key: service.key, client_mask: service.client_mask, ..other };
        let bytes = written(|writer| {
            writer.bytes(unknown, &content);
            write_service(writer, &other);
            write_service(writer, &service);
        });
        let read = read_service(&value(&bytes)).unwrap().service;
        // An engine that only the first one names is still there.
        let expected = Service { engine: service.engine.or(other.engine), ..service };
        prop_assert_eq!(read, expected);
    }
}

/// A destination with counters, in the order given.
fn counted(kinds: &[u16]) -> u64 {
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
fn wide_counters_win_whichever_come_first() {
    assert_eq!(counted(&[]), 0);
    assert_eq!(counted(&[IPVS_DEST_ATTR_STATS]), 1);
    assert_eq!(
        counted(&[IPVS_DEST_ATTR_STATS, IPVS_DEST_ATTR_STATS64]),
        1 << 40
    );
    assert_eq!(
        counted(&[IPVS_DEST_ATTR_STATS64, IPVS_DEST_ATTR_STATS]),
        1 << 40
    );
}

#[test]
fn bytes_are_64_bits_wide_in_the_narrow_form_too() {
    let bytes = written(|writer| {
        writer.bytes(IPVS_DEST_ATTR_ADDR, &[10, 0, 0, 1]);
        writer.u16_be(IPVS_DEST_ATTR_PORT, 80);
        writer.nested(IPVS_DEST_ATTR_STATS, |stats| {
            stats.bytes(11, &[]);
            stats.u64(IPVS_STATS_ATTR_INBYTES, 1 << 35);
        });
    });
    let entry = read_destination(&value(&bytes), Family::V4).unwrap();
    assert_eq!(entry.stats.bytes_in, 1 << 35);
}

#[test]
fn a_request_that_does_not_fit_leaves_the_batch_as_it_was() {
    let mut batch = Batch::new();
    batch.push(16, 0, |writer| writer.u32(1, 7)).unwrap();
    let before = batch.as_bytes().to_vec();
    let error = batch
        .push(16, 0, |writer| writer.bytes(9, &[0; 70_000]))
        .unwrap_err();
    assert_eq!(error.to_string(), "attribute 9 is longer than 65535 bytes");
    assert_eq!((batch.len(), batch.as_bytes()), (1, &before[..]));
}
