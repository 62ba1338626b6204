//! Validation with kube-proxy's rules (`ValidateKubeProxyConfiguration`, 1.36).

use std::net::IpAddr;

use super::origin::InvalidSetting;
use super::{Configuration, GoDuration, Mode, gates};
use crate::model::Cidr;

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than 0";

/// The errors found so far.
struct Checks(Vec<InvalidSetting>);

impl Checks {
    fn fail(&mut self, path: impl Into<String>, value: impl std::fmt::Debug, rule: &str) {
        self.0.push(InvalidSetting::value(path, value, rule));
    }

    fn duration(&mut self, path: impl Into<String>, value: GoDuration) {
        if value < GoDuration::ZERO {
            self.fail(path, value.to_string(), NOT_NEGATIVE);
        }
    }

    fn number(&mut self, path: &str, value: Option<i32>) {
        if let Some(value) = value.filter(|value| *value < 0) {
            self.fail(path, value, NOT_NEGATIVE);
        }
    }

    fn range(&mut self, path: &str, value: Option<i32>, [least, most]: [i32; 2]) {
        if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
            self.fail(
                path,
                value,
                &format!("must be within the range [{least}, {most}]"),
            );
        }
    }
}

impl Configuration {
    /// Returns every invalid setting of a configuration with defaults.
    pub(crate) fn validate(&self) -> Vec<InvalidSetting> {
        let mut checks = Checks(gates::validate(&self.feature_gates));
        self.logging(&mut checks);
        checks.range(
            "iptables.masqueradeBit",
            self.iptables.masquerade_bit,
            [0, 31],
        );
        checks.range("oomScoreAdj", self.oom_score_adj, [-1000, 1000]);
        // kube-proxy checks this section in its own mode only, unlike that of iptables.
        if self.mode() == Some(Mode::Nftables) {
            checks.range(
                "nftables.masqueradeBit",
                self.nftables.masquerade_bit,
                [0, 31],
            );
        }
        if self.mode() == Some(Mode::Ipvs) {
            self.ipvs(&mut checks);
        }
        self.conntrack(&mut checks);
        checks.number("clientConnection.burst", Some(self.client_connection.burst));
        self.periods_are_ordered(&mut checks);
        self.addresses(&mut checks);
        self.node_ports(&mut checks);
        self.detection(&mut checks);
        if !matches!(&*self.show_hidden_metrics_for_version, "" | "1.35") {
            checks.fail(
                "showHiddenMetricsForVersion",
                &self.show_hidden_metrics_for_version,
                "must be omitted or have the value '1.35'; only the previous minor version is allowed",
            );
        }
        checks.0
    }

    fn logging(&self, checks: &mut Checks) {
        // The texts are those of Kubernetes' component-base, where they begin with a capital.
        let logging = &self.logging;
        let flush = logging.flush_frequency.duration;
        if flush <= GoDuration::ZERO {
            let rule = "Must be greater than zero";
            checks.fail("logging.flushFrequency", flush.to_string(), rule);
        }
        let is_json = logging.format == "json";
        if !matches!(&*logging.format, "" | "text" | "json") {
            checks.fail("logging.format", &logging.format, "Unsupported log format");
        }
        let forbidden = |path: &str, reason: &str| InvalidSetting::new(path, reason);
        if is_json && !gates::permits_json(&self.feature_gates) {
            let reason = "Forbidden: Log format json is disabled, see LoggingBetaOptions feature";
            checks.0.push(forbidden("logging.format", reason));
        }
        if logging.verbosity > i32::MAX.unsigned_abs() {
            let rule = "Must be <= 2147483647";
            checks.fail("logging.verbosity", logging.verbosity, rule);
        }
        if is_json && !logging.vmodule.is_empty() {
            let reason = "Forbidden: Only supported for text log format";
            checks.0.push(forbidden("logging.vmodule", reason));
        }
        for (index, entry) in logging.vmodule.iter().enumerate() {
            let path = format!("logging.vmodule[{index}]");
            if entry.pattern.is_empty() {
                checks.0.push(forbidden(
                    &path,
                    "filePattern: Required value: File pattern must not be empty",
                ));
            } else if entry.pattern.contains(['=', ',']) {
                checks.fail(
                    path,
                    &entry.pattern,
                    "File pattern must not contain equal sign or comma",
                );
            }
        }
        if gates::permits_alpha_logging(&self.feature_gates) {
            return;
        }
        for (path, is_set) in [
            (
                "logging.options.text.splitStream",
                logging.text_split_stream,
            ),
            (
                "logging.options.text.infoBufferSize",
                !logging.text_info_buffer_size.is_zero(),
            ),
            (
                "logging.options.json.splitStream",
                logging.json_split_stream,
            ),
            (
                "logging.options.json.infoBufferSize",
                !logging.json_info_buffer_size.is_zero(),
            ),
        ] {
            if is_set {
                let reason = "Forbidden: Feature LoggingAlphaOptions is disabled";
                checks.0.push(forbidden(path, reason));
            }
        }
    }

    fn ipvs(&self, checks: &mut Checks) {
        checks.duration("ipvs.tcpTimeout", self.ipvs.tcp_timeout);
        checks.duration("ipvs.tcpFinTimeout", self.ipvs.tcp_fin_timeout);
        checks.duration("ipvs.udpTimeout", self.ipvs.udp_timeout);
        let networks = self.ipvs.exclude_cidrs.iter().flatten();
        for (index, network) in networks.enumerate() {
            if network_of(network).is_none() {
                let path = format!("ipvs.excludeCIDRs[{index}]");
                checks.fail(path, network, "must be a valid CIDR");
            }
        }
    }

