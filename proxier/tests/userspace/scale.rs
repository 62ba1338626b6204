//! 5,000 Services with 50,000 endpoints, and the cost of one change among them.

use std::net::Ipv4Addr;
use std::sync::LazyLock;

use proxier::testing::dataplane::userspace::Userspace;
use proxier::testing::store::Event;
use relay::{InsideClients, RelayLimits};
use rustix::time::{ClockId, clock_gettime};

use super::in_process::{Node, events, service, slice_event};
use super::*;

const SERVICES: u16 = 5_000;
const ENDPOINTS: u8 = 10;

/// The processor time of an added endpoint in a round with IPVS (SPECIFICATION.md, "A change takes").
const WITH_IPVS: Duration = Duration::from_micros(70);

/// The port of all Services.
static PORT: LazyLock<u16> = LazyLock::new(unused_port);

fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 77, high, low)
}

/// Returns the manifest of the endpoints of a Service.
fn slice(service: u16, port: u16, addresses: &[Ipv4Addr]) -> String {
    let endpoints = addresses.iter();
    let endpoints =
        endpoints.map(|it| format!("{{addresses: [{it}], conditions: {{ready: true}}}}, "));
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: s-{service}, namespace: default, labels: {{kubernetes.io/service-name: s-{service}}}}}\n\
         addressType: IPv4\nports: [{{name: p, protocol: TCP, port: {port}}}]\nendpoints: [{}]\n---\n",
        endpoints.collect::<String>()
    )
}

/// Returns the manifest of this number of endpoints, which do not answer.
fn silent(service: u16, endpoints: u8) -> String {
    let [high, low] = service.to_be_bytes();
    let address = |number| Ipv4Addr::new(127, 80 + number, high, low);
    slice(
        service,
        1_000,
        &(0..endpoints).map(address).collect::<Vec<_>>(),
    )
}

/// Returns a relay with this number of Services.
fn node(services: u16) -> Node {
    let limits = RelayLimits {
        workers: 2,
        ..RelayLimits::default()
    };
    let mut text = String::new();
    for number in 0..services {
        let at = address(number).to_string();
        text += &service(&format!("s-{number}"), &at, *PORT);
        text += &silent(number, ENDPOINTS);
    }
    let mut node = Node::new(Userspace::start(limits, InsideClients::default()).unwrap());
    let serve = node.plan(events(&text));
    let start = Instant::now();
    serve();
    eprintln!("{services} Services listen after {:?}", start.elapsed());
    node
}

/// Returns the processor time to add and remove an endpoint, beyond the plan, in the fastest of ten batches: interrupts
/// of the kernel are counted too.
fn cost_of_change(node: &mut Node, service: u16) -> Duration {
    let few = slice_event(&silent(service, ENDPOINTS));
    let more = slice_event(&silent(service, ENDPOINTS + 1));
    let batches = (0..10).map(|_| cost_of_batch(node, [&more, &few]));
    batches.min().unwrap()
}

fn cost_of_batch(node: &mut Node, events: [&Event; 2]) -> Duration {
    const ROUNDS: u32 = 50;
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let mut spent = Duration::ZERO;
    for _ in 0..ROUNDS {
        for event in events {
            let serve = node.plan([event.clone()]);
            let start = now();
            serve();
            spent += now() - start;
        }
    }
    spent / ROUNDS
}

#[test]
fn five_thousand_services_listen_and_a_change_costs_what_it_changes() {
    let mut large = node(SERVICES);
    // A real endpoint behind the last Service.
    let (last, port) = (SERVICES - 1, endpoint());
    large.plan([slice_event(&slice(last, port, &[Ipv4Addr::LOCALHOST]))])();
    let mut stream = TcpStream::connect((address(last), *PORT)).unwrap();
    assert_eq!(ask(&mut stream).unwrap(), port);

    let among_many = cost_of_change(&mut large, SERVICES / 2);
    large.dataplane.stop(Duration::ZERO);
    let mut small = node(50);
    let among_few = cost_of_change(&mut small, 25);
    small.dataplane.stop(Duration::ZERO);
    eprintln!(
        "an endpoint added and removed: {among_few:?} among 50 Services, {among_many:?} among 5,000"
    );
    assert!(among_many < among_few * 2 + Duration::from_micros(5));
    assert!(among_many < WITH_IPVS);
}
