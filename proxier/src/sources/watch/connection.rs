//! The HTTP client of the API server: credentials, one request.
//!
//! HTTP/2, because a proxy before the server may lose it and keep our connection open: TCP acknowledges what we send, and
//! bookmarks come once a minute. A ping shows the difference to a quiet cluster within 35 s.

mod credential;
mod linked;
mod location;
mod pem;
mod plugin;
mod reached;
mod response;
#[cfg(test)]
mod tests;
mod tls;
mod url;
mod verifier;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use http::{Method, Request, Response, StatusCode, header};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Client;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tower::{ServiceBuilder, ServiceExt as _};

use super::failure::RequestFailure;
use super::{ServerLocation, Timeouts};
use credential::Credential;
pub(super) use linked::LinkedServer;
use location::Access;
pub(super) use reached::ReachedServers;
pub(super) use response::ResponseStream;

/// The size of hyper's read buffer with HTTP/1.1, in bytes. It also bounds the head of a response.
///
/// Each open connection keeps a buffer, so memory holds one per followed kind.
const MAX_READ: usize = 64 << 10;

/// The number of bytes of a response that the server may send before they are read, with HTTP/2.
///
/// Large enough for 100 MB/s to a server in the same data centre (2 ms).
const STREAM_WINDOW: u32 = 256 << 10;

/// The number of responses that share an HTTP/2 connection: those of all kinds, and one to a request for Events. A kind
/// whose response is not read must not stop the others.
const STREAMS: u32 = 6;

/// The limit for opening a connection if another server can be asked instead.
const CONNECT_AMONG_MANY: Duration = Duration::from_secs(3);

/// The connection settings that all followers share.
///
/// After each failure that the kubeconfig may have caused, and before a plugin's credential expires, it is read again, so
/// a rotated certificate or a new address takes effect without a restart. A token file is read for each request (a few
/// per minute), so a rotated token takes effect at once.
#[derive(Debug)]
pub(super) struct Connection {
    server: ServerLocation,
    timeouts: Timeouts,
    state: Mutex<LinkState>,
    /// The number of servers that the configuration names.
    servers: AtomicUsize,
    reached: ReachedServers,
}

#[derive(Debug, Default)]
struct LinkState {
    link: Option<Link>,
    /// Which of several servers is asked: increases with each that did not answer.
    turn: usize,
    /// A reading of the configuration that has not ended.
    reading: Option<JoinHandle<Result<Access, RequestFailure>>>,
    /// The warnings of the last reading of the configuration, which are not repeated.
    warnings: Vec<String>,
    /// Whether the log says that a credential plugin is waited for.
    has_announced_plugin: bool,
}

