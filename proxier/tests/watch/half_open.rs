//! A server that is gone without a word, on a real kernel: what only TCP can notice.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use api_server::{ApiServer, Scheme};
use proxier::watch::FollowState;

use crate::follower::{Follower, config};
use crate::objects::service;

/// The silence that watches bear is left at its 150 s: it has no part in this.
#[test]
fn a_peer_that_vanished_is_noticed_in_time_and_found_when_it_is_back() {
    lab::test(|| {
        let mut node = lab::net::node("node");
        let master = node.link("eth0", "192.0.2.1/24", "master", "192.0.2.2/24");
        let listener = master.run(|| TcpListener::bind("192.0.2.2:6443").unwrap());
        let server = ApiServer::serve(listener, Scheme::Plain);
        server.apply(service("web", 80));
        let mut config = config(&server);
        config.timeouts.dead_peer = Duration::from_secs(6);
        config.timeouts.connect = Duration::from_secs(1);
        let follower = Follower::with(config);
        assert_eq!(follower.services(), "reset [a/web]");
        // Quiet for longer than the bound: an idle connection is none that is dead.
        std::thread::sleep(Duration::from_secs(7));
        assert_eq!(follower.status().services.failures, 0);

        // Nothing comes back any more, not even from its kernel.
        master.exec(&["ip", "route", "add", "blackhole", "192.0.2.1/32"]);
        let vanished = Instant::now();
        server.apply(service("web", 81));
        let status = follower.until("noticed", |status| status.services.failures > 0);
        let noticed = vanished.elapsed();
        assert!(status.is_synced());
        let (_, why) = status.services.failed.unwrap();
        println!("noticed after {noticed:.1?}: {why}");
        assert!(noticed < Duration::from_secs(10), "{noticed:?}");

        master.exec(&["ip", "route", "del", "blackhole", "192.0.2.1/32"]);
        assert_eq!(follower.services(), "apply a/web");
        let services = follower.status().services;
        assert_eq!((services.state, services.lists), (FollowState::Watching, 1));
    });
}
