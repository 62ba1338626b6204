//! Endpoints that fail and return, clients that half-close, and changes under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

/// An endpoint that can be stopped and started at the same port.
struct Mortal {
    address: SocketAddr,
    listener: Option<TcpListener>,
}

impl Mortal {
    fn new() -> Self {
        // While it is dead, no other socket may get its port.
        let listener = TcpListener::bind(unused()).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            listener: Some(listener),
        }
    }

    /// Greets waiting clients with `m`.
    fn greet(&self) {
        let listener = self.listener.as_ref().unwrap();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"m");
        }
    }

    fn die(&mut self) {
        self.listener = None;
    }

    fn return_to_life(&mut self) {
        eventually(|| match TcpListener::bind(self.address) {
            Ok(listener) => {
                listener.set_nonblocking(true).unwrap();
                self.listener = Some(listener);
                true
            }
            Err(_) => false,
        });
    }
}

/// Returns the name of the endpoint that answers a new connection. Meanwhile, the mortal endpoint greets.
fn answer(address: SocketAddr, mortal: &Mortal) -> char {
    let mut client = connect(address);
    client
        .set_read_timeout(Some(Duration::from_millis(5)))
        .unwrap();
    let start = Instant::now();
    loop {
        if mortal.listener.is_some() {
            mortal.greet();
        }
        let mut name = [0; 1];
        match client.read_exact(&mut name) {
            Ok(()) => return char::from(name[0]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn an_endpoint_that_dies_is_left_out_and_gets_connections_when_it_returns() {
    let mut mortal = Mortal::new();
    let pool = pool("rr", None);
    add(&pool, mortal.address);
    add(&pool, endpoint("a"));
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    let both = |mortal: &Mortal| {
        let names: std::collections::BTreeSet<char> =
            (0..4).map(|_| answer(address, mortal)).collect();
        names.len() == 2
    };
    assert!(both(&mortal));
    for _ in 0..2 {
        mortal.die();
        for _ in 0..10 {
            assert_eq!(answer(address, &mortal), 'a', "no client notices");
        }
        mortal.return_to_life();
        eventually(|| both(&mortal));
    }
    assert_eq!(relay.statistics().refused.get(), 0);
}

/// Returns whether a client is reset: when it reads, or before it notices that it is connected.
fn is_reset(address: SocketAddr) -> bool {
    let result = TcpStream::connect(address).and_then(|mut client| {
        client.set_read_timeout(Some(PATIENCE))?;
        client.read(&mut [0; 1])
    });
    result.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

#[test]
fn clients_are_refused_when_all_endpoints_are_gone() {
    let pool = pool("rr", None);
    let gone = [unused(), unused(), unused()];
    gone.iter().for_each(|&endpoint| add(&pool, endpoint));
    let mut relay = relay();
    let (address, mut listening) = open(&mut relay, &pool);
    // They are planned, but nothing listens: each is tried once.
    assert!(is_reset(address));
    for endpoint in gone {
        pool.remove(endpoint);
    }
    relay.adjust(&mut listening).unwrap();
    eventually(|| {
        let refused = TcpStream::connect(address);
        refused.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
}

/// Returns a listener whose queue has room for `backlog` connections and one more.
fn listener(backlog: i32) -> TcpListener {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(backlog).unwrap();
    socket.into()
}

/// An endpoint whose queue is full, so that its kernel drops the SYNs of further clients.
struct Silent {
    address: SocketAddr,
    listener: TcpListener,
    _filling: TcpStream,
}

impl Silent {
    fn new() -> Self {
        let listener = listener(0);
        let address = listener.local_addr().unwrap();
        Self {
            address,
            listener,
            _filling: TcpStream::connect(address).unwrap(),
        }
    }

    /// Empties the queue, so that the endpoint accepts clients.
    fn wake(self) -> TcpListener {
        let _ = self.listener.accept().unwrap();
        self.listener
    }
}

/// A lost SYN is repeated after a second, longer than the patience with an endpoint that has alternatives.
#[test]
fn the_only_endpoint_has_time_to_answer() {
    // The SYNs come after 0, 1 and 3 s, and the relay waits for 3.75 s. If this thread stood still meanwhile, the
    // endpoint woke too late.
    while !is_answered_late(Duration::from_secs(2)) {}
}

/// Connects to an endpoint that wakes after 0.6 s, and expects its answer. Returns false if it woke later than
/// after `latest`.
fn is_answered_late(latest: Duration) -> bool {
    let slow = Silent::new();
    let pool = pool("rr", None);
    add(&pool, slow.address);
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    let start = Instant::now();
    let mut client = connect(address);
    std::thread::sleep(Duration::from_millis(600));
    let listener = slow.wake();
    if start.elapsed() > latest {
        return false;
    }
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"s").unwrap();
    assert_eq!(greeting(&mut client), 's');
    true
}

/// The kernel of the endpoint drops every SYN, so that only another endpoint can answer.
#[test]
fn a_silent_endpoint_is_left_for_the_next_one_and_gets_no_byte() {
    let (silent, living) = (Silent::new(), endpoint("a"));
    let pool = pool("rr", None);
    add(&pool, living);
    add(&pool, silent.address);
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    // One of two is for the silent one. The byte waits until an endpoint has accepted.
    let mut clients = [connect(address), connect(address)];
    for client in &mut clients {
        client.write_all(b"?").unwrap();
        assert_eq!([greeting(client), greeting(client)], ['a', '?']);
    }
    assert_eq!(pool.counts(silent.address), Default::default());
    assert_eq!(pool.counts(living).active, 2);
    assert_eq!(relay.statistics().refused.get(), 0);
    // The attempt that was given up never arrives; later ones do.
    let address_of_silent = silent.address;
    let listener = silent.wake();
    listener.set_nonblocking(true).unwrap();
    let mortal = Mortal {
        address: address_of_silent,
        listener: Some(listener),
    };
    eventually(|| answer(address, &mortal) == 'm');
}

#[test]
fn silent_endpoints_are_tried_a_limited_number_of_times() {
    let pool = pool("rr", None);
    let silent = [(); 6].map(|()| Silent::new());
    silent.iter().for_each(|it| add(&pool, it.address));
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    assert!(is_reset(address));
    assert_eq!(relay.statistics().refused.get(), 1);
    let counts = silent.iter().map(|it| pool.counts(it.address));
    assert!(counts.clone().all(|it| it == Default::default()));
}

/// In batches, because a connection has four descriptors in this process.
#[test]
fn ten_thousand_half_closed_connections_end_and_leave_nothing() {
    const BATCH: usize = 2_500;
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap();
    let pool = pool("rr", None);
    add(&pool, endpoint);
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    for _ in 0..4 {
        let mut pairs = Vec::new();
        for _ in 0..BATCH {
            let client = connect(address);
            client.shutdown(Shutdown::Write).unwrap();
            let (server, _) = listener.accept().unwrap();
            pairs.push((client, server));
        }
        // Each endpoint sees the client's end and can still answer.
        eventually(|| pool.counts(endpoint).inactive as usize == BATCH);
        for (client, server) in &mut pairs {
            server.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
            server.write_all(b"x").unwrap();
            client.read_exact(&mut [0; 1]).unwrap();
        }
        let held = open_files();
        drop(pairs);
        eventually(|| pool.counts(endpoint) == Default::default());
        eventually(|| open_files() + 3 * BATCH < held);
    }
    assert_eq!(relay.statistics().connected.get(), 4 * BATCH as u64);
}

/// Connections that are asked again and again while `change` runs many times.
fn under_load(address: SocketAddr, connections: usize, change: impl FnOnce()) -> u64 {
    let is_over = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicU64::new(0));
    let mut clients: Vec<TcpStream> = (0..connections).map(|_| connect(address)).collect();
    let threads = [(); 2].map(|()| {
        let mut part = clients.split_off(clients.len() - connections / 2);
        let (is_over, asked) = (is_over.clone(), asked.clone());
        std::thread::spawn(move || {
            for client in &mut part {
                greeting(client);
            }
            while !is_over.load(Ordering::Relaxed) {
                for client in &mut part {
                    client.write_all(b"?").unwrap();
                    client.read_exact(&mut [0; 1]).unwrap();
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    });
    eventually(|| asked.load(Ordering::Relaxed) > connections as u64);
    change();
    is_over.store(true, Ordering::Relaxed);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    asked.load(Ordering::Relaxed)
}

#[test]
fn changes_disturb_no_connection_of_another_endpoint() {
    const CONNECTIONS: usize = 1_000;
    let stable = echo();
    let pool_under_load = pool("lc", None);
    add(&pool_under_load, stable);
    let mut relay = relay();
    let (address, mut listening) = open(&mut relay, &pool_under_load);
    let before = relay.statistics().refused.get();
    under_load(address, CONNECTIONS, || {
        let other = pool("rr", None);
        let config = |scheduler: &str| PoolConfig {
            scheduler: scheduler.to_owned(),
            options: Options::default(),
            affinity: None,
        };
        for round in 0..100 {
            // Another frontend is added and removed, with an endpoint.
            let endpoint = unused();
            add(&other, endpoint);
            let (_, opened) = open(&mut relay, &other);
            // An endpoint of the same frontend is added, changed and removed; the scheduler changes.
            add(&pool_under_load, endpoint);
            let weight = round % 7;
            pool_under_load
                .set(endpoint, weight, Thresholds::default())
                .unwrap();
            let scheduler = ["wrr", "sh", "mh", "lc"][round as usize % 4];
            pool_under_load
                .configure(&config(scheduler), relay.now())
                .unwrap();
            relay
                .set_route(&mut listening, route(&pool_under_load))
                .unwrap();
            pool_under_load.remove(endpoint);
            other.remove(endpoint);
            relay.cut();
            relay.close(opened);
        }
        assert_eq!(relay.statistics().refused.get(), before);
        // Even without a usable endpoint, the connections stay. The relay may refuse the test's own
        // connections until the listener is closed.
        pool_under_load
            .set(stable, 0, Thresholds::default())
            .unwrap();
        relay.adjust(&mut listening).unwrap();
        eventually(|| TcpStream::connect(address).is_err());
    });
}

/// An endpoint with one thread for all its connections; greets with `e`, and returns all bytes.
fn echo() -> SocketAddr {
    let listener = listener(4_096);
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut poll = mio::Poll::new().unwrap();
        let mut listener = {
            listener.set_nonblocking(true).unwrap();
            mio::net::TcpListener::from_std(listener)
        };
        let (readable, accepting) = (mio::Interest::READABLE, mio::Token(usize::MAX - 1));
        poll.registry()
            .register(&mut listener, accepting, readable)
            .unwrap();
        let mut streams = slab::Slab::new();
        let mut events = mio::Events::with_capacity(256);
        loop {
            poll.poll(&mut events, None).unwrap();
            for event in &events {
                if event.token() == accepting {
                    while let Ok((mut stream, _)) = listener.accept() {
                        stream.write_all(b"e").unwrap();
                        let entry = streams.vacant_entry();
                        let token = mio::Token(entry.key());
                        poll.registry()
                            .register(&mut stream, token, readable)
                            .unwrap();
                        entry.insert(stream);
                    }
                    continue;
                }
                let mut buffer = [0; 64];
                let stream: &mut mio::net::TcpStream = &mut streams[event.token().0];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    let _ = stream.write_all(&buffer[..length]);
                }
            }
        }
    });
    address
}