#[derive(Clone)]
struct Link {
    client: Client,
    /// Host and port of the server, for metrics.
    host: Arc<str>,
    credential: Credential,
    /// When the credential must be replaced.
    until: Option<SystemTime>,
    server: LinkedServer,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Connection {
    /// Returns a connection that reads its configuration at the first request.
    pub(super) fn new(server: ServerLocation, timeouts: Timeouts, reached: ReachedServers) -> Self {
        Self {
            server,
            timeouts,
            state: Mutex::default(),
            servers: AtomicUsize::new(1),
            reached,
        }
    }

    /// Reads the configuration, so that an invalid one is reported at start. Sends nothing, and runs no credential
    /// plugin.
    pub(super) fn check(&self) -> Result<(), RequestFailure> {
        location::read(&self.server, 0).map(drop)
    }

    /// Sends a GET request; see [`Connection::send`].
    pub(super) async fn get(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<ResponseStream, RequestFailure> {
        self.send(&Outgoing::get(path, accept)).await
    }

    /// Sends a request and returns the response if its status is one of success.
    pub(super) async fn send(
        &self,
        request: &Outgoing<'_>,
    ) -> Result<ResponseStream, RequestFailure> {
        let link = self.link().await?;
        let result = link.send(request, self.timeouts).await;
        if let Err(failure) = &result {
            link.server.blame(failure);
            if failure.concerns_connection() {
                self.forget(&link.server).await;
            }
        }
        result
    }

    /// Returns the number of servers that the configuration names.
    pub(super) fn servers(&self) -> usize {
        self.servers.load(Ordering::Relaxed)
    }

    /// Returns the time limit for a response, and for each of its chunks.
    pub(super) fn response_limit(&self) -> Duration {
        self.timeouts.response
    }

    async fn link(&self) -> Result<Link, RequestFailure> {
        let mut state = self.state.lock().await;
        if let Some(link) = &state.link {
            if link.server.is_left() {
                tracing::debug!("API server {}: trying the next one", link.host);
                state.turn = state.turn.wrapping_add(1);
            } else if link.until.is_none_or(|until| SystemTime::now() < until) {
                return Ok(link.clone());
            }
            state.link = None;
        }
        let turn = state.turn;
        let access = self.read(&mut state.reading, turn).await?;
        self.servers.store(access.servers.max(1), Ordering::Relaxed);
        for warning in &access.warnings {
            if !state.warnings.contains(warning) {
                tracing::warn!("{warning}");
            }
        }
        state.warnings.clone_from(&access.warnings);
        let (reached, has_announced) = (self.reached.clone(), &mut state.has_announced_plugin);
        let link = Link::open(access, self.timeouts, reached, has_announced).await?;
        Ok(state.link.insert(link).clone())
    }

    /// Reads the configuration on a thread of its own: a file system may hang. While it does, no other thread begins.
    async fn read(
        &self,
        reading: &mut Option<JoinHandle<Result<Access, RequestFailure>>>,
        turn: usize,
    ) -> Result<Access, RequestFailure> {
        let limit = self.timeouts.plugin;
        let begin = || {
            let server = self.server.clone();
            spawn_blocking(move || location::read(&server, turn))
        };
        let result = timeout(limit, reading.get_or_insert_with(begin)).await;
        let result = result.map_err(|_| {
            let secs = limit.as_secs();
            RequestFailure::Configuration(format!("the configuration is not read after {secs} s"))
        })?;
        *reading = None;
        result.unwrap_or_else(|error| Err(RequestFailure::Configuration(error.to_string())))
    }

    /// Makes the next request read the configuration again, unless the link of `failed` was replaced already.
    async fn forget(&self, failed: &LinkedServer) {
        let mut state = self.state.lock().await;
        if let Some(current) = &state.link
            && current.server.is(failed)
            // The next request goes to another server, and reads it anyway.
            && !failed.is_left()
        {
            state.link = None;
        }
    }
}

/// A request to send.
pub(super) struct Outgoing<'a> {
    method: Method,
    /// The path and the query.
    path: &'a str,
    accept: &'a str,
    /// The media type and the text; both empty for a GET request.
    content: (&'a str, Vec<u8>),
}

impl<'a> Outgoing<'a> {
    pub(super) fn get(path: &'a str, accept: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            accept,
            content: ("", Vec::new()),
        }
    }

    /// Returns a request that sends `body` as `media_type`.
    pub(super) fn with_body(
        method: Method,
        path: &'a str,
        media_type: &'a str,
        body: Vec<u8>,
    ) -> Self {
        Self {
            method,
            path,
            accept: "application/json",
            content: (media_type, body),
        }
    }
}

impl Link {
    /// Runs the credential plugin, if there is one, and opens a link.
    async fn open(
        access: Access,
        timeouts: Timeouts,
        reached: ReachedServers,
        has_announced_plugin: &mut bool,
    ) -> Result<Self, RequestFailure> {
        let (mut tls, mut credential, mut until) = (access.tls, access.credential, None);
        if let Credential::Plugin(plugin) = &credential {
            let limit = timeouts.plugin;
            if !std::mem::replace(has_announced_plugin, true) {
                let secs = limit.as_secs();
                tracing::info!("waiting for the credential plugin {plugin}, for at most {secs} s");
            }
            let printed = plugin
                .run(limit)
                .await
                .map_err(RequestFailure::Configuration)?;
            if let (Some(tls), Some(identity)) = (&mut tls, printed.identity) {
                tls.identity = Some(identity);
            }
            credential = printed.header.map_or(Credential::None, Credential::Header);
            until = printed.until;
        }
        let wrong =
            |error: kube::Error| RequestFailure::Configuration(RequestFailure::chain(&error));
        let server = LinkedServer::of(access.servers);
        let mut timeouts = timeouts;
        if server.has_others() {
            timeouts.connect = timeouts.connect.min(CONNECT_AMONG_MANY);
        }
        let config = access.config;
        let host = config.cluster_url.authority();
        let host = host.map_or("", |authority| authority.as_str()).into();
        let http = connector(timeouts).map_response(move |stream| {
            if let Ok(peer) = stream.inner().peer_addr() {
                reached.add(peer.ip().to_canonical());
            }
            stream
        });
        let https = tls::connector(http, tls).map_err(RequestFailure::Configuration)?;
        let hyper: hyper_util::client::legacy::Client<_, Body> =
            hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .timer(TokioTimer::new())
                .http1_max_buf_size(MAX_READ)
                .http2_initial_stream_window_size(STREAM_WINDOW)
                .http2_initial_connection_window_size(STREAMS * STREAM_WINDOW)
                .http2_keep_alive_interval(timeouts.ping)
                .http2_keep_alive_timeout(timeouts.pong)
                .build(https);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .layer(config.extra_headers_layer().map_err(wrong)?)
            .map_err(tower::BoxError::from)
            .service(hyper);
        Ok(Self {
            client: ClientBuilder::new(service, "default").build(),
            host,
            credential,
            until,
            server,
        })
    }

