//! The process has no descriptor left; options of annotations; the page of metrics.

use proxier::testing::dataplane::userspace::Userspace;
use proxier::testing::sync::Proxier;
use relay::{InsideClients, RelayLimits};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::in_process::{config, events, service};
use super::*;

/// Sets the number of descriptors that the process may have.
fn limit_files(daemon: &Daemon, current: u64) {
    let pid = Pid::from_child(&daemon.child);
    let maximum = prlimit(
        Some(pid),
        Resource::Nofile,
        Rlimit {
            current: Some(current),
            maximum: rustix::process::getrlimit(Resource::Nofile).maximum,
        },
    );
    maximum.unwrap();
}

/// Returns the processor time of the process.
fn cpu_time(daemon: &Daemon) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", daemon.child.id())).unwrap();
    // The name of the program may contain spaces; utime and stime are the fields 14 and 15.
    let (_, fields) = text.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn clients_wait_while_no_descriptor_is_left_and_are_served_afterwards() {
    let (port, a) = (unused_port(), endpoint());
    let daemon = Daemon::start(&manifest("TCP", port, &[a], ""));
    eventually("the endpoint answers", || {
        answers(port).ok() == Some([a].into())
    });
    let before = daemon.files();
    limit_files(&daemon, before + 12);
    let mut clients: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect((SERVICE, port)).unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let idle = cpu_time(&daemon);
    std::thread::sleep(Duration::from_secs(3));
    let spent = cpu_time(&daemon) - idle;
    assert!(spent < Duration::from_millis(400), "it spins: {spent:?}");
    limit_files(&daemon, 4_096);
    // None was reset: all waited in the kernel's queue.
    for client in &mut clients {
        assert_eq!(ask(client).unwrap(), a);
    }
    assert!(daemon.metric("ipvs_proxier_relay_pauses_total{reason=\"exhausted\"}") > 0.0);
    assert_eq!(
        daemon.metric("ipvs_proxier_relay_connections_total{result=\"refused\"}"),
        0.0
    );
    assert!(daemon.metric("ipvs_proxier_relay_files{of=\"connections\"}") >= 80.0);
    assert!(daemon.metric("ipvs_proxier_relay_files{of=\"listeners\"}") >= 1.0);
    drop(clients);
    eventually("all descriptors are free again", || {
        daemon.files() <= before + 2
    });
}

/// Several workers run out of descriptors at once, so that one takes the descriptor that another one has given up for
/// the endpoint of a client.
#[test]
fn no_client_is_reset_while_workers_take_the_last_descriptors_of_each_other() {
    let (port, a) = (unused_port(), endpoint());
    let manifest = manifest("TCP", port, &[a], "");
    let daemon = Daemon::with_flags(&manifest, &["--userspace-workers=8"]);
    eventually("the endpoint answers", || {
        answers(port).ok() == Some([a].into())
    });
    let before = daemon.files();
    for round in 0..15 {
        limit_files(&daemon, before + 30);
        let mut clients: Vec<TcpStream> = (0..100)
            .map(|_| TcpStream::connect((SERVICE, port)).unwrap())
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        limit_files(&daemon, 4_096);
        for client in &mut clients {
            let answer = ask(client);
            assert_eq!(answer.unwrap(), a, "round {round}");
        }
    }
}

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Returns the lines since the last call.
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// Returns the manifests of this number of Services with one frontend each.
fn frontends(count: u8, port: u16) -> String {
    let service = |number| service(&format!("s-{number}"), &format!("127.79.0.{number}"), port);
    (0..count).map(service).collect()
}

#[test]
fn the_limit_of_frontends_is_said_before_it_is_hit_and_once_each_time() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    // 66 frontends of one worker: three quarters of the descriptors that are no reserve.
    let limits = RelayLimits {
        workers: 1,
        files: 100,
        ..RelayLimits::default()
    };
    let userspace = Userspace::start(limits, InsideClients::default()).unwrap();
    let mut proxier = Proxier::of(userspace, config());
    let (port, mut now) = (unused_port(), Duration::ZERO);
    // Returns the failures.
    let mut serve = |count: u8| -> Vec<String> {
        proxier.receive(events(&frontends(count, port)));
        now += Duration::from_millis(1);
        let applied = proxier.sync(now).unwrap();
        applied.failures().map(ToString::to_string).collect()
    };
    for warned_at in [53, 53] {
        for number in 0..66 {
            assert_eq!(serve(number + 1), [""; 0]);
            let lines = log.take();
            // Fewer than a fifth, 13, are left.
            assert_eq!(
                lines.len(),
                usize::from(number == warned_at),
                "{number}: {lines:?}"
            );
            for line in lines {
                for words in [
                    " WARN ",
                    "54 frontends listen, and only 12 more can",
                    "the process may open 100 files",
                    "ulimit -Hn, LimitNOFILE=",
                    "--userspace-workers",
                ] {
                    assert!(line.contains(words), "{line}");
                }
            }
        }
        let refused = serve(67);
        assert!(
            refused.len() == 1 && refused[0].contains("100 files"),
            "{refused:?}"
        );
        // A few that come and go at the limit are no news.
        assert_eq!(serve(50), [""; 0]);
        assert_eq!(serve(66), [""; 0]);
        assert_eq!(log.take(), [""; 0]);
        assert_eq!(serve(0), [""; 0]);
        // The first one after a fifth of all became free ends the silence.
        assert_eq!(log.take(), [""; 0]);
    }
}

#[test]
fn annotations_add_headers_and_end_idle_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, a) = (unused_port(), listener.local_addr().unwrap().port());
    let annotations = "ipvs-proxier.io/proxy-protocol: v1, ipvs-proxier.io/idle-timeout: \"1\"";
    let daemon = Daemon::start(&manifest("TCP", port, &[a], annotations));
    eventually("it listens", || TcpStream::connect((SERVICE, port)).is_ok());
    let mut stream = TcpStream::connect((SERVICE, port)).unwrap();
    let from = stream.local_addr().unwrap().port();
    let expected = format!("PROXY TCP4 127.0.0.1 {SERVICE} {from} {port}\r\n");
    let header = std::iter::repeat_with(|| {
        let (server, _) = listener.accept().unwrap();
        let mut line = String::new();
        let _ = BufReader::new(server.try_clone().unwrap()).read_line(&mut line);
        (server, line)
    });
    let (_server, line) = header.take(50).find(|(_, line)| *line == expected).unwrap();
    assert_eq!(line, expected);
    // Idle connections are looked for every 10 s.
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let reset = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    daemon.apply(&manifest("UDP", port, &[a], annotations));
    eventually("a header without effect is a Problem", || {
        daemon.log().contains("only TCP has such headers")
    });
}

#[test]
fn the_holder_of_a_taken_port_is_named() {
    let port = unused_port();
    let _taken = TcpListener::bind((SERVICE, port)).unwrap();
    let daemon = Daemon::start(&manifest("TCP", port, &[endpoint()], ""));
    let process = format!("(process {})", std::process::id());
    eventually("this process is named", || {
        let log = daemon.log();
        log.contains(&process) && log.contains("address in use by ")
    });
}
