//! Annotations of a Service for options that Kubernetes has no field for.
//!
//! All are optional, and all values are strings (quote numbers in YAML). White space around a value
//! and around list entries is ignored. An invalid value is a Problem, and the cluster's default
//! applies. An unknown name with the prefix `ipvs-proxier.io/` is a Problem too, because it is
//! probably misspelled.
//!
//! | annotation | value | default |
//! |---|---|---|
//! | [`SCHEDULER`] | a scheduler of the kernel | `--ipvs-scheduler` |
//! | [`SCHEDULER_FLAGS`] | `fallback`, `port`, both, or `none` | none; `port` for `mh` |
//! | [`WEIGHTS`] | weights by address, node or zone | `--weights`, or 1 for every endpoint |
//! | [`DRAIN_SECONDS`] | 0 to 86,400 | the daemon's drain time |
//! | [`MAX_CONNECTIONS`] | 1 to 65,535 | no limit |
//! | [`IDLE_TIMEOUT`] | 1 to 86,400 | the kernel's timeouts |
//! | [`PROXY_PROTOCOL`] | `v1` or `v2` | no header |
//! | [`SOURCE_ADDRESS`] | `client` or `node` | `node` |
//! | [`TOPOLOGY_KEYS`] | the preferred locations of endpoints | topology hints |
//!
//! ```yaml
//! apiVersion: v1
//! kind: Service
//! metadata:
//!   name: db
//!   annotations:
//!     ipvs-proxier.io/scheduler: wlc
//!     ipvs-proxier.io/weights: "zone=eu-1a:3, zone=eu-1b:1, node=old-7:0"
//!     ipvs-proxier.io/drain-seconds: "600"
//!     ipvs-proxier.io/topology-keys: "kubernetes.io/hostname, topology.kubernetes.io/zone, *"
//! ```

mod weights;

use super::metadata;
use super::parser::Parser;
use super::scalar::Scalar;
use crate::cluster::model::{
    Annotations, ProxyProtocol, SchedulerFlags, SourceAddress, TopologyKey,
};
use crate::cluster::store::Interner;

/// The prefix of all annotations of this proxy.
pub(crate) const PREFIX: &str = "ipvs-proxier.io/";

/// The IPVS scheduler of the Service's virtual servers, such as `rr`, `wrr`, `lc`, `wlc`, `sh` or
/// `mh`: at most 15 letters, digits, `-` and `_`.
///
/// If the kernel lacks the scheduler, the cluster's default is used and a Problem is reported. The
/// kernel loads schedulers on demand, so this is known only after the first attempt.
///
/// ```yaml
/// ipvs-proxier.io/scheduler: wlc
/// ```
pub(crate) const SCHEDULER: &str = "scheduler";

/// Flags of the schedulers `sh` and `mh`, separated by commas; a Problem if [`SCHEDULER`] names
/// another scheduler.
///
/// `fallback`: if the selected endpoint accepts no connections, another one is selected instead of
/// rejecting the client. `port`: the client's port is hashed too, which spreads one client's
/// connections. `none`: neither. The value replaces the default flags: `port` for `mh`, as in
/// kube-proxy, and none for `sh`.
///
/// ```yaml
/// ipvs-proxier.io/scheduler: mh
/// ipvs-proxier.io/scheduler-flags: "fallback, port"
/// ```
pub(crate) const SCHEDULER_FLAGS: &str = "scheduler-flags";

/// The endpoints' shares of new connections: at most 1,000 entries of the form `<key>:<weight>`,
/// separated by commas.
///
/// The schedulers `rr`, `lc` and `dh` ignore weights except 0; other weights for them are a Problem.
///
/// | key | endpoints |
/// |---|---|
/// | `10.0.0.1`, `[fd00::1]` | with that address; IPv6 in brackets |
/// | `10.0.0.0/24`, `[fd00::/64]` | in that network |
/// | `node=<name>` | on that node |
/// | `same-node` | on this node |
/// | `zone=<name>` | in that zone |
/// | `same-zone` | in this node's zone |
/// | `same-region` | on nodes in this node's region |
/// | `*` | all others; their weight is 1 without this entry |
///
/// The most specific entry applies, in any order of entries: an address before a network, a longer
/// prefix before a shorter one, and then in the order of the table. A key may occur only once. Weights are 0 to 65,535. An endpoint of weight 0 gets no new connections
/// and keeps the existing ones. Weights do not influence which endpoints are selected: if all
/// selected ones have weight 0, clients are rejected.
///
/// ```yaml
/// ipvs-proxier.io/weights: "zone=a:3, zone=b:1, node=n7:0, 10.0.0.1:10, [fd00::/64]:2, *:1"
/// ipvs-proxier.io/weights: "same-node:8, same-zone:4, *:1"
/// ```
pub(crate) const WEIGHTS: &str = "weights";

