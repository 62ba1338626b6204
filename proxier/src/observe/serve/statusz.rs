//! The page `/statusz` (KEP-4827): the identity and the state of this process, as text or JSON.

use std::fmt::Write as _;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::answer::{Answer, ok, respond};
use super::health_body::timestamp;
use super::view::View;

/// The name in all forms.
const COMPONENT: &str = "ipvs-proxier";

/// The pages of the metrics server that a reader may open next.
const PATHS: [&str; 4] = ["/configz", "/healthz", "/metrics", "/proxyMode"];

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting \
                       compatibility guarantees and is for debugging purposes only.";

/// The forms that a client can ask for by its header `Accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// `application/json;v=VERSION;g=config.k8s.io;as=Statusz`.
    Json(&'static str),
}

/// Returns the page in the form that the client asks for; status 406 for an unknown one.
pub(super) fn answer(request: &Parts, view: &View<'_>) -> Answer {
    let accept = request.headers.get(header::ACCEPT);
    let accept = accept.map_or(Some(""), |value| value.to_str().ok());
    match accept.and_then(form) {
        Some(Form::Text) => ok("text/plain; charset=utf-8", text(view)),
        Some(Form::Json("v1beta1")) => ok(
            "application/json;g=config.k8s.io;v=v1beta1;as=Statusz",
            structured("v1beta1", view),
        ),
        Some(Form::Json(version)) => {
            let mut answer = ok(
                "application/json;g=config.k8s.io;v=v1alpha1;as=Statusz",
                structured(version, view),
            );
            let warning = "299 - \"This version of the statusz endpoint is deprecated. Please use a \
                           newer version.\"";
            answer
                .headers_mut()
                .insert(header::WARNING, HeaderValue::from_static(warning));
            answer
        }
        None => respond(StatusCode::NOT_ACCEPTABLE, "application/json", refusal()),
    }
}

/// Returns the first form of `accept` that this page has.
fn form(accept: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next()?;
        if ["text/plain", "text/*", "*/*"].contains(&media_type) {
            return Some(Form::Text);
        }
        let parameters: Vec<&str> = parts.collect();
        let is_statusz = ["application/json", "application/*"].contains(&media_type)
            && parameters.contains(&"g=config.k8s.io")
            && parameters.contains(&"as=Statusz");
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|version| {
            parameters
                .iter()
                .any(|word| word.strip_prefix("v=") == Some(version))
        });
        version.filter(|_| is_statusz).map(Form::Json)
    })
}

/// Returns the page as text. The lines after the empty one are ours.
fn text(view: &View<'_>) -> String {
    let uptime = uptime(view).as_secs();
    let mut page = format!(
        "\n{COMPONENT} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\n\
         Binary version: {}\nPaths: {}\n\n",
        timestamp(Some(view.process.started)),
        uptime / 3_600,
        uptime / 60 % 60,
        uptime % 60,
        env!("CARGO_PKG_VERSION"),
        PATHS.join(" ")
    );
    let verdict = &view.verdict;
    let health = match (verdict.is_healthy(), verdict.is_node_eligible()) {
        (true, true) => "healthy",
        (true, false) => "healthy, but the node is unknown or being deleted",
        (false, _) => "unhealthy",
    };
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(page, "Health: {health}");
    for reason in verdict.causes() {
        let _ = writeln!(page, "/healthz fails because {reason}");
    }
    let _ = writeln!(page, "Last round: {}", timestamp(view.facts.updated));
    let kinds = view.watch.iter().flat_map(|status| status.kinds());
    for (kind, status) in kinds {
        let heard = match status.heard {
            Some(heard) => format!("last message {} s ago", heard.elapsed().as_secs()),
            None => "no message yet".to_owned(),
        };
        let _ = write!(page, "{kind}: {:?}, {heard}", status.state);
        if let Some((when, why)) = &status.failed {
            let ago = when.elapsed().as_secs();
            let _ = write!(
                page,
                "; {} failures, the last {ago} s ago: {why}",
                status.failures
            );
        }
        page.push('\n');
    }
    page
}

/// Returns the page as an object of `config.k8s.io`, without the version of Go, which is not used.
fn structured(version: &str, view: &View<'_>) -> String {
    let page = json!({
        "kind": "Statusz",
        "apiVersion": format!("config.k8s.io/{version}"),
        "metadata": {"name": COMPONENT},
        "startTime": timestamp(Some(view.process.started)),
        "uptimeSeconds": uptime(view).as_secs(),
        "binaryVersion": env!("CARGO_PKG_VERSION"),
        "paths": PATHS,
    });
    format!("{page:#}")
}

fn refusal() -> String {
    let message = "only the following media types are accepted: application/json, text/plain";
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NotAcceptable",
        "code": 406,
    });
    format!("{status:#}")
}

fn uptime(view: &View<'_>) -> Duration {
    let uptime = view.wall.duration_since(view.process.started);
    uptime.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_the_header_accept() {
        for text in ["", "*/*", "text/plain", "text/html, text/plain;q=0.9"] {
            assert_eq!(form(text), Some(Form::Text), "{text}");
        }
        let json = |version| format!("application/json;v={version};g=config.k8s.io;as=Statusz");
        assert_eq!(form(&json("v1beta1")), Some(Form::Json("v1beta1")));
        assert_eq!(form(&json("v1alpha1")), Some(Form::Json("v1alpha1")));
        for other in [
            "application/json",
            "application/yaml",
            &json("v2"),
            "image/png",
        ] {
            assert_eq!(form(other), None, "{other}");
        }
    }
}
