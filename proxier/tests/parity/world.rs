//! Clients, frontends and endpoints in one network, and the record of the endpoints that answered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use ipvs_netlink as ipvs;
use lab::net::{PatientStream, connect_within, receive_within};
use proxier::testing::op::Op;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

pub(crate) use proxier::testing::model::Protocol;

/// The endpoints that each virtual server has at the start, with their weights.
const ENDPOINTS: [(char, u32); 5] = [('a', 1), ('b', 3), ('c', 2), ('d', 1), ('e', 4)];

/// All endpoints, with those that tests add.
const NAMES: [char; 6] = ['a', 'b', 'c', 'd', 'e', 'f'];

/// The port of every endpoint.
const ENDPOINT_PORT: u16 = 8_080;

/// How long a client waits for its connection, and for an answer. A client that is refused does not wait: IPVS and
/// the relay answer with an ICMP error or a reset.
const PATIENCE: Duration = Duration::from_secs(30);

/// A frontend and its open connections.
struct Frontend {
    scheduler: &'static str,
    service: ipvs::Service,
    address: SocketAddr,
    protocol: Protocol,
    /// With the endpoints that they reached.
    clients: Vec<(char, Client)>,
}

/// The client's end of a connection.
enum Client {
    Tcp(TcpStream),
    /// Kept open, so that no other client gets its port.
    Udp {
        _socket: UdpSocket,
    },
}

/// What balances the connections.
pub(crate) trait Balancer {
    fn apply(&mut self, op: Op);

    /// Returns the endpoints of a virtual server, each with its active and inactive connections.
    fn connections(&mut self, key: &ipvs::ServiceKey) -> Vec<(IpAddr, (u32, u32))>;
}

/// Frontends, and the record of their connections.
pub(crate) struct World<'a> {
    balancer: &'a mut dyn Balancer,
    frontends: Vec<Frontend>,
    /// The listed endpoints, with weights and upper thresholds.
    endpoints: BTreeMap<char, (u32, u32)>,
    connections: u32,
    pub(crate) record: Vec<String>,
}

/// Returns the endpoints of a line of the record.
pub(crate) fn picks(line: &str) -> impl Iterator<Item = char> {
    let picks = line.split(" | ").nth(1).unwrap_or_default();
    picks.chars().filter(|pick| NAMES.contains(pick))
}

