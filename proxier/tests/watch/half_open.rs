//! A server whose host vanishes, on a real kernel: only TCP can detect it.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use api_server::{ApiServer, Scheme};
use proxier::testing::watch::FollowState;

use crate::follower::{Follower, PATIENCE, config};
use crate::objects::service;

/// `Timeouts::silence` stays at 150 s, so only `Timeouts::dead_peer` can detect the failure.
#[test]
fn a_vanished_server_is_detected_in_time_and_reconnected() {
    lab::test(|| {
        let mut node = lab::net::node("node");
        let master = node.link("eth0", "192.0.2.1/24", "master", "192.0.2.2/24");
        let listener = master.run(|| TcpListener::bind("192.0.2.2:6443").unwrap());
        let server = ApiServer::serve(listener, Scheme::Plain);
        server.apply(service("web", 80));
        let mut config = config(&server);
        config.timeouts.dead_peer = Duration::from_secs(6);
        config.timeouts.outage = PATIENCE;
        config.timeouts.connect = Duration::from_secs(1);
        let follower = Follower::with(config);
        assert_eq!(follower.services(), "reset [a/web]");
        // A connection that is idle for longer than `dead_peer` stays open: its probes are acknowledged.
        std::thread::sleep(Duration::from_secs(7));
        assert_eq!(follower.status().services.failures, 0);

        // From now on no packet of the server arrives, not even a TCP acknowledgement.
        master.exec(&["ip", "route", "add", "blackhole", "192.0.2.1/32"]);
        let vanished = Instant::now();
        server.apply(service("web", 81));
        let status = follower.until("noticed", |status| status.services.failures > 0);
        let noticed = vanished.elapsed();
        assert!(status.is_synced());
        let (_, why) = status.services.failed.unwrap();
        println!("noticed after {noticed:.1?}: {why}");

        master.exec(&["ip", "route", "del", "blackhole", "192.0.2.1/32"]);
        assert_eq!(follower.services(), "apply a/web");
        let services = follower.status().services;
        assert_eq!((services.state, services.lists), (FollowState::Watching, 1));
    });
}
