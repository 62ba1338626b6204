//! A host: a network namespace with a name.

use std::{
    io::{ErrorKind, PipeReader, PipeWriter, Write, pipe},
    net::{SocketAddr, ToSocketAddrs},
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::net::AddressFamily;

use super::{Answer, Connection, UdpClient, client, must, server};
use crate::netns::{self, Namespace};

/// A host in a network.
///
/// Dropping it stops its servers. The kernel deletes the namespace, with both ends of its links, when
/// the last socket in it is closed.
#[derive(Debug)]
pub struct Host {
    name: String,
    pub(super) namespace: Arc<Namespace>,
    servers: Mutex<Vec<JoinHandle<()>>>,
    /// The reading end, which all servers poll: it becomes ready when the writing end is closed.
    stop: PipeReader,
    stopper: Option<PipeWriter>,
}

impl Host {
    /// Returns the host of the calling thread's namespace.
    pub(super) fn current(name: &str) -> Result<Self> {
        Self::with(
            name,
            Namespace::current().context("opening the thread's namespace")?,
        )
    }

    /// Returns a host with a new namespace.
    pub(super) fn new(name: &str) -> Result<Self> {
        let namespace = Namespace::new().context("making a network namespace (are you root?)")?;
        Self::with(name, namespace)
    }

    fn with(name: &str, namespace: Namespace) -> Result<Self> {
        let (stop, stopper) = pipe().context("making a pipe")?;
        Ok(Self {
            name: name.into(),
            namespace: Arc::new(namespace),
            servers: Mutex::default(),
            stop,
            stopper: Some(stopper),
        })
    }

    /// Returns the name with which its servers answer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `body` on a new thread on this host.
    ///
    /// If `body` panics, the caller panics with the same value.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let result = netns::on_thread(&self.name, || self.namespace.enter(), body);
        must(result.with_context(|| format!("running on {}", self.name)))
    }

    /// Runs a program on this host and returns its output.
    ///
    /// # Panics
    ///
    /// If the program is missing or fails, with its output.
    #[track_caller]
    pub fn exec(&self, argv: &[&str]) -> String {
        must(self.execute(argv, ""))
    }

    /// Serves TCP `port` at every present and future address of this host.
    ///
    /// The server sends a line with this host's name and the client's address: one when a client
    /// connects, and one for each line that the client sends.
    #[track_caller]
    pub fn serve_tcp(&self, port: u16) {
        self.serve_tcp_as(&self.name, port);
    }

    /// Serves UDP `port` at every present and future address of this host.
    ///
    /// The server answers each datagram with this host's name and the client's address.
    #[track_caller]
    pub fn serve_udp(&self, port: u16) {
        let started = self.run(|| server::udp(&self.name, port, &self.stop));
        self.keep(must(started.with_context(|| self.serving("udp", port))));
    }

    /// Serves SCTP `port` like [`serve_tcp`](Self::serve_tcp).
    ///
    /// A host with several addresses of one family reports all of them to its clients, which may
    /// then use any of them.
    #[track_caller]
    pub fn serve_sctp(&self, port: u16) {
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let started = self.run(|| server::sctp(&self.name, family, port, &self.stop));
            self.keep(must(started.with_context(|| self.serving("sctp", port))));
        }
    }

    /// Serves TCP `port` like [`serve_tcp`](Self::serve_tcp), under another name.
    #[track_caller]
    pub(super) fn serve_tcp_as(&self, name: &str, port: u16) {
        let started = self.run(|| server::tcp(name, port, &self.stop));
        self.keep(must(started.with_context(|| self.serving("tcp", port))));
    }

    /// Connects to `address` over TCP and returns the answer.
    #[track_caller]
    pub fn ask_tcp(&self, address: impl ToSocketAddrs) -> Answer {
        let address = first_address(address);
        self.run(|| client::ask_tcp(address))
    }

    /// Sends one UDP datagram to `address` and returns the answer.
    #[track_caller]
    pub fn ask_udp(&self, address: impl ToSocketAddrs) -> Answer {
        let address = first_address(address);
        self.run(|| client::ask_udp(address))
    }

    /// Connects to `address` over SCTP from one address, and returns the answer.
    #[track_caller]
    pub fn ask_sctp(&self, address: impl ToSocketAddrs) -> Answer {
        let address = first_address(address);
        self.run(|| client::ask_sctp(address))
    }

    /// Opens an SCTP connection to `address`.
    ///
    /// # Errors
    ///
    /// The answer of [`ask_sctp`](Self::ask_sctp).
    #[track_caller]
    pub fn connect_sctp(&self, address: impl ToSocketAddrs) -> Result<Connection, Answer> {
        let address = first_address(address);
        self.run(|| Connection::open_sctp(address))
    }

    /// Opens a TCP connection to `address`.
    ///
    /// # Errors
    ///
    /// The answer of [`ask_tcp`](Self::ask_tcp).
    #[track_caller]
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection, Answer> {
        let address = first_address(address);
        self.run(|| Connection::open(address))
    }

    /// Opens a TCP connection to `address` with the time limit `limit` for each answer.
    ///
    /// # Errors
    ///
    /// The answer of [`ask_tcp`](Self::ask_tcp).
    #[track_caller]
    pub fn connect_within(
        &self,
        address: impl ToSocketAddrs,
        limit: Duration,
    ) -> Result<Connection, Answer> {
        let address = first_address(address);
        self.run(|| Connection::open_within(address, limit))
    }

    /// Opens a UDP socket that asks `address`.
    #[track_caller]
    pub fn udp_client(&self, address: impl ToSocketAddrs) -> UdpClient {
        let address = first_address(address);
        let client = self.run(|| UdpClient::open(address));
        must(client.with_context(|| format!("opening a UDP socket on {}", self.name)))
    }

    /// Runs `ip -batch` with these lines.
    pub(super) fn configure(&self, lines: &[String]) -> Result<()> {
        self.execute(&["ip", "-batch", "-"], &(lines.join("\n") + "\n"))
            .map(drop)
    }

    fn execute(&self, argv: &[&str], input: &str) -> Result<String> {
        let [program, arguments @ ..] = argv else {
            bail!("no program to run on {}", self.name);
        };
        let output = self.run(|| {
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                // A program that fails before it reads its input reports the reason itself.
                let _unread = stdin.write_all(input.as_bytes());
            }
            child.wait_with_output()
        });
        let output = match output {
            Ok(output) => output,
            Err(error) if *program == "ip" && error.kind() == ErrorKind::NotFound => {
                bail!("the program `ip` is missing; install the package iproute2")
            }
            Err(error) => return Err(error).context(format!("{program} on {}", self.name)),
        };
        if !output.status.success() {
            bail!(
                "{} on {}: {}\n{}{input}",
                argv.join(" "),
                self.name,
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn keep(&self, server: JoinHandle<()>) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.push(server);
    }

    fn serving(&self, protocol: &str, port: u16) -> String {
        format!("serving {protocol} port {port} on {}", self.name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.stopper.take());
        let servers = self.servers.get_mut();
        let servers = servers.unwrap_or_else(PoisonError::into_inner);
        for server in servers.drain(..) {
            // A panic of a server was already printed.
            let _panicked = server.join();
        }
    }
}

/// Returns the first address of `address`.
#[track_caller]
fn first_address(address: impl ToSocketAddrs) -> SocketAddr {
    let addresses = address
        .to_socket_addrs()
        .context("not an address and a port");
    must(addresses.and_then(|mut all| all.next().context("no address")))
}