impl<'a> World<'a> {
    /// Starts the endpoints. The calling thread's network must be new.
    pub(crate) fn new(balancer: &'a mut dyn Balancer) -> Self {
        let files = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: Some(20_000),
            maximum: Some(files.maximum.unwrap_or(20_000).max(20_000)),
        };
        setrlimit(Resource::Nofile, raised).unwrap();
        let route = ["route", "add", "local", "10.0.0.0/8", "dev", "lo"];
        let made = Command::new("ip").args(route).status().unwrap();
        assert!(made.success());
        NAMES.into_iter().for_each(serve);
        Self {
            balancer,
            frontends: Vec::new(),
            endpoints: ENDPOINTS.map(|(name, weight)| (name, (weight, 0))).into(),
            connections: 0,
            record: Vec::new(),
        }
    }

    /// Adds virtual servers with all endpoints.
    pub(crate) fn add(&mut self, scheduler: &'static str, protocol: Protocol, frontends: u8) {
        let number = u8::try_from(self.frontends.len()).unwrap();
        for host in 0..frontends {
            let address = SocketAddr::from(([10, 96, number, host + 1], 80));
            let key = ipvs::ServiceKey::Address {
                protocol: match protocol {
                    Protocol::Udp => ipvs::Protocol::Udp,
                    _ => ipvs::Protocol::Tcp,
                },
                address: address.ip(),
                port: address.port(),
            };
            let service = ipvs::Service::new(key, name(scheduler));
            self.balancer.apply(Op::AddService(service));
            for (endpoint, weight) in ENDPOINTS {
                self.balancer
                    .apply(Op::AddDestination(key, destination(endpoint, weight, 0)));
            }
            self.frontends.push(Frontend {
                scheduler,
                service,
                address,
                protocol,
                clients: Vec::new(),
            });
        }
    }

    /// Makes connections to each frontend, each from another address and port.
    pub(crate) fn connect(&mut self, count: usize) {
        self.connect_from(count, |number| number);
    }

    /// Makes connections to each frontend from four addresses.
    pub(crate) fn connect_from_few(&mut self, count: usize) {
        self.connect_from(count, |number| number % 4);
    }

    fn connect_from(&mut self, count: usize, host: impl Fn(u32) -> u32) {
        for index in 0..self.frontends.len() {
            let mut picks = String::new();
            for _ in 0..count {
                self.connections += 1;
                let number = self.connections;
                let [_, _, high, low] = host(number).wrapping_mul(40_503).to_be_bytes();
                let source = Ipv4Addr::new(10, 7, high, low);
                let port = 20_000 + u16::try_from(number % 40_000).unwrap();
                let frontend = &mut self.frontends[index];
                match frontend.ask((source, port).into()) {
                    Some((name, client)) => {
                        picks.push(name);
                        frontend.clients.push((name, client));
                    }
                    None => picks.push('-'),
                }
            }
            let counts = self.counts(index);
            let Frontend {
                scheduler,
                address,
                protocol,
                ..
            } = &self.frontends[index];
            let line = format!("{scheduler:<5} {protocol} {address} | {picks} |{counts}");
            self.record.push(line);
        }
    }

    /// Every `n`th TCP client of each frontend half-closes its connection; waits until none of these is active.
    pub(crate) fn end_writing(&mut self, n: usize) {
        // The kernel forgets a half-closed connection after 60 s without a packet.
        let probes = TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(10));
        for frontend in &self.frontends {
            for (_, client) in frontend.clients.iter().step_by(n) {
                if let Client::Tcp(stream) = client {
                    SockRef::from(stream).set_tcp_keepalive(&probes).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                }
            }
        }
        // The connections of UDP are never active.
        self.settle(
            |(active, _)| active,
            |clients| clients - clients.div_ceil(n),
        );
    }

    /// Every `n`th TCP client of each frontend resets its connection; waits until none of them counts.
    pub(crate) fn reset_every(&mut self, n: usize) {
        for frontend in &mut self.frontends {
            let clients = std::mem::take(&mut frontend.clients);
            for (index, (name, client)) in clients.into_iter().enumerate() {
                match client {
                    Client::Tcp(stream) if index % n == 0 => {
                        let socket = SockRef::from(&stream);
                        socket.set_linger(Some(Duration::ZERO)).unwrap();
                    }
                    kept => frontend.clients.push((name, kept)),
                }
            }
        }
        self.settle(|(active, inactive)| active + inactive, |clients| clients);
    }

    /// Waits until the connections of each frontend, of which `count` takes the active, the inactive or both, are as
    /// few as `most` permits for its number of clients.
    fn settle(&mut self, count: fn((u32, u32)) -> u32, most: impl Fn(usize) -> usize) {
        for index in 0..self.frontends.len() {
            let most = most(self.frontends[index].clients.len());
            let connections = |world: &mut Self| -> u32 {
                let counts = world.connections_of(index).into_values();
                counts.map(count).sum()
            };
            let is_settled = || connections(self) as usize <= most;
            assert!(lab::await_true(Duration::from_millis(50), is_settled));
        }
    }

    /// Changes the weight of an endpoint everywhere.
    pub(crate) fn set_weight(&mut self, name: char, weight: u32) {
        self.endpoints.get_mut(&name).unwrap().0 = weight;
        self.write(name);
    }

    /// Sets the upper connection threshold of an endpoint everywhere.
    pub(crate) fn limit(&mut self, name: char, upper: u32) {
        self.endpoints.get_mut(&name).unwrap().1 = upper;
        self.write(name);
    }

    fn write(&mut self, name: char) {
        let (weight, upper) = self.endpoints[&name];
        for key in self.keys() {
            self.balancer
                .apply(Op::SetDestination(key, destination(name, weight, upper)));
        }
    }

    /// Removes an endpoint. Its connections no longer count anywhere.
    pub(crate) fn remove(&mut self, name: char) {
        self.endpoints.remove(&name);
        for frontend in &mut self.frontends {
            frontend.clients.retain(|(reached, _)| *reached != name);
        }
        for key in self.keys() {
            self.balancer
                .apply(Op::DeleteDestination(key, socket(name).into()));
        }
    }

    /// Adds another endpoint.
    pub(crate) fn introduce(&mut self, name: char, weight: u32) {
        self.endpoints.insert(name, (weight, 0));
        for key in self.keys() {
            self.balancer
                .apply(Op::AddDestination(key, destination(name, weight, 0)));
        }
    }

    /// Changes the scheduler of all virtual servers, and perhaps sets affinity.
    pub(crate) fn set_scheduler(&mut self, scheduler: &str, affinity_secs: Option<u32>) {
        for index in 0..self.frontends.len() {
            let key = self.frontends[index].service.key;
            let mut service = ipvs::Service::new(key, name(scheduler));
            if let Some(seconds) = affinity_secs {
                service.flags = service.flags | ipvs::ServiceFlags::PERSISTENT;
                service.timeout_secs = seconds;
            }
            self.frontends[index].service = service;
            self.balancer.apply(Op::SetService(service));
        }
    }

    fn keys(&self) -> Vec<ipvs::ServiceKey> {
        let frontends = self.frontends.iter();
        frontends.map(|frontend| frontend.service.key).collect()
    }

    /// Returns the connections of each endpoint: active/inactive, as the balancer reports them.
    fn counts(&mut self, index: usize) -> String {
        let mut text = String::new();
        for (name, counts) in self.connections_of(index) {
            let (active, inactive) = counts;
            write!(text, " {name}:{active}/{inactive}").unwrap();
        }
        text
    }

    fn connections_of(&mut self, index: usize) -> BTreeMap<char, (u32, u32)> {
        let key = self.frontends[index].service.key;
        let found = self.balancer.connections(&key).into_iter();
        found
            .map(|(address, counts)| (name_of(address), counts))
            .collect()
    }
}

