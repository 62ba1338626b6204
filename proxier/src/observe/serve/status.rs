//! The page `/status` and its twins `/status.json` and `/status.csv`.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};

use super::answer::{Answer, respond};
use super::view::View;
use crate::observe::overview::assemble::HeadFacts;
use crate::observe::overview::model::Overview;
use crate::observe::overview::{Observer, Query, csv, html};

/// A form of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// For browsers.
    Html,
    /// For programs.
    Json,
    /// For spreadsheets.
    Csv,
}

/// Nothing from elsewhere, no script, and no other page around this one.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

impl Form {
    /// Returns the form that `path` has; `None` if it is another page.
    pub(super) fn at(path: &str) -> Option<Self> {
        match path {
            "/status" => Some(Self::Html),
            "/status.json" => Some(Self::Json),
            "/status.csv" => Some(Self::Csv),
            _ => None,
        }
    }
}

/// Returns what the head of the view needs of a request's view.
pub(super) fn head(view: &View<'_>, observer: &Observer) -> HeadFacts {
    HeadFacts {
        node: observer.node().to_owned(),
        mode: observer.dataplane(),
        started: view.process.started,
        wall: view.wall,
        facts: view.facts.clone(),
        verdict: view.verdict.clone(),
        api: view
            .watch
            .as_ref()
            .map(super::view::api_view)
            .unwrap_or_default(),
        past: observer.history().read(),
    }
}

/// Returns the answer to a request.
pub(super) async fn answer(
    form: Form,
    (method, query): (Method, Query),
    head: HeadFacts,
    observer: Arc<Observer>,
) -> Answer {
    if !matches!(method, Method::GET | Method::HEAD) {
        let mut answer = respond(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain; charset=utf-8",
            "this page can only be read\n",
        );
        let allowed = HeaderValue::from_static("GET, HEAD");
        answer.headers_mut().insert(header::ALLOW, allowed);
        return answer;
    }
    let view = observer.overview(head, query.clone()).await;
    let (content_type, body) = match form {
        Form::Html => ("text/html; charset=utf-8", html::html(&view, &query)),
        Form::Json => ("application/json", json(&view)),
        Form::Csv => ("text/csv; charset=utf-8", csv::csv(&view)),
    };
    let mut answer = respond(StatusCode::OK, content_type, body);
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    if form == Form::Html && query.refresh > 0 {
        headers.insert(header::REFRESH, query.refresh.into());
    }
    answer
}

fn json(view: &Overview) -> String {
    // Cannot fail: no map has a key that is no text.
    serde_json::to_string_pretty(view).unwrap_or_default() + "\n"
}

/// Returns the method and the query of a request.
pub(super) fn asked(request: &Parts) -> (Method, Query) {
    let query = request.uri.query().unwrap_or_default();
    (request.method.clone(), Query::parse(query))
}
