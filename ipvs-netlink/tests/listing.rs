//! A listing shows what the kernel lists, and no input makes its reader panic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::net::IpAddr;

use ipvs_netlink::listing::{ListedDestination, ListedService, walk};
use ipvs_netlink::{
    ClientMask, Destination, DestinationKey, Family, Forwarding, Service, ServiceFlags, ServiceKey,
};
use proptest::option;
use proptest::prelude::*;

const HEADING: &str = "IP Virtual Server version 1.2.1 (size=4096)\n\
    Prot LocalAddress:Port Scheduler Flags\n  \
    -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";

/// Reads a listing into memory.
fn read(text: &[u8]) -> std::io::Result<Vec<(ListedService, Vec<ListedDestination>)>> {
    let mut all = Vec::new();
    walk(text, |service, destinations| {
        all.push((*service, destinations.clone()));
        true
    })?;
    Ok(all)
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from)
    ]
}

fn service() -> impl Strategy<Value = Service> {
    let family = prop_oneof![Just(Family::V4), Just(Family::V6)];
    let protocol = prop_oneof![Just(6_u16), Just(17), Just(132), Just(253)];
    let key = prop_oneof![
        (protocol, address(), any::<u16>()).prop_map(|(protocol, address, port)| {
            ServiceKey::Address {
                protocol: protocol.into(),
                address,
                port,
            }
        }),
        (family, 1..=u32::MAX).prop_map(|(family, mark)| ServiceKey::Mark { family, mark }),
    ];
    let scheduler = option::of("[a-z]{1,15}".prop_filter("means no scheduler", |n| n != "none"));
    (key, scheduler, 0..64_u32, 0..4_000_000_u32, any::<u32>()).prop_map(
        |(key, scheduler, flags, timeout_secs, mask)| Service {
            key,
            scheduler: scheduler.map(|name| name.parse().unwrap()),
            flags: ServiceFlags::from_bits(flags).without(ServiceFlags::HASHED),
            timeout_secs,
            client_mask: match key.family() {
                Family::V4 => ClientMask::V4(mask),
                Family::V6 => ClientMask::V6(mask % 128 + 1),
            },
            engine: None,
        },
    )
}

fn destination() -> impl Strategy<Value = Destination> {
    let weight = 0..=i32::MAX.unsigned_abs();
    (address(), any::<u16>(), 0..8_u8, weight).prop_map(|(address, port, forwarding, weight)| {
        Destination {
            forwarding: Forwarding::from(forwarding),
            ..Destination::new(DestinationKey { address, port }, weight)
        }
    })
}

fn address_text(address: IpAddr, port: u16) -> String {
    match address {
        IpAddr::V4(v4) => format!("{:08X}:{port:04X}", u32::from(v4)),
        IpAddr::V6(v6) => {
            let groups = v6.segments().map(|group| format!("{group:04x}"));
            format!("[{}]:{port:04X}", groups.join(":"))
        }
    }
}

/// Prints a virtual server as `ip_vs_info_seq_show` does on a little-endian machine with 250 ticks.
fn print(service: &Service, destinations: &[Destination]) -> String {
    let mut text = String::new();
    let ops = match service.flags.contains(ServiceFlags::ONE_PACKET) {
        true => "ops ",
        false => "",
    };
    let scheduler = service
        .scheduler
        .map_or_else(|| "none".to_owned(), |name| name.to_string());
    match service.key {
        ServiceKey::Address {
            protocol,
            address,
            port,
        } => {
            let address_text = address_text(address, port);
            write!(text, "{protocol}  {address_text} {scheduler} ").unwrap();
            if address.is_ipv4() {
                write!(text, "{ops} ").unwrap();
            }
        }
        ServiceKey::Mark { mark, .. } => write!(text, "FWM  {mark:08X} {scheduler} {ops}").unwrap(),
        _ => unreachable!("a new kind of key"),
    }
    if service.flags.contains(ServiceFlags::PERSISTENT) {
        let mask = match service.client_mask {
            ClientMask::V4(mask) => mask,
            ClientMask::V6(prefix) => prefix.swap_bytes(),
        };
        let ticks = service.timeout_secs * 250;
        write!(text, "persistent {ticks} {mask:08X}").unwrap();
    }
    text.push('\n');
    for destination in destinations {
        let method = match destination.forwarding {
            Forwarding::Local => "Local",
            Forwarding::Tunnel => "Tunnel",
            Forwarding::Route => "Route",
            _ => "Masq",
        };
        let DestinationKey { address, port } = destination.key;
        let address_text = address_text(address, port);
        writeln!(
            text,
            "  -> {address_text}      {method:<7} {:<6} {:<10} {:<10}",
            destination.weight, 17, 4
        )
        .unwrap();
    }
    text
}