impl Frontend {
    /// Makes a connection. Returns the endpoint that answered; `None` if the client was refused.
    fn ask(&self, source: SocketAddr) -> Option<(char, Client)> {
        match self.protocol {
            Protocol::Udp => self.ask_udp(source),
            _ => self.ask_tcp(source),
        }
    }

    fn ask_tcp(&self, source: SocketAddr) -> Option<(char, Client)> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&source.into()).unwrap();
        let stream = connect_within(socket.into(), self.address, PATIENCE).ok()?;
        let mut stream = PatientStream::new(stream, PATIENCE);
        let mut name = [0; 1];
        stream.read_exact(&mut name).ok()?;
        Some((name[0].into(), Client::Tcp(stream.into())))
    }

    fn ask_udp(&self, source: SocketAddr) -> Option<(char, Client)> {
        let socket = UdpSocket::bind(source).unwrap();
        socket.connect(self.address).unwrap();
        // Without an endpoint, IPVS drops the datagram on its way out: EPERM.
        socket.send(b"?").ok()?;
        let mut name = [0; 1];
        receive_within(&socket, &mut name, PATIENCE).ok()?;
        Some((name[0].into(), Client::Udp { _socket: socket }))
    }
}

/// Starts an endpoint that greets TCP clients, and answers UDP clients, with its name.
fn serve(name: char) {
    let greeting = [u8::try_from(name).unwrap()];
    let listener = TcpListener::bind(socket(name)).unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = std::io::Write::write_all(&mut stream, &greeting);
            open.push(stream);
        }
    });
    let datagrams = UdpSocket::bind(socket(name)).unwrap();
    std::thread::spawn(move || {
        while let Ok((_, client)) = datagrams.recv_from(&mut [0; 8]) {
            let _ = datagrams.send_to(&greeting, client);
        }
    });
}

fn socket(name: char) -> SocketAddr {
    let host = u8::try_from(name).unwrap() - b'a' + 1;
    SocketAddr::from(([10, 16, 0, host], ENDPOINT_PORT))
}

fn name_of(address: IpAddr) -> char {
    let found = NAMES.into_iter().find(|&name| socket(name).ip() == address);
    found.unwrap()
}

fn destination(name: char, weight: u32, upper: u32) -> ipvs::Destination {
    let mut destination = ipvs::Destination::new(socket(name).into(), weight);
    destination.upper_threshold = upper;
    destination
}

fn name(scheduler: &str) -> ipvs::SchedulerName {
    ipvs::SchedulerName::new(scheduler).unwrap()
}
