//! The view as plain data: the JSON twin of the page, which `top` reads.
//!
//! All lists are bounded. Numbers are `None` where nothing counts.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The view of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Overview {
    /// The node and its proxy.
    pub(crate) head: Head,
    /// The Services.
    pub(crate) services: ServiceList,
    /// The Service that was asked for; `None` if none was, or if this node serves no port of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<ServiceView>,
    /// The last changes, the newest first.
    pub(crate) changes: Vec<ChangeView>,
}

/// The node and its proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    /// The name of the node.
    pub(crate) node: String,
    /// The version of the program.
    pub(crate) version: String,
    /// The dataplane, as `--dataplane` names it.
    pub(crate) mode: String,
    /// The time of this view.
    pub(crate) time: String,
    /// How long the process has run.
    pub(crate) uptime_seconds: u64,
    /// Whether the proxy is healthy.
    pub(crate) is_healthy: bool,
    /// Why it is not, and whether load balancers should avoid the node.
    pub(crate) reasons: Vec<String>,
    /// The time since the API server's last message, for the kind of object with the longest one; `None` with manifests.
    pub(crate) api_age_seconds: Option<u64>,
    /// The time since the last round that took effect.
    pub(crate) last_round_seconds: Option<u64>,
    /// How long that round took.
    pub(crate) round_millis: u64,
    /// The rounds that did not fail as a whole.
    pub(crate) rounds: u64,
    /// The rounds that failed as a whole.
    pub(crate) failed_rounds: u64,
    /// The repairs of what another program changed.
    pub(crate) repairs: u64,
    /// The frontends that are programmed.
    pub(crate) frontends: usize,
    /// The endpoints that left and keep their connections.
    pub(crate) draining: usize,
    /// The number of Problems.
    pub(crate) problem_count: usize,
    /// The first of them.
    pub(crate) problems: Vec<String>,
    /// What this view lacks, and why.
    pub(crate) notes: Vec<String>,
    /// What the view costs.
    pub(crate) census: CensusView,
}

/// The last look at all Services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CensusView {
    /// Where the counters are.
    pub(crate) counters: String,
    /// Its age.
    pub(crate) age_millis: u64,
    /// How long it took.
    pub(crate) cost_millis: f64,
    /// The shortest time between two.
    pub(crate) interval_millis: u64,
}

/// Services, in the order and with the filter of the query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceList {
    /// The number of Service ports of this node.
    pub(crate) total: usize,
    /// The number of those with a fault.
    pub(crate) wrong: usize,
    /// The number of those that the filter selects.
    pub(crate) matching: usize,
    /// The number of rows before these.
    pub(crate) first: usize,
    /// A part of them.
    pub(crate) rows: Vec<ServiceRow>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceRow {
    /// The namespace.
    pub(crate) namespace: String,
    /// The name of the Service.
    pub(crate) name: String,
    /// The name of the port; empty if it has none.
    pub(crate) port: String,
    /// Its first frontend.
    pub(crate) frontend: String,
    /// The number of its frontends.
    pub(crate) frontends: usize,
    /// The endpoints of the frontend with the most of them.
    pub(crate) endpoints: usize,
    /// The endpoints that left and keep their connections, each counted once per frontend.
    pub(crate) draining: usize,
    /// The counts of all its frontends.
    #[serde(flatten)]
    pub(crate) traffic: Traffic,
    /// Its faults.
    pub(crate) faults: Vec<String>,
}

/// Connections and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Traffic {
    /// Established connections.
    pub(crate) active: Option<u64>,
    /// All others, such as closing ones and UDP flows.
    pub(crate) inactive: Option<u64>,
    /// All connections so far.
    pub(crate) connections: Option<u64>,
    /// New connections per second.
    pub(crate) connection_rate: Option<f64>,
    /// All bytes so far, in both directions.
    pub(crate) bytes: Option<u64>,
    /// Bytes per second.
    pub(crate) byte_rate: Option<f64>,
}

/// A Service in full.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceView {
    /// The namespace.
    pub(crate) namespace: String,
    /// The name.
    pub(crate) name: String,
    /// Its Problems.
    pub(crate) problems: Vec<String>,
    /// Its frontends, some twice: for clients outside and inside the cluster.
    pub(crate) frontends: Vec<FrontendView>,
    /// The frontends that are left out, because there are too many.
    pub(crate) left_out_frontends: usize,
    /// The endpoints of the others that are left out.
    pub(crate) left_out: usize,
}

/// A frontend for some clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrontendView {
    /// Protocol, address and port.
    pub(crate) frontend: String,
    /// The name of the Service's port; empty if it has none.
    pub(crate) port: String,
    /// The field of the Service that asks for it.
    pub(crate) field: String,
    /// The clients: `all`, or those inside or outside the cluster.
    pub(crate) clients: String,
    /// The traffic policy for them.
    pub(crate) policy: String,
    /// The scheduler.
    pub(crate) scheduler: String,
    /// The timeout of session affinity, in seconds.
    pub(crate) affinity_seconds: Option<u32>,
    /// Why its clients find no endpoint.
    pub(crate) fault: Option<String>,
    /// The counts of all its endpoints.
    #[serde(flatten)]
    pub(crate) traffic: Traffic,
    /// Its endpoints, also those that get no new connections.
    pub(crate) endpoints: Vec<EndpointView>,
}

/// An endpoint of a frontend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointView {
    /// Address and port.
    pub(crate) address: SocketAddr,
    /// The node; empty if unknown.
    pub(crate) node: String,
    /// The zone; empty if unknown.
    pub(crate) zone: String,
    /// The weight, if it is in the plan.
    pub(crate) weight: Option<u16>,
    /// Whether its weight is smaller because it is new.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_new: bool,
    /// Its counts.
    #[serde(flatten)]
    pub(crate) traffic: Traffic,
    /// Its part of the new connections of the frontend or, if none are counted, of the open ones.
    pub(crate) share: Option<f64>,
    /// The part that its weight promises.
    pub(crate) fair_share: Option<f64>,
    /// Why it gets no new connections.
    pub(crate) out_of_rotation: Option<String>,
    /// How long it may still keep its connections, if it drains.
    pub(crate) drain_seconds: Option<u64>,
}

/// A change that a round made, or tried to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangeView {
    /// When.
    pub(crate) time: String,
    /// Why.
    pub(crate) cause: String,
    /// What was changed.
    pub(crate) change: String,
    /// How often, without another change in between.
    pub(crate) times: u64,
}