proptest! {
    #[test]
    fn a_listing_shows_what_was_listed(
        table in prop::collection::vec((service(), prop::collection::vec(destination(), 0..5)), 0..5)
    ) {
        let mut text = HEADING.to_owned();
        for (service, destinations) in &table {
            text += &print(service, destinations);
        }
        let listed = read(text.as_bytes()).unwrap();
        prop_assert_eq!(listed.len(), table.len());
        for ((service, destinations), (listed, shown)) in table.iter().zip(&listed) {
            prop_assert!(listed.shows(service, 250), "{:?} {:?}", listed, service);
            prop_assert!(listed.key.candidates().any(|key| key == service.key));
            prop_assert_eq!(shown.len(), destinations.len());
            for (destination, shown) in destinations.iter().zip(shown) {
                prop_assert!(shown.shows(destination), "{:?} {:?}", shown, destination);
            }
        }
    }

    #[test]
    fn a_listing_shows_no_other_virtual_server(one in service(), other in service()) {
        let listed = read((HEADING.to_owned() + &print(&one, &[])).as_bytes()).unwrap();
        let is_same = print(&one, &[]) == print(&other, &[]);
        prop_assert_eq!(listed[0].0.shows(&other, 250), is_same);
        let mut changed = one;
        changed.flags = ServiceFlags::from_bits(one.flags.bits() ^ ServiceFlags::PERSISTENT.bits());
        prop_assert!(!listed[0].0.shows(&changed, 250));
        let changed = Service { scheduler: Some("otherscheduler".parse().unwrap()), ..one };
        prop_assert!(!listed[0].0.shows(&changed, 250));
        if one.flags.contains(ServiceFlags::PERSISTENT) {
            let changed = Service { timeout_secs: one.timeout_secs + 1, ..one };
            prop_assert!(!listed[0].0.shows(&changed, 250));
        }
    }

    #[test]
    fn no_listing_makes_the_reader_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        lines in prop::collection::vec("(TCP|FWM|  ->|IP_9) [ 0-9A-F:\\[\\]a-z]{0,60}\n", 0..5),
    ) {
        let _ = read(&bytes);
        let _ = read((HEADING.to_owned() + &lines.concat()).as_bytes());
    }
}

#[test]
fn what_is_no_listing_is_an_error() {
    for text in [
        "TCP  0A000001:0050 rr",
        "TCP  0A00001:0050 rr \n",
        "TCP  0A000001:0050\n",
        "TCP  0A000001:0050 rr surprise\n",
        "TCP  0A000001:0050 rr persistent -5 FFFFFFFF\n",
        "ESP  0A000001:0050 rr \n",
        "  -> 0A000002:1F90      Masq    1      0          0         \n",
        "TCP  0A000001:0050 rr \n  -> 0A000002:1F90      Masq    -1      0          0         \n",
        "TCP  0A000001:0050 rr \n  -> 0A000002:1F90      Teleport 1      0          0         \n",
        "TCP  [fd00:0000:0000:0000:0000:0000:0000:0000:0001]:0050 rr \n",
        "FWM  00000001 rr \nIP Virtual Server version 1.2.1 (size=4096)\n",
    ] {
        assert!(read(text.as_bytes()).is_err(), "{text}");
    }
}
