//! Node ports, also at 127.0.0.1, and health-check node ports.

use super::*;

/// The ports of a Service.
struct Ports {
    port: u16,
    node_port: u16,
    health_check: u16,
}

impl Ports {
    fn unused() -> Self {
        Self {
            port: unused_port(),
            node_port: unused_port(),
            health_check: unused_port(),
        }
    }
}

/// Returns a Service with a node port and a health-check node port, whose policy is Local. Its endpoint is
/// on `node`.
fn load_balancer(ports: &Ports, endpoint: u16, node: &str) -> String {
    let Ports {
        port,
        node_port,
        health_check,
    } = ports;
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\n\
         spec:\n  type: LoadBalancer\n  externalTrafficPolicy: Local\n  \
         healthCheckNodePort: {health_check}\n  clusterIP: {SERVICE}\n  clusterIPs: [{SERVICE}]\n  \
         ports: [{{name: p, protocol: TCP, port: {port}, nodePort: {node_port}}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: default, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: p, protocol: TCP, port: {endpoint}}}]\n\
         endpoints: [{{addresses: [127.0.0.1], nodeName: {node}, conditions: {{ready: true}}}}]\n"
    )
}

/// Returns the endpoint that answers at an address.
fn answer_at(address: (&str, u16)) -> std::io::Result<u16> {
    ask(&mut TcpStream::connect(address)?)
}

/// Returns an address of this machine other than loopback, if it has a route to anywhere.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().unwrap().ip().to_string())
}

#[test]
fn node_ports_are_served_at_localhost_and_at_the_nodes_addresses() {
    let (ports, a) = (Ports::unused(), endpoint());
    let node_port = ports.node_port;
    let daemon = Daemon::start(&load_balancer(&ports, a, "node-a"));
    eventually("localhost answers", || {
        answer_at(("127.0.0.1", node_port)).ok() == Some(a)
    });
    if let Some(own) = own_address() {
        eventually("the node's address answers", || {
            answer_at((&own, node_port)).ok() == Some(a)
        });
    }
    // 127.0.0.2 is no address that serves node ports.
    assert!(TcpStream::connect(("127.0.0.2", node_port)).is_err());
    let health = format!("127.0.0.1:{}", ports.health_check);
    eventually("the node has a local endpoint", || {
        TcpStream::connect(&health).is_ok() && get(&health, "/").0 == 200
    });
    // Load balancers then avoid this node, but its own processes reach endpoints of all nodes.
    daemon.apply(&load_balancer(&ports, a, "node-b"));
    eventually("the node has no local endpoint", || {
        get(&health, "/").0 == 503
    });
    assert_eq!(answer_at(("127.0.0.1", node_port)).unwrap(), a);
}

/// The example that `./demo` serves: three endpoints, the first with weight 2.
#[test]
fn the_local_example_is_served() {
    let port = unused_port();
    let example = include_str!("../../../deploy/examples/local/web.yaml");
    // The demo may run on this machine.
    let example = example.replace("8080", &port.to_string());
    for host in 1..=3 {
        let listener =
            TcpListener::bind((std::net::Ipv4Addr::new(127, 80, 0, host), port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = stream.unwrap().write_all(format!("{host}\n").as_bytes());
            }
        });
    }
    let daemon = Daemon::start(&example);
    let service = ("127.96.0.80", port);
    daemon.await_round();
    let ask = || {
        let mut line = String::new();
        let stream = TcpStream::connect(service).unwrap();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let mut answers: Vec<String> = (0..8).map(|_| ask()).collect();
    answers.sort();
    assert_eq!(answers.concat(), "11112233", "{}", daemon.log());
}

#[test]
fn localhost_serves_no_node_port_if_the_operator_excludes_it() {
    for flag in [
        "--localhost-nodeports=false",
        "--nodeport-addresses=192.0.2.0/24",
    ] {
        let (ports, a) = (Ports::unused(), endpoint());
        let manifest = load_balancer(&ports, a, "node-a");
        let _daemon = Daemon::with_flags(&manifest, &[flag]);
        eventually("the cluster IP answers", || {
            answer_at((SERVICE, ports.port)).ok() == Some(a)
        });
        assert!(
            TcpStream::connect(("127.0.0.1", ports.node_port)).is_err(),
            "{flag}"
        );
    }
}

/// A client that is locked out keeps neither its connection nor its flow.
#[test]
fn source_ranges_apply_to_what_is_open() {
    const BALANCER: &str = "127.9.8.11";
    let (port, a) = (unused_port(), endpoint());
    let with_range = |range: &str| {
        let ranges = format!(
            "status: {{loadBalancer: {{ingress: [{{ip: {BALANCER}}}]}}}}\n\
             spec:\n  type: LoadBalancer\n  loadBalancerSourceRanges: [{range}]\n"
        );
        manifest("TCP", port, &[a], "").replace("spec:\n", &ranges)
    };
    let daemon = Daemon::start(&with_range("127.0.0.0/8"));
    eventually("the balancer's address answers", || {
        answer_at((BALANCER, port)).ok() == Some(a)
    });
    let mut client = TcpStream::connect((BALANCER, port)).unwrap();
    let mut through_cluster_ip = TcpStream::connect((SERVICE, port)).unwrap();
    assert_eq!(ask(&mut client).unwrap(), a);
    assert_eq!(ask(&mut through_cluster_ip).unwrap(), a);
    daemon.apply(&with_range("192.0.2.0/24"));
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // The ranges do not restrict the cluster IP.
    assert_eq!(ask(&mut through_cluster_ip).unwrap(), a);
}
