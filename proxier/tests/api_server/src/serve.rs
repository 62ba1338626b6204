//! Connections and requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderName};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::answer::{self, BodyReceiver, PIECE_SIZE, Piece, refusal, status_object, too_large};
use crate::form::{Encoding, Form};
use crate::objects::{Kind, Object, Rest};
use crate::selector::Selector;
use crate::stream::Watch;
use crate::{Prescribed, Request, Scheme, Shared, State, tls};

/// Serves until the server is dropped.
pub(crate) fn run(listener: TcpListener, scheme: Scheme, shared: &Arc<Shared>) {
    let acceptor = match scheme {
        Scheme::Plain => None,
        Scheme::Secure(server) => Some(tls::acceptor(server, &[])),
        Scheme::Http2(server) => Some(tls::acceptor(server, &["h2", "http/1.1"])),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let address = listener.local_addr().expect("a bound socket");
    runtime.block_on(async {
        let mut over = shared.control.subscribe();
        tokio::select! {
            () = accept(listener, acceptor, address, shared) => {}
            _ = over.wait_for(|control| control.is_over) => {}
        }
    });
}

async fn accept(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    address: SocketAddr,
    shared: &Arc<Shared>,
) {
    listener.set_nonblocking(true).expect("a socket");
    let mut listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    let mut outages = shared.control.subscribe();
    loop {
        let is_outage = tokio::select! {
            biased;
            _ = outages.wait_for(|control| !control.is_listening) => true,
            (accepted, cuts) = next_stream(&listener, shared) => {
                if let Ok((stream, _)) = accepted {
                    // As Go's servers do. Fails only if the client is gone.
                    let _ = stream.set_nodelay(true);
                    let secure = acceptor.clone();
                    tokio::spawn(serve_until_cut(stream, secure, shared.clone(), cuts));
                }
                false
            }
        };
        if is_outage {
            drop(listener);
            // Cannot fail: `shared` has the sender.
            let _ = outages.wait_for(|control| control.is_listening).await;
            listener = tokio::net::TcpListener::bind(address)
                .await
                .expect("the same port");
        }
    }
}

/// Accepts a connection. Returns it with the number of cuts before, so that every cut after the connection was accepted
/// closes it, also one before its task runs.
async fn next_stream(
    listener: &tokio::net::TcpListener,
    shared: &Shared,
) -> (std::io::Result<(TcpStream, SocketAddr)>, u64) {
    poll_fn(|context| {
        let cuts = shared.control.borrow().cuts;
        let accepted = listener.poll_accept(context);
        accepted.map(|accepted| (accepted, cuts))
    })
    .await
}

/// Serves a connection until all connections are cut more often than `cuts` times.
async fn serve_until_cut(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    cuts: u64,
) {
    let mut control = shared.control.subscribe();
    tokio::select! {
        biased;
        _ = control.wait_for(|control| control.cuts != cuts) => {}
        () = serve_stream(stream, acceptor, shared.clone()) => {}
    }
}

/// Serves a TCP connection, with TLS if there is an acceptor.
async fn serve_stream(stream: TcpStream, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let Some(acceptor) = acceptor else {
        return serve_connection(stream, Certificate::None, Protocol::Http1, shared).await;
    };
    // If the client rejects our certificate, the test sees the client's error.
    if let Ok(mut stream) = acceptor.accept(stream).await {
        // A whole piece of a list at once. By default, rustls encrypts and sends it in parts of 64 KiB, and a client on
        // the same processor wakes up for each.
        (stream.get_mut().1).set_buffer_limit(Some(2 * PIECE_SIZE));
        let certificate = match stream.get_ref().1.peer_certificates() {
            Some(_) => Certificate::Good,
            None => Certificate::None,
        };
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        serve_connection(stream, certificate, protocol, shared).await;
    }
}

/// The certificate of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Certificate {
    None,
    Good,
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Serves one HTTP connection.
async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    certificate: Certificate,
    protocol: Protocol,
    shared: Arc<Shared>,
) {
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move {
            let mut control = shared.control.subscribe();
            // Cannot fail: `shared` has the sender.
            let _ = control.wait_for(|control| !control.is_frozen).await;
            Ok::<_, Infallible>(answer(request, certificate, &shared))
        }
    });
    // Fails if the client closes the connection, which it may do at any time.
    let _ = match protocol {
        Protocol::Http1 => {
            let connection = http1::Builder::new();
            connection
                .serve_connection(TokioIo::new(stream), service)
                .await
        }
        Protocol::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new());
            connection
                .serve_connection(TokioIo::new(stream), service)
                .await
        }
    };
}