    fn conntrack(&self, checks: &mut Checks) {
        let conntrack = &self.conntrack;
        checks.number("conntrack.maxPerCore", conntrack.max_per_core);
        checks.number("conntrack.min", conntrack.min);
        for (path, time) in [
            (
                "conntrack.tcpEstablishedTimeout",
                conntrack.tcp_established_timeout,
            ),
            (
                "conntrack.tcpCloseWaitTimeout",
                conntrack.tcp_close_wait_timeout,
            ),
            ("conntrack.udpTimeout", Some(conntrack.udp_timeout)),
            (
                "conntrack.udpStreamTimeout",
                Some(conntrack.udp_stream_timeout),
            ),
        ] {
            checks.duration(path, time.unwrap_or_default());
        }
    }

    fn periods_are_ordered(&self, checks: &mut Checks) {
        if !matches!(&*self.mode, "" | "iptables" | "ipvs" | "nftables") {
            checks.fail(
                "mode",
                &self.mode,
                "must be iptables, ipvs, nftables or blank (blank means the best-available proxy \
                 [currently iptables])",
            );
        }
        if self.config_sync_period <= GoDuration::ZERO {
            checks.fail(
                "configSyncPeriod",
                self.config_sync_period.to_string(),
                POSITIVE,
            );
        }
        let (section, sync, min_sync) = self.periods();
        let path = |name: &str| format!("{section}.{name}");
        if sync <= GoDuration::ZERO {
            checks.fail(path("syncPeriod"), sync.to_string(), POSITIVE);
        }
        checks.duration(path("minSyncPeriod"), min_sync);
        if sync < min_sync {
            let rule =
                format!("must be greater than or equal to {section}.minSyncPeriod ({min_sync})");
            checks.fail(path("syncPeriod"), sync.to_string(), &rule);
        }
    }

    fn addresses(&self, checks: &mut Checks) {
        if self.bind_address.parse::<IpAddr>().is_err() {
            let rule = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            checks.fail("bindAddress", &self.bind_address, rule);
        }
        if !self.healthz_bind_address.is_empty() {
            host_port("healthzBindAddress", &self.healthz_bind_address, checks);
        }
        host_port("metricsBindAddress", &self.metrics_bind_address, checks);
    }

    fn node_ports(&self, checks: &mut Checks) {
        let words = self.node_port_addresses.as_deref().unwrap_or_default();
        for (index, word) in words.iter().enumerate() {
            let path = format!("nodePortAddresses[{index}]");
            if word == "primary" {
                if words.len() > 1 {
                    checks.fail(path, word, "can't use both 'primary' and CIDRs");
                    // kube-proxy's check stops here, too.
                    return;
                }
            } else if network_of(word).is_none() {
                checks.fail(path, word, "must be a valid CIDR");
            }
        }
    }

    fn detection(&self, checks: &mut Checks) {
        match &*self.detect_local_mode {
            "" | "ClusterCIDR" => self.cluster_networks(checks),
            "NodeCIDR" => {}
            "BridgeInterface" => {
                let name = &self.detect_local.bridge_interface;
                if name.is_empty() {
                    checks.fail("detectLocal.bridgeInterface", name, "must not be empty");
                }
            }
            "InterfaceNamePrefix" => {
                let prefix = &self.detect_local.interface_name_prefix;
                if prefix.is_empty() {
                    let path = "detectLocal.interfaceNamePrefix";
                    checks.fail(path, prefix, "must not be empty");
                }
            }
            other => checks.fail(
                "detectLocalMode",
                other,
                "supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \
                 \"InterfaceNamePrefix\", \"\"",
            ),
        }
    }

    fn cluster_networks(&self, checks: &mut Checks) {
        let networks: Vec<Option<Cidr>> = self
            .cluster_cidr
            .iter()
            .map(|text| network_of(text))
            .collect();
        let family = |network: &Option<Cidr>| network.map(|network| network.family());
        let is_pair = match &networks[..] {
            [] | [_] => true,
            [first, second] => match (family(first), family(second)) {
                (Some(first), Some(second)) => first != second,
                // The elements are reported below.
                _ => true,
            },
            _ => false,
        };
        if !is_pair {
            checks.fail(
                "clusterCIDR",
                &self.cluster_cidr,
                "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, \
                 fde4:8dba:82e1::/48]",
            );
        }
        for (index, (network, text)) in networks.iter().zip(&self.cluster_cidr).enumerate() {
            if network.is_none() {
                let rule = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
                checks.fail(format!("clusterCIDR[{index}]"), text, rule);
            }
        }
    }
}

/// Parses a network. Unlike [`Cidr::parse`], Go permits no white space around it.
pub(super) fn network_of(text: &str) -> Option<Cidr> {
    let is_bare = !text.contains(char::is_whitespace);
    is_bare.then(|| Cidr::parse(text).ok())?
}

/// Checks an address with its port (`validateHostPort`).
fn host_port(path: &str, text: &str, checks: &mut Checks) {
    let Some((host, port)) = split_host_port(text) else {
        return checks.fail(path, text, "must be IP:port");
    };
    if host.parse::<IpAddr>().is_err() {
        checks.fail(path, host, "must be a valid IP");
    }
    let number: Option<u16> = port.parse().ok();
    if number.is_none_or(|port| port == 0) {
        checks.fail(path, port, "must be a valid port");
    }
}

/// Splits an address from its port as Go's `net.SplitHostPort` does.
pub(super) fn split_host_port(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            Some((host, port.strip_prefix(':')?))
        }
        None => text
            .rsplit_once(':')
            .filter(|(host, _)| !host.contains([':', '[', ']'])),
    }
}
