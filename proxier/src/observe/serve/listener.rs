//! Accepting connections, and serving HTTP on each.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::answer::Site;
use super::pool::{ConnectionPool, Turn};
use super::view::Viewer;
use super::{BIND_PAUSE, OnBindFailure, socket};

/// Time limit for the head of a request, and between two requests of a connection.
///
/// Longer than the pause between two probes of the usual load balancers (2 to 15 s), so that they keep
/// their connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The age after which a connection is closed, also while a client reads slowly.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The size of the read buffer in bytes, and so of the longest request head.
const MAX_HEAD: usize = 16 << 10;

/// The number of headers of a request.
const MAX_HEADERS: usize = 64;

/// The pause after an error of `accept`, as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pages and the connections of a socket.
#[derive(Clone, Debug)]
pub(super) struct HttpService {
    pub(super) site: Site,
    pub(super) viewer: Arc<Viewer>,
    pub(super) pool: ConnectionPool,
}

/// Serves at `address`; binds it first, and tries again until that succeeds.
///
/// After [`OnBindFailure::End`] it does not try again, as in kube-proxy.
pub(super) async fn run(address: SocketAddr, on_failure: &OnBindFailure, service: HttpService) {
    let what = service.site;
    let failures = service.viewer.bind_failures();
    let mut last = String::new();
    let listener = loop {
        let error = match socket::listen_at(address) {
            Ok(listener) => break listener,
            Err(error) => error,
        };
        failures.add(what, address, None, &error);
        let error = error.to_string();
        if let OnBindFailure::End(end) = on_failure {
            tracing::error!(
                "{what} cannot listen on {address}: {error}; exiting, because bindAddressHardFail is \
                 set. The kernel keeps its state and continues to serve"
            );
            end();
            return std::future::pending().await;
        }
        // An unchanged reason is not logged again: the address may stay in use for days.
        if error != last {
            tracing::error!(
                "{what} cannot listen on {address}: {error}; trying again every {} s",
                BIND_PAUSE.as_secs()
            );
            last = error;
        }
        tokio::time::sleep(BIND_PAUSE).await;
    };
    failures.remove(address);
    tracing::info!("{what} listens on {address}");
    accept(listener, service).await;
}

/// A connection to a client.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

/// A socket that listens.
pub(super) trait Accept: Send + Sync {
    /// Waits for a connection.
    fn accept(&self) -> impl Future<Output = io::Result<impl Stream>> + Send;
}

impl Accept for TcpListener {
    async fn accept(&self) -> io::Result<impl Stream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    async fn accept(&self) -> io::Result<impl Stream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Accepts and serves connections for ever.
pub(super) async fn accept(listener: impl Accept, service: HttpService) {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                service.pool.make_room().await;
                let served = service.clone();
                let start = |turn| tokio::spawn(serve(stream, served, turn)).abort_handle();
                service.pool.add(start);
            }
            // The connection is gone already, or no file descriptor is free.
            Err(error) => {
                tracing::debug!("accepting a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection until the client closes it or a limit is reached.
async fn serve(stream: impl Stream, service: HttpService, turn: Turn) {
    let answer = service_fn(|request: hyper::Request<_>| {
        turn.begin();
        // No page reads a body.
        let (head, _body) = request.into_parts();
        let answer = service.viewer.answer(service.site, &head);
        let turn = &turn;
        async move {
            let answer = answer.await;
            turn.end();
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        // Go's spelling: `Content-Type`.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    // The runtime tells a task that its socket has bytes only when the task has asked, and between two of its polls.
    for _ in 0..2 {
        tokio::select! {
            biased;
            _ = connection.as_mut() => return,
            () = tokio::task::yield_now() => {}
        }
    }
    turn.had_first();
    tokio::select! {
        // An error is the client's: it sent something else, or closed the connection.
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(MAX_AGE) => connection.as_mut().graceful_shutdown(),
    }
    // The response in progress gets one more limit.
    let _ = tokio::time::timeout(HEAD_TIMEOUT, connection).await;
}
