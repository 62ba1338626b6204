//! Timeouts, version, privileges, capabilities.

use ipvs_netlink::{Capabilities, Change, Client, Family, SchedulerName, ServiceKey, Timeouts};

use crate::{client, mark, server, service, tcp};

#[test]
fn timeouts_are_set_unless_one_is_out_of_range() {
    lab::test(|| {
        let mut client = client();
        let defaults = Timeouts {
            tcp_secs: 900,
            tcp_fin_secs: 120,
            udp_secs: 300,
        };
        assert_eq!(client.timeouts().unwrap(), defaults);
        // 0 leaves a timeout unchanged.
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
        // If one value is out of range, the kernel changes none.
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
fn the_version_of_ipvs_is_1_2_1() {
    lab::test(|| assert_eq!(client().info().unwrap().version, (1, 2, 1)));
}

#[test]
fn the_probe_finds_all_features_and_restores_the_table() {
    lab::test(|| {
        let mut client = client();
        // This virtual server has the first mark that the probe tries. The probe must not change
        // it.
        let same_mark = service(mark(Family::V4, 0xffff_ff00), "sh");
        let key = tcp("10.9.0.1:80");
        let before = [
            Change::AddService(same_mark),
            Change::AddService(service(key, "rr")),
            Change::AddDestination(key, server("10.9.1.1:80", 3)),
        ];
        assert!(client.apply(&before).unwrap().iter().all(Result::is_ok));
        let table = |client: &mut Client| {
            let mut keys: Vec<(ServiceKey, usize)> = Vec::new();
            client
                .walk([], |entry, servers| {
                    keys.push((entry.service.key, servers.len()))
                })
                .unwrap();
            keys.sort();
            keys
        };
        let table_before = table(&mut client);

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
        assert_eq!(table(&mut client), table_before);
    });
}

/// IPVS requires CAP_NET_ADMIN in the initial user namespace, also for commands that only read.
#[test]
fn root_of_a_user_namespace_has_no_permission() {
    const TEST: &str = "namespace::root_of_a_user_namespace_has_no_permission";
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
            .args(["--exact", TEST, "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}{output:?}"
        );
    });
}
