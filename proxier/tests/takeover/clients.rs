//! Clients in a Pod, on the node and outside, who must notice nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lab::net::{Answer, Connection, Host};

use super::scene::{FRONTENDS, Scene};

/// An open connection, and the Pod that answers on it.
struct Open {
    connection: Connection,
    client: &'static str,
    frontend: &'static str,
    pod: String,
}

/// All connections, and the failures so far.
pub(crate) struct Traffic {
    open: Vec<Open>,
    answered: AtomicUsize,
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

impl Traffic {
    /// Opens `count` connections, the same number from each client to each frontend.
    #[track_caller]
    pub(crate) fn open(scene: &Scene, count: usize) -> Self {
        let pairs = CLIENTS
            .iter()
            .flat_map(|client| FRONTENDS.map(|to| (*client, to)));
        let open = pairs.cycle().take(count).map(|(client, frontend)| {
            let connection = host(scene, client).connect(frontend);
            let connection = connection.unwrap_or_else(|answer| {
                panic!("{client} to {frontend} through kube-proxy: {answer}")
            });
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
            failures: Mutex::default(),
        }
    }

    fn note(&self, answer: &Answer, what: impl FnOnce() -> String) {
        match answer.backend() {
            Some(_) => _ = self.answered.fetch_add(1, Ordering::Relaxed),
            None => self.failures.lock().unwrap().push(what()),
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
            self.note(&answer, || {
                let (client, frontend, opened) = (it.client, it.frontend, it.connection.greeting());
                format!("{phase}: open connection of {client} to {frontend} ({opened}): {answer}")
            });
            assert!(answer.backend().is_none_or(|pod| pod == it.pod), "{answer}");
        }
        self.open = open;
        let answered = self.answered.load(Ordering::Relaxed) - before;
        println!("{phase}: {answered} answers");
        result
    }

    fn ask_new(&self, phase: &str, client: &str, host: &Host) {
        for frontend in FRONTENDS {
            let answer = host.ask_tcp(frontend);
            self.note(&answer, || {
                format!("{phase}: new connection of {client} to {frontend}: {answer}")
            });
            let frontend = udp(frontend);
            let answer = host.ask_udp(&*frontend);
            self.note(&answer, || {
                format!("{phase}: datagram of {client} to {frontend}: {answer}")
            });
        }
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
        assert!(answered > 1_000, "{answered}");
    }
}
