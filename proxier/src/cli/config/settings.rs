//! The configuration in the terms of this program, validated with kube-proxy's rules
//! (`ValidateKubeProxyConfiguration`, 1.36).
//!
//! Those that kube-proxy applies in IPVS mode only apply in every mode here.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;
use serde_json::Value;

use super::duration::GoDuration;
use super::gates;
use super::origin::{InvalidSetting, SettingErrors};
use super::resolve::Resolved;
use super::values::Values;
use crate::filter::{LocalMode, MarkBit};
use crate::host::sysctl::{Conntrack, SysctlConfig};
use crate::model::Cidr;
use crate::plan::NodePortAddresses;
use crate::sources::watch::Encoding;

/// The settings that commands use. Every value is valid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeSettings {
    /// The name of this node; `None` if it is the host name.
    pub(crate) node_name: Option<Arc<str>>,
    /// The scheduler of Services without an annotation.
    pub(crate) scheduler: ipvs::SchedulerName,
    /// The addresses that serve node ports.
    pub(crate) node_port_addresses: NodePortAddresses,
    /// The ranges in which no virtual server is deleted.
    pub(crate) exclude: Vec<Cidr>,
    /// How clients inside the cluster are recognised.
    pub(crate) local_mode: LocalMode,
    /// Whether to masquerade all connections to cluster IPs.
    pub(crate) masquerade_all: bool,
    /// The bit of packet marks that means "masquerade".
    pub(crate) masquerade_bit: MarkBit,
    /// Whether external IPs of Services are ignored.
    pub(crate) ignores_external_ips: bool,
    /// Kernel settings.
    pub(crate) sysctl: SysctlConfig,
    /// The timeouts of IPVS; 0 keeps the kernel's.
    pub(crate) ipvs_timeouts: ipvs::Timeouts,
    /// The time from one resync to the next.
    pub(crate) sync_period: Duration,
    /// The shortest time from a round to the next one for changes.
    pub(crate) min_sync_period: Duration,
    /// The file with address and credentials of the API server; `None` for the Pod's service account.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The address of the API server, which overrides the file's.
    pub(crate) master: Option<String>,
    /// The preferred encoding of the API server's lists and watches.
    pub(crate) encoding: Encoding,
    /// The HTTP servers.
    pub(crate) servers: ServerAddresses,
    /// The value for `/proc/self/oom_score_adj`.
    pub(crate) oom_score_adj: i32,
}

/// The HTTP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddresses {
    /// The address of the health server; `None` if it is switched off.
    pub(crate) healthz: Option<SocketAddr>,
    /// The address of the metrics server.
    pub(crate) metrics: Option<SocketAddr>,
    /// Whether the process exits if an address cannot be bound.
    pub(crate) hard_fail: bool,
}

/// The operator's choices about the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logging {
    /// The format.
    pub(crate) format: LogFormat,
    /// The verbosity; see [`Logging::filter`].
    pub(crate) verbosity: u32,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Logging {
    /// Returns the lowest level to log, in the syntax of `RUST_LOG`.
    ///
    /// Kubernetes' conventions for klog: up to 3 is information about the steady state and its
    /// changes, 4 is debug, 5 is trace.
    pub(crate) fn filter(self) -> &'static str {
        match self.verbosity {
            0..=3 => "info",
            4 => "debug",
            _ => "trace",
        }
    }
}

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than 0";

impl Resolved {
    /// Returns the choices about the log.
    pub(crate) fn logging(&self) -> Logging {
        let verbosity = self.values.integer("logging.verbosity");
        Logging {
            format: match &*self.values.text("logging.format") {
                "json" => LogFormat::Json,
                _ => LogFormat::Text,
            },
            verbosity: verbosity.and_then(|it| u32::try_from(it).ok()).unwrap_or(0),
        }
    }