/// How long a new ready endpoint has a smaller weight, as a duration from 0 to a day; 0: never.
///
/// An endpoint is new if it became ready while at least half of the Service's ready endpoints were older. It has an eighth
/// of its weight, and gets the whole at a time between half of the duration and all of it, another on each node. If more
/// than half are new, all have their whole weights. Schedulers that ignore weights ignore it, too.
///
/// ```yaml
/// ipvs-proxier.io/slow-start: 60s
/// ```
pub(crate) const SLOW_START: &str = "slow-start";

/// After how many connections of this node in a row without an answer an endpoint gets no new ones for a while: a number
/// from 1 to 1,000.
///
/// The pause is 10 s at first, and doubles up to five minutes while the endpoint stays silent. An endpoint is never left out
/// if no other one is left. Only with IPVS, whose counters tell the answers.
///
/// ```yaml
/// ipvs-proxier.io/passive-health: "3"
/// ```
pub(crate) const PASSIVE_HEALTH: &str = "passive-health";

/// The drain time of a removed endpoint's TCP connections, in seconds from 0 to 86,400; 0 removes
/// the endpoint at once.
///
/// ```yaml
/// ipvs-proxier.io/drain-seconds: "600"
/// ```
pub(crate) const DRAIN_SECONDS: &str = "drain-seconds";

/// The most connections that an endpoint gets at one virtual server, 1 to 65,535; further ones go to the other
/// endpoints, and are refused if all have as many.
///
/// IPVS and the relay count for each frontend and each node. With the dataplane nftables, the annotation is a Problem.
///
/// ```yaml
/// ipvs-proxier.io/max-connections: "200"
/// ```
pub(crate) const MAX_CONNECTIONS: &str = "max-connections";

/// The idle timeout of connections, in seconds from 1 to 86,400.
///
/// Only the userspace dataplane can apply it. The kernel's IPVS has one timeout for all TCP
/// connections and one for all UDP flows of a network namespace, so there the annotation only
/// produces a Problem.
///
/// ```yaml
/// ipvs-proxier.io/idle-timeout: "3600"
/// ```
pub(crate) const IDLE_TIMEOUT: &str = "idle-timeout";

/// The header with the client's address that endpoints get before the first byte of each TCP
/// connection: `v1` (text) or `v2` (binary) of the PROXY protocol.
///
/// Only the userspace dataplane can send it: IPVS forwards packets, and endpoints see the client's address
/// in them. The endpoints must expect the header. UDP ports get none.
///
/// ```yaml
/// ipvs-proxier.io/proxy-protocol: v2
/// ```
pub(crate) const PROXY_PROTOCOL: &str = "proxy-protocol";

/// The source address that endpoints see: `client` or `node`.
///
/// Only for the userspace dataplane; with IPVS endpoints see the client's address, unless masquerading changes
/// it. `client` needs a privileged process, and endpoints on this node: only their answers to a client pass
/// through it. Other endpoints see the node's address, which is a Problem.
///
/// ```yaml
/// ipvs-proxier.io/source-address: client
/// ```
pub(crate) const SOURCE_ADDRESS: &str = "source-address";

/// The preferred locations of endpoints: a list of keys, separated by commas, in order of preference.
/// The first key that matches an endpoint selects the endpoints. If no key matches, no endpoint
/// serves.
///
/// | key | endpoints |
/// |---|---|
/// | `kubernetes.io/hostname` | on this node |
/// | `topology.kubernetes.io/zone` | in this node's zone |
/// | `topology.kubernetes.io/region` | on nodes in this node's region |
/// | `*` | all; must be the last key |
///
/// An endpoint on this node matches every key. Any other endpoint of unknown location matches only
/// `*`. If Node objects cannot be read, every endpoint matches the keys that need them, and a
/// Problem is reported: a distant endpoint is better than a rejected client. Readiness precedes
/// location: terminating endpoints are used only if no key matches a ready one. The keys replace
/// topology hints (`spec.trafficDistribution`). They restrict the endpoints that the traffic
/// policies allow and never add to them.
///
/// ```yaml
/// ipvs-proxier.io/topology-keys: "topology.kubernetes.io/zone, topology.kubernetes.io/region, *"
/// ```
pub(crate) const TOPOLOGY_KEYS: &str = "topology-keys";

