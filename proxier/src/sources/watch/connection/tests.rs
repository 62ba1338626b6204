//! Tests of the connection.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::*;
use crate::sources::watch::backoff::Reach;

/// Returns the failure of a request to this server.
fn failure(master: String) -> RequestFailure {
    let server = ServerLocation {
        kubeconfig: None,
        master: Some(master),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let connection = Connection::new(server, Timeouts::default(), ReachedServers::default());
    let result = runtime.block_on(connection.get("/", "application/json"));
    result.err().unwrap()
}

#[test]
fn a_refused_connection_is_told_from_a_broken_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepts = std::thread::spawn(move || {
        for _ in 0..2 {
            drop(listener.accept());
        }
    });
    for scheme in ["http", "https"] {
        let failure = failure(format!("{scheme}://{address}"));
        assert_eq!(failure.reach(), Reach::Server, "{failure}");
    }
    accepts.join().unwrap();
    // Another test may get the released port.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, lab::net::unused_port()));
    for scheme in ["http", "https"] {
        let failure = failure(format!("{scheme}://{address}"));
        assert_eq!(failure.reach(), Reach::NoServer, "{failure}");
    }
}