    /// Validates the configuration and converts it to the terms of this program.
    ///
    /// # Errors
    /// All invalid settings.
    pub(super) fn settings(&self) -> Result<NodeSettings, SettingErrors> {
        let values = &self.values;
        let mut checks = Checks {
            values,
            invalid: gates::validate(values),
        };
        checks.logging();
        checks.unused();
        let scheduler = checks.scheduler();
        let exclude = checks.networks("ipvs.excludeCIDRs");
        let node_port_addresses = checks.node_ports();
        let local_mode = checks.local_mode();
        let masquerade_bit = checks.range("iptables.masqueradeBit", 0, 31);
        let oom_score_adj = checks.range("oomScoreAdj", -1000, 1000);
        let sysctl = checks.sysctl();
        let ipvs_timeouts = ipvs::Timeouts {
            tcp_secs: checks.seconds("ipvs.tcpTimeout"),
            tcp_fin_secs: checks.seconds("ipvs.tcpFinTimeout"),
            udp_secs: checks.seconds("ipvs.udpTimeout"),
        };
        let [sync_period, min_sync_period] = checks.periods(self);
        let healthz = match &*values.text("healthzBindAddress") {
            "" => None,
            _ => checks.server("healthzBindAddress"),
        };
        let servers = ServerAddresses {
            healthz,
            metrics: checks.server("metricsBindAddress"),
            hard_fail: values.is_true("bindAddressHardFail"),
        };
        SettingErrors::check(&checks.invalid, &self.origins)?;
        let masquerade_all = match &*values.text("mode") {
            "nftables" => "nftables.masqueradeAll",
            _ => "iptables.masqueradeAll",
        };
        let (_, types) = self.accepted_types();
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        // As kube-proxy does: kubelet registers a Node with its name in lower case.
        let name = values.text("hostnameOverride").trim().to_lowercase();
        Ok(NodeSettings {
            node_name: non_empty(name).map(Arc::from),
            scheduler: scheduler?,
            node_port_addresses,
            exclude,
            local_mode,
            masquerade_all: values.is_true(masquerade_all),
            masquerade_bit: MarkBit::new(masquerade_bit).unwrap_or(MarkBit::MASQUERADE),
            ignores_external_ips: !gates::permits_external_ips(values),
            sysctl,
            ipvs_timeouts,
            sync_period,
            min_sync_period,
            kubeconfig: non_empty(values.text("clientConnection.kubeconfig")).map(PathBuf::from),
            master: non_empty(self.command.text("master")),
            encoding: Encoding::of_media_types(&types).unwrap_or(Encoding::Json),
            servers,
            oom_score_adj,
        })
    }
}

