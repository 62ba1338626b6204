//! Virtual servers: all fields, errors and resets.

use ipvs_netlink::{ClientMask, Errno, Family, Protocol, Service, ServiceFlags, ServiceKey};

use crate::{client, errno, mark, server, service, tcp};

/// Returns a virtual server for every kind of key.
fn kinds() -> Vec<Service> {
    let mut kinds = Vec::new();
    for address in ["10.9.0.1", "fd00::1"] {
        for protocol in [
            Protocol::Tcp,
            Protocol::Udp,
            Protocol::Sctp,
            Protocol::Other(253),
        ] {
            let address = address.parse().unwrap();
            kinds.push(service(
                ServiceKey::Address {
                    protocol,
                    address,
                    port: 80,
                },
                "rr",
            ));
        }
    }
    kinds.push(service(mark(Family::V4, 7), "wlc"));
    kinds.push(service(mark(Family::V6, 7), "wlc"));
    kinds.push(service(mark(Family::V4, u32::MAX), "sh"));
    kinds
}

#[test]
fn every_kind_of_key_is_read_back() {
    lab::test(|| {
        let mut client = client();
        for service in kinds() {
            client.add_service(&service).unwrap();
            assert_eq!(client.service(&service.key).unwrap().service, service);
        }
        let mut listed: Vec<Service> = client
            .services()
            .unwrap()
            .iter()
            .map(|entry| entry.service)
            .collect();
        let mut expected = kinds();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
        for service in kinds() {
            client.delete_service(&service.key).unwrap();
        }
        assert_eq!(client.services().unwrap(), []);
    });
}

#[test]
fn every_field_is_read_back_after_add_and_set() {
    lab::test(|| {
        let mut client = client();
        let flags = |bits| ServiceFlags::from_bits(bits);
        let v4 = tcp("10.9.0.1:80");
        let v6 = tcp("[fd00::1]:80");
        let plain4 = service(v4, "rr");
        let plain6 = service(v6, "rr");
        let odd_mask = ClientMask::V4(0xff00_ff00);
        let variants = [
            Service {
                flags: flags(0x1),
                timeout_secs: 600,
                ..plain4
            },
            Service {
                flags: flags(0x3d),
                timeout_secs: 1,
                client_mask: odd_mask,
                ..plain4
            },
            Service {
                scheduler: None,
                ..plain4
            },
            Service {
                flags: flags(0x18),
                ..service(v4, "mh")
            },
            Service {
                flags: flags(0x1),
                client_mask: ClientMask::V6(1),
                ..plain6
            },
            Service {
                timeout_secs: 4_294_967,
                client_mask: ClientMask::V6(128),
                ..plain6
            },
        ];
        for variant in variants {
            client.add_service(&variant).unwrap();
            assert_eq!(client.service(&variant.key).unwrap().service, variant);
            client.delete_service(&variant.key).unwrap();
        }
        client.add_service(&plain4).unwrap();
        client.add_service(&plain6).unwrap();
        for variant in variants {
            client.set_service(&variant).unwrap();
            assert_eq!(client.service(&variant.key).unwrap().service, variant);
        }
    });
}

#[test]
fn missing_and_invalid_services_are_rejected() {
    lab::test(|| {
        let mut client = client();
        let rr = service(tcp("10.9.0.1:80"), "rr");
        assert_eq!(errno(client.service(&rr.key)), Some(Errno::SRCH));
        assert_eq!(errno(client.set_service(&rr)), Some(Errno::SRCH));
        assert_eq!(errno(client.delete_service(&rr.key)), Some(Errno::SRCH));
        assert_eq!(errno(client.zero(Some(&rr.key))), Some(Errno::SRCH));
        client.add_service(&rr).unwrap();

        // The kernel checks for an existing service before it looks up the scheduler.
        let unknown = service(rr.key, "nosuch");
        assert!(client.add_service(&unknown).unwrap_err().is_exists());
        let error = client.set_service(&unknown).unwrap_err();
        assert!(error.is_scheduler_missing() && !error.is_no_such_destination());
        let elsewhere = service(tcp("10.9.0.2:80"), "nosuch");
        let error = client.add_service(&elsewhere).unwrap_err();
        assert!(error.is_scheduler_missing());
        assert_eq!(
            error.to_string(),
            "adding service TCP 10.9.0.2:80: the kernel could not load the module ip_vs_nosuch"
        );
        let engine = Some("nosuch".parse().unwrap());
        let error = client.set_service(&Service { engine, ..rr }).unwrap_err();
        assert!(error.is_scheduler_missing() && error.to_string().contains("ip_vs_pe_nosuch"));

        for prefix in [0, 129, 0x8000_0000] {
            let client_mask = ClientMask::V6(prefix);
            let v6 = Service {
                client_mask,
                ..service(tcp("[fd00::1]:80"), "rr")
            };
            assert!(
                client.add_service(&v6).unwrap_err().is_invalid(),
                "{prefix}"
            );
        }
    });
}

