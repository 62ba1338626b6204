//! The answer to each request, as a pure function of the request and a [`View`].
//!
//! Statuses, headers and bodies are those of kube-proxy 1.36. Any method is accepted, as there; hyper
//! omits the body for HEAD.

use std::fmt;

use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};

use super::body::AnswerBody;
use super::view::View;
use super::{health_body, statusz};
use crate::cluster::model::Family;

/// An answer with its body.
pub(super) type Answer = Response<AnswerBody>;

/// The kind of a server, on which its answers depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// `/healthz` and `/livez`, usually at port 10256.
    Health,
    /// `/metrics` and pages for operators, usually at port 10249.
    Metrics,
    /// The socket of `top`: the view of this node only.
    Local,
    /// A health-check node port, at addresses of one family.
    HealthPort {
        /// The port.
        port: u16,
        /// The family.
        family: Family,
    },
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Health => f.write_str("the health server"),
            Self::Metrics => f.write_str("the metrics server"),
            Self::Local => f.write_str("the socket of `top`"),
            Self::HealthPort { port, .. } => write!(f, "health-check port {port}"),
        }
    }
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Returns the answer to `request`.
pub(super) fn answer(site: Site, request: &Parts, view: &View<'_>) -> Answer {
    let path = request.uri.path();
    let query = request.uri.query().unwrap_or_default();
    match (site, path) {
        (Site::Health, "/healthz") => health(health_body::healthz(view)),
        (Site::Health, "/livez") => health(health_body::livez(view)),
        (Site::Metrics, "/healthz") => {
            let is_verbose = query.split('&').any(|word| word.starts_with("verbose"));
            ok(TEXT, if is_verbose { PINGED } else { "ok" })
        }
        (Site::Metrics, "/healthz/ping") => ok(TEXT, "ok"),
        (Site::Metrics, "/proxyMode") => ok(TEXT, view.process.mode),
        (Site::Metrics, "/configz") => ok(JSON, view.process.configz.clone()),
        (Site::Metrics, "/statusz") => statusz::answer(request, view),
        (Site::HealthPort { family, .. }, _) => health_port(family, view),
        (Site::Health | Site::Metrics | Site::Local, _) => {
            respond(StatusCode::NOT_FOUND, TEXT, "404 page not found\n")
        }
    }
}

/// The body of the metrics server's `/healthz?verbose`. This page only says that the server runs.
const PINGED: &str = "[+]ping ok\nhealthz check passed\n";

/// Returns the name of the metric that counts the answers at `path`, if one does.
pub(super) fn counter(site: Site, path: &str) -> Option<&'static str> {
    match (site, path) {
        (Site::Health, "/healthz") => Some("kubeproxy_proxy_healthz_total"),
        (Site::Health, "/livez") => Some("kubeproxy_proxy_livez_total"),
        _ => None,
    }
}

/// Returns the answer of `/metrics`.
pub(super) fn metrics_page(page: AnswerBody) -> Answer {
    ok("text/plain; version=0.0.4; charset=utf-8", page)
}

/// Returns an answer with status 200.
pub(super) fn ok(content_type: &'static str, body: impl Into<AnswerBody>) -> Answer {
    respond(StatusCode::OK, content_type, body)
}

/// Returns an answer that browsers must not interpret as another type.
pub(super) fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<AnswerBody>,
) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    answer
}

