//! The fields of configuration files.

use serde_json::Value;

use super::Effect;
use super::kind::Kind;

/// A field of a configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its path, such as `ipvs.syncPeriod`.
    pub path: &'static str,
    /// Its effect in this program.
    pub effect: Effect,
    pub(super) kind: Kind,
    /// Its default, in the syntax of a flag; empty for the zero value of its kind.
    default: &'static str,
    /// Whether 0 and false are values. In other fields they mean the default, if a file has them.
    pub(super) keeps_zero: bool,
}

/// Makes a row of the table: path, effect, type, default.
macro_rules! field {
    ($path:literal, $effect:expr, $kind:ident, $default:literal) => {
        Field {
            path: $path,
            effect: $effect,
            kind: Kind::$kind,
            default: $default,
            keeps_zero: false,
        }
    };
}

/// Makes a row of the table for a field of which 0 or false is a value.
macro_rules! optional {
    ($path:literal, $effect:expr, $kind:ident, $default:literal) => {
        Field {
            keeps_zero: true,
            ..field!($path, $effect, $kind, $default)
        }
    };
}

use Effect::{Differs, Nothing, Same};

const WATCHES: Effect = Nothing(
    "this program opens four watches and writes few Events, which have a limit of their own",
);
const ENCODING: Effect = Differs(
    "chooses between JSON and protobuf for lists and watches; Events are always JSON, and a type that \
     is neither means JSON",
);
const OTHER_MODE: Effect = Differs(
    "used only if mode names its section, but the flags --ipvs-sync-period and --ipvs-min-sync-period \
     count in every mode",
);
const WINDOWS: Effect = Nothing("a setting of kube-proxy on Windows");
const UNBUFFERED: Effect =
    Nothing("each log line is written to standard error at once, without a buffer");

// One row a line is easier to compare with kube-proxy's help than rustfmt's six.
#[rustfmt::skip]
/// Every field of `KubeProxyConfiguration` v1alpha1 in kube-proxy 1.36, sorted by path, except
/// `apiVersion` and `kind`.
pub const FIELDS: [Field; 60] = [
    field!("bindAddress", BIND, Address, "0.0.0.0"),
    field!("bindAddressHardFail", Same, Bool, ""),
    field!("clientConnection.acceptContentTypes", ENCODING, Text, ""),
    field!("clientConnection.burst", WATCHES, Integer, "10"),
    field!("clientConnection.contentType", ENCODING, Text, "application/vnd.kubernetes.protobuf"),
    field!("clientConnection.kubeconfig", Same, Text, ""),
    field!("clientConnection.qps", WATCHES, Number, "5"),
    field!("clusterCIDR", Same, Networks, ""),
    field!("configSyncPeriod", Nothing("the watches deliver every change; nothing is read again periodically"), Duration, "15m"),
    optional!("conntrack.maxPerCore", Same, Integer, "32768"),
    optional!("conntrack.min", Same, Integer, "131072"),
    field!("conntrack.tcpBeLiberal", Same, Bool, ""),
    optional!("conntrack.tcpCloseWaitTimeout", Same, Duration, "1h"),
    optional!("conntrack.tcpEstablishedTimeout", Same, Duration, "24h"),
    field!("conntrack.udpStreamTimeout", Same, Duration, ""),
    field!("conntrack.udpTimeout", Same, Duration, ""),
    field!("detectLocal.bridgeInterface", Same, Text, ""),
    field!("detectLocal.interfaceNamePrefix", Same, Text, ""),
    field!("detectLocalMode", Same, Text, "ClusterCIDR"),
    field!("enableProfiling", Nothing("/debug/pprof serves profiles of Go programs, and this is none"), Bool, ""),
    field!("featureGates", GATES, Gates, ""),
    field!("healthzBindAddress", Same, AddressPort, "0.0.0.0:10256"),
    field!("hostnameOverride", Same, Text, ""),
    optional!("iptables.localhostNodePorts", Nothing("kube-proxy uses it in its iptables mode only; --localhost-nodeports is this program's flag for such node ports"), Bool, "true"),
    field!("iptables.masqueradeAll", Differs("used unless mode is nftables, whose section has a field of its own"), Bool, ""),
    optional!("iptables.masqueradeBit", Differs("used unless mode is nftables, whose section has a field of its own"), Integer, "14"),
    field!("iptables.minSyncPeriod", OTHER_MODE, Duration, "1s"),
    field!("iptables.syncPeriod", OTHER_MODE, Duration, "30s"),
    field!("ipvs.excludeCIDRs", Same, Words, ""),
    field!("ipvs.minSyncPeriod", OTHER_MODE, Duration, ""),
    field!("ipvs.scheduler", Same, Text, ""),
    field!("ipvs.strictARP", Same, Bool, ""),
    field!("ipvs.syncPeriod", OTHER_MODE, Duration, "30s"),
    field!("ipvs.tcpFinTimeout", Same, Duration, ""),
    field!("ipvs.tcpTimeout", Same, Duration, ""),
    field!("ipvs.udpTimeout", Same, Duration, ""),
    field!("logging.flushFrequency", UNBUFFERED, Flush, "5s"),
    field!("logging.format", Same, Text, "text"),
    field!("logging.options.json.infoBufferSize", UNBUFFERED, Size, ""),
    field!("logging.options.json.splitStream", UNBUFFERED, Bool, ""),
    field!("logging.options.text.infoBufferSize", UNBUFFERED, Size, ""),
    field!("logging.options.text.splitStream", UNBUFFERED, Bool, ""),
    field!("logging.verbosity", VERBOSITY, Level, ""),
    field!("logging.vmodule", VMODULE, Patterns, ""),
    field!("metricsBindAddress", Same, AddressPort, "127.0.0.1:10249"),
    field!("mode", MODE, Text, "iptables"),
    field!("nftables.masqueradeAll", Differs("used only if mode is nftables"), Bool, ""),
    optional!("nftables.masqueradeBit", Differs("used only if mode is nftables"), Integer, "14"),
    field!("nftables.minSyncPeriod", OTHER_MODE, Duration, "1s"),
    field!("nftables.syncPeriod", OTHER_MODE, Duration, "30s"),
    field!("nodePortAddresses", NODE_PORTS, Words, ""),
    optional!("oomScoreAdj", Same, Integer, "-999"),
    field!("portRange", Nothing("kube-proxy ignores it too"), Text, ""),
    field!("showHiddenMetricsForVersion", Nothing("this program has no hidden metrics"), Text, ""),
    field!("windowsRunAsService", WINDOWS, Bool, ""),
    field!("winkernel.enableDSR", WINDOWS, Bool, ""),
    field!("winkernel.forwardHealthCheckVip", WINDOWS, Bool, ""),
    field!("winkernel.networkName", WINDOWS, Text, ""),
    field!("winkernel.rootHnsEndpointName", WINDOWS, Text, ""),
    field!("winkernel.sourceVip", WINDOWS, Text, ""),
];

