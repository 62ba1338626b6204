//! What open connections survive: edits of their Service that take their frontend or their endpoints.

use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::userspace::Userspace;
use proxier::testing::plan::PlanConfig;
use proxier::testing::sync::Proxier;
use relay::{InsideClients, RelayLimits};

use super::in_process::{config, events};
use super::*;

/// An external IP of the Service.
const EXTERNAL: &str = "127.9.8.11";

/// How long removed endpoints and frontends keep their connections.
const DRAIN: Duration = Duration::from_secs(60);

/// A proxier with a relay, and the time.
struct Relayed {
    proxier: Proxier<Userspace>,
    now: Duration,
}

impl Relayed {
    fn start() -> Self {
        let userspace = Userspace::start(RelayLimits::default(), InsideClients::default());
        let config = PlanConfig {
            drain: DRAIN,
            ..config()
        };
        Self {
            proxier: Proxier::of(userspace.unwrap(), config),
            now: Duration::ZERO,
        }
    }

    fn serve(&mut self, manifest: &str) {
        self.proxier.receive(events(manifest));
        self.round();
    }

    fn round(&mut self) {
        self.now += Duration::from_millis(1);
        let applied = self.proxier.sync(self.now).unwrap();
        let failures: Vec<String> = applied.failures().map(ToString::to_string).collect();
        assert_eq!(failures, [""; 0]);
    }

    /// Waits until the next round is due, and makes it.
    fn next(&mut self) {
        self.now = self.proxier.next_due().expect("a round is due");
        self.round();
    }

    fn draining(&self) -> usize {
        let planned = self.proxier.planned();
        self.proxier.dataplane().counts(planned).draining
    }
}

/// Returns the manifests of a Service with an external IP, if it has one, and these endpoints on a node each.
fn service(external: &str, port: u16, endpoints: &[(u16, &str)]) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\n\
         spec:\n  clusterIP: {SERVICE}\n  clusterIPs: [{SERVICE}]\n  {external}\n  \
         ports: [{{name: p, protocol: TCP, port: {port}}}]\n"
    );
    for (endpoint, node) in endpoints {
        text += &format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: web-{endpoint}, namespace: default, \
             labels: {{kubernetes.io/service-name: web}}}}\n\
             addressType: IPv4\nports: [{{name: p, protocol: TCP, port: {endpoint}}}]\n\
             endpoints: [{{addresses: [127.0.0.1], nodeName: {node}, conditions: {{ready: true}}}}]\n"
        );
    }
    text
}

fn connect(address: &str, port: u16) -> TcpStream {
    TcpStream::connect((address, port)).unwrap()
}

fn is_refused(address: &str, port: u16) -> bool {
    let refused = std::io::ErrorKind::ConnectionRefused;
    TcpStream::connect((address, port)).is_err_and(|error| error.kind() == refused)
}

#[test]
fn a_frontend_that_an_edit_removed_keeps_its_connections_and_refuses_others() {
    let (port, a) = (unused_port(), endpoint());
    let external = format!("externalIPs: [{EXTERNAL}]");
    let with = service(&external, port, &[(a, "node-a")]);
    let without = service("", port, &[(a, "node-a")]);
    let mut relay = Relayed::start();
    relay.serve(&with);
    let mut open = connect(EXTERNAL, port);
    assert_eq!(ask(&mut open).unwrap(), a);
    relay.serve(&without);
    eventually("it is refused", || is_refused(EXTERNAL, port));
    assert_eq!(relay.draining(), 1);
    relay.next();
    assert_eq!(ask(&mut open).unwrap(), a);

    // It returns.
    relay.serve(&with);
    assert_eq!(relay.draining(), 0);
    eventually("it serves again", || {
        ask(&mut connect(EXTERNAL, port)).ok() == Some(a)
    });
    assert_eq!(ask(&mut open).unwrap(), a);

    // Its last connection ends.
    relay.serve(&without);
    drop(open);
    eventually("it is gone", || {
        if relay.proxier.next_due().is_some() {
            relay.next();
        }
        relay.proxier.next_due().is_none()
    });
    assert_eq!(relay.draining(), 0);

    // At the deadline, and with the Service, connections end.
    for deletes in [false, true] {
        relay.serve(&with);
        // The first clients may still meet listeners of the round before.
        let mut open = connect(EXTERNAL, port);
        while ask(&mut open).ok() != Some(a) {
            open = connect(EXTERNAL, port);
        }
        relay.serve(&without);
        let removed = relay.now;
        if deletes {
            relay.serve("");
        } else {
            while relay.proxier.next_due().is_some() {
                relay.next();
            }
            assert!(relay.now <= removed + DRAIN + Duration::from_secs(1));
        }
        assert_eq!(relay.draining(), 0);
        eventually("the connection has ended", || ask(&mut open).is_err());
    }
}

/// Clients of the test are inside the cluster: with policy Local, they reach the endpoints of all nodes.
#[test]
fn connections_of_clients_inside_outlive_a_change_of_the_policy() {
    let (port, near, far) = (unused_port(), endpoint(), endpoint());
    let endpoints = [(near, "node-a"), (far, "node-b")];
    let of_policy = |policy: &str, endpoints: &[(u16, &str)]| {
        let external = format!("externalIPs: [{EXTERNAL}]\n  externalTrafficPolicy: {policy}");
        service(&external, port, endpoints)
    };
    let mut relay = Relayed::start();
    relay.serve(&of_policy("Cluster", &endpoints));
    // One connection to each endpoint.
    let mut open: Vec<(TcpStream, u16)> = Vec::new();
    while open.len() < 2 {
        let mut stream = connect(EXTERNAL, port);
        let answer = ask(&mut stream).unwrap();
        if open.iter().all(|(_, known)| *known != answer) {
            open.push((stream, answer));
        }
    }
    // With Local, the other endpoint leaves the pool of clients outside; with Cluster, the pool of clients inside ends.
    for (policy, draining) in [("Local", 1), ("Cluster", 2), ("Local", 1), ("Cluster", 2)] {
        relay.serve(&of_policy(policy, &endpoints));
        assert_eq!(relay.draining(), draining, "{policy}");
        // Until the workers have moved the connections to the other pool.
        eventually("what drained is gone", || {
            if relay.proxier.next_due().is_some() {
                relay.next();
            }
            relay.draining() == 0
        });
        for (stream, endpoint) in &mut open {
            assert_eq!(ask(stream).unwrap(), *endpoint, "{policy}");
        }
    }
    // A removed endpoint drains in the pool to which its connection moved.
    relay.serve(&of_policy("Local", &endpoints));
    relay.serve(&of_policy("Local", &[(near, "node-a")]));
    relay.next();
    for (stream, endpoint) in &mut open {
        assert_eq!(ask(stream).unwrap(), *endpoint);
    }
    open.retain(|(_, endpoint)| *endpoint == near);
    eventually("the removed endpoint has drained", || {
        if relay.proxier.next_due().is_some() {
            relay.next();
        }
        relay.draining() == 0
    });
    assert_eq!(ask(&mut open[0].0).unwrap(), near);
}