/// The configuration, and the errors found so far.
struct Checks<'a> {
    values: &'a Values,
    invalid: Vec<InvalidSetting>,
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
    fn range<T: TryFrom<i64> + Default>(&mut self, path: &str, least: i64, most: i64) -> T {
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
    fn seconds(&mut self, path: &str) -> u32 {
        let found = self.values.duration(path);
        let seconds = u32::try_from(found.to_duration().as_secs());
        if found < GoDuration::ZERO || seconds.is_err() {
            self.fail(path, "must be within the range [0s, 4294967295s]");
        }
        seconds.unwrap_or_default()
    }

    fn networks(&mut self, path: &str) -> Vec<Cidr> {
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

    fn server(&mut self, path: &str) -> Option<SocketAddr> {
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

    fn logging(&mut self) {
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
    fn unused(&mut self) {
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
        if !matches!(&*version, "" | "1.35") {
            let rule = "must be omitted or have the value '1.35'; only the previous minor version is \
                        allowed";
            self.fail("showHiddenMetricsForVersion", rule);
        }
    }

    fn scheduler(&mut self) -> Result<ipvs::SchedulerName, SettingErrors> {
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

    fn sysctl(&mut self) -> SysctlConfig {
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

    fn periods(&mut self, resolved: &Resolved) -> [Duration; 2] {
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

    fn node_ports(&mut self) -> NodePortAddresses {
        let path = "nodePortAddresses";
        let words = self.values.words(path);
        match words.iter().position(|word| word == "primary") {
            Some(_) if words.len() == 1 => NodePortAddresses::Primary,
            Some(index) => {
                let rule = "can't use both 'primary' and CIDRs";
                self.fail_with(format!("{path}[{index}]"), &"primary".into(), rule);
                NodePortAddresses::Primary
            }
            None => NodePortAddresses::Networks(self.networks(path)),
        }
    }

    fn local_mode(&mut self) -> LocalMode {
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
            let rule = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. \
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

#[cfg(test)]
mod tests {
    use super::super::{FLAGS, FlagValues, resolve};
    use super::*;

    /// Returns the settings for flags without dashes, `NAME=VALUE`.
    fn settings(flags: &[&str]) -> NodeSettings {
        let given = flags.iter().map(|flag| {
            let (name, value) = flag.split_once('=').unwrap();
            let flag = FLAGS.iter().find(|flag| flag.name == name).unwrap();
            (flag, value.to_owned())
        });
        let given: Vec<_> = given.collect();
        let flags = FlagValues::parse(&given).unwrap();
        resolve(&flags, None).unwrap().1
    }

    fn servers(flags: &[&str]) -> [Option<String>; 2] {
        let ServerAddresses {
            healthz, metrics, ..
        } = settings(flags).servers;
        [healthz, metrics].map(|address| address.map(|it| it.to_string()))
    }

    #[test]
    fn deprecated_ports_complete_addresses_and_0_switches_the_health_server_off() {
        let both = |healthz: &str, metrics: &str| [healthz, metrics].map(|it| Some(it.to_owned()));
        let default = both("0.0.0.0:10256", "127.0.0.1:10249");
        assert_eq!(servers(&[]), default);
        assert_eq!(servers(&["healthz-port=9"]), default);
        let bare = ["healthz-bind-address=::", "metrics-bind-address=::1"];
        assert_eq!(servers(&bare), both("[::]:10256", "[::1]:10249"));
        let with_port = ["healthz-bind-address=10.0.0.1", "healthz-port=9"];
        assert_eq!(servers(&with_port), both("10.0.0.1:9", "127.0.0.1:10249"));
        assert_eq!(servers(&["healthz-port=0"])[0], None);
    }

    #[test]
    fn the_metrics_server_cannot_be_switched_off_as_in_kube_proxy() {
        let flag = FLAGS.iter().find(|flag| flag.name == "metrics-port");
        let given = vec![(flag.unwrap(), "0".to_owned())];
        let flags = FlagValues::parse(&given).unwrap();
        let error = resolve(&flags, None).unwrap_err().to_string();
        assert!(error.contains("metricsBindAddress"), "{error}");
    }

    #[test]
    fn periods_are_those_of_the_ipvs_flags_in_every_mode() {
        let periods = |flags: &[&str]| {
            let settings = settings(flags);
            [settings.sync_period, settings.min_sync_period].map(|period| period.as_secs())
        };
        assert_eq!(periods(&[]), [30, 1]);
        assert_eq!(periods(&["proxy-mode=ipvs"]), [30, 1]);
        assert_eq!(periods(&["ipvs-sync-period=9s"]), [9, 1]);
        assert_eq!(periods(&["iptables-sync-period=8s"]), [8, 1]);
        let both = ["iptables-sync-period=8s", "ipvs-min-sync-period=3s"];
        assert_eq!(periods(&both), [8, 3]);
        assert_eq!(periods(&["proxy-mode=ipvs", both[0]]), [30, 1]);
    }

    #[test]
    fn settings_have_the_types_of_the_modules_that_use_them() {
        let defaults = settings(&[]);
        assert_eq!(defaults.scheduler, "rr".parse().unwrap());
        assert_eq!(defaults.node_name, None);
        assert_eq!(defaults.oom_score_adj, -999);
        assert_eq!(defaults.local_mode, LocalMode::ClusterCidr(Vec::new()));
        let chosen = settings(&[
            "ipvs-tcp-timeout=90500ms",
            "conntrack-max-per-core=0",
            "detect-local-mode=InterfaceNamePrefix",
            "pod-interface-name-prefix=veth",
            "iptables-masquerade-bit=31",
            "ipvs-exclude-cidrs=10.0.0.0/8,fd00::/8",
            "hostname-override= Node ",
        ]);
        // Whole seconds, as kube-proxy passes them to the kernel.
        assert_eq!(chosen.ipvs_timeouts.tcp_secs, 90);
        assert_eq!(chosen.sysctl.conntrack.max_per_core, Some(0));
        let prefix = LocalMode::InterfaceNamePrefix("veth".into());
        assert_eq!(chosen.local_mode, prefix);
        assert_eq!(chosen.masquerade_bit.mark(), 1 << 31);
        assert_eq!(chosen.exclude.len(), 2);
        assert_eq!(chosen.node_name.as_deref(), Some("node"));
    }
}
