//! The servers on loopback sockets.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lab::net::unused_port;

use super::*;
use crate::cluster::model::{Family, ObjectName};
use crate::dataplane::ipvs::Owners;
use crate::observe::health::NodeState;
use crate::observe::instruments::Exporter;
use crate::observe::overview::{CounterSource, ObserverConfig};
use crate::plan::HealthCheck;
use crate::sources::events::{Notice, Regarding};
use crate::util::clock;

/// Servers at unused ports of 127.0.0.1.
struct Running {
    sources: Sources,
    healthz: SocketAddr,
    metrics: SocketAddr,
    _servers: RunningServers,
}

impl Running {
    fn failures(&self) -> Vec<Notice> {
        self.sources.bind_failures.notices()
    }
}

/// Returns an address at which nothing listens.
fn unused() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, unused_port()).into()
}

/// Starts the servers of a node that made its first round.
fn start() -> Running {
    start_at(unused())
}

fn start_at(healthz: SocketAddr) -> Running {
    start_with(healthz, OnBindFailure::Retry)
}

fn start_with(healthz: SocketAddr, on_bind_failure: OnBindFailure) -> Running {
    let metrics = unused();
    let (config, sources) = node(healthz, metrics, on_bind_failure);
    let servers = super::start(config, sources.clone()).unwrap();
    Running {
        sources,
        healthz,
        metrics,
        _servers: servers,
    }
}

/// Returns the values of the servers of a node that made its first round.
fn node(
    healthz: SocketAddr,
    metrics: SocketAddr,
    on_bind_failure: OnBindFailure,
) -> (ServeConfig, Sources) {
    let sources = Sources {
        board: Arc::default(),
        health_ports: Arc::default(),
        bind_failures: Arc::new(BindFailures::new("here")),
        watch: None,
        observer: observer(),
    };
    sources.board.change(|facts| {
        facts.node = NodeState::Staying;
        facts.end(None, clock::since_boot(), SystemTime::now());
    });
    let config = ServeConfig {
        healthz: Some(healthz),
        metrics: Some(metrics),
        shows_status: true,
        socket: socket(metrics),
        scraper: Scraper::new(
            Exporter::local(),
            Arc::new(Owners::new(0)),
            TrafficCounter::None,
            0,
        ),
        on_bind_failure,
        limits: Limits {
            freshness: Duration::from_secs(60),
            kernel: None,
            api: None,
            silence: None,
        },
        process: ProcessInfo {
            families: vec![Family::V4],
            mode: "ipvs",
            started: SystemTime::now(),
            configz: "{}".to_owned(),
        },
    };
    (config, sources)
}

/// Returns the socket of `top` of the servers whose metrics are at this address.
fn socket(metrics: SocketAddr) -> PathBuf {
    let name = format!("ipvs-proxier-{}.sock", metrics.port());
    std::env::temp_dir().join(name)
}

/// Returns an observer of a relay, whose daemon never answers.
fn observer() -> Arc<Observer> {
    let (daemon, _) = std::sync::mpsc::sync_channel(1);
    Arc::new(Observer::new(ObserverConfig {
        node: "here".into(),
        dataplane: "userspace",
        history: Arc::default(),
        desk: Arc::default(),
        daemon,
        source: CounterSource::Relay,
    }))
}

/// Returns the response to `GET path`, once the server listens.
fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut stream = connect(address);
    // A server whose address changed resets the connection; then the answer is empty.
    let _ = stream.write_all(request.as_bytes());
    read(&mut stream)
}

/// Connects as soon as the server listens.
fn connect(address: SocketAddr) -> TcpStream {
    eventually(|| TcpStream::connect(address).ok())
}

