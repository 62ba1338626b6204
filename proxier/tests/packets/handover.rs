//! A load-balancer address and a node port move from one Service to another.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lab::net::{Answer, ask_tcp_within, ask_udp_within};

use super::load::{PATIENCE, meanwhile};
use super::scene::{Scene, Subject, program, with_each_dataplane};
use super::services::{POD_B1, POD1, POD2, POD3, Service, Services};

/// How often they move in each way.
const MOVES: usize = 15;

const BALANCED: [&str; 2] = ["198.51.100.20", "2001:db8:51::20"];
const NODE_PORTS: [u16; 2] = [30090, 30091];

/// The pods of the Services blue and green.
const PODS: [[&str; 2]; 2] = [["pod1", "podB1"], ["pod2", "pod3"]];

with_each_dataplane!(clients_meet_one_service_while_addresses_move);

/// Returns the Services, of which these have the load balancer, and these the node ports.
fn blue_and_green(balanced: [bool; 2], node_ports: [bool; 2]) -> Services {
    let [blue, green] = [
        Service::new("blue", ["10.96.20.1", "fd00:10:96::20:1"]),
        Service::new("green", ["10.96.20.2", "fd00:10:96::20:2"]),
    ];
    let services = [
        (blue.endpoints(&[POD1, POD_B1]), balanced[0], node_ports[0]),
        (green.endpoints(&[POD2, POD3]), balanced[1], node_ports[1]),
    ];
    let mut all = Services::dual();
    for (mut service, is_balanced, has_node_ports) in services {
        if is_balanced {
            service = service.load_balancer(BALANCED);
        }
        if has_node_ports {
            service = service.node_ports(NODE_PORTS);
        }
        all = all.with(service);
    }
    all
}

/// What a client got.
#[derive(Debug, Default)]
struct Met {
    asked: usize,
    /// Neither Service.
    errors: Vec<Answer>,
    /// The Service that had the frontend neither before the question nor after the answer.
    wrong: Vec<(usize, String)>,
}

/// Asks until `is_over`. An even `phase` says that the Service number `phase / 2 % 2` has the frontends; an odd one, that
/// they are moving.
fn ask(to: SocketAddr, is_over: &AtomicBool, phase: &AtomicUsize) -> Met {
    let mut met = Met::default();
    let is_udp = [53, NODE_PORTS[1]].contains(&to.port());
    while !is_over.load(Ordering::Relaxed) && met.asked < 1_500 {
        let before = phase.load(Ordering::SeqCst);
        let answer = match is_udp {
            true => ask_udp_within(to, PATIENCE),
            false => ask_tcp_within(to, PATIENCE),
        };
        let after = phase.load(Ordering::SeqCst);
        met.asked += 1;
        match answer.backend() {
            None => met.errors.push(answer),
            Some(pod) if before == after && before.is_multiple_of(2) => {
                if !PODS[before / 2 % 2].contains(&pod) {
                    met.wrong.push((before, pod.to_owned()));
                }
            }
            Some(_) => {}
        }
        thread::sleep(Duration::from_millis(3));
    }
    met
}

/// Each connection reaches the one Service or the other, and after the move only the second.
fn clients_meet_one_service_while_addresses_move<D: Subject>() {
    let mut scene = Scene::<D>::serving(blue_and_green([true, false], [true, false]));
    let Scene {
        cluster, proxier, ..
    } = &mut scene;
    let phase = AtomicUsize::new(0);
    let clients = [
        (&*cluster.ext, "198.51.100.20:80"),
        (&*cluster.ext2, "198.51.100.20:53"),
        (&*cluster.peer, "[2001:db8:51::20]:80"),
        (&*cluster.ext, "172.18.0.2:30090"),
        (&*cluster.node, "172.18.0.2:30091"),
    ];
    let met = meanwhile(
        &clients,
        |to, is_over| ask(to, is_over, &phase),
        || {
            for number in 1..=2 * MOVES {
                let owner = number % 2;
                let only = [owner == 0, owner == 1];
                thread::sleep(lab::patience(Duration::from_millis(30)));
                phase.fetch_add(1, Ordering::SeqCst);
                // In the second half, the second Service asks for the address before the first gives it up. The API server
                // admits no such node port.
                if number > MOVES {
                    program(proxier, blue_and_green([true, true], only));
                    thread::sleep(lab::patience(Duration::from_millis(10)));
                }
                program(proxier, blue_and_green(only, only));
                phase.fetch_add(1, Ordering::SeqCst);
            }
        },
    );
    let asked: usize = met.iter().map(|it| it.asked).sum();
    eprintln!("{asked} questions in {} moves", 2 * MOVES);
    for (met, (_, to)) in met.iter().zip(clients) {
        // The answer to a datagram in flight is lost when its flow to the first Service's endpoint is deleted.
        let is_udp = to.ends_with(":53") || to.ends_with(":30091");
        let in_flight = if is_udp { 2 * MOVES / 5 } else { 0 };
        let are_lost = met.errors.iter().all(|it| *it == Answer::Timeout);
        let has_few_errors = are_lost && met.errors.len() <= in_flight;
        assert!(has_few_errors && met.wrong.is_empty(), "{to}: {met:?}");
        assert!(met.asked > 2 * MOVES, "{to}: {met:?}");
    }
}
