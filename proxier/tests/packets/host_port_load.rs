//! Clients that keep connecting while our process and the plugin for host ports restart.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::net::{Host, ask_tcp_within, ask_udp_within};

use super::host_ports::{has_iptables, nftables_rules};
use super::load::{PATIENCE, meanwhile};
use super::plugin::{Iptables, Plugin};
use super::scene::{Scene, Subject, nft, with_each_dataplane};
use super::services::Services;

/// How often our process restarts. A hundred times take 10 s on a lab kernel.
const RESTARTS: usize = 100;

/// How often portmap's rules are deleted and added again, in the form of its nftables backend.
const RULES_READDED: usize = 100;

/// How often the plugin itself deletes and adds its rules with iptables. Each time, dozens of processes start,
/// which takes 4 s on a lab kernel.
const PLUGIN_READDED: usize = 2;

/// The fewest connections of all clients.
const CONNECTIONS: usize = 1_000;

/// The pause of a client between two connections. Without it, clients leave no time to the plugin.
const PAUSE: Duration = Duration::from_millis(10);

/// The pause after a client's share of [`CONNECTIONS`]: the lab's kernels track 8,192 flows and drop
/// packets of further ones.
const LONG_PAUSE: Duration = Duration::from_millis(150);

/// The connections of one client.
#[derive(Debug, Default)]
struct Connections {
    made: usize,
    /// The answers that did not come from an endpoint.
    misled: Vec<String>,
}

/// Connects to Service web, whose endpoints are pod1 and podB1, until `is_over`, and at least `fewest`
/// times.
fn connect(to: SocketAddr, is_over: &AtomicBool, fewest: usize) -> Connections {
    let mut connections = Connections::default();
    while connections.made < fewest || !is_over.load(Ordering::Relaxed) {
        let answer = match to.port() {
            80 => ask_tcp_within(to, PATIENCE),
            _ => ask_udp_within(to, PATIENCE),
        };
        connections.made += 1;
        if !matches!(answer.backend(), Some("pod1" | "podB1")) {
            connections.misled.push(format!("{to}: {answer}"));
        }
        let has_enough = connections.made >= fewest;
        thread::sleep(if has_enough { LONG_PAUSE } else { PAUSE });
    }
    connections
}

with_each_dataplane!(restarts_of_ours_and_of_the_plugin_mislead_no_connection);

fn restarts_of_ours_and_of_the_plugin_mislead_no_connection<D: Subject>() {
    if !has_iptables() {
        return;
    }
    let services = Services::dual();
    let mut scene = Scene::<D>::serving(&services);
    let (cluster, mut restart) = scene.restarting(&services);
    let plugin = Plugin::new(Iptables::Nft, "");
    plugin.add(&cluster.node).unwrap();
    let (rules, delete) = (
        nftables_rules(),
        "delete table ip cni_hostport; delete table ip6 cni_hostport;",
    );
    nft(&cluster.node, &rules);
    let clients: [(&Host, &str); 4] = [
        (&cluster.ext, "198.51.100.2:80"),
        (&cluster.pod2, "10.96.1.1:80"),
        (&cluster.pod2, "[fd00:10:96::1]:53"),
        (&cluster.node, "10.96.1.1:53"),
    ];
    let tallies = meanwhile(
        &clients,
        |to, is_over| connect(to, is_over, CONNECTIONS / clients.len()),
        || {
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..RULES_READDED {
                        nft(&cluster.node, &(delete.to_owned() + &rules));
                    }
                    for _ in 0..PLUGIN_READDED {
                        plugin.delete(&cluster.node).unwrap();
                        plugin.add(&cluster.node).unwrap();
                    }
                });
                (0..RESTARTS).for_each(|_| restart());
            });
        },
    );
    let made = tallies.iter().map(|it| it.made).sum::<usize>();
    eprintln!("{made} connections");
    assert!(made >= CONNECTIONS, "{made}");
    let misled = tallies.iter().flat_map(|it| &it.misled);
    assert_eq!(misled.collect::<Vec<_>>(), [""; 0]);
    assert_eq!(cluster.ext.ask_tcp("172.18.0.2:80").backend(), Some("pod3"));
}