const BIND: Effect = Differs(
    "as in kube-proxy, no socket is bound to it, and its family decides the defaults of \
     healthzBindAddress and metricsBindAddress. The node's addresses are always those of the Node \
     object",
);
const GATES: Effect = Differs(
    "a locked gate accepts only its locked value, as in kube-proxy. LoggingAlphaOptions permits \
     logging.options, LoggingBetaOptions permits the format json, AllowServiceExternalIPs permits \
     external IPs of Services, and KubeProxyNFTablesLocalhostNodePorts is the default of \
     --localhost-nodeports. All other gates have no effect",
);
const NODE_PORTS: Effect = Differs(
    "the words localhost and all of kube-proxy 1.37 are understood, too. localhost serves node ports at 127.0.0.1 \
     without the feature gate that 1.37 requires, unless that is false",
);
const VERBOSITY: Effect = Differs(
    "0 to 3 log information, warnings and errors; 4 adds debug lines, 5 and more trace lines. The \
     environment variable RUST_LOG overrides it",
);
const VMODULE: Effect = Nothing(
    "its patterns are names of kube-proxy's source files; set RUST_LOG to choose modules of this \
     program",
);
const MODE: Effect = Differs(
    "nftables chooses the dataplane nftables, each other value IPVS; --dataplane overrides it. The mode also decides \
     which section has syncPeriod, minSyncPeriod, masqueradeAll and masqueradeBit, and the default of \
     nodePortAddresses (nftables: primary)",
);

impl Field {
    /// Returns the field at `path`.
    pub(crate) fn find(path: &str) -> Option<&'static Self> {
        FIELDS.iter().find(|field| field.path == path)
    }

    /// Returns the value that the field has if it is not set.
    pub(super) fn default_value(&self) -> Value {
        let default = (!self.default.is_empty()).then(|| self.kind.parse(self.default).ok());
        default.flatten().unwrap_or_else(|| self.kind.zero())
    }

    /// Returns whether `path` is that of a section, which has fields below it.
    pub(crate) fn is_section(path: &str) -> bool {
        FIELDS.iter().any(|field| {
            field
                .path
                .strip_prefix(path)
                .is_some_and(|rest| rest.starts_with('.'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_sorted_and_unique() {
        assert!(FIELDS.windows(2).all(|pair| pair[0].path < pair[1].path));
    }

    #[test]
    fn defaults_have_the_type_of_their_field() {
        for field in FIELDS.iter().filter(|field| !field.default.is_empty()) {
            assert!(field.kind.parse(field.default).is_ok(), "{}", field.path);
        }
    }

    #[test]
    fn no_field_is_a_section() {
        assert!(FIELDS.iter().all(|field| !Field::is_section(field.path)));
        assert!(Field::is_section("logging.options"));
        assert!(!Field::is_section("log"));
    }
}