/// Answers one request.
fn answer(
    request: hyper::Request<Incoming>,
    certificate: Certificate,
    shared: &Arc<Shared>,
) -> Response<BodyReceiver> {
    let header = |name: HeaderName| {
        let value = request.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    };
    let request = Request {
        at: Instant::now(),
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: parameters(request.uri().query().unwrap_or("")),
        authorization: header(AUTHORIZATION),
        accept: header(ACCEPT),
        has_certificate: certificate == Certificate::Good,
    };
    let mut state = shared.lock();
    state.requests.push(request.clone());
    let prescribed = state.canned.get_mut(&request.path);
    if let Some(answers) = prescribed.filter(|answers| !answers.is_empty()) {
        let Prescribed { response, freezes } = answers.remove(0);
        if freezes {
            shared.freeze();
        }
        return answer::canned(response);
    }
    let encoding = Encoding::of_request(&request, &state.behaviour);
    let refuse = |code, message: &str| refusal(encoding, status_object(code, message));
    if let Some(tokens) = &state.behaviour.tokens
        && certificate == Certificate::None
    {
        let token = request.authorization.as_deref().unwrap_or("");
        let token = token.strip_prefix("Bearer ").unwrap_or("");
        if !tokens.iter().any(|known| known == token) {
            return refuse(401, "Unauthorized");
        }
    }
    if request.method == "POST"
        && request
            .path
            .starts_with("/apis/events.k8s.io/v1/namespaces/")
    {
        // Accepted and forgotten: a request to change the Event gets 404, as after its time to live.
        return answer::whole(StatusCode::CREATED, "application/json", b"{}".into());
    }
    let Some(kind) = Kind::at(&request.path) else {
        return refuse(404, "the server could not find the requested resource");
    };
    if let Some(&code) = state.behaviour.refused.get(kind.plural) {
        return refuse(code, &format!("{} are refused", kind.plural));
    }
    let (labels, fields) = ("labelSelector", "fieldSelector");
    let selector = Selector::parse(request.parameter(labels), request.parameter(fields));
    let selector = match selector {
        Ok(selector) => selector,
        Err(message) => return refuse(400, &message),
    };
    let form = Form::of_request(&request, &state.behaviour, kind);
    if request.is_watch() {
        let media_type = encoding.watch_content_type();
        match watch(&request, (kind, form), selector, &state) {
            Err(refused) => refused,
            Ok(watch) => {
                let (client, pieces) = answer::body_channel();
                let control = shared.control.subscribe();
                tokio::spawn(watch.run(shared.clone(), control, client));
                answer::with_head(StatusCode::OK, media_type, pieces)
            }
        }
    } else {
        list(&request, (kind, form), &selector, &mut state, shared)
    }
}

/// Returns the resource version of a request, if it has one.
fn version(request: &Request, encoding: Encoding) -> Result<Option<u64>, Response<BodyReceiver>> {
    match request.parameter("resourceVersion") {
        "" => Ok(None),
        text => {
            let message = format!("invalid resource version {text:?}");
            let invalid = |_| refusal(encoding, status_object(400, &message));
            text.parse().map(Some).map_err(invalid)
        }
    }
}

/// Responds to a list.
fn list(
    request: &Request,
    (kind, form): (Kind, Form),
    selector: &Selector,
    state: &mut State,
    shared: &Arc<Shared>,
) -> Response<BodyReceiver> {
    let limit = request.parameter("limit").parse().unwrap_or(0);
    let rest = match (
        request.parameter("continue"),
        version(request, form.encoding),
    ) {
        (_, Err(refused)) => return refused,
        ("", Ok(asked)) => {
            let current = state.objects.revision();
            if let Some(asked) = asked.filter(|&asked| asked > current) {
                return refusal(form.encoding, too_large(asked, current));
            }
            let objects = state.objects.of_kind(kind.plural);
            let objects = objects.filter(|object| selector.matches(&object.selectable));
            Rest {
                revision: current,
                objects: objects.cloned().collect(),
            }
        }
        (token, Ok(_)) => match state.objects.rest(token) {
            Some(rest) => rest,
            None => {
                let status = status_object(410, "The provided continue parameter is too old");
                return refusal(form.encoding, status);
            }
        },
    };
    // A real server ignores the limit of a list that its cache serves.
    let is_cached = request.is_served_from_cache();
    let Rest {
        revision,
        mut objects,
    } = rest;
    let mut metadata = ListMeta {
        resource_version: Some(revision.to_string()),
        ..ListMeta::default()
    };
    if limit > 0 && limit < objects.len() && !is_cached {
        let later = objects.split_off(limit);
        metadata.remaining_item_count = i64::try_from(later.len()).ok();
        let token = state.objects.keep(Rest {
            revision,
            objects: later,
        });
        metadata.continue_ = Some(token);
    }
    let (client, pieces) = answer::body_channel();
    let shared = shared.clone();
    tokio::spawn(async move {
        send_list(form, metadata, objects, client).await;
        shared.end_list();
    });
    answer::with_head(StatusCode::OK, form.encoding.content_type(), pieces)
}

