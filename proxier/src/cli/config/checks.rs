//! The checks of settings, with kube-proxy's rules (`ValidateKubeProxyConfiguration`, 1.36).
//!
//! Those that kube-proxy applies in IPVS mode only apply in every mode here.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;
use serde_json::Value;

use super::duration::GoDuration;
use super::gates;
use super::origin::{InvalidSetting, SettingErrors};
use super::resolve::Resolved;
use super::values::Values;
use crate::cluster::model::Cidr;
use crate::dataplane::ipvs::filter::LocalMode;
use crate::host::sysctl::{Conntrack, SysctlConfig};
use crate::plan::NodePortAddresses;

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than 0";

/// The configuration, and the errors found so far.
pub(super) struct Checks<'a> {
    pub(super) values: &'a Values,
    pub(super) invalid: Vec<InvalidSetting>,
}

impl Checks<'_> {
    fn fail(&mut self, path: &str, rule: impl Display) {
        self.fail_with(path, &self.values.get(path), rule);
    }

    fn fail_with(&mut self, path: impl Into<String>, value: &Value, rule: impl Display) {
        let invalid = InvalidSetting::value(path, value, &rule.to_string());
        self.invalid.push(invalid);
    }

    fn forbid(&mut self, path: impl Into<String>, reason: &str) {
        self.invalid.push(InvalidSetting::new(path, reason));
    }

    /// Returns an integer, 0 if it is out of bounds.
    pub(super) fn range<T: TryFrom<i64> + Default>(
        &mut self,
        path: &str,
        least: i64,
        most: i64,
    ) -> T {
        let found = self.values.integer(path).unwrap_or_default();
        if !(least..=most).contains(&found) {
            self.fail(path, format!("must be within the range [{least}, {most}]"));
        }
        T::try_from(found).unwrap_or_default()
    }

    fn count(&mut self, path: &str) -> Option<u32> {
        let found = self.values.integer(path)?;
        let count = u32::try_from(found);
        if count.is_err() {
            self.fail(path, NOT_NEGATIVE);
        }
        count.ok()
    }

    fn duration(&mut self, path: &str) -> Duration {
        let found = self.values.duration(path);
        if found < GoDuration::ZERO {
            self.fail(path, NOT_NEGATIVE);
        }
        found.to_duration()
    }

    fn positive(&mut self, path: &str, rule: &str) -> Duration {
        let found = self.values.duration(path);
        if found <= GoDuration::ZERO {
            self.fail(path, rule);
        }
        found.to_duration()
    }

    /// Returns the whole seconds of a duration, as kube-proxy passes them to the kernel.
    pub(super) fn seconds(&mut self, path: &str) -> u32 {
        let found = self.values.duration(path);
        let seconds = u32::try_from(found.to_duration().as_secs());
        if found < GoDuration::ZERO || seconds.is_err() {
            self.fail(path, "must be within the range [0s, 4294967295s]");
        }
        seconds.unwrap_or_default()
    }

    pub(super) fn networks(&mut self, path: &str) -> Vec<Cidr> {
        self.each_network(path, self.values.words(path), "must be a valid CIDR")
    }

    fn each_network(&mut self, path: &str, words: Vec<String>, rule: &str) -> Vec<Cidr> {
        let mut networks = Vec::new();
        for (index, word) in words.into_iter().enumerate() {
            // Unlike `Cidr::parse`, Go permits no white space around it.
            let is_bare = !word.contains(char::is_whitespace);
            match Cidr::parse(&word) {
                Ok(network) if is_bare => networks.push(network),
                _ => self.fail_with(format!("{path}[{index}]"), &word.into(), rule),
            }
        }
        networks
    }

    pub(super) fn server(&mut self, path: &str) -> Option<SocketAddr> {
        let text = self.values.text(path);
        let Some((host, port)) = split_host_port(&text) else {
            self.fail(path, "must be IP:port");
            return None;
        };
        let address: Option<IpAddr> = host.parse().ok();
        if address.is_none() {
            self.fail_with(path, &host.into(), "must be a valid IP");
        }
        let number: Option<u16> = port.parse().ok().filter(|port| *port != 0);
        if number.is_none() {
            self.fail_with(path, &port.into(), "must be a valid port");
        }
        Some(SocketAddr::new(address?, number?))
    }

    pub(super) fn logging(&mut self) {
        // The texts are those of Kubernetes' component-base, where they begin with a capital.
        self.positive("logging.flushFrequency", "Must be greater than zero");
        let is_json = match &*self.values.text("logging.format") {
            "json" => true,
            "" | "text" => false,
            _ => {
                self.fail("logging.format", "Unsupported log format");
                false
            }
        };
        if is_json && !gates::permits_json(self.values) {
            let reason = "Forbidden: Log format json is disabled, see LoggingBetaOptions feature";
            self.forbid("logging.format", reason);
        }
        let patterns = self.values.get("logging.vmodule");
        let patterns = patterns.as_array().into_iter().flatten();
        for (index, pattern) in patterns.enumerate() {
            if is_json && index == 0 {
                let reason = "Forbidden: Only supported for text log format";
                self.forbid("logging.vmodule", reason);
            }
            let path = format!("logging.vmodule[{index}]");
            let pattern = &pattern["filePattern"];
            if pattern == "" {
                let reason = "filePattern: Required value: File pattern must not be empty";
                self.forbid(path, reason);
            } else if pattern.as_str().is_some_and(|it| it.contains(['=', ','])) {
                let rule = "File pattern must not contain equal sign or comma";
                self.fail_with(path, pattern, rule);
            }
        }
        if gates::permits_alpha_logging(self.values) {
            return;
        }
        for format in ["json", "text"] {
            for name in ["splitStream", "infoBufferSize"] {
                let path = format!("logging.options.{format}.{name}");
                let value = self.values.get(&path);
                let is_size = |text: &str| text.contains(|letter| matches!(letter, '1'..='9'));
                if value == true || value.as_str().is_some_and(is_size) {
                    let reason = "Forbidden: Feature LoggingAlphaOptions is disabled";
                    self.forbid(path, reason);
                }
            }
        }
    }

    /// Checks settings without an effect, and those that only decide which others count.
    pub(super) fn unused(&mut self) {
        let mode = self.values.text("mode");
        if !matches!(&*mode, "iptables" | "ipvs" | "nftables") {
            let rule = "must be iptables, ipvs, nftables or blank (blank means the best-available \
                        proxy [currently iptables])";
            self.fail("mode", rule);
        }
        self.range::<u8>("nftables.masqueradeBit", 0, 31);
        self.positive("configSyncPeriod", POSITIVE);
        self.count("clientConnection.burst");
        if self.values.text("bindAddress").parse::<IpAddr>().is_err() {
            let rule = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            self.fail("bindAddress", rule);
        }
        let version = self.values.text("showHiddenMetricsForVersion");
        // kube-proxy permits only the version before its own. A file may be another version's.
        let minor = version.strip_prefix("1.").map(str::parse::<u8>);
        if !version.is_empty() && !matches!(minor, Some(Ok(_))) {
            let rule = "must be omitted or be a minor version of Kubernetes, such as '1.35'";
            self.fail("showHiddenMetricsForVersion", rule);
        }
    }

    pub(super) fn scheduler(&mut self) -> Result<ipvs::SchedulerName, SettingErrors> {
        let name = match self.values.text("ipvs.scheduler") {
            name if name.is_empty() => "rr".to_owned(),
            name => name,
        };
        name.parse().map_err(|error| {
            let reason = format!("{error}");
            self.forbid("ipvs.scheduler", &reason);
            SettingErrors(vec![reason])
        })
    }

    pub(super) fn sysctl(&mut self) -> SysctlConfig {
        let tcp_established = self.duration("conntrack.tcpEstablishedTimeout");
        let tcp_close_wait = self.duration("conntrack.tcpCloseWaitTimeout");
        SysctlConfig {
            strict_arp: self.values.is_true("ipvs.strictARP"),
            conntrack: Conntrack {
                max_per_core: self.count("conntrack.maxPerCore"),
                min: self.count("conntrack.min"),
                tcp_established: Some(tcp_established),
                tcp_close_wait: Some(tcp_close_wait),
                tcp_be_liberal: self.values.is_true("conntrack.tcpBeLiberal"),
                udp: Some(self.duration("conntrack.udpTimeout")),
                udp_stream: Some(self.duration("conntrack.udpStreamTimeout")),
            },
        }
    }

    pub(super) fn periods(&mut self, resolved: &Resolved) -> [Duration; 2] {
        let [sync_path, min_path] =
            ["syncPeriod", "minSyncPeriod"].map(|it| resolved.period_path(it));
        let sync = self.positive(&sync_path, POSITIVE);
        let min_sync = self.duration(&min_path);
        if sync < min_sync {
            let value = self.values.text(&min_path);
            let rule = format!("must be greater than or equal to {min_path} ({value})");
            self.fail(&sync_path, rule);
        }
        [sync, min_sync]
    }

    pub(super) fn node_ports(&mut self) -> NodePortAddresses {
        let path = "nodePortAddresses";
        let words = self.values.words(path);
        let chosen = NodePortAddresses::parse(words.iter().map(String::as_str));
        chosen.unwrap_or_else(|(index, rule)| {
            let value = words.get(index).map_or("", String::as_str).into();
            self.fail_with(format!("{path}[{index}]"), &value, rule);
            NodePortAddresses::default()
        })
    }

    /// Returns whether the configuration asks for node ports at loopback addresses: by the word of Kubernetes 1.37, or by
    /// its feature gate. Without them, kube-proxy's modes ipvs and nftables serve none.
    pub(super) fn localhost_node_ports(&self) -> bool {
        let words = self.values.words("nodePortAddresses");
        gates::localhost_node_ports(self.values)
            .unwrap_or_else(|| words.iter().any(|word| word == "localhost"))
    }

    pub(super) fn local_mode(&mut self) -> LocalMode {
        match &*self.values.text("detectLocalMode") {
            "ClusterCIDR" => LocalMode::ClusterCidr(self.cluster_networks()),
            "NodeCIDR" => LocalMode::NodeCidr,
            "BridgeInterface" => {
                LocalMode::BridgeInterface(self.interface("detectLocal.bridgeInterface"))
            }
            "InterfaceNamePrefix" => {
                LocalMode::InterfaceNamePrefix(self.interface("detectLocal.interfaceNamePrefix"))
            }
            _ => {
                let rule = "supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \
                            \"InterfaceNamePrefix\", \"\"";
                self.fail("detectLocalMode", rule);
                LocalMode::NodeCidr
            }
        }
    }

    fn interface(&mut self, path: &str) -> Arc<str> {
        let name = self.values.text(path);
        if name.is_empty() {
            self.fail(path, "must not be empty");
        }
        name.into()
    }

    fn cluster_networks(&mut self) -> Vec<Cidr> {
        let path = "clusterCIDR";
        let text = self.values.text(path);
        let words = text.split(',').filter(|_| !text.is_empty());
        let words: Vec<String> = words.map(str::to_owned).collect();
        let count = words.len();
        let rule = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
        let networks = self.each_network(path, words, rule);
        let is_pair = match &networks[..] {
            [first, second] => first.family() != second.family(),
            _ => true,
        };
        if count > 2 || !is_pair {
            let rule = "must be a single CIDR or a dual-stack pair of CIDRs (e.g. \
                        10.100.0.0/16,fde4:8dba:82e1::/48)";
            self.fail(path, rule);
        }
        networks
    }
}

/// Splits an address from its port as Go's `net.SplitHostPort` does.
fn split_host_port(text: &str) -> Option<(&str, &str)> {
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
