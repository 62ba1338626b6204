//! The table of metrics.

use crate::cluster::model::Family;

/// A metric.
#[derive(Debug)]
pub(crate) struct Instrument {
    pub(crate) name: &'static str,
    pub(crate) kind: InstrumentKind,
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "a test compares them with the page and the series"
        )
    )]
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
    /// The label values of series that exist from the start.
    pub(crate) known: &'static [Labels],
}

/// The labels of a series.
pub(crate) type Labels = &'static [(&'static str, &'static str)];

/// The type of a metric.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InstrumentKind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(fn() -> Vec<f64>),
}

/// The families of all metrics that have one: a round programs both.
pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Returns the value of label `ip_family`.
pub(crate) fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// kube-proxy's buckets of rounds: 15 powers of 2 from 1 ms.
fn rounds() -> Vec<f64> {
    (0..15).map(|power| 0.001 * f64::from(1 << power)).collect()
}

/// kube-proxy's buckets of programming latency.
fn latency() -> Vec<f64> {
    let seconds = (1..=59)
        .chain((60..=115).step_by(5))
        .chain((120..=300).step_by(30));
    [0.0, 0.25, 0.5]
        .into_iter()
        .chain(seconds.map(f64::from))
        .collect()
}

/// client-go's buckets of requests.
fn requests() -> Vec<f64> {
    let bounds = [
        0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
    ];
    bounds.to_vec()
}

const NONE: &[Labels] = &[];
const ONE: &[Labels] = &[&[]];
const BY_FAMILY: &[Labels] = &[&[("ip_family", "IPv4")], &[("ip_family", "IPv6")]];
const BY_CODE: &[Labels] = &[&[("code", "200")], &[("code", "503")]];
const BY_POLICY: &[Labels] = &[
    &[("traffic_policy", "internal"), ("ip_family", "IPv4")],
    &[("traffic_policy", "internal"), ("ip_family", "IPv6")],
    &[("traffic_policy", "external"), ("ip_family", "IPv4")],
    &[("traffic_policy", "external"), ("ip_family", "IPv6")],
];
const BY_PART: &[Labels] = &[
    &[("part", "read")],
    &[("part", "ops")],
    &[("part", "rules")],
    &[("part", "flows")],
    &[("part", "ledger")],
];
const BY_EXTENT: &[Labels] = &[
    &[("extent", "pending"), ("result", "success")],
    &[("extent", "pending"), ("result", "failure")],
    &[("extent", "all"), ("result", "success")],
    &[("extent", "all"), ("result", "failure")],
];
const BY_OP: &[Labels] = &[
    &[("op", "add_service"), ("result", "success")],
    &[("op", "add_service"), ("result", "failure")],
    &[("op", "set_service"), ("result", "success")],
    &[("op", "set_service"), ("result", "failure")],
    &[("op", "delete_service"), ("result", "success")],
    &[("op", "delete_service"), ("result", "failure")],
    &[("op", "add_destination"), ("result", "success")],
    &[("op", "add_destination"), ("result", "failure")],
    &[("op", "set_destination"), ("result", "success")],
    &[("op", "set_destination"), ("result", "failure")],
    &[("op", "delete_destination"), ("result", "success")],
    &[("op", "delete_destination"), ("result", "failure")],
    &[("op", "add_address"), ("result", "success")],
    &[("op", "add_address"), ("result", "failure")],
    &[("op", "set_address"), ("result", "success")],
    &[("op", "set_address"), ("result", "failure")],
    &[("op", "delete_address"), ("result", "success")],
    &[("op", "delete_address"), ("result", "failure")],
    &[("op", "add_device"), ("result", "success")],
    &[("op", "add_device"), ("result", "failure")],
    &[("op", "set_device"), ("result", "success")],
    &[("op", "set_device"), ("result", "failure")],
    &[("op", "delete_device"), ("result", "success")],
    &[("op", "delete_device"), ("result", "failure")],
];

const BY_RESULT: &[Labels] = &[
    &[("result", "connected")],
    &[("result", "refused")],
    &[("result", "over_share")],
];
const BY_REASON: &[Labels] = &[&[("reason", "exhausted")], &[("reason", "share")]];
const BY_USE: &[Labels] = &[&[("of", "listeners")], &[("of", "connections")]];

macro_rules! metric {
    ($name:literal, $kind:expr, [$($label:literal),*], $known:expr, $help:literal) => {
        Instrument {
            name: $name,
            kind: $kind,
            labels: &[$($label),*],
            help: $help,
            known: $known,
        }
    };
}

use InstrumentKind::{Counter, Gauge, Histogram};

