//! Destinations: all fields, and the values that the kernel rejects.

use ipvs_netlink::{Destination, Errno, Family, Forwarding, Tunnel, TunnelFlags, TunnelKind};

use crate::{client, errno, mark, server, service, tcp};

fn tunnel(kind: TunnelKind, port: u16, flags: u16) -> Tunnel {
    Tunnel {
        kind,
        port,
        flags: TunnelFlags::from_bits(flags),
    }
}

/// Returns a destination for every value of each field, for an IPv4 virtual server.
fn forms() -> Vec<Destination> {
    let one = server("10.9.1.1:80", 1);
    let tunneled = Destination {
        forwarding: Forwarding::Tunnel,
        ..one
    };
    let mut forms = vec![
        Destination { weight: 0, ..one },
        Destination {
            weight: 2_147_483_647,
            ..one
        },
        Destination {
            upper_threshold: 100,
            lower_threshold: 100,
            ..one
        },
        Destination {
            upper_threshold: 0x7fff_ffff,
            lower_threshold: 1,
            ..one
        },
        Destination {
            tunnel: tunnel(TunnelKind::Ipip, 0, 0),
            ..tunneled
        },
        Destination {
            tunnel: tunnel(TunnelKind::Gue, 6080, 0),
            ..tunneled
        },
        Destination {
            tunnel: tunnel(TunnelKind::Gue, 6080, 3),
            ..tunneled
        },
        Destination {
            tunnel: tunnel(TunnelKind::Gre, 0, 1),
            ..tunneled
        },
        Destination {
            tunnel: tunnel(TunnelKind::Other(9), 7, 4),
            ..one
        },
        Destination {
            forwarding: Forwarding::Tunnel,
            ..server("[fd00::9]:80", 1)
        },
        server("10.9.1.1:0", 1),
    ];
    forms.extend((0..8).map(|number| Destination {
        forwarding: number.into(),
        ..one
    }));
    forms
}

#[test]
fn every_field_is_read_back_after_add_and_set() {
    lab::test(|| {
        let mut client = client();
        for key in [tcp("10.9.0.1:80"), mark(Family::V4, 7)] {
            client.add_service(&service(key, "wlc")).unwrap();
            for form in forms() {
                client.add_destination(&key, &form).unwrap();
                let listed = client.destinations(&key).unwrap();
                assert_eq!(listed.len(), 1);
                assert_eq!(listed[0].destination, form);
                assert_eq!(
                    (listed[0].active_connections, listed[0].inactive_connections),
                    (0, 0)
                );
                client.delete_destination(&key, &form.key).unwrap();
            }
            client
                .add_destination(&key, &server("10.9.1.1:80", 5))
                .unwrap();
            for form in forms()
                .into_iter()
                .filter(|form| form.key == server("10.9.1.1:80", 1).key)
            {
                client.set_destination(&key, &form).unwrap();
                assert_eq!(client.destinations(&key).unwrap()[0].destination, form);
            }
        }
    });
}

#[test]
fn ipv6_services_accept_ipv6_destinations_and_ipv4_tunnels() {
    lab::test(|| {
        let mut client = client();
        let key = tcp("[fd00::1]:80");
        client.add_service(&service(key, "rr")).unwrap();
        let own = server("[fd00:1::1]:8080", 1);
        let other = Destination {
            forwarding: Forwarding::Tunnel,
            ..server("10.9.1.1:80", 1)
        };
        client.add_destination(&key, &own).unwrap();
        client.add_destination(&key, &other).unwrap();
        let listed: Vec<Destination> = client
            .destinations(&key)
            .unwrap()
            .iter()
            .map(|entry| entry.destination)
            .collect();
        assert_eq!(listed, [other, own]);
        client.delete_destination(&key, &other.key).unwrap();
        // The kernel rejects link-local addresses.
        let error = client
            .add_destination(&key, &server("[fe80::1]:80", 1))
            .unwrap_err();
        assert!(error.is_invalid());
    });
}

#[test]
fn invalid_destinations_are_rejected() {
    lab::test(|| {
        let mut client = client();
        let key = tcp("10.9.0.1:80");
        let one = server("10.9.1.1:80", 1);
        let error = client.add_destination(&key, &one).unwrap_err();
        assert!(error.is_no_such_service() && !error.is_no_such_destination());
        assert_eq!(
            error.to_string(),
            "adding destination 10.9.1.1:80 to TCP 10.9.0.1:80: No such process (os error 3)"
        );
        assert_eq!(errno(client.set_destination(&key, &one)), Some(Errno::SRCH));
        assert_eq!(
            errno(client.delete_destination(&key, &one.key)),
            Some(Errno::SRCH)
        );
        client.add_service(&service(key, "rr")).unwrap();
        let error = client.set_destination(&key, &one).unwrap_err();
        assert!(error.is_no_such_destination() && !error.is_scheduler_missing());
        assert_eq!(
            errno(client.delete_destination(&key, &one.key)),
            Some(Errno::NOENT)
        );
        client.add_destination(&key, &one).unwrap();
        assert!(client.add_destination(&key, &one).unwrap_err().is_exists());

        let another = server("10.9.1.2:80", 1);
        let wrong = [
            (
                Destination {
                    weight: 0x8000_0000,
                    ..another
                },
                Errno::RANGE,
            ),
            (
                Destination {
                    lower_threshold: 1,
                    ..another
                },
                Errno::RANGE,
            ),
            (
                Destination {
                    upper_threshold: 5,
                    lower_threshold: 6,
                    ..another
                },
                Errno::RANGE,
            ),
            (
                Destination {
                    upper_threshold: 0x8000_0000,
                    ..another
                },
                Errno::INVAL,
            ),
            (
                Destination {
                    tunnel: tunnel(TunnelKind::Gue, 0, 0),
                    ..another
                },
                Errno::INVAL,
            ),
            (server("[fd00::9]:80", 1), Errno::INVAL),
            (server("255.255.255.255:80", 1), Errno::INVAL),
            (server("224.0.0.1:80", 1), Errno::INVAL),
            (server("0.0.0.0:80", 1), Errno::INVAL),
        ];
        for (destination, expected) in wrong {
            let refused = errno(client.add_destination(&key, &destination));
            assert_eq!(refused, Some(expected), "{destination:?}");
        }
        assert_eq!(client.destinations(&key).unwrap().len(), 1);
    });
}

#[test]
fn a_change_without_tunnel_parameters_resets_them() {
    lab::test(|| {
        let mut client = client();
        let key = tcp("10.9.0.1:80");
        client.add_service(&service(key, "rr")).unwrap();
        let plain = server("10.9.1.1:80", 1);
        let gue = tunnel(TunnelKind::Gue, 6080, 1);
        let tunneled = Destination {
            forwarding: Forwarding::Tunnel,
            tunnel: gue,
            ..plain
        };
        client.add_destination(&key, &tunneled).unwrap();
        client.set_destination(&key, &plain).unwrap();
        assert_eq!(client.destinations(&key).unwrap()[0].destination, plain);
    });
}
