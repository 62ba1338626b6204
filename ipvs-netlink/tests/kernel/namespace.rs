//! Timeouts, versions, privileges, capabilities (5.4, 5.8, section 10).

use ipvs_netlink::{Capabilities, Change, Client, Family, SchedulerName, ServiceKey, Timeouts};

use crate::{client, mark, server, service, tcp};

#[test]
fn timeouts() {
    lab::test(|| {
        let mut client = client();
        let defaults = Timeouts {
            tcp_secs: 900,
            tcp_fin_secs: 120,
            udp_secs: 300,
        };
        assert_eq!(client.timeouts().unwrap(), defaults);
        // 0 leaves a timeout as it is.
        client
            .set_timeouts(&Timeouts {
                tcp_secs: 7_200,
                ..Timeouts::default()
            })
            .unwrap();
        assert_eq!(
            client.timeouts().unwrap(),
            Timeouts {
                tcp_secs: 7_200,
                ..defaults
            }
        );
        // One value out of range and nothing changes.
        let wrong = Timeouts {
            tcp_secs: 1,
            tcp_fin_secs: u32::MAX,
            udp_secs: 1,
        };
        assert!(client.set_timeouts(&wrong).unwrap_err().is_invalid());
        assert_eq!(
            client.timeouts().unwrap(),
            Timeouts {
                tcp_secs: 7_200,
                ..defaults
            }
        );
    });
}

#[test]
fn version() {
    lab::test(|| assert_eq!(client().info().unwrap().version, (1, 2, 1)));
}

#[test]
fn the_probe_finds_everything_and_leaves_nothing() {
    lab::test(|| {
        let mut client = client();
        // In the way of the probe, and not to be touched.
        let taken = service(mark(Family::V4, 0xffff_ff00), "sh");
        let key = tcp("10.9.0.1:80");
        let before = [
            Change::AddService(taken),
            Change::AddService(service(key, "rr")),
            Change::AddDestination(key, server("10.9.1.1:80", 3)),
        ];
        assert!(client.apply(&before).unwrap().iter().all(Result::is_ok));
        let table = |client: &mut Client| {
            let mut keys: Vec<(ServiceKey, usize)> = Vec::new();
            client
                .walk(|entry, servers| keys.push((entry.service.key, servers.len())))
                .unwrap();
            keys.sort();
            keys
        };
        let found = table(&mut client);

        let capabilities = Capabilities::probe(&mut client).unwrap();
        let names: Vec<&str> = capabilities
            .schedulers
            .iter()
            .map(SchedulerName::as_str)
            .collect();
        for name in [
            "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh",
        ] {
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
        assert!(capabilities.has_64_bit_stats());
        assert!(capabilities.has_mixed_families());
        assert!(capabilities.has_tunnel_kinds() && capabilities.has_tunnel_flags());
        assert_eq!(table(&mut client), found);
    });
}

/// Root of a user namespace is not root of the kernel: even reading is refused, and told apart from
/// a missing scheduler.
#[test]
fn privileges() {
    const INSIDE: &str = "IPVS_NETLINK_TEST_UNPRIVILEGED";

    if std::env::var_os(INSIDE).is_some() {
        let mut client = Client::open().unwrap();
        let refused = client.services().unwrap_err();
        assert!(refused.is_permission_denied(), "{refused}");
        let rr = service(tcp("10.9.0.1:80"), "rr");
        let refused = client.add_service(&rr).unwrap_err();
        assert!(
            refused.is_permission_denied() && !refused.is_scheduler_missing(),
            "{refused}"
        );
        return;
    }
    lab::test(|| {
        let output = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--net"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "namespace::privileges", "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && words.contains("1 passed"),
            "{words}{output:?}"
        );
    });
}
