//! The fields of configuration files.

use super::slot::Slot;
use super::{Configuration, Effect};

/// A field of a configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its path, such as `ipvs.syncPeriod`.
    pub path: &'static str,
    /// Its effect in this program.
    pub effect: Effect,
    /// Its place in the configuration.
    pub(crate) slot: fn(&mut Configuration) -> Slot<'_>,
}

/// Makes a row of the table: path, effect, type of the slot, place.
macro_rules! field {
    ($path:literal, $effect:expr, $kind:ident, $($place:ident).+) => {
        Field {
            path: $path,
            effect: $effect,
            slot: |configuration| Slot::$kind(&mut configuration.$($place).+),
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
const NFTABLES: Effect = Nothing("a setting of kube-proxy's nftables mode");
const WINDOWS: Effect = Nothing("a setting of kube-proxy on Windows");
pub(super) const UNBUFFERED: Effect =
    Nothing("each log line is written to standard error at once, without a buffer");

// One row a line is easier to compare with kube-proxy's help than rustfmt's six.
#[rustfmt::skip]
/// Every field of `KubeProxyConfiguration` v1alpha1 in kube-proxy 1.36, sorted by path, except
/// `apiVersion` and `kind`.
pub const FIELDS: [Field; 60] = [
    field!("bindAddress", BIND, Address, bind_address),
    field!("bindAddressHardFail", Same, Bool, bind_address_hard_fail),
    field!("clientConnection.acceptContentTypes", ENCODING, Text, client_connection.accept_content_types),
    field!("clientConnection.burst", WATCHES, Integer, client_connection.burst),
    field!("clientConnection.contentType", ENCODING, Text, client_connection.content_type),
    field!("clientConnection.kubeconfig", Same, Text, client_connection.kubeconfig),
    field!("clientConnection.qps", WATCHES, Float, client_connection.qps),
    field!("clusterCIDR", Same, Commas, cluster_cidr),
    field!("configSyncPeriod", Nothing("the watches deliver every change; nothing is read again periodically"), Duration, config_sync_period),
    field!("conntrack.maxPerCore", Same, OptionalInteger, conntrack.max_per_core),
    field!("conntrack.min", Same, OptionalInteger, conntrack.min),
    field!("conntrack.tcpBeLiberal", Same, Bool, conntrack.tcp_be_liberal),
    field!("conntrack.tcpCloseWaitTimeout", Same, OptionalDuration, conntrack.tcp_close_wait_timeout),
    field!("conntrack.tcpEstablishedTimeout", Same, OptionalDuration, conntrack.tcp_established_timeout),
    field!("conntrack.udpStreamTimeout", Same, Duration, conntrack.udp_stream_timeout),
    field!("conntrack.udpTimeout", Same, Duration, conntrack.udp_timeout),
    field!("detectLocal.bridgeInterface", Same, Text, detect_local.bridge_interface),
    field!("detectLocal.interfaceNamePrefix", Same, Text, detect_local.interface_name_prefix),
    field!("detectLocalMode", Same, Text, detect_local_mode),
    field!("enableProfiling", Nothing("/debug/pprof serves profiles of Go programs, and this is none"), Bool, enable_profiling),
    field!("featureGates", GATES, Gates, feature_gates),
    field!("healthzBindAddress", Same, AddressPort, healthz_bind_address),
    field!("hostnameOverride", Same, Text, hostname_override),
    field!("iptables.localhostNodePorts", Nothing("kube-proxy uses it in its iptables mode only; --localhost-nodeports is this program's flag for such node ports"), OptionalBool, iptables.localhost_node_ports),
    field!("iptables.masqueradeAll", Differs("used unless mode is nftables, whose section has a field of its own"), Bool, iptables.masquerade_all),
    field!("iptables.masqueradeBit", Same, OptionalInteger, iptables.masquerade_bit),
    field!("iptables.minSyncPeriod", OTHER_MODE, Duration, iptables.min_sync_period),
    field!("iptables.syncPeriod", OTHER_MODE, Duration, iptables.sync_period),
    field!("ipvs.excludeCIDRs", Same, Words, ipvs.exclude_cidrs),
    field!("ipvs.minSyncPeriod", OTHER_MODE, Duration, ipvs.min_sync_period),
    field!("ipvs.scheduler", Same, Text, ipvs.scheduler),
    field!("ipvs.strictARP", Same, Bool, ipvs.strict_arp),
    field!("ipvs.syncPeriod", OTHER_MODE, Duration, ipvs.sync_period),
    field!("ipvs.tcpFinTimeout", Same, Duration, ipvs.tcp_fin_timeout),
    field!("ipvs.tcpTimeout", Same, Duration, ipvs.tcp_timeout),
    field!("ipvs.udpTimeout", Same, Duration, ipvs.udp_timeout),
    field!("logging.flushFrequency", UNBUFFERED, Flush, logging.flush_frequency),
    field!("logging.format", Same, Text, logging.format),
    field!("logging.options.json.infoBufferSize", UNBUFFERED, Size, logging.json_info_buffer_size),
    field!("logging.options.json.splitStream", UNBUFFERED, Bool, logging.json_split_stream),
    field!("logging.options.text.infoBufferSize", UNBUFFERED, Size, logging.text_info_buffer_size),
    field!("logging.options.text.splitStream", UNBUFFERED, Bool, logging.text_split_stream),
    field!("logging.verbosity", VERBOSITY, Level, logging.verbosity),
    field!("logging.vmodule", VMODULE, Patterns, logging.vmodule),
    field!("metricsBindAddress", Same, AddressPort, metrics_bind_address),
    field!("mode", MODE, Text, mode),
    field!("nftables.masqueradeAll", Differs("used only if mode is nftables"), Bool, nftables.masquerade_all),
    field!("nftables.masqueradeBit", NFTABLES, OptionalInteger, nftables.masquerade_bit),
    field!("nftables.minSyncPeriod", OTHER_MODE, Duration, nftables.min_sync_period),
    field!("nftables.syncPeriod", OTHER_MODE, Duration, nftables.sync_period),
    field!("nodePortAddresses", Same, Words, node_port_addresses),
    field!("oomScoreAdj", Same, OptionalInteger, oom_score_adj),
    field!("portRange", Nothing("kube-proxy ignores it too"), Text, port_range),
    field!("showHiddenMetricsForVersion", Nothing("this program has no hidden metrics"), Text, show_hidden_metrics_for_version),
    field!("windowsRunAsService", WINDOWS, Bool, windows_run_as_service),
    field!("winkernel.enableDSR", WINDOWS, Bool, winkernel.enable_dsr),
    field!("winkernel.forwardHealthCheckVip", WINDOWS, Bool, winkernel.forward_health_check_vip),
    field!("winkernel.networkName", WINDOWS, Text, winkernel.network_name),
    field!("winkernel.rootHnsEndpointName", WINDOWS, Text, winkernel.root_hns_endpoint_name),
    field!("winkernel.sourceVip", WINDOWS, Text, winkernel.source_vip),
];

const BIND: Effect = Differs(
    "as in kube-proxy, no socket is bound to it, and its family decides the defaults of \
     healthzBindAddress and metricsBindAddress. The node's addresses are always those of the Node \
     object",
);
const GATES: Effect = Differs(
    "a locked gate accepts only its locked value, as in kube-proxy. LoggingAlphaOptions permits \
     logging.options, LoggingBetaOptions permits the format json, and AllowServiceExternalIPs permits \
     external IPs of Services. All other gates have no effect",
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
    "this program always programs IPVS. The mode decides only which section has syncPeriod, \
     minSyncPeriod and masqueradeAll, and the default of nodePortAddresses (nftables: primary)",
);

impl Field {
    /// Returns the field at `path`.
    pub(crate) fn find(path: &str) -> Option<&'static Self> {
        FIELDS.iter().find(|field| field.path == path)
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
    fn no_field_is_a_section() {
        assert!(FIELDS.iter().all(|field| !Field::is_section(field.path)));
        assert!(Field::is_section("logging.options"));
        assert!(!Field::is_section("log"));
    }
}
