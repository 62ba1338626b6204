//! Many idle connections.

use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;

/// The idle connections. Each has 4 descriptors in the process of the test, which is the relay, the clients and
/// the endpoints.
const CONNECTIONS: usize = 50_000;

/// The frontends, each with an endpoint of its own: an address has ports for fewer connections.
const FRONTENDS: usize = 5;

/// The connections that a client opens before the relay must have connected them: fewer than the queue of an endpoint.
const AT_ONCE: usize = 100;

/// The memory of an idle connection, at most.
const BYTES: usize = 1_024;

/// Returns the resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() * 1_024
}

/// Lets this process have as many descriptors as it needs. On most machines only the lab permits it.
fn raise_limits() {
    let files = CONNECTIONS as u64 * 5;
    let path = "/proc/sys/fs/file-max";
    let most: u64 = std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    std::fs::write(path, most.max(files).to_string()).unwrap();
    let limit = Some(files);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit,
            maximum: limit,
        },
    )
    .unwrap();
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65000").unwrap();
}

#[test]
fn fifty_thousand_idle_connections_take_less_than_a_kibibyte_each() {
    lab::test(|| {
        raise_limits();
        let mut relay = relay_with(CONNECTIONS * 3);
        let mut frontends = Vec::new();
        for _ in 0..FRONTENDS {
            let endpoint = TcpListener::bind("127.0.0.1:0").unwrap();
            let pool = pool("rr", None);
            add(&pool, endpoint.local_addr().unwrap());
            let (address, listening) = open(&mut relay, &pool);
            frontends.push((address, endpoint, listening));
        }
        let mut clients = Vec::with_capacity(CONNECTIONS);
        let mut endpoints = Vec::with_capacity(CONNECTIONS);
        let before = resident();
        let patience = lab::patience(PATIENCE);
        while clients.len() < CONNECTIONS {
            let (address, endpoint, _) = &frontends[clients.len() / AT_ONCE % FRONTENDS];
            for _ in 0..AT_ONCE {
                clients.push(TcpStream::connect(address).unwrap());
            }
            for _ in 0..AT_ONCE {
                endpoints.push(endpoint.accept().unwrap().0);
            }
        }
        eventually(|| relay.statistics().connected.get() == CONNECTIONS as u64);
        let bytes = (resident() - before) / CONNECTIONS;
        eprintln!("{CONNECTIONS} connections, {bytes} bytes each");
        assert!(bytes < BYTES, "{bytes}");
        // All of them are alive: a byte to each client, and then its end.
        for endpoint in &mut endpoints {
            endpoint.write_all(b"!").unwrap();
        }
        for client in &mut clients {
            client.set_read_timeout(Some(patience)).unwrap();
            assert_eq!(greeting(client), '!');
        }
        drop(endpoints);
        for client in &mut clients {
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        }
    });
}
