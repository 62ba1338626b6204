//! The annotations of a Service that choose what Kubernetes has no field for.
//!
//! All are optional, and all values are strings (quote numbers in YAML). White space around a value
//! and around the entries of a list is ignored. A value that cannot be used is a Problem, and the
//! cluster's default applies as if the annotation were not there; so is any other name under the
//! prefix `ipvs-proxier.io/`, because it is likely a misspelled one.
//!
//! | annotation | value | default |
//! |---|---|---|
//! | [`SCHEDULER`] | a scheduler of the kernel | `--ipvs-scheduler` |
//! | [`SCHEDULER_FLAGS`] | `fallback`, `port`, both, or `none` | none; `port` for `mh` |
//! | [`WEIGHTS`] | weights by address, node or zone | 1 for every endpoint |
//! | [`DRAIN_SECONDS`] | 0 to 86,400 | the daemon's drain time |
//! | [`IDLE_TIMEOUT`] | 1 to 86,400 | the kernel's timeouts |
//! | [`TOPOLOGY_KEYS`] | how near endpoints must be | anywhere, as hints say |
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

use super::findings::Findings;
use super::metadata;
use super::scalar::Scalar;
use crate::model::{Annotations, SchedulerFlags, TopologyKey};
use crate::store::Interner;

/// What the names of all our annotations begin with.
pub const PREFIX: &str = "ipvs-proxier.io/";

/// The IPVS scheduler of the Service's virtual servers: a name such as `rr`, `wrr`, `lc`, `wlc`,
/// `sh`, `mh`, of at most 15 letters, digits, `-` and `_`.
///
/// Whether the kernel has it shows when it is programmed; where it has not, the cluster's default
/// is used and that is reported.
///
/// ```yaml
/// ipvs-proxier.io/scheduler: wlc
/// ```
pub const SCHEDULER: &str = "scheduler";

/// Flags of the schedulers `sh` and `mh`, separated by commas; a Problem when [`SCHEDULER`] names
/// another one.
///
/// `fallback`: a client whose endpoint takes no connections gets another one instead of an error.
/// `port`: the client's port is hashed too, so that its connections spread. `none`: neither. They
/// replace the default flags, of which only `mh` has one: `port`, as in kube-proxy.
///
/// ```yaml
/// ipvs-proxier.io/scheduler: mh
/// ipvs-proxier.io/scheduler-flags: "fallback, port"
/// ```
pub const SCHEDULER_FLAGS: &str = "scheduler-flags";

/// How many new connections endpoints get in relation to each other, for the schedulers that heed
/// weights (`rr`, `lc` and `dh` heed no weight but 0, and other weights for them are a Problem): entries of the form `<which>:<weight>`, separated by commas, at most 1,000 of them.
///
/// | which | endpoints |
/// |---|---|
/// | `10.0.0.1`, `[fd00::1]` | with that address; IPv6 in brackets |
/// | `10.0.0.0/24`, `[fd00::/64]` | in that network |
/// | `node=<name>` | on that node |
/// | `zone=<name>` | in that zone |
/// | `*` | all others; their weight is 1 without this entry |
///
/// The most exact entry counts, wherever it stands: an address before a network, a longer prefix
/// before a shorter one, any of these before a node, a node before a zone, a zone before `*`. Two
/// entries for the same thing are a mistake. Weights are 0 to 65,535; an endpoint of weight 0 gets
/// no new connections and keeps those it has. Whether an endpoint is chosen at all does not depend
/// on weights: if all chosen ones have weight 0, clients are refused.
///
/// ```yaml
/// ipvs-proxier.io/weights: "zone=a:3, zone=b:1, node=n7:0, 10.0.0.1:10, [fd00::/64]:2, *:1"
/// ```
pub const WEIGHTS: &str = "weights";

/// How long an endpoint that left the Service keeps its TCP connections, in seconds from 0 to
/// 86,400; 0 takes it out at once.
///
/// ```yaml
/// ipvs-proxier.io/drain-seconds: "600"
/// ```
pub const DRAIN_SECONDS: &str = "drain-seconds";

/// After how many seconds without a packet a connection may be forgotten, from 1 to 86,400.
///
/// The kernel's IPVS has one such time for all TCP connections and one for all UDP flows of a
/// network namespace, and none per Service. So this is for where connections are ours to end, in
/// userspace; where the kernel's IPVS is programmed it is a Problem and nothing else.
///
/// ```yaml
/// ipvs-proxier.io/idle-timeout: "3600"
/// ```
pub const IDLE_TIMEOUT: &str = "idle-timeout";