fn status(is_healthy: bool) -> StatusCode {
    match is_healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn health((is_healthy, body): (bool, String)) -> Answer {
    respond(status(is_healthy), JSON, body)
}

/// Returns whether the Service of this port has ready endpoints here, and how many.
///
/// A node that is being deleted makes no difference, as in kube-proxy. Load balancers of policy Cluster
/// notice the deletion by `/healthz`, those of policy Local when the endpoints have ended.
fn health_port(family: Family, view: &View<'_>) -> Answer {
    // The port is about to be closed.
    let Some(check) = &view.check else {
        return respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, "");
    };
    let count = check.local_endpoints.get(&family).copied().unwrap_or(0);
    let is_healthy = view.verdict.is_healthy();
    let body = health_body::service(&check.service, count, is_healthy);
    let mut answer = respond(status(count > 0 && is_healthy), JSON, body);
    answer
        .headers_mut()
        .insert("x-load-balancing-endpoint-weight", count.into());
    answer
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use http::Request;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::cluster::model::ObjectName;
    use crate::observe::health::{ApiView, Facts, Limits, NodeState};
    use crate::observe::serve::ProcessInfo;
    use crate::plan::HealthCheck;

    const LIMITS: Limits = Limits {
        freshness: Duration::from_secs(60),
        kernel: Some(Duration::from_secs(60)),
        api: None,
        silence: None,
    };

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_000 + millis)
    }

    fn programmed() -> Facts {
        let mut facts = Facts {
            node: NodeState::Staying,
            ..Facts::default()
        };
        facts.end(None, Duration::from_secs(100), at(500));
        facts
    }

    /// Returns the answer as text: status, headers, body.
    fn get(site: Site, path: &str, facts: &Facts, check: Option<HealthCheck>) -> String {
        let process = ProcessInfo {
            families: vec![Family::V4, Family::V6],
            mode: "ipvs",
            started: at(0),
            configz: "{}".to_owned(),
        };
        let now = Duration::from_secs(200);
        let view = View {
            process: &process,
            wall: at(61_120),
            verdict: facts.judge(&ApiView::default(), &LIMITS, now),
            facts: facts.clone(),
            check: check.map(Arc::new),
            watch: None,
        };
        let (request, ()) = Request::get(path).body(()).unwrap().into_parts();
        let (head, body) = answer(site, &request, &view).into_parts();
        let mut text = format!("{}\n", head.status.as_u16());
        for (name, value) in &head.headers {
            text += &format!("{name}: {}\n", value.to_str().unwrap());
        }
        let body = text_of(body);
        text + "\n" + &body
    }

    fn text_of(body: AnswerBody) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let bytes = runtime.block_on(body.collect()).unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn check(v4: usize) -> HealthCheck {
        HealthCheck {
            service: ObjectName::new("ns", "lb"),
            local_endpoints: [(Family::V4, v4)].into(),
        }
    }

    #[test]
    fn healthz_has_the_fields_of_kube_proxy_in_its_order() {
        assert_eq!(
            get(Site::Health, "/healthz?x=y", &programmed(), None),
            "200\ncontent-type: application/json\nx-content-type-options: nosniff\n\n\
             {\"lastUpdated\":\"2027-01-15T08:01:01.12Z\",\"currentTime\":\"2027-01-15T08:01:01.12Z\",\
             \"nodeEligible\":true,\"healthy\":true,\"status\":{\
             \"IPv4\":{\"lastUpdated\":\"2027-01-15T08:00:00.5Z\",\"healthy\":true},\
             \"IPv6\":{\"lastUpdated\":\"2027-01-15T08:00:00.5Z\",\"healthy\":true}}}"
        );
    }

    #[test]
    fn livez_ignores_the_node_and_our_own_rules() {
        let mut facts = programmed();
        facts.node = NodeState::Leaving;
        facts.fail("reading fails".to_owned(), Duration::from_secs(100));
        let text = get(Site::Health, "/livez", &facts, None);
        let body = text.split_once("\n\n").unwrap().1;
        assert!(text.starts_with("200"), "{text}");
        assert_eq!(
            body,
            "{\"lastUpdated\":\"2027-01-15T08:01:01.12Z\",\"currentTime\":\"2027-01-15T08:01:01.12Z\",\
             \"healthy\":true,\"status\":{\
             \"IPv4\":{\"lastUpdated\":\"2027-01-15T08:00:00.5Z\",\"healthy\":true},\
             \"IPv6\":{\"lastUpdated\":\"2027-01-15T08:00:00.5Z\",\"healthy\":true}}}"
        );
    }

    #[test]
    fn a_leaving_node_is_healthy_and_not_eligible() {
        let mut facts = programmed();
        facts.node = NodeState::Leaving;
        let text = get(Site::Health, "/healthz", &facts, None);
        assert!(text.starts_with("503"), "{text}");
        let fields = "{\"lastUpdated\":\"2027-01-15T08:00:00.5Z\",\
                      \"currentTime\":\"2027-01-15T08:01:01.12Z\",\
                      \"nodeEligible\":false,\"healthy\":true,\"status\"";
        assert!(text.contains(fields), "{text}");
        assert!(
            text.contains("\"reasons\":[\"the Node is being deleted"),
            "{text}"
        );
    }

    #[test]
    fn a_change_that_waits_too_long_makes_both_fail() {
        let mut facts = programmed();
        facts.queue(Duration::from_secs(140));
        let text = get(Site::Health, "/healthz", &facts, None);
        assert!(text.starts_with("503"), "{text}");
        let fields = "\"nodeEligible\":true,\"healthy\":false,\"status\":{\"IPv4\":{\
                      \"lastUpdated\":\"2027-01-15T08:00:00.5Z\",\"healthy\":false}";
        assert!(text.contains(fields), "{text}");
        assert!(text.contains("\"reasons\":[\"changes wait"), "{text}");
        assert!(get(Site::Health, "/livez", &facts, None).starts_with("503"));
    }

    #[test]
    fn our_own_rules_name_their_reason() {
        let mut facts = programmed();
        facts.fail("reading fails".to_owned(), Duration::from_secs(100));
        let text = get(Site::Health, "/healthz", &facts, None);
        assert!(text.starts_with("503"), "{text}");
        assert!(
            text.contains("\"healthy\":false,\"status\":{\"IPv4\""),
            "{text}"
        );
        assert!(
            text.ends_with(",\"reasons\":[\"for 100 s, reading fails\"]}"),
            "{text}"
        );
        let port = get(PORT, "/", &facts, Some(check(1)));
        assert!(port.starts_with("503"), "{port}");
        assert!(port.contains("\"serviceProxyHealthy\": false"), "{port}");
    }

    #[test]
    fn before_the_first_round_there_is_no_family() {
        let mut facts = Facts::default();
        let text = get(Site::Health, "/healthz", &facts, None);
        let fields = "{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\
                      \"currentTime\":\"2027-01-15T08:01:01.12Z\",\
                      \"nodeEligible\":false,\"healthy\":false,\"reasons\"";
        assert!(text.starts_with("503") && text.contains(fields), "{text}");
        facts.node = NodeState::Staying;
        assert!(get(Site::Health, "/healthz", &facts, None).starts_with("503"));
        assert!(get(Site::Health, "/livez", &facts, None).starts_with("200"));
    }

    const PORT: Site = Site::HealthPort {
        port: 32_123,
        family: Family::V4,
    };

    #[test]
    fn a_health_check_port_counts_endpoints_of_its_family_on_any_path() {
        assert_eq!(
            get(PORT, "/any/path", &programmed(), Some(check(2))),
            "200\ncontent-type: application/json\nx-content-type-options: nosniff\n\
             x-load-balancing-endpoint-weight: 2\n\n\
             {\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"lb\"\n\t},\n\
             \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
        );
        let v6 = Site::HealthPort {
            port: 32_123,
            family: Family::V6,
        };
        let text = get(v6, "/", &programmed(), Some(check(2)));
        assert!(text.starts_with("503"), "{text}");
        assert!(text.contains("endpoint-weight: 0\n"), "{text}");
        assert!(get(PORT, "/", &programmed(), None).starts_with("503"));
    }

    #[test]
    fn a_health_check_port_ignores_that_the_node_leaves() {
        let mut facts = programmed();
        facts.node = NodeState::Leaving;
        assert!(get(PORT, "/", &facts, Some(check(1))).starts_with("200"));
    }

    #[test]
    fn the_metrics_server_has_the_small_pages_of_kube_proxy() {
        let get = |path| get(Site::Metrics, path, &programmed(), None);
        let text = "content-type: text/plain; charset=utf-8\nx-content-type-options: nosniff\n";
        assert_eq!(get("/proxyMode"), format!("200\n{text}\nipvs"));
        assert_eq!(get("/healthz"), format!("200\n{text}\nok"));
        let pinged = "[+]ping ok\nhealthz check passed\n";
        assert_eq!(get("/healthz?verbose"), format!("200\n{text}\n{pinged}"));
        assert_eq!(get("/livez"), format!("404\n{text}\n404 page not found\n"));
        assert!(get("/configz").starts_with("200\ncontent-type: application/json"));
    }
}
