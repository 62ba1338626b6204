//! `ipvs-proxier run --dataplane=userspace` serves Services at loopback addresses, without privileges.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "userspace/circles.rs"]
mod circles;
#[path = "userspace/departures.rs"]
mod departures;
#[path = "userspace/in_process.rs"]
mod in_process;
#[path = "userspace/limits.rs"]
mod limits;
#[path = "userspace/node_ports.rs"]
mod node_ports;
#[path = "userspace/registered.rs"]
mod registered;
#[path = "userspace/scale.rs"]
mod scale;
#[path = "userspace/soak.rs"]
mod soak;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lab::net::unused_port;
use tempfile::TempDir;

/// How long to wait for what must happen. On a busy machine, a thread may stand still for half a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// The address of the Service under test. All of 127.0.0.0/8 is local on Linux.
const SERVICE: &str = "127.9.8.7";

/// A daemon that serves the manifests of a directory.
struct Daemon {
    directory: TempDir,
    child: Child,
    log: Arc<Mutex<String>>,
    metrics: u16,
}

impl Daemon {
    fn start(manifest: &str) -> Self {
        Self::with_flags(manifest, &[])
    }

    fn with_flags(manifest: &str, flags: &[&str]) -> Self {
        let metrics = unused_port();
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), manifest);
        let mut child = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
            .args(["run", "--dataplane=userspace", "--node-name=node-a"])
            .args(["--ipvs-min-sync-period=0s", "--ipvs-sync-period=1s"])
            .arg(format!(
                "--healthz-bind-address=127.0.0.1:{}",
                unused_port()
            ))
            .arg(format!("--metrics-bind-address=127.0.0.1:{metrics}"))
            .args(flags)
            .arg("--manifests")
            .arg(directory.path().join("manifests"))
            .arg("--state-file")
            .arg(directory.path().join("state"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let collected = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("{line}");
                *collected.lock().unwrap() += &(line + "\n");
            }
        });
        Self {
            directory,
            child,
            log,
            metrics,
        }
    }

    /// Returns the value of a metric.
    fn metric(&self, series: &str) -> f64 {
        let page = get(&format!("127.0.0.1:{}", self.metrics), "/metrics").1;
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        let value = line.unwrap_or_else(|| panic!("{series} is missing: {page}"));
        value.trim().parse().unwrap()
    }

    /// Returns the number of descriptors of the process.
    fn files(&self) -> u64 {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).unwrap().count() as u64
    }

    fn apply(&self, manifest: &str) {
        write(self.directory.path(), manifest);
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the daemon has opened all frontends of a round, with their endpoints.
    fn await_round(&self) {
        eventually("a round is over", || self.log().contains("synced changed="));
    }

    fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(directory: &Path, manifest: &str) {
    let manifests = directory.join("manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    // Renaming replaces the file at once: the daemon never reads a half-written one.
    let new = directory.join("new.yaml");
    std::fs::write(&new, manifest).unwrap();
    std::fs::rename(new, manifests.join("service.yaml")).unwrap();
}

/// Returns the manifests of Service `web` with `port` and these endpoints on the loopback device.
fn manifest(protocol: &str, port: u16, endpoints: &[u16], annotations: &str) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a}}\n---\n\
         apiVersion: v1\nkind: Service\n\
         metadata: {{name: web, namespace: default, annotations: {{{annotations}}}}}\n\
         spec:\n  clusterIP: {SERVICE}\n  clusterIPs: [{SERVICE}]\n  \
         ports: [{{name: p, protocol: {protocol}, port: {port}}}]\n"
    );
    // One slice per endpoint, because their ports differ.
    for endpoint in endpoints {
        text += &format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: web-{endpoint}, namespace: default, \
             labels: {{kubernetes.io/service-name: web}}}}\n\
             addressType: IPv4\nports: [{{name: p, protocol: {protocol}, port: {endpoint}}}]\n\
             endpoints: [{{addresses: [127.0.0.1], conditions: {{ready: true}}}}]\n"
        );
    }
    text
}

/// Starts an endpoint that answers each line with its own port. Returns the port.
fn endpoint() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0; 1];
                while matches!(stream.read(&mut byte), Ok(1)) {
                    let _ = stream.write_all(format!("{port}\n").as_bytes());
                }
            });
        }
    });
    port
}

/// Requests a page. Returns the status and the body.
fn get(server: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, body.to_owned())
}

/// Returns the port of the endpoint that answers on the connection.
fn ask(stream: &mut TcpStream) -> std::io::Result<u16> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"?")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim().parse().unwrap_or(0))
}

/// Returns the endpoints that answer six new connections.
fn answers(port: u16) -> std::io::Result<BTreeSet<u16>> {
    (0..6)
        .map(|_| ask(&mut TcpStream::connect((SERVICE, port))?))
        .collect()
}

#[track_caller]
fn eventually(what: &str, condition: impl FnMut() -> bool) {
    let holds = lab::await_true(Duration::from_millis(20), condition);
    assert!(holds, "{what}");
}

