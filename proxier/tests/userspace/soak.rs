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