#[test]
fn a_missing_scheduler_is_found_without_a_change_of_the_table() {
    lab::test(|| {
        let mut client = client();
        let mut has = |name: &str| client.has_scheduler(name.parse().unwrap()).unwrap();
        assert!(has("rr") && has("mh"));
        assert!(!has("nosuch"));
        assert_eq!(client.services().unwrap(), []);
    });
}

/// The kernel restores the old scheduler.
#[test]
fn a_failed_change_of_scheduler_changes_nothing() {
    lab::test(|| {
        let mut client = client();
        let rr = service(tcp("10.9.0.1:80"), "rr");
        client.add_service(&rr).unwrap();
        let changes: Vec<_> = (1..=4_200)
            .map(|port| {
                let server = server(&format!("10.9.1.1:{port}"), 1);
                ipvs_netlink::Change::AddDestination(rr.key, server)
            })
            .collect();
        assert!(client.apply(&changes).unwrap().iter().all(Result::is_ok));
        // The Maglev table has 4,093 slots, fewer than the destinations.
        let error = client.set_service(&service(rr.key, "mh")).unwrap_err();
        assert!(error.is_invalid(), "{error}");
        assert_eq!(client.service(&rr.key).unwrap().service, rr);
    });
}

#[test]
fn counters_can_be_reset_and_the_table_flushed() {
    lab::test(|| {
        let mut client = client();
        client.flush().unwrap();
        client.zero(None).unwrap();
        for service in kinds() {
            client.add_service(&service).unwrap();
            client.zero(Some(&service.key)).unwrap();
        }
        client.flush().unwrap();
        assert_eq!(client.services().unwrap(), []);
    });
}

/// A number that no family has (`GENL_MAX_ID`), as after `ip_vs` was unloaded and loaded again.
const STALE_FAMILY: u16 = 1_023;

#[test]
fn every_request_succeeds_after_the_module_was_reloaded() {
    lab::test(|| {
        let reloaded = || client().with_family(STALE_FAMILY);
        let family = client().family();
        let key = tcp("10.9.0.1:80");
        let mut client = reloaded();
        client.add_service(&service(key, "rr")).unwrap();
        assert_eq!(client.family(), family);
        client
            .add_destination(&key, &server("10.9.1.1:80", 1))
            .unwrap();

        assert_eq!(reloaded().service(&key).unwrap().service.key, key);
        assert_eq!(reloaded().services().unwrap().len(), 1);
        assert_eq!(reloaded().destinations(&key).unwrap().len(), 1);
        assert_eq!(reloaded().table().unwrap().len(), 1);
        assert_eq!(reloaded().daemons().unwrap(), []);
        reloaded().info().unwrap();
        let timeouts = reloaded().timeouts().unwrap();
        reloaded().set_timeouts(&timeouts).unwrap();
        reloaded().zero(Some(&key)).unwrap();
        reloaded().flush().unwrap();
        assert_eq!(reloaded().services().unwrap(), []);
        // ESRCH has another cause, so the client returns it and does not repeat the request.
        let missing = reloaded().service(&key);
        assert_eq!(errno(missing), Some(Errno::SRCH));
    });
}