/// How near endpoints must be: a list of keys, separated by commas, the first choice first. The
/// endpoints of the first key that leaves any serve; when no key does, none serve.
///
/// | key | endpoints |
/// |---|---|
/// | `kubernetes.io/hostname` | on this node |
/// | `topology.kubernetes.io/zone` | in this node's zone |
/// | `topology.kubernetes.io/region` | on nodes in this node's region |
/// | `*` | all; only at the end |
///
/// An endpoint of this node is near by every key; any other one whose place is unknown by none but
/// `*`. While Node objects cannot be read, all endpoints are near by the keys that need them, and
/// that is a Problem: better served from afar than refused. Being ready counts more than being near: terminating endpoints are asked only when no key
/// leaves a ready one. The keys replace topology hints
/// (`spec.trafficDistribution`), and they restrict what the traffic policies allow, not widen it.
///
/// ```yaml
/// ipvs-proxier.io/topology-keys: "topology.kubernetes.io/zone, topology.kubernetes.io/region, *"
/// ```
pub const TOPOLOGY_KEYS: &str = "topology-keys";

/// All names, without the prefix.
const NAMES: [&str; 6] = [
    SCHEDULER,
    SCHEDULER_FLAGS,
    WEIGHTS,
    DRAIN_SECONDS,
    IDLE_TIMEOUT,
    TOPOLOGY_KEYS,
];

/// The longest time that can be asked for: a day.
const MAX_SECS: u32 = 86_400;
/// The longest name of a scheduler that the kernel can look up.
const MAX_SCHEDULER: usize = 15;
/// The schedulers that have flags.
const HASHING: [&str; 2] = ["sh", "mh"];

/// Reads the annotations of a Service; `None` when there is nothing of ours among them.
pub(super) fn read(
    wire: &metadata::Annotations,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Option<Box<Annotations>> {
    let mut read = Annotations::default();
    for (name, value) in &wire.ours {
        match &**name {
            SCHEDULER => read.scheduler = usable(name, value, scheduler, findings),
            SCHEDULER_FLAGS => read.scheduler_flags = usable(name, value, flags, findings),
            WEIGHTS => {
                let parse = |text: &str| weights::parse(text, interner);
                read.weights = usable(name, value, parse, findings);
            }
            DRAIN_SECONDS => {
                read.drain_secs = usable(name, value, |text| seconds(text, 0), findings);
            }
            IDLE_TIMEOUT => {
                read.idle_timeout_secs = usable(name, value, |text| seconds(text, 1), findings);
            }
            TOPOLOGY_KEYS => read.topology_keys = usable(name, value, topology_keys, findings),
            _ => {
                let message = format!("is none of {}; ignored", NAMES.join(", "));
                findings.add(FIELD, format_args!("{PREFIX}{name}"), message);
            }
        }
    }
    if let (Some(scheduler), Some(_)) = (&read.scheduler, read.scheduler_flags)
        && !HASHING.contains(&&**scheduler)
    {
        let field = format!("{FIELD}[{PREFIX}{SCHEDULER_FLAGS}]");
        let message = "is for the schedulers sh and mh only; ignored";
        findings.add(field, scheduler, message);
        read.scheduler_flags = None;
    }
    (read != Annotations::default()).then(|| Box::new(read))
}

const FIELD: &str = "metadata.annotations";

/// What `parse` makes of a value; what it has against it becomes a Problem.
fn usable<T>(
    name: &str,
    value: &Scalar,
    parse: impl FnOnce(&str) -> Result<T, String>,
    findings: &mut Findings,
) -> Option<T> {
    let parsed = match value.as_str() {
        None => Err("is not a string".to_owned()),
        Some(text) => match text.trim() {
            "" => Err("is empty".to_owned()),
            text => parse(text),
        },
    };
    parsed
        .map_err(|reason| {
            let field = format!("{FIELD}[{PREFIX}{name}]");
            findings.add(field, value, format!("{reason}; the default applies"));
        })
        .ok()
}

fn scheduler(text: &str) -> Result<Box<str>, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text.len() <= MAX_SCHEDULER && text.bytes().all(is_allowed) {
        Ok(text.into())
    } else {
        Err(format!(
            "is not the name of a scheduler: at most {MAX_SCHEDULER} letters, digits, - and _"
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

fn seconds(text: &str, least: u32) -> Result<u32, String> {
    number(text)
        .filter(|secs| (least..=MAX_SECS).contains(secs))
        .ok_or_else(|| format!("is not a whole number from {least} to {MAX_SECS}"))
}

/// A number of plain digits: no sign, no blanks.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
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
