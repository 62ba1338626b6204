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
use crate::follower::{Follower, config};
use crate::objects::{response, service};

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

/// A server that breaks its answers, or is too busy for one, is left as one that is down is.
#[test]
fn of_several_servers_one_that_breaks_answers_or_is_busy_is_left() {
    const PATH: &str = "/api/v1/services";
    let many = 10;
    let mut broken = response(200, "{\"type\":\"ADDED\",");
    broken.breaks_connection = true;
    let busy = |secs: u64| {
        let mut busy = response(429, "");
        busy.headers.push(("Retry-After".into(), secs.to_string()));
        busy
    };
    for (first, second) in [
        (broken, None),
        (busy(100), None),
        // If all are busy, their wish counts.
        (busy(4), Some(busy(4))),
    ] {
        let servers = [ApiServer::start(), ApiServer::start()];
        servers.iter().for_each(|it| it.apply(service("web", 80)));
        for _ in 0..many {
            servers[0].respond_next(PATH, first.clone());
        }
        let are_all_busy = second.is_some();
        if let Some(second) = second {
            servers[1].respond_next(PATH, second);
        }
        let [one, other] = servers.each_ref().map(|it| it.address().to_string());
        let mut config = config(&servers[0]);
        config.server.master = Some(format!("{one},{other}"));
        let start = Instant::now();
        assert_eq!(Follower::with(config).services(), "reset [a/web]");
        let took = start.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
        assert_eq!(took > Duration::from_secs(4), are_all_busy, "{took:?}");
        let asked = |server: &ApiServer| {
            let requests = server.requests();
            requests.iter().filter(|it| it.path == PATH).count()
        };
        let counts = servers.each_ref().map(asked);
        assert!(counts[0] < 3 && counts[1] > 0, "{counts:?}");
    }
}
