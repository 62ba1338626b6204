//! Packets that pass while our table is deleted.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use lab::SetOnDrop;
use lab::net::Cluster;
use nftables::RulesClient;
use proxier::testing::filter::FilterConfig;
use proxier::testing::model::TrafficPolicy::{Cluster as AnyNode, Local};
use proxier::testing::plan::Scope;

use super::rules::{Rules, admission, frontend, modes};
use crate::{TABLE, nft};

/// Counts the packets to the frontend with policy Local, and those of them that our rules marked.
const WITNESS: &str = "
    table ip witness {
        chain input {
            type filter hook input priority filter + 1
            ip daddr 198.51.100.19 udp dport 53 counter
            ip daddr 198.51.100.19 udp dport 53 meta mark & 0x4000 == 0x4000 counter
        }
    }
";

/// The number of other frontends, with policy Cluster.
const OTHERS: u16 = 20;

/// The number of deletions.
const DELETIONS: usize = 1_000;

/// Returns the counts of [`WITNESS`].
fn counted() -> [u64; 2] {
    let text = nft(&["list", "table", "ip", "witness"], "").unwrap();
    let counts = text.lines().filter_map(|line| {
        let (_, count) = line.split_once("packets ")?;
        count.split_once(' ')?.0.parse().ok()
    });
    counts.collect::<Vec<u64>>().try_into().unwrap()
}

#[test]
fn packets_that_pass_meanwhile_meet_all_rules_or_none() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let node = &cluster.node;
        node.exec(&["ip", "route", "add", "local", "198.51.100.19", "dev", "lo"]);
        nft(&["-f", "-"], WITNESS).unwrap();
        let [local_mode, ..] = modes();
        let config = FilterConfig {
            local_mode,
            ..FilterConfig::default()
        };
        let mut rules = Rules::new(config, None);
        let local = admission(Scope::External, Local);
        rules.set_frontend(frontend("udp 198.51.100.19:53"), Some(local));
        for port in 1..=OTHERS {
            let other = frontend(&format!("udp 198.51.100.12:{port}"));
            rules.set_frontend(other, Some(admission(Scope::External, AnyNode)));
        }
        let table = &rules.table();
        let mut client = RulesClient::open(TABLE).unwrap();
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = SetOnDrop(is_over);
            scope.spawn(move || {
                cluster.ext.run(|| {
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        // Without an answer, each datagram is of a new connection.
                        socket.send_to(b"?", "198.51.100.19:53").unwrap();
                    }
                });
            });
            for _ in 0..DELETIONS {
                client.replace(table).unwrap();
                client.delete().unwrap();
            }
        });
        let [all, marked] = counted();
        assert!(all > 1_000, "{all}");
        assert_eq!(marked, 0, "of {all}");
    });
}
