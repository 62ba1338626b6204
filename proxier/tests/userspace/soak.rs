//! A relay under load for a while keeps neither memory nor descriptors.

use super::*;

/// How long the load lasts. `SOAK_SECS` replaces it.
const DURATION: Duration = Duration::from_secs(20);

/// The growth that is permitted between the end of the first third and the end. The allocator keeps pages.
const GROWTH_KIB: u64 = 1_024;

/// Returns the resident memory of the process.
fn resident_kib(daemon: &Daemon) -> u64 {
    let path = format!("/proc/{}/status", daemon.child.id());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

/// Makes connections of every kind until `end`. Returns how many.
fn load(port: u16, end: Instant) -> u64 {
    let mut made = 0;
    let mut kept = Vec::new();
    while Instant::now() < end {
        let mut stream = TcpStream::connect((SERVICE, port)).unwrap();
        match made % 4 {
            0 => drop(ask(&mut stream).unwrap()),
            // A client that closes without sending.
            1 => {}
            2 => {
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
            }
            _ => {
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                kept.push(stream);
            }
        }
        if kept.len() == 100 {
            kept.clear();
        }
        made += 1;
    }
    made
}

#[test]
fn neither_memory_nor_descriptors_grow() {
    let duration = match std::env::var("SOAK_SECS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().unwrap()),
        Err(_) => DURATION,
    };
    let (port, a, b) = (unused_port(), endpoint(), endpoint());
    let daemon = Daemon::start(&manifest("TCP", port, &[a, b], ""));
    eventually("both endpoints answer", || {
        answers(port).ok() == Some([a, b].into())
    });
    let before = daemon.files();
    let start = Instant::now();
    let early = load(port, start + duration / 3);
    eventually("connections end", || daemon.files() <= before + 2);
    let memory = resident_kib(&daemon);
    let mut late = 0;
    for third in [2, 3] {
        late += load(port, start + duration / 3 * third);
        // Endpoints come and go meanwhile.
        daemon.apply(&manifest("TCP", port, &[b, a][..third as usize - 1], ""));
    }
    eventually("connections end", || daemon.files() <= before + 2);
    let grown = resident_kib(&daemon).saturating_sub(memory);
    eprintln!(
        "{early} and {late} connections: {memory} KiB, and {grown} more; {before} descriptors"
    );
    assert!(grown < GROWTH_KIB, "{grown} KiB after {late} connections");
    assert!(late > 100);
}

/// The flows of a round of datagrams.
const FLOWS: u16 = 3_000;

/// Asks until an answer returns: datagrams may be lost.
fn wait_for_answer(client: &UdpSocket) {
    let short = Duration::from_millis(500);
    client.set_read_timeout(Some(short)).unwrap();
    eventually("an answer returns", || {
        let sent = client.send(b"question");
        sent.is_ok() && client.recv(&mut [0; 64]).is_ok()
    });
}

/// Opens the most flows that a round may have at a time, so that the memory of all later flows is there.
fn most_flows(port: u16) {
    let clients: Vec<UdpSocket> = (0..FLOWS)
        .map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.connect((SERVICE, port)).unwrap();
            client.send(b"question").unwrap();
            client
        })
        .collect();
    clients.iter().for_each(wait_for_answer);
}

/// Opens flows of every kind. Each has a client of its own.
fn datagrams(port: u16) {
    for number in 0..FLOWS {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect((SERVICE, port)).unwrap();
        match number % 4 {
            0 => wait_for_answer(&client),
            // Its answer finds no client.
            1 => drop(client.send(b"question").unwrap()),
            2 => drop(client.send(b"").unwrap()),
            _ => {
                for _ in 0..20 {
                    let _ = client.send(&[b'x'; 1_000]);
                }
            }
        }
    }
}

/// Starts an endpoint that returns each datagram. Returns its port.
fn datagram_endpoint() -> u16 {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 2_048];
        loop {
            // An error is that of a client that closed its socket.
            if let Ok((length, client)) = server.recv_from(&mut buffer) {
                let _ = server.send_to(&buffer[..length], client);
            }
        }
    });
    port
}

/// No round needs more flows at a time than there were before the first one.
#[test]
fn flows_leave_neither_memory_nor_descriptors() {
    const IDLE: &str = "ipvs-proxier.io/idle-timeout: \"1\"";
    let port = unused_port();
    let (a, b, refusing) = (datagram_endpoint(), datagram_endpoint(), unused_port());
    let rounds = match std::env::var("SOAK_SECS") {
        // Idle flows are looked for every 10 s.
        Ok(seconds) => (seconds.parse::<u64>().unwrap() / 12).max(3),
        Err(_) => 3,
    };
    let daemon = Daemon::start(&manifest("UDP", port, &[a, b], IDLE));
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    first.connect((SERVICE, port)).unwrap();
    wait_for_answer(&first);
    let flows = || daemon.metric("ipvs_proxier_relay_files{of=\"connections\"}");
    let before = daemon.files();
    most_flows(port);
    let mut memory = Vec::new();
    let mut most = 0.0_f64;
    for round in 0..rounds {
        datagrams(port);
        most = most.max(flows());
        // Endpoints come and go meanwhile, one of which refuses all datagrams.
        let endpoints = [[a, b], [b, refusing], [a, refusing]];
        let place = usize::try_from(round).unwrap() % endpoints.len();
        daemon.apply(&manifest("UDP", port, &endpoints[place], IDLE));
        eventually("flows end", || {
            flows() == 0.0 && daemon.files() <= before + 2
        });
        memory.push(resident_kib(&daemon));
    }
    eprintln!("{rounds} rounds of {FLOWS} flows, at most {most} at a time: {memory:?} KiB");
    assert!(most > 0.0);
    let grown = memory[memory.len() - 1].saturating_sub(memory[0]);
    assert!(grown < GROWTH_KIB, "{memory:?} KiB");
}