/// Reads until the server closes the connection.
fn read(stream: &mut TcpStream) -> String {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut text = Vec::new();
    // A reset after the response counts as its end.
    let _ = stream.read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

#[track_caller]
fn eventually<T>(found: impl FnMut() -> Option<T>) -> T {
    lab::await_some(Duration::from_millis(10), found).expect("never")
}

#[test]
fn headers_are_spelled_as_by_go() {
    let running = start();
    let response = get(running.healthz, "/healthz");
    for part in [
        "HTTP/1.1 200 OK\r\n",
        "Content-Type: application/json\r\n",
        "X-Content-Type-Options: nosniff\r\n",
        "Content-Length: ",
        "Date: ",
    ] {
        assert!(response.contains(part), "{part}: {response}");
    }
    assert!(get(running.metrics, "/proxyMode").ends_with("\r\n\r\nipvs"));
    let metrics = get(running.metrics, "/metrics");
    assert!(
        metrics.contains("\r\nContent-Type: text/plain; version=0.0.4"),
        "{metrics}"
    );
    assert!(
        metrics.contains("\nprocess_cpu_seconds_total "),
        "{metrics}"
    );
    let page = get(running.metrics, "/statusz");
    assert!(page.contains("Health: healthy\n"), "{page}");
}

#[test]
fn clients_that_send_nothing_keep_no_probe_out() {
    let running = start();
    // Twice as many as the server keeps. Each sends a part of a request.
    let mut slow: Vec<TcpStream> = (0..2 * MAX_CONNECTIONS)
        .map(|_| {
            let mut stream = connect(running.healthz);
            stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ").unwrap();
            stream
        })
        .collect();
    // Before the server gives up the slow clients, which is later than `get` waits.
    assert!(get(running.healthz, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get(running.metrics, "/proxyMode").starts_with("HTTP/1.1 200"));
    // The oldest connection was closed without an answer, and a late one still works.
    assert_eq!(read(&mut slow[0]), "");
    let last = slow.last_mut().unwrap();
    last.write_all(b"y\r\nConnection: close\r\n\r\n").unwrap();
    assert!(read(last).starts_with("HTTP/1.1 200"));
}

/// More connections wait for the server than it keeps. Each fifth one is a probe, and the others send a part of a
/// request.
#[test]
fn a_burst_of_connections_resets_no_probe() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (config, sources) = node(unused(), unused(), OnBindFailure::Retry);
    let service = HttpService {
        site: Site::Health,
        viewer: Arc::new(view::Viewer::new(config, sources)),
        pool: ConnectionPool::new(MAX_CONNECTIONS),
    };
    let context = runtime.enter();
    let listener = socket::listen_at((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    drop(context);
    let address = listener.local_addr().unwrap();
    let (mut probes, mut slow) = (Vec::new(), Vec::new());
    for number in 0..6 * MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        match number % 5 {
            0 => {
                stream.write_all(b"\r\n").unwrap();
                probes.push(stream);
            }
            _ => slow.push(stream),
        }
    }
    std::thread::spawn(move || runtime.block_on(listener::accept(listener, service)));
    let is_answered = |probe: &mut TcpStream| read(probe).starts_with("HTTP/1.1 200");
    let answered = probes.iter_mut().map(is_answered);
    let answered = answered.filter(|&it| it).count();
    assert_eq!(answered, probes.len());
}

#[test]
fn an_oversized_head_is_refused() {
    let running = start();
    let mut stream = connect(running.healthz);
    // The server may close the connection before all is written.
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ");
    let _ = stream.write_all(&[b'x'; 64 << 10]);
    let response = read(&mut stream);
    assert!(!response.contains("200 OK"), "{response}");
    assert!(get(running.healthz, "/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn an_address_in_use_is_bound_when_it_is_free() {
    let taken = TcpListener::bind(unused()).unwrap();
    let running = start_at(taken.local_addr().unwrap());
    assert!(get(running.metrics, "/proxyMode").starts_with("HTTP/1.1 200"));
    let failure = eventually(|| running.failures().pop());
    assert_eq!(failure.reason, "FailedToStartProxierHealthcheck");
    assert_eq!(failure.regarding, Regarding::Node);
    drop(taken);
    assert!(get(running.healthz, "/livez").starts_with("HTTP/1.1 200"));
    assert_eq!(running.failures(), []);
}

#[test]
fn an_address_in_use_asks_for_the_end_once_with_hard_failures() {
    let taken = TcpListener::bind(unused()).unwrap();
    let at = taken.local_addr().unwrap();
    let (asked, end) = std::sync::mpsc::channel();
    let ask = OnBindFailure::End(Box::new(move || asked.send(()).unwrap()));
    let running = start_with(at, ask);
    end.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(
        running.failures()[0].reason,
        "FailedToStartProxierHealthcheck"
    );
    drop(taken);
    // The other server still answers, and the failed one does not try again.
    assert!(get(running.metrics, "/proxyMode").starts_with("HTTP/1.1 200"));
    assert!(end.recv_timeout(BIND_PAUSE + BIND_PAUSE / 5).is_err());
    assert!(TcpStream::connect(at).is_err());
}

#[test]
fn health_check_ports_open_move_and_close_with_their_services() {
    let running = start();
    let ports = &running.sources.health_ports;
    let check = |count| {
        Some(HealthCheck {
            service: ObjectName::new("ns", "lb"),
            local_endpoints: [(Family::V4, count)].into(),
        })
    };
    let port = unused_port();
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    ports.update([(port, check(3))]);
    ports.listen_at(vec![
        Ipv4Addr::UNSPECIFIED.into(),
        Ipv6Addr::UNSPECIFIED.into(),
    ]);
    let response = get(at, "/");
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("X-Load-Balancing-Endpoint-Weight: 3\r\n"));
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    assert!(TcpStream::connect(v6).is_err(), "the Service has no IPv6");

    ports.update([(port, check(0))]);
    assert!(get(at, "/").starts_with("HTTP/1.1 503"));

    let other = IpAddr::from([127, 0, 0, 2]);
    ports.listen_at(vec![other]);
    let at_other = || get((other, port).into(), "/");
    // The old socket may still be open and reset this connection.
    eventually(|| at_other().starts_with("HTTP/1.1 503").then_some(()));
    eventually(|| TcpStream::connect(at).is_err().then_some(()));

    ports.update([(port, None)]);
    eventually(|| TcpStream::connect((other, port)).is_err().then_some(()));
}

#[test]
fn a_health_check_port_in_use_is_opened_when_it_is_free() {
    let running = start();
    let taken = TcpListener::bind(unused()).unwrap();
    let at = taken.local_addr().unwrap();
    let check = HealthCheck {
        service: ObjectName::new("ns", "lb"),
        local_endpoints: [(Family::V4, 1)].into(),
    };
    let ports = &running.sources.health_ports;
    ports.listen_at(vec![Ipv4Addr::LOCALHOST.into()]);
    ports.update([(at.port(), Some(check))]);
    let failure = eventually(|| running.failures().pop());
    assert_eq!(failure.reason, "FailedToStartServiceHealthcheck");
    let service = ObjectName::new("ns", "lb");
    assert_eq!(failure.regarding, Regarding::Service(service));
    let words = format!(
        "node here: health-check port {} cannot listen on {at}: ",
        at.port()
    );
    assert!(failure.note.starts_with(&words), "{}", failure.note);
    drop(taken);
    assert!(get(at, "/").starts_with("HTTP/1.1 200"));
    assert_eq!(running.failures(), []);

    // A port that is not needed any more cannot fail.
    let taken = TcpListener::bind(unused()).unwrap();
    let port = taken.local_addr().unwrap().port();
    ports.update([(port, ports.check(at.port()).map(|check| (*check).clone()))]);
    eventually(|| running.failures().pop());
    ports.update([(port, None)]);
    eventually(|| running.failures().is_empty().then_some(()));
}
