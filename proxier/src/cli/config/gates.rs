//! Feature gates.

use serde_json::Value;

use super::origin::InvalidSetting;
use super::values::Values;

/// The gates of Services that kube-proxy 1.36 knows but locks, with the only accepted value.
const LOCKED: [(&str, bool); 2] = [
    ("MultiCIDRServiceAllocator", true),
    ("PreferSameTrafficDistribution", true),
];

/// Permits `logging.options` and the flags that set it.
const LOGGING_ALPHA: &str = "LoggingAlphaOptions";

/// Whether external IPs of Services are served.
const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// Whether node ports are served at loopback addresses, of Kubernetes 1.37 (KEP-6032).
const LOCALHOST_NODE_PORTS: &str = "KubeProxyNFTablesLocalhostNodePorts";

/// The gates that have a meaning here.
const KNOWN: [&str; 6] = [
    LOCALHOST_NODE_PORTS,
    LOGGING_ALPHA,
    "AllAlpha",
    "LoggingBetaOptions",
    "AllBeta",
    EXTERNAL_IPS,
];

/// Returns the values of the gates, by name.
fn gates(values: &Values) -> impl Iterator<Item = (String, Value)> {
    match values.get("featureGates") {
        Value::Object(gates) => gates.into_iter(),
        _ => serde_json::Map::new().into_iter(),
    }
}

/// Returns the value of the first of these gates that is set.
fn is_on(values: &Values, names: &[&str], default: bool) -> bool {
    let find = |name: &&str| gates(values).find(|(gate, _)| gate == name);
    let found = names.iter().find_map(find);
    found.map_or(default, |(_, value)| value == true)
}

/// Returns whether the alpha options of `logging` are permitted; AllAlpha permits them too.
pub(super) fn permits_alpha_logging(values: &Values) -> bool {
    is_on(values, &[LOGGING_ALPHA, "AllAlpha"], false)
}

/// Returns whether the format `json` is permitted (`LoggingBetaOptions`).
pub(super) fn permits_json(values: &Values) -> bool {
    is_on(values, &["LoggingBetaOptions", "AllBeta"], true)
}

/// Returns whether external IPs of Services are served.
pub(super) fn permits_external_ips(values: &Values) -> bool {
    is_on(values, &[EXTERNAL_IPS], true)
}

/// Returns whether node ports are served at loopback addresses; `None` if no gate says it.
pub(super) fn localhost_node_ports(values: &Values) -> Option<bool> {
    let mut gates = gates(values);
    let (_, value) = gates.find(|(gate, _)| gate == LOCALHOST_NODE_PORTS)?;
    Some(value == true)
}

/// Returns the locked gates with another value.
pub(super) fn validate(values: &Values) -> Vec<InvalidSetting> {
    let invalid = LOCKED
        .into_iter()
        .filter(|(name, value)| is_on(values, &[name], *value) != *value);
    let error = |(name, value): (&str, bool)| {
        let found = !value;
        let reason =
            format!("cannot set feature gate {name} to {found}, feature is locked to {value}");
        InvalidSetting::new("featureGates", reason)
    };
    invalid.map(error).collect()
}

/// Returns the names of the gates that have no effect here, unless they have their locked value.
pub(super) fn without_effect(values: &Values) -> Vec<String> {
    let has_none = |name: &String| {
        !KNOWN.contains(&name.as_str()) && LOCKED.iter().all(|(locked, _)| locked != name)
    };
    gates(values)
        .map(|(name, _)| name)
        .filter(has_none)
        .collect()
}
