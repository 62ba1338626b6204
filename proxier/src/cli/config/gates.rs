//! Feature gates.

use std::collections::BTreeMap;

use super::InvalidSetting;

/// The gates of Services that kube-proxy 1.36 knows but locks, with the only accepted value.
const LOCKED: [(&str, bool); 2] = [
    ("MultiCIDRServiceAllocator", true),
    ("PreferSameTrafficDistribution", true),
];

/// Permits `logging.options` and the flags that set it.
const LOGGING_ALPHA: &str = "LoggingAlphaOptions";

/// Whether external IPs of Services are served.
const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// The gates that have a meaning here.
const KNOWN: [&str; 5] = [
    LOGGING_ALPHA,
    "AllAlpha",
    "LoggingBetaOptions",
    "AllBeta",
    EXTERNAL_IPS,
];

/// Returns whether the alpha options of `logging` are permitted; AllAlpha permits them too.
pub(super) fn permits_alpha_logging(gates: &BTreeMap<String, bool>) -> bool {
    let gate = gates.get(LOGGING_ALPHA).or_else(|| gates.get("AllAlpha"));
    gate.copied().unwrap_or(false)
}

/// Returns whether the format `json` is permitted (`LoggingBetaOptions`).
pub(super) fn permits_json(gates: &BTreeMap<String, bool>) -> bool {
    let gate = gates
        .get("LoggingBetaOptions")
        .or_else(|| gates.get("AllBeta"));
    gate.copied().unwrap_or(true)
}

/// Returns whether external IPs of Services are served.
pub(super) fn permits_external_ips(gates: &BTreeMap<String, bool>) -> bool {
    gates.get(EXTERNAL_IPS).copied().unwrap_or(true)
}

/// Returns the locked gates with another value.
pub(super) fn validate(gates: &BTreeMap<String, bool>) -> Vec<InvalidSetting> {
    let mut invalid = Vec::new();
    for (name, value) in LOCKED {
        if gates.get(name).is_some_and(|found| *found != value) {
            invalid.push(InvalidSetting::new(
                "featureGates",
                format!(
                    "cannot set feature gate {name} to {}, feature is locked to {value}",
                    !value
                ),
            ));
        }
    }
    invalid
}

/// Returns the names of the gates that have no effect here, unless they have their locked value.
pub(super) fn without_effect(gates: &BTreeMap<String, bool>) -> Vec<&str> {
    let has_none =
        |name: &&str| !KNOWN.contains(name) && LOCKED.iter().all(|(locked, _)| locked != name);
    gates.keys().map(String::as_str).filter(has_none).collect()
}