    async fn send(
        &self,
        outgoing: &Outgoing<'_>,
        timeouts: Timeouts,
    ) -> Result<ResponseStream, RequestFailure> {
        let method = outgoing.method.clone();
        let (media_type, content) = &outgoing.content;
        // `base_uri_layer` adds scheme and host, so `path` is enough.
        let mut request = Request::builder()
            .method(method.clone())
            .uri(outgoing.path)
            .header(header::ACCEPT, outgoing.accept)
            .header(header::USER_AGENT, USER_AGENT);
        if !media_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, *media_type);
        }
        let authorization = self.credential.header();
        if let Some(value) = authorization.map_err(RequestFailure::Configuration)? {
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request
            .body(Body::from(content.clone()))
            .map_err(|error| RequestFailure::Configuration(error.to_string()))?;
        let sent = Instant::now();
        let response = match timeout(timeouts.response, self.client.send(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(RequestFailure::without_response(cause(&error))),
            Err(_) => Err(RequestFailure::Silent(timeouts.response)),
        };
        self.count(&method, response.as_ref().map(Response::status).ok(), sent);
        let response = response?;
        let status = response.status();
        let answer = ResponseStream::new(response, self.server.clone());
        if status.is_success() {
            return Ok(answer);
        }
        Err(RequestFailure::Refused(
            answer.refusal(status, timeouts.response).await,
        ))
    }

    /// Counts a request and its time, in the metrics of client-go; `None` without a response.
    fn count(&self, method: &Method, status: Option<StatusCode>, sent: Instant) {
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.as_str().to_owned());
        let (host, method) = (self.host.to_string(), method.as_str().to_owned());
        metrics::counter!(
            "rest_client_requests_total",
            "code" => code,
            "host" => host.clone(),
            "method" => method.clone()
        )
        .increment(1);
        metrics::histogram!("rest_client_request_duration_seconds", "host" => host, "verb" => method)
            .record(sent.elapsed().as_secs_f64());
    }
}

/// The client's name in the API server's logs.
const USER_AGENT: &str = concat!("ipvs-proxier/", env!("CARGO_PKG_VERSION"));

fn cause(error: &kube::Error) -> &(dyn std::error::Error + 'static) {
    // The outermost error says only "ServiceError".
    match error {
        kube::Error::Service(inner) => &**inner,
        other => other,
    }
}

/// Returns a TCP connector that detects a dead peer within about `timeouts.dead_peer`.
///
/// `TCP_USER_TIMEOUT` covers unacknowledged data, and keepalive probes cover an idle connection. The
/// kernel counts keepalive times in seconds, so each is at least one.
fn connector(timeouts: Timeouts) -> HttpConnector {
    let probes = 3;
    let second = Duration::from_secs(1);
    let idle = (timeouts.dead_peer / 2).max(second);
    let interval = (timeouts.dead_peer / (2 * probes)).max(second);
    let mut http = HttpConnector::new();
    // Accepts https URLs: TLS is a layer around this connector.
    http.enforce_http(false);
    // Requests are small and wait for their answers, so a delay to fill segments would only slow them.
    http.set_nodelay(true);
    http.set_connect_timeout(Some(timeouts.connect));
    http.set_keepalive(Some(idle));
    http.set_keepalive_interval(Some(interval));
    http.set_keepalive_retries(Some(probes));
    http.set_tcp_user_timeout(Some(timeouts.dead_peer));
    http
}
