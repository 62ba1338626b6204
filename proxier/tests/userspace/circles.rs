//! Endpoints that are frontends of the relay itself.

use super::*;

/// Returns the manifests of a Service at an address and port, with these endpoints.
fn service(name: &str, protocol: &str, at: (&str, u16), endpoints: &[(&str, u16)]) -> String {
    let (address, port) = at;
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\n\
         spec:\n  clusterIP: {address}\n  clusterIPs: [{address}]\n  \
         ports: [{{name: p, protocol: {protocol}, port: {port}}}]\n---\n"
    );
    for (number, (address, port)) in endpoints.iter().enumerate() {
        text += &format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}-{number}, namespace: default, \
             labels: {{kubernetes.io/service-name: {name}}}}}\n\
             addressType: IPv4\nports: [{{name: p, protocol: {protocol}, port: {port}}}]\n\
             endpoints: [{{addresses: [{address}], conditions: {{ready: true}}}}]\n---\n"
        );
    }
    text
}

fn problem(name: &str, endpoint: (&str, u16)) -> String {
    let (address, port) = endpoint;
    format!("Service default/{name}: endpoints: \"{address}:{port}\": are addresses of Services")
}

/// Returns the endpoints that answer six new connections.
fn answers_at(address: (&str, u16)) -> std::io::Result<BTreeSet<u16>> {
    (0..6)
        .map(|_| ask(&mut TcpStream::connect(address)?))
        .collect()
}

fn is_refused(address: (&str, u16)) -> bool {
    let refused = std::io::ErrorKind::ConnectionRefused;
    TcpStream::connect(address).is_err_and(|error| error.kind() == refused)
}

#[test]
fn a_service_that_is_its_own_endpoint_is_a_problem_and_is_refused() {
    for protocol in ["TCP", "UDP"] {
        let at = (SERVICE, unused_port());
        let daemon = Daemon::start(&service("web", protocol, at, &[at]));
        eventually("the endpoint is a Problem", || {
            daemon.log().contains(&problem("web", at))
        });
        if protocol == "TCP" {
            assert!(is_refused(at));
            continue;
        }
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.connect(at).unwrap();
        client.send(b"question").unwrap();
        let error = client.recv(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

/// Two Services are each other's endpoint. One of them has another endpoint too.
#[test]
fn endpoints_are_left_out_while_they_are_frontends() {
    let (one, two) = ((SERVICE, unused_port()), ("127.9.8.10", unused_port()));
    let a = endpoint();
    let first = service("one", "TCP", one, &[two]);
    let second = service("two", "TCP", two, &[one, ("127.0.0.1", a)]);
    let daemon = Daemon::start(&first);
    daemon.await_round();
    let listener = TcpListener::bind(two).unwrap();
    drop(TcpStream::connect(one).unwrap());
    let _ = listener.accept().unwrap();
    drop(listener);

    daemon.apply(&format!("{first}{second}"));
    eventually("both are Problems", || {
        let log = daemon.log();
        log.contains(&problem("one", two)) && log.contains(&problem("two", one))
    });
    eventually("the only endpoint is left out", || is_refused(one));
    eventually("the other endpoint answers", || {
        answers_at(two).ok() == Some([a].into())
    });

    // The address is an endpoint again.
    daemon.apply(&first);
    let mut listener = None;
    eventually("the relay frees the address", || {
        listener = TcpListener::bind(two).ok();
        listener.is_some()
    });
    let listener = listener.unwrap();
    let mut client = None;
    eventually("it is an endpoint again", || {
        client = TcpStream::connect(one).ok();
        client.is_some()
    });
    let _ = listener.accept().unwrap();
}
