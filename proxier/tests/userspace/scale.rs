//! 5,000 Services with 50,000 endpoints, and the cost of one change among them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;

use ipvs_netlink as ipvs;
use proxier::testing::dataplane::ipvs::Kernel as _;
use proxier::testing::dataplane::userspace::Userspace;
use proxier::testing::op::Op;
use relay::{InsideClients, RelayLimits};
use rustix::time::{ClockId, clock_gettime};

use super::*;

const SERVICES: u16 = 5_000;
const ENDPOINTS: u16 = 10;

/// The processor time of an added endpoint in a round with IPVS (SPECIFICATION.md, "A change takes").
const WITH_IPVS: Duration = Duration::from_micros(70);

/// The port of all Services.
static PORT: LazyLock<u16> = LazyLock::new(unused_port);

fn key(number: u16) -> ipvs::ServiceKey {
    let [high, low] = number.to_be_bytes();
    ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Tcp,
        address: Ipv4Addr::new(127, 77, high, low).into(),
        port: *PORT,
    }
}

fn destination(service: u16, number: u16) -> ipvs::Destination {
    let [high, low] = service.to_be_bytes();
    let address = SocketAddr::from(([127, 78, high, low], 1_000 + number));
    ipvs::Destination::new(address.into(), 1)
}

/// Returns a relay with this number of Services.
fn userspace(services: u16) -> Userspace {
    let limits = RelayLimits {
        workers: 2,
        ..RelayLimits::default()
    };
    let mut userspace = Userspace::start(limits, InsideClients::default()).unwrap();
    for number in 0..services {
        let service = ipvs::Service::new(key(number), "wlc".parse().unwrap());
        let mut ops = vec![Op::AddService(service)];
        let endpoints = (0..ENDPOINTS).map(|endpoint| destination(number, endpoint));
        ops.extend(endpoints.map(|endpoint| Op::AddDestination(key(number), endpoint)));
        for outcome in userspace.apply(&ops) {
            outcome.unwrap();
        }
    }
    userspace
}

/// Returns the processor time to add and remove an endpoint, in the fastest of ten batches: interrupts of the
/// kernel are counted too.
fn cost_of_change(userspace: &mut Userspace, service: u16) -> Duration {
    let batches = (0..10).map(|_| cost_of_batch(userspace, service));
    batches.min().unwrap()
}

fn cost_of_batch(userspace: &mut Userspace, service: u16) -> Duration {
    const ROUNDS: u32 = 50;
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let start = now();
    for _ in 0..ROUNDS {
        let added = destination(service, ENDPOINTS);
        let ops = [
            Op::AddDestination(key(service), added),
            Op::DeleteDestination(key(service), added.key),
        ];
        for outcome in userspace.apply(&ops) {
            outcome.unwrap();
        }
    }
    (now() - start) / ROUNDS
}

#[test]
fn five_thousand_services_listen_and_a_change_costs_what_it_changes() {
    let start = Instant::now();
    let mut large = userspace(SERVICES);
    eprintln!("listening after {:?}", start.elapsed());
    // A real endpoint behind the last Service.
    let (last, port) = (SERVICES - 1, endpoint());
    let real = ipvs::Destination::new(SocketAddr::from(([127, 0, 0, 1], port)).into(), 1_000);
    let [high, low] = last.to_be_bytes();
    let mut ops = vec![Op::AddDestination(key(last), real)];
    let fake = (0..ENDPOINTS).map(|number| destination(last, number).key);
    ops.extend(fake.map(|endpoint| Op::DeleteDestination(key(last), endpoint)));
    for outcome in large.apply(&ops) {
        outcome.unwrap();
    }
    let mut stream = TcpStream::connect((Ipv4Addr::new(127, 77, high, low), *PORT)).unwrap();
    assert_eq!(ask(&mut stream).unwrap(), port);

    let among_many = cost_of_change(&mut large, SERVICES / 2);
    large.stop(Duration::ZERO);
    let mut small = userspace(50);
    let among_few = cost_of_change(&mut small, 25);
    small.stop(Duration::ZERO);
    eprintln!(
        "an endpoint added and removed: {among_few:?} among 50 Services, {among_many:?} among 5,000"
    );
    assert!(among_many < among_few * 2 + Duration::from_micros(5));
    assert!(among_many < WITH_IPVS);
}