/// The names of all annotations, without the prefix.
pub const ANNOTATIONS: [&str; 11] = [
    SCHEDULER,
    SCHEDULER_FLAGS,
    WEIGHTS,
    SLOW_START,
    PASSIVE_HEALTH,
    DRAIN_SECONDS,
    MAX_CONNECTIONS,
    IDLE_TIMEOUT,
    PROXY_PROTOCOL,
    SOURCE_ADDRESS,
    TOPOLOGY_KEYS,
];

/// The longest accepted time: a day.
const MAX_SECS: u32 = 86_400;
/// The largest number of connections without an answer.
const MAX_UNANSWERED: u32 = 1_000;
/// The longest scheduler name: the kernel's `IP_VS_SCHEDNAME_MAXLEN` less the final NUL.
const MAX_SCHEDULER: usize = 15;
/// The schedulers with flags.
const SCHEDULERS_WITH_FLAGS: [&str; 2] = ["sh", "mh"];

/// The maximum number of unknown names that a Problem names.
const SAMPLES: usize = 3;

/// Parses the annotations of a Service. Returns `None` if it has no valid annotation of this proxy.
pub(super) fn read(
    wire: &metadata::AnnotationMap<'_>,
    parser: &mut Parser<'_>,
) -> Option<Box<Annotations>> {
    let mut read = Annotations::default();
    let mut unknown = Vec::new();
    for (name, value) in &wire.ours {
        match &**name {
            SCHEDULER => read.scheduler = parse(name, value, parser, |text, _| scheduler(text)),
            SCHEDULER_FLAGS => {
                read.scheduler_flags = parse(name, value, parser, |text, _| flags(text));
            }
            WEIGHTS => read.weights = parse(name, value, parser, weights::parse),
            SLOW_START => {
                read.slow_start_secs = parse(name, value, parser, |text, _| duration(text));
            }
            PASSIVE_HEALTH => {
                read.passive_health = parse(name, value, parser, |text, _| unanswered(text));
            }
            DRAIN_SECONDS => {
                read.drain_secs = parse(name, value, parser, |text, _| seconds(text, 0));
            }
            MAX_CONNECTIONS => {
                read.most_connections = parse(name, value, parser, |text, _| connections(text));
            }
            IDLE_TIMEOUT => {
                read.idle_timeout_secs = parse(name, value, parser, |text, _| seconds(text, 1));
            }
            PROXY_PROTOCOL => {
                read.proxy_protocol = parse(name, value, parser, |text, _| proxy_protocol(text));
            }
            SOURCE_ADDRESS => {
                read.source_address = parse(name, value, parser, |text, _| source_address(text));
            }
            TOPOLOGY_KEYS => {
                read.topology_keys = parse(name, value, parser, |text, _| topology_keys(text));
            }
            _ => unknown.push(&**name),
        }
    }
    // The same Problem whatever the order in which the API server sends them.
    unknown.sort_unstable();
    report(&unknown, parser);
    // Without the annotation `scheduler` the flags are kept: the default scheduler may be sh or mh,
    // which only the planner knows.
    if let (Some(scheduler), Some(_)) = (&read.scheduler, read.scheduler_flags)
        && !SCHEDULERS_WITH_FLAGS.contains(&&**scheduler)
    {
        let field = format_args!("{FIELD}[{PREFIX}{SCHEDULER_FLAGS}]");
        let message = "has no flags, only sh and mh have; the flags are ignored";
        parser.problem(field, scheduler, message);
        read.scheduler_flags = None;
    }
    (read != Annotations::default()).then(|| Box::new(read))
}

const FIELD: &str = "metadata.annotations";

/// Reports unknown names, as one Problem. A misspelled name would otherwise have no effect and no message.
fn report(unknown: &[&str], parser: &mut Parser<'_>) {
    let (first, others) = match unknown {
        [] => return,
        [first, others @ ..] => (first, others),
    };
    let known = ANNOTATIONS.join(", ");
    let message = match others.len() {
        0 => format!("is not one of {known}; ignored"),
        _ => format!("are {} names, none of {known}; ignored", unknown.len()),
    };
    let named = others.iter().take(SAMPLES - 1);
    let named: String = named.map(|name| format!(", {PREFIX}{name}")).collect();
    parser.problem(FIELD, format_args!("{PREFIX}{first}{named}"), message);
}

