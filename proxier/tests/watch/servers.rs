//! Several API servers without a load balancer.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api_server::ApiServer;
use lab::net::unused_port;
use serde_json::{Value, json};

use crate::credentials::{kubeconfig, with_kubeconfig};
use crate::follower::Follower;
use crate::objects::service;

/// Carries connections to a server, as a load balancer does; a killed one refuses them and cuts those that are open.
struct Way {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Way {
    fn to(server: &ApiServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, target) = (listener.local_addr().unwrap(), server.address());
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut open = Vec::new();
            while !is_stopped.load(Ordering::Relaxed) {
                let Ok((client, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                client.set_nonblocking(false).unwrap();
                let server = TcpStream::connect(target).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                open.push((client, server));
            }
            for (client, server) in open {
                let _ = client.shutdown(Shutdown::Both);
                let _ = server.shutdown(Shutdown::Both);
            }
        });
        Self {
            address,
            stop,
            thread,
        }
    }

    fn kill(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn of_several_servers_the_next_one_is_followed_within_seconds() {
    let server = ApiServer::start();
    server.apply(service("web", 80));
    let (first, second) = (Way::to(&server), Way::to(&server));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    // The first one is down at the start.
    let down = unused_port();
    let mut text: Value =
        serde_json::from_str(&kubeconfig(&format!("http://127.0.0.1:{down}"), &json!({}))).unwrap();
    let more = json!([
        format!("http://{}", first.address),
        format!("http://{}", second.address)
    ]);
    let extension = json!([{"name": "ipvs-proxier.io/servers", "extension": more}]);
    text["clusters"][0]["cluster"]["extensions"] = extension;
    std::fs::write(&file, text.to_string()).unwrap();
    let start = Instant::now();
    let follower = Follower::with(with_kubeconfig(&file));
    assert_eq!(follower.services(), "reset [a/web]");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    follower.until("synced", |status| status.is_synced());

    first.kill();
    let killed = Instant::now();
    server.apply(service("web", 81));
    let change = follower.services();
    assert!(change.contains("a/web"), "{change}");
    assert!(
        killed.elapsed() < Duration::from_secs(10),
        "{:?}",
        killed.elapsed()
    );

    // As a flag, too.
    let mut config = with_kubeconfig(&file);
    config.server.kubeconfig = None;
    config.server.master = Some(format!("127.0.0.1:{down},{}", second.address));
    assert_eq!(Follower::with(config).services(), "reset [a/web]");
}