#[test]
fn endpoints_come_and_go_while_an_open_connection_continues() {
    let port = unused_port();
    let (a, b) = (endpoint(), endpoint());
    let daemon = Daemon::start(&manifest("TCP", port, &[a, b], ""));
    eventually("both endpoints answer", || {
        answers(port).ok() == Some([a, b].into())
    });

    let mut open = loop {
        let mut stream = TcpStream::connect((SERVICE, port)).unwrap();
        if ask(&mut stream).unwrap() == a {
            break stream;
        }
    };
    daemon.apply(&manifest("TCP", port, &[b], ""));
    eventually("only the other endpoint answers", || {
        answers(port).ok() == Some([b].into())
    });
    assert_eq!(ask(&mut open).unwrap(), a, "the removed endpoint drains");

    daemon.apply(&manifest("TCP", port, &[], ""));
    eventually("connections are refused", || {
        let refused = std::io::ErrorKind::ConnectionRefused;
        TcpStream::connect((SERVICE, port)).is_err_and(|error| error.kind() == refused)
    });
    assert_eq!(ask(&mut open).unwrap(), a);

    daemon.apply(&manifest("TCP", port, &[a, b], ""));
    eventually("both endpoints answer again", || {
        answers(port).ok() == Some([a, b].into())
    });
    assert_eq!(ask(&mut open).unwrap(), a);
}

#[test]
fn the_scheduler_of_the_annotation_chooses() {
    let port = unused_port();
    let (a, b) = (endpoint(), endpoint());
    let daemon = Daemon::start(&manifest("TCP", port, &[a, b], ""));
    eventually("rr alternates", || {
        answers(port).ok() == Some([a, b].into())
    });
    let annotation = "ipvs-proxier.io/scheduler: sh";
    daemon.apply(&manifest("TCP", port, &[a, b], annotation));
    // sh hashes the client's address, and there is one client.
    eventually("sh always picks the same", || {
        answers(port).is_ok_and(|it| it.len() == 1)
    });
}

#[test]
fn datagrams_reach_endpoints_and_answers_return() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let endpoint = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, client)) = server.recv_from(&mut buffer) {
            let _ = server.send_to(&buffer[..length], client);
        }
    });
    let port = unused_port();
    let _daemon = Daemon::start(&manifest("UDP", port, &[endpoint], ""));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    eventually("an answer returns", || {
        let _ = client.send_to(b"question", (SERVICE, port));
        let mut buffer = [0; 64];
        matches!(client.recv_from(&mut buffer), Ok((8, from)) if from.port() == port)
    });
}

#[test]
fn sctp_and_taken_ports_are_reported() {
    let port = unused_port();
    let taken = TcpListener::bind((SERVICE, port)).unwrap();
    let daemon = Daemon::start(&manifest("TCP", port, &[endpoint()], ""));
    eventually("the taken port is named", || {
        daemon.log().contains(&format!("{SERVICE}:{port}")) && daemon.log().contains("in use")
    });
    drop(taken);
    eventually("the port is served when it is free", || {
        answers(port).is_ok()
    });
    daemon.apply(&manifest("SCTP", port, &[], ""));
    eventually("SCTP is a Problem", || {
        daemon
            .log()
            .contains("SCTP cannot be relayed by the userspace dataplane")
            || daemon
                .log()
                .contains("cannot be relayed by the userspace dataplane")
    });
}

#[test]
fn external_ips_are_served_unless_their_feature_gate_is_off() {
    const EXTERNAL: &str = "127.9.8.9";
    let (port, a) = (unused_port(), endpoint());
    let external = format!("spec:\n  externalIPs: [{EXTERNAL}]\n");
    let manifest = manifest("TCP", port, &[a], "").replace("spec:\n", &external);
    for (gate, is_served) in [("true", true), ("false", false)] {
        let flag = format!("--feature-gates=AllowServiceExternalIPs={gate}");
        let daemon = Daemon::with_flags(&manifest, &[&flag]);
        daemon.await_round();
        eventually("the cluster IP answers", || answers(port).is_ok());
        let answer = TcpStream::connect((EXTERNAL, port)).is_ok();
        assert_eq!(answer, is_served, "{flag}");
    }
}

#[test]
fn stopping_lets_open_connections_end() {
    let port = unused_port();
    let a = endpoint();
    let mut daemon = Daemon::start(&manifest("TCP", port, &[a], ""));
    eventually("the endpoint answers", || {
        answers(port).ok() == Some([a].into())
    });
    let mut open = TcpStream::connect((SERVICE, port)).unwrap();
    assert_eq!(ask(&mut open).unwrap(), a);
    daemon.terminate();
    eventually("new connections are refused", || {
        TcpStream::connect((SERVICE, port)).is_err()
    });
    assert_eq!(ask(&mut open).unwrap(), a);
    assert_eq!(daemon.child.try_wait().unwrap(), None);
    drop(open);
    eventually("the process exits", || {
        daemon.child.try_wait().unwrap().is_some()
    });
}