/// Sends a list in pieces, so that a large one is never in memory as a whole.
async fn send_list(
    form: Form,
    metadata: ListMeta,
    objects: Vec<Arc<Object>>,
    client: mpsc::Sender<Piece>,
) {
    let mut list = form.list_head(metadata, &objects);
    for (index, object) in objects.iter().enumerate() {
        form.put_item(&mut list, index, object);
        if list.len() >= PIECE_SIZE {
            let piece = Bytes::from(std::mem::take(&mut list));
            if client.send(Ok(piece)).await.is_err() {
                return;
            }
        }
    }
    form.put_end(&mut list);
    // Fails if the client closes the connection, which it may do at any time.
    let _ = client.send(Ok(Bytes::from(list))).await;
}

/// Returns the response of a watch, or an error response if the request is invalid.
fn watch(
    request: &Request,
    (kind, form): (Kind, Form),
    selector: Selector,
    state: &State,
) -> Result<Watch, Response<BodyReceiver>> {
    let asked = version(request, form.encoding)?;
    let current = state.objects.revision();
    let encoding = form.encoding;
    let is_list = request.parameter("sendInitialEvents") == "true";
    let has_match = !request.parameter("resourceVersionMatch").is_empty();
    if is_list && !state.behaviour.streams_lists {
        let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch \
                       unless the WatchList feature gate is enabled";
        return Err(refusal(encoding, status_object(422, message)));
    }
    if has_match != is_list {
        let message = "resourceVersionMatch: Forbidden: only together with sendInitialEvents";
        return Err(refusal(encoding, status_object(422, message)));
    }
    // A real server accepts a watch of the future, and sends nothing until it has passed the version.
    if let Some(asked) = asked.filter(|&asked| asked > current && is_list) {
        return Err(refusal(encoding, too_large(asked, current)));
    }
    let from = asked.filter(|&asked| asked > 0 && !is_list);
    if let Some(from) = from.filter(|&from| !state.objects.remembers(from)) {
        let (client, pieces) = answer::body_channel();
        let gone = status_object(
            410,
            &format!("too old resource version: {from} ({current})"),
        );
        // Cannot fail: the channel is new and has room.
        let _ = client.try_send(Ok(Bytes::from(encoding.error(gone))));
        let media_type = encoding.watch_content_type();
        return Err(answer::with_head(StatusCode::OK, media_type, pieces));
    }
    let initial = match from {
        Some(_) => Vec::new(),
        None => {
            let objects = state.objects.of_kind(kind.plural);
            let objects = objects.filter(|object| selector.matches(&object.selectable));
            objects.cloned().collect()
        }
    };
    let wants_bookmarks = request.parameter("allowWatchBookmarks") == "true";
    let secs = request.parameter("timeoutSeconds").parse().unwrap_or(3_600);
    Ok(Watch {
        plural: kind.plural,
        selector,
        form,
        revision: from.unwrap_or(current),
        initial,
        marks_initial: is_list && wants_bookmarks && !state.behaviour.ends_no_list,
        bookmarks: wants_bookmarks.then_some(state.behaviour.bookmark_every),
        time: Duration::from_secs(secs),
    })
}

/// Returns the decoded parameters of a query.
fn parameters(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| first == b'%');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let all = parameters("a=1&labelSelector=%21x%2Fy%3D%zz&b=");
        assert_eq!(all["labelSelector"], "!x/y=%zz");
        assert_eq!((&*all["a"], &*all["b"]), ("1", ""));
    }
}
