//! Clients in a Pod, on the node and outside, who must notice nothing.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lab::net::{Answer, Connection, Host};

use super::scene::{FRONTENDS, Scene};

/// An open connection, and the Pod that answers on it.
struct Open {
    connection: Connection,
    client: &'static str,
    frontend: &'static str,
    pod: String,
}

/// How long a new connection may take. A client does not notice that TCP repeated a packet.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a client tries to open one of the first connections, before anything is judged.
const ATTEMPTS: usize = 5;

/// The most datagrams that may be lost in a phase: those in flight, one of each client.
const IN_FLIGHT: usize = 3;

/// The pause of a client between two frontends. A tracked connection that has ended stays for two minutes,
/// and the lab tracks at most 8,192.
const PAUSE: Duration = Duration::from_millis(200);

/// All connections, and the failures so far.
pub(crate) struct Traffic {
    open: Vec<Open>,
    answered: AtomicUsize,
    /// The datagrams of the present phase that were not answered.
    unanswered: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

const CLIENTS: [&str; 3] = ["pod", "node", "outside"];

fn host<'a>(scene: &'a Scene, client: &str) -> &'a Host {
    match client {
        "pod" => &scene.cluster.pod3,
        "node" => &scene.cluster.node,
        _ => &scene.cluster.ext,
    }
}

/// Returns the UDP frontend of the same address.
fn udp(frontend: &str) -> String {
    frontend.replace(":80", ":53").replace(":30081", ":30051")
}

/// Connects to `frontend`, and reads the server's line.
fn greeting(frontend: &str) -> std::io::Result<()> {
    let address: SocketAddr = frontend.parse().unwrap();
    let stream = TcpStream::connect_timeout(&address, lab::patience(PATIENCE))?;
    stream.set_read_timeout(Some(lab::patience(PATIENCE)))?;
    match BufReader::new(stream).read_line(&mut String::new())? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

impl Traffic {
    /// Opens `count` connections, the same number from each client to each frontend.
    #[track_caller]
    pub(crate) fn open(scene: &Scene, count: usize) -> Self {
        let pairs = CLIENTS
            .iter()
            .flat_map(|client| FRONTENDS.map(|to| (*client, to)));
        let open = pairs.cycle().take(count).map(|(client, frontend)| {
            // kube-proxy may still write its rules, one table after the other.
            let mut attempts = (0..ATTEMPTS).map(|_| host(scene, client).connect(frontend));
            let connection = attempts.find_map(Result::ok);
            let connection = connection
                .unwrap_or_else(|| panic!("{client} to {frontend} through kube-proxy: no answer"));
            Open {
                pod: connection.greeting().backend().unwrap().to_owned(),
                connection,
                client,
                frontend,
            }
        });
        Self {
            open: open.collect(),
            answered: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            failures: Mutex::default(),
        }
    }

    /// Runs `work` while all clients open new connections and send datagrams, and then asks on each open
    /// connection.
    pub(crate) fn during<T>(&mut self, phase: &str, scene: &Scene, work: impl FnOnce() -> T) -> T {
        /// Ends the loops also if `work` panics.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let is_over = AtomicBool::new(false);
        let before = self.answered.load(Ordering::Relaxed);
        let result = std::thread::scope(|scope| {
            let _end = End(&is_over);
            for client in CLIENTS {
                let (this, is_over) = (&*self, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        this.ask_new(phase, client, host(scene, client));
                    }
                });
            }
            work()
        });
        let mut open = std::mem::take(&mut self.open);
        for it in &mut open {
            let answer = it.connection.ask();
            let (client, frontend, opened) =
                (it.client, it.frontend, it.connection.greeting().clone());
            match answer.backend() {
                Some(_) => _ = self.answered.fetch_add(1, Ordering::Relaxed),
                None => self.fail(format!(
                    "{phase}: open connection of {client} to {frontend} ({opened}): {answer}"
                )),
            }
            assert!(answer.backend().is_none_or(|pod| pod == it.pod), "{answer}");
        }
        self.open = open;
        let answered = self.answered.load(Ordering::Relaxed) - before;
        let lost = self.unanswered.swap(0, Ordering::Relaxed);
        eprintln!("{phase}: {answered} answers, {lost} datagrams lost");
        result
    }

    fn ask_new(&self, phase: &str, client: &str, host: &Host) {
        for frontend in FRONTENDS {
            std::thread::sleep(PAUSE);
            match host.run(|| greeting(frontend)) {
                Ok(()) => _ = self.answered.fetch_add(1, Ordering::Relaxed),
                Err(error) => self.fail(format!(
                    "{phase}: new connection of {client} to {frontend}: {error}"
                )),
            }
            let frontend = udp(frontend);
            match host.ask_udp(&*frontend) {
                Answer::Reply { .. } => _ = self.answered.fetch_add(1, Ordering::Relaxed),
                Answer::Timeout if self.unanswered.fetch_add(1, Ordering::Relaxed) < IN_FLIGHT => {}
                answer => self.fail(format!(
                    "{phase}: datagram of {client} to {frontend}: {answer}"
                )),
            }
        }
    }

    fn fail(&self, what: String) {
        self.failures.lock().unwrap().push(what);
    }

    /// Asserts that every question was answered.
    #[track_caller]
    pub(crate) fn assert_nothing_was_lost(&self) {
        let failures = self.failures.lock().unwrap();
        let answered = self.answered.load(Ordering::Relaxed);
        assert!(
            failures.is_empty(),
            "{answered} answered; lost:\n{}",
            failures.join("\n")
        );
        assert!(answered > 2 * self.open.len(), "{answered}");
    }
}