/// Parses a value with `parse`. An error becomes a Problem.
fn parse<T>(
    name: &str,
    value: &Scalar<'_>,
    parser: &mut Parser<'_>,
    parse: impl FnOnce(&str, &mut Interner) -> Result<T, String>,
) -> Option<T> {
    let parsed = match value.as_str().map(str::trim) {
        None => Err("is not a string".to_owned()),
        Some("") => Err("is empty".to_owned()),
        Some(text) => parse(text, parser.interner),
    };
    parsed
        .map_err(|reason| {
            let field = format_args!("{FIELD}[{PREFIX}{name}]");
            parser.problem(field, value, format!("{reason}; the default applies"));
        })
        .ok()
}

fn scheduler(text: &str) -> Result<Box<str>, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text.len() <= MAX_SCHEDULER && text.bytes().all(is_allowed) {
        Ok(text.into())
    } else {
        Err(format!(
            "is not a scheduler name of at most {MAX_SCHEDULER} letters, digits, - and _"
        ))
    }
}

fn flags(text: &str) -> Result<SchedulerFlags, String> {
    let mut flags = SchedulerFlags::default();
    if text == "none" {
        return Ok(flags);
    }
    for word in text.split(',').map(str::trim) {
        let flag = match word {
            "fallback" => &mut flags.fallback,
            "port" => &mut flags.port,
            _ => return Err("is not a list of fallback and port, or none".to_owned()),
        };
        if *flag {
            return Err(format!("names {word} twice"));
        }
        *flag = true;
    }
    Ok(flags)
}

fn proxy_protocol(text: &str) -> Result<ProxyProtocol, String> {
    match text {
        "v1" => Ok(ProxyProtocol::V1),
        "v2" => Ok(ProxyProtocol::V2),
        _ => Err("is neither v1 nor v2".to_owned()),
    }
}

fn source_address(text: &str) -> Result<SourceAddress, String> {
    match text {
        "client" => Ok(SourceAddress::Client),
        "node" => Ok(SourceAddress::Node),
        _ => Err("is neither client nor node".to_owned()),
    }
}

fn seconds(text: &str, least: u32) -> Result<u32, String> {
    number(text)
        .filter(|secs| (least..=MAX_SECS).contains(secs))
        .ok_or_else(|| format!("is not a whole number from {least} to {MAX_SECS}"))
}

fn unanswered(text: &str) -> Result<u32, String> {
    number(text)
        .filter(|count| (1..=MAX_UNANSWERED).contains(count))
        .ok_or_else(|| format!("is not a whole number from 1 to {MAX_UNANSWERED}"))
}

/// Parses a time with units, such as `60s` or `2m`, to whole seconds.
fn duration(text: &str) -> Result<u32, String> {
    let parsed = humantime::parse_duration(text).ok();
    let secs = parsed.and_then(|it| u32::try_from(it.as_secs()).ok());
    secs.filter(|secs| *secs <= MAX_SECS)
        .ok_or_else(|| format!("is not a duration from 0s to {MAX_SECS}s, such as 60s or 2m"))
}

fn connections(text: &str) -> Result<u16, String> {
    let number = number(text).filter(|&most| most > 0);
    number.ok_or_else(|| format!("is not a whole number from 1 to {}", u16::MAX))
}

/// Parses a number of digits only: no sign, no white space.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    // The standard parser also accepts a leading `+`.
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok()).flatten()
}

fn topology_keys(text: &str) -> Result<Box<[TopologyKey]>, String> {
    let mut keys = Vec::new();
    for word in text.split(',').map(str::trim) {
        if keys.last() == Some(&TopologyKey::Any) {
            return Err("has a key after *".to_owned());
        }
        let key = TopologyKey::ALL
            .into_iter()
            .find(|key| key.as_str() == word);
        match key {
            None => {
                let known = TopologyKey::ALL.map(TopologyKey::as_str).join(", ");
                return Err(format!("is not a list of {known}"));
            }
            Some(key) if keys.contains(&key) => return Err(format!("names {key} twice")),
            Some(key) => keys.push(key),
        }
    }
    Ok(keys.into())
}
