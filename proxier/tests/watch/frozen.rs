//! Connections that stay open and carry nothing: a proxy before the API servers has lost its server.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api_server::{ApiServer, tls};
use serde_json::{Value, json};

use crate::credentials::{kubeconfig, with_kubeconfig};
use crate::follower::{Follower, PATIENCE};
use crate::objects::service;

/// A relay between TCP clients and a server. It acknowledges what both send.
struct Relay {
    address: SocketAddr,
    /// The number of freezes. Connections that were accepted before the last one carry nothing.
    freezes: Arc<AtomicU64>,
}

impl Relay {
    fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let freezes = Arc::new(AtomicU64::new(0));
        let shared = freezes.clone();
        // The thread ends with the process of the test.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let accepted = shared.load(Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let freezes = shared.clone();
                    std::thread::spawn(move || {
                        pass(from, to, || freezes.load(Ordering::Relaxed) == accepted)
                    });
                }
            }
        });
        Self { address, freezes }
    }

    /// Freezes all connections; later ones work.
    fn freeze(&self) {
        self.freezes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads until the connection ends, and passes the bytes on while `passes`.
fn pass(mut from: TcpStream, mut to: TcpStream, passes: impl Fn() -> bool) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if passes() && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Fails if the connection has ended.
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_connection_that_carries_nothing_is_noticed_by_a_ping() {
    let server = ApiServer::start_http2();
    server.apply(service("web", 80));
    let relay = Relay::start(server.address());
    let url = format!("https://{}", relay.address);
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca.pem");
    std::fs::write(&authority, tls::AUTHORITY).unwrap();
    let mut file: Value = serde_json::from_str(&kubeconfig(&url, &json!({}))).unwrap();
    file["clusters"][0]["cluster"]["certificate-authority"] = json!(authority);
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, file.to_string()).unwrap();

    let mut config = with_kubeconfig(&path);
    // Only a ping can notice it within the patience of the test.
    config.timeouts.silence = 4 * PATIENCE;
    config.timeouts.watch = 4 * PATIENCE;
    config.timeouts.response = 4 * PATIENCE;
    config.timeouts.ping = Duration::from_millis(500);
    config.timeouts.pong = Duration::from_secs(2);
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/web]");
    follower.drain();
    let before = follower.status().services;
    assert_eq!(before.failures, 0);
    // An answered ping leaves the connection alone.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(follower.status().services.failures, 0);

    relay.freeze();
    server.apply(service("web", 81));
    assert_eq!(follower.services(), "apply a/web");
    let after = follower.status().services;
    assert_eq!(after.lists, before.lists);
    let (_, why) = after.failed.unwrap();
    println!("{why}");
}
