//! Other programs translate source addresses, too.

use std::net::SocketAddr;

use lab::net::Answer;

use super::scene::{Scene, Subject, with_each_dataplane};
use super::services::Services;
use crate::{at, check};

/// Rules that give every connection another address of the node as its source, and a port outside the
/// range of our masquerade.
const OTHERS: &str = "
    table inet others {
        chain postrouting {
            type nat hook postrouting priority srcnat
            meta nfproto ipv4 meta l4proto { tcp, udp } snat ip to 192.0.2.1:1024-2000
            meta nfproto ipv6 meta l4proto { tcp, udp } snat ip6 to [2001:db8:2::1]:1024-2000
        }
    }";

/// The first port of our masquerade: the range above the node ports is larger than the range below.
const FIRST_PORT: u16 = 32_768;

/// Asserts that servers see the masqueraded connections of an outside client with the node's address on
/// the way to the endpoint and a port of our range.
fn source_is_ours<D: Subject>(scene: &Scene<D>) {
    let ext = scene.client("ext");
    for to in [
        at("10.96.1.1", "fd00:10:96::1", 80, 53),
        at("198.51.100.2", "2001:db8:51::2", 80, 53),
        at("172.18.0.2", "fd00:172:18::2", 30080, 30053),
    ]
    .concat()
    {
        for _ in 0..4 {
            let (protocol, address) = to.split_once(' ').unwrap();
            let address: SocketAddr = address.parse().unwrap();
            let answer = match protocol {
                "tcp" => ext.ask_tcp(address),
                _ => ext.ask_udp(address),
            };
            let Answer::Reply { source, .. } = answer else {
                panic!("{to}: {answer}");
            };
            let own = match address {
                SocketAddr::V4(_) => "172.18.0.2",
                SocketAddr::V6(_) => "fd00:172:18::2",
            };
            assert_eq!(source.ip().to_string(), own, "{to}");
            assert!(source.port() >= FIRST_PORT, "{to}: {source}");
        }
    }
}

with_each_dataplane!(the_source_of_masqueraded_connections_is_ours_before_and_after_other_programs,);

fn the_source_of_masqueraded_connections_is_ours_before_and_after_other_programs<D: Subject>() {
    let mut scene = Scene::<D>::serving(Services::dual());
    scene.nft(OTHERS);
    source_is_ours(&scene);
    // Now our chains are registered last.
    scene.delete_table();
    scene.restart();
    scene.program(Services::dual());
    source_is_ours(&scene);
    // The other program's rules apply where ours do not: the client keeps its address at policy Local.
    let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
    check(&scene, "ext", &local, &["pod2/node"]);
}
