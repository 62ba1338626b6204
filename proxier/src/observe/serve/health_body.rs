//! The bodies of health answers, as kube-proxy 1.36 writes them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;

use super::view::View;
use crate::cluster::model::{Family, ObjectName};

/// The body of `/healthz` and `/livez`, in kube-proxy's order; `reasons` is ours.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthBody<'a> {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyBody>,
    #[serde(skip_serializing_if = "<[&str]>::is_empty")]
    reasons: &'a [&'a str],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

/// Returns whether the node should get connections, and the body that says why.
pub(super) fn healthz(view: &View<'_>) -> (bool, String) {
    let verdict = &view.verdict;
    let is_eligible = verdict.is_node_eligible();
    let is_healthy = verdict.is_healthy();
    let reasons: Vec<&str> = verdict.causes().collect();
    let body = body(view, is_healthy, Some(is_eligible), &reasons);
    (is_healthy && is_eligible, body)
}

/// Returns whether the process makes rounds in time, and the body that says so.
///
/// Neither the Node nor our own rules count: kubelet restarts a process that fails here, which cures
/// neither.
pub(super) fn livez(view: &View<'_>) -> (bool, String) {
    let is_alive = view.verdict.is_fresh;
    (is_alive, body(view, is_alive, None, &[]))
}

fn body(
    view: &View<'_>,
    is_healthy: bool,
    node_eligible: Option<bool>,
    reasons: &[&str],
) -> String {
    let is_passing = is_healthy && node_eligible != Some(false);
    let updated = view.facts.updated;
    let family = |family: &Family| {
        let name = match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        let status = FamilyBody {
            last_updated: timestamp(updated),
            healthy: view.verdict.is_fresh,
        };
        (name, status)
    };
    let families = updated.iter().flat_map(|_| &view.process.families);
    let body = HealthBody {
        // As kube-proxy: readers of a healthy proxy see no old time, even if no change comes for
        // hours.
        last_updated: match is_passing {
            true => timestamp(Some(view.wall)),
            false => timestamp(updated),
        },
        current_time: timestamp(Some(view.wall)),
        node_eligible,
        healthy: is_healthy,
        status: families.map(family).collect(),
        reasons,
    };
    // Strings and booleans always serialize.
    serde_json::to_string(&body).unwrap_or_default()
}

/// Returns the body of a health-check port.
pub(super) fn service(name: &ObjectName, local_endpoints: usize, is_healthy: bool) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\"localEndpoints\": \
         {local_endpoints},\n\t\"serviceProxyHealthy\": {is_healthy}\n}}",
        quoted(name.namespace()),
        quoted(name.name())
    )
}

/// Returns the time as Go writes it: RFC 3339 without trailing zeros of the second.
///
/// `None` is the year 1, Go's zero value.
pub(super) fn timestamp(time: Option<SystemTime>) -> String {
    let Some(time) = time else {
        return "0001-01-01T00:00:00Z".to_owned();
    };
    let text = humantime::format_rfc3339_nanos(time).to_string();
    let digits = text.trim_end_matches('Z').trim_end_matches('0');
    format!("{}Z", digits.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_have_no_trailing_zeros() {
        let at = |nanos| timestamp(Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)));
        assert_eq!(at(1_500_000_000), "1970-01-01T00:00:01.5Z");
        assert_eq!(at(10_000_000_000), "1970-01-01T00:00:10Z");
        assert_eq!(at(1), "1970-01-01T00:00:00.000000001Z");
    }
}
