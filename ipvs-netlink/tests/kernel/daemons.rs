//! Synchronisation daemons.

use std::time::Duration;

use ipvs_netlink::{Daemon, DaemonRole, Destination, Errno, Forwarding};

use crate::{client, errno, server, service, tcp};

#[test]
fn started_daemons_are_listed_until_they_are_stopped() {
    lab::test(|| {
        let mut client = client();
        let lo = "lo".parse().unwrap();
        let master = Daemon {
            group: Some("224.0.0.90".parse().unwrap()),
            port: Some(9_000),
            ttl: Some(3),
            max_length: Some(1_000),
            ..Daemon::new(DaemonRole::Master, lo, 7)
        };
        client.start_daemon(&master).unwrap();
        assert_eq!(client.daemons().unwrap(), [master]);
        assert!(client.start_daemon(&master).unwrap_err().is_exists());

        client
            .start_daemon(&Daemon::new(DaemonRole::Backup, lo, 8))
            .unwrap();
        let daemons = client.daemons().unwrap();
        let backup = daemons
            .iter()
            .find(|daemon| daemon.role == DaemonRole::Backup)
            .unwrap();
        assert_eq!(backup.group, Some("224.0.0.81".parse().unwrap()));
        assert_eq!(
            (backup.port, backup.ttl, backup.sync_id),
            (Some(8_848), Some(1), 8)
        );

        // Stopping a backup right after its start blocks in the kernel forever (6.1 and 7.2). Short pauses: the
        // machine may stand still for the whole of a long one.
        for _ in 0..20 {
            std::thread::sleep(lab::patience(Duration::from_millis(25)));
        }
        client.stop_daemon(DaemonRole::Master).unwrap();
        client.stop_daemon(DaemonRole::Backup).unwrap();
        assert_eq!(client.daemons().unwrap(), []);
    });
}

#[test]
fn invalid_daemons_are_rejected() {
    lab::test(|| {
        let mut client = client();
        let lo = "lo".parse().unwrap();
        let daemon = |role| Daemon::new(role, lo, 0);
        assert_eq!(
            errno(client.stop_daemon(DaemonRole::Master)),
            Some(Errno::SRCH)
        );
        assert_eq!(
            errno(client.stop_daemon(DaemonRole::Other(3))),
            Some(Errno::INVAL)
        );
        let nowhere = Daemon::new(DaemonRole::Master, "nosuch0".parse().unwrap(), 0);
        assert_eq!(errno(client.start_daemon(&nowhere)), Some(Errno::NODEV));
        assert!(
            client
                .start_daemon(&daemon(DaemonRole::Other(3)))
                .unwrap_err()
                .is_invalid()
        );
        let group = Some("10.0.0.1".parse().unwrap());
        let unicast = Daemon {
            group,
            ..daemon(DaemonRole::Master)
        };
        assert!(client.start_daemon(&unicast).unwrap_err().is_invalid());
    });
}

/// The synchronisation protocol has no format for connections with two address families.
#[test]
fn daemons_and_tunnels_to_the_other_family_exclude_each_other() {
    lab::test(|| {
        let mut client = client();
        let key = tcp("10.9.0.1:80");
        let mixed = Destination {
            forwarding: Forwarding::Tunnel,
            ..server("[fd00::9]:80", 1)
        };
        let daemon = Daemon::new(DaemonRole::Master, "lo".parse().unwrap(), 0);
        client.add_service(&service(key, "rr")).unwrap();
        client.add_destination(&key, &mixed).unwrap();
        assert!(client.start_daemon(&daemon).unwrap_err().is_invalid());
        client.delete_destination(&key, &mixed.key).unwrap();
        client.start_daemon(&daemon).unwrap();
        assert!(
            client
                .add_destination(&key, &mixed)
                .unwrap_err()
                .is_invalid()
        );
    });
}