/// Every metric that the recorder keeps.
#[rustfmt::skip]
pub(crate) const ALL: &[Instrument] = &[
    // Of kube-proxy.
    metric!("kubeproxy_sync_proxy_rules_duration_seconds", Histogram(rounds), ["ip_family"], BY_FAMILY,
        "Duration of rounds in seconds; a round programs both families"),
    metric!("kubeproxy_sync_proxy_rules_last_timestamp_seconds", Gauge, ["ip_family"], BY_FAMILY,
        "The last time that a round took effect"),
    metric!("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", Gauge, ["ip_family"], BY_FAMILY,
        "The last time that a change was queued for a round"),
    metric!("kubeproxy_network_programming_duration_seconds", Histogram(latency), ["ip_family"], BY_FAMILY,
        "Time from a change of endpoints to its effect on this node, in seconds"),
    metric!("kubeproxy_sync_proxy_rules_endpoint_changes_pending", Gauge, [], ONE,
        "Changes of EndpointSlices that wait for a round"),
    metric!("kubeproxy_sync_proxy_rules_endpoint_changes_total", Counter, [], ONE,
        "Changes of EndpointSlices"),
    metric!("kubeproxy_sync_proxy_rules_service_changes_pending", Gauge, [], ONE,
        "Changes of Services that wait for a round"),
    metric!("kubeproxy_sync_proxy_rules_service_changes_total", Counter, [], ONE,
        "Changes of Services"),
    metric!("kubeproxy_sync_proxy_rules_no_local_endpoints_total", Gauge,
        ["traffic_policy", "ip_family"], BY_POLICY,
        "Services with policy Local whose endpoints are all on other nodes"),
    metric!("kubeproxy_sync_proxy_rules_iptables_restore_failures_total", Counter, ["ip_family"], BY_FAMILY,
        "Writes of packet rules that the kernel refused; one table has the rules of both families"),
    metric!("kubeproxy_proxy_healthz_total", Counter, ["code"], BY_CODE,
        "Answers of /healthz by HTTP status"),
    metric!("kubeproxy_proxy_livez_total", Counter, ["code"], BY_CODE,
        "Answers of /livez by HTTP status"),
    // Of client-go.
    metric!("rest_client_requests_total", Counter, ["code", "host", "method"], NONE,
        "Requests to the API server by HTTP status, host and method"),
    metric!("rest_client_request_duration_seconds", Histogram(requests), ["host", "verb"], NONE,
        "Time from a request to the head of its response, in seconds"),
    // Of every program.
    metric!("process_resident_memory_bytes", Gauge, [], ONE, "Resident memory in bytes"),
    metric!("process_virtual_memory_bytes", Gauge, [], ONE, "Virtual memory in bytes"),
    metric!("process_start_time_seconds", Gauge, [], ONE, "Start of the process, in seconds since 1970"),
    metric!("process_open_fds", Gauge, [], ONE, "Open file descriptors"),
    metric!("process_max_fds", Gauge, [], ONE, "The limit of open file descriptors"),
    metric!("process_threads", Gauge, [], ONE, "Threads of the process"),
    // Ours.
    metric!("ipvs_proxier_build_info", Gauge, ["version"], NONE, "1, with the version of the program"),
    metric!("ipvs_proxier_rounds_total", Counter, ["extent", "result"], BY_EXTENT,
        "Rounds by extent; a failure is a round of which any part failed"),
    metric!("ipvs_proxier_ops_total", Counter, ["op", "result"], BY_OP,
        "Changes of virtual servers, destinations and service addresses"),
    metric!("ipvs_proxier_failures_total", Counter, ["part"], BY_PART,
        "Requests that the kernel or the file system refused, or whose answer was lost"),
    metric!("ipvs_proxier_repairs_total", Counter, [], ONE, "Ops that repaired drift"),
    metric!("ipvs_proxier_rules_repairs_total", Counter, [], ONE,
        "Changes of our packet rules by other programs, each of which was repaired"),
    metric!("ipvs_proxier_flows_deleted_total", Counter, [], ONE,
        "Flows to removed endpoints that were deleted from connection tracking"),
    metric!("ipvs_proxier_problems", Gauge, ["object"], NONE, "Problems of the input by kind of object"),
    metric!("ipvs_proxier_virtual_servers", Gauge, [], ONE, "Planned virtual servers"),
    metric!("ipvs_proxier_destinations", Gauge, [], ONE, "Planned destinations, as of the last resync"),
    metric!("ipvs_proxier_service_addresses", Gauge, [], ONE, "Planned service addresses"),
    metric!("ipvs_proxier_silent_endpoints", Gauge, [], ONE,
        "Endpoints of Services with passive health that do not answer this node"),
    metric!("ipvs_proxier_draining_destinations", Gauge, [], ONE,
        "Removed destinations that still have connections"),
    metric!("ipvs_proxier_api_age_seconds", Gauge, ["objects"], NONE,
        "Time since the API server last sent a list, a change or a bookmark"),
    metric!("ipvs_proxier_api_failures_total", Counter, ["objects"], NONE,
        "Failed lists and watches by kind of object"),
    metric!("ipvs_proxier_relay_connections_total", Counter, ["result"], BY_RESULT,
        "Clients of the relay by result"),
    metric!("ipvs_proxier_relay_hidden_clients_total", Counter, [], ONE,
        "Connections to an endpoint of this node that did not answer to the client's address"),
    metric!("ipvs_proxier_relay_pauses_total", Counter, ["reason"], BY_REASON,
        "Pauses of accepting: no file was left, or a frontend had its share"),
    metric!("ipvs_proxier_relay_files", Gauge, ["of"], BY_USE, "Open files of the relay by their use"),
    metric!("ipvs_proxier_relay_files_limit", Gauge, [], ONE,
        "Files that a process with a relay may open; 0 without a relay"),
    metric!("ipvs_proxier_healthy", Gauge, ["probe"], &[&[("probe", "healthz")], &[("probe", "livez")]],
        "1 if the page of this name would answer 200, otherwise 0"),
];
