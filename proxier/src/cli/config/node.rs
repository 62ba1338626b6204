//! The configuration in the terms of this program.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::origin::{InvalidSetting, SettingErrors};
use super::resolve::Resolved;
use super::validate::network_of;
use super::{Configuration, GoDuration, gates};
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

impl Resolved {
    /// Returns the choices about the log.
    pub(crate) fn logging(&self) -> Logging {
        let logging = &self.configuration.logging;
        Logging {
            format: match &*logging.format {
                "json" => LogFormat::Json,
                _ => LogFormat::Text,
            },
            verbosity: logging.verbosity,
        }
    }

    /// Converts the configuration to the terms of this program.
    ///
    /// # Errors
    /// If a setting is unusable although it passed kube-proxy's validation: the name of the scheduler, the
    /// excluded networks, or the sync periods. kube-proxy validates some of them in IPVS mode only.
    pub(crate) fn settings(&self) -> Result<NodeSettings, SettingErrors> {
        let configuration = &self.configuration;
        let mut invalid = Vec::new();
        let scheduler = match &*configuration.ipvs.scheduler {
            "" => "rr",
            name => name,
        };
        let scheduler = scheduler.parse().map_err(|error| {
            invalid.push(InvalidSetting::new("ipvs.scheduler", format!("{error}")));
        });
        let exclude = networks(&configuration.ipvs.exclude_cidrs, &mut invalid);
        let words = configuration.node_port_addresses.iter().flatten();
        let node_ports = NodePortAddresses::parse(words.map(String::as_str)).map_err(|error| {
            invalid.push(InvalidSetting::new("nodePortAddresses", format!("{error}")));
        });
        let [sync_period, min_sync_period] = self.checked_periods(&mut invalid);
        let ipvs_timeouts = timeouts(configuration, &mut invalid);
        SettingErrors::check(&invalid, &self.origins)?;
        let (Ok(scheduler), Ok(node_port_addresses)) = (scheduler, node_ports) else {
            // Unreachable, because `check` has returned the errors of both.
            return Err(SettingErrors(Vec::new()));
        };
        let bit = configuration.iptables.masquerade_bit;
        let bit = bit.and_then(|bit| MarkBit::new(u8::try_from(bit).ok()?));
        Ok(NodeSettings {
            node_name: name(&configuration.hostname_override),
            scheduler,
            node_port_addresses,
            exclude,
            local_mode: local_mode(configuration),
            // At most one is set, because `normalize` clears that of the other mode.
            masquerade_all: configuration.iptables.masquerade_all
                || configuration.nftables.masquerade_all,
            masquerade_bit: bit.unwrap_or(MarkBit::MASQUERADE),
            ignores_external_ips: !gates::permits_external_ips(&configuration.feature_gates),
            sysctl: sysctl(configuration),
            ipvs_timeouts,
            sync_period,
            min_sync_period,
            kubeconfig: match &*configuration.client_connection.kubeconfig {
                "" => None,
                path => Some(path.into()),
            },
            master: Some(self.command.master.clone()).filter(|url| !url.is_empty()),
            encoding: configuration.client_connection.encoding(),
            servers: ServerAddresses {
                healthz: Self::server(&configuration.healthz_bind_address),
                metrics: Self::server(&configuration.metrics_bind_address),
                hard_fail: configuration.bind_address_hard_fail,
            },
            oom_score_adj: configuration.oom_score_adj.unwrap_or(-999),
        })
    }

    /// Returns the sync periods of this program, which differ from the configuration's if flags set
    /// those of IPVS in another mode.
    fn checked_periods(&self, invalid: &mut Vec<InvalidSetting>) -> [Duration; 2] {
        let [(sync_path, sync), (min_path, min_sync)] = self.periods;
        if sync <= GoDuration::ZERO {
            let value = sync.to_string();
            invalid.push(InvalidSetting::value(
                sync_path,
                value,
                "must be greater than 0",
            ));
        }
        if min_sync < GoDuration::ZERO {
            let rule = "must be greater than or equal to 0";
            invalid.push(InvalidSetting::value(min_path, min_sync.to_string(), rule));
        }
        if min_sync > sync {
            let rule = format!("must be greater than or equal to {min_path} ({min_sync})");
            invalid.push(InvalidSetting::value(sync_path, sync.to_string(), &rule));
        }
        [sync, min_sync].map(GoDuration::to_duration)
    }
}

fn name(text: &str) -> Option<Arc<str>> {
    match text.trim() {
        "" => None,
        // As kube-proxy does: kubelet registers a Node with its name in lower case.
        name => Some(name.to_lowercase().into()),
    }
}

fn networks(words: &Option<Vec<String>>, invalid: &mut Vec<InvalidSetting>) -> Vec<Cidr> {
    let mut networks = Vec::new();
    for (index, word) in words.iter().flatten().enumerate() {
        match network_of(word) {
            Some(network) => networks.push(network),
            None => invalid.push(InvalidSetting::value(
                format!("ipvs.excludeCIDRs[{index}]"),
                word,
                "must be a valid CIDR",
            )),
        }
    }
    networks
}

fn timeouts(configuration: &Configuration, invalid: &mut Vec<InvalidSetting>) -> ipvs::Timeouts {
    let ipvs = &configuration.ipvs;
    let mut seconds = |path: &str, time: GoDuration| {
        let seconds = u32::try_from(time.nanos() / 1_000_000_000);
        if time < GoDuration::ZERO || seconds.is_err() {
            let rule = "must be within the range [0s, 4294967295s]";
            invalid.push(InvalidSetting::value(path, time.to_string(), rule));
        }
        seconds.unwrap_or(0)
    };
    ipvs::Timeouts {
        tcp_secs: seconds("ipvs.tcpTimeout", ipvs.tcp_timeout),
        tcp_fin_secs: seconds("ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout),
        udp_secs: seconds("ipvs.udpTimeout", ipvs.udp_timeout),
    }
}

fn local_mode(configuration: &Configuration) -> LocalMode {
    let detect = &configuration.detect_local;
    match &*configuration.detect_local_mode {
        "NodeCIDR" => LocalMode::NodeCidr,
        "BridgeInterface" => LocalMode::BridgeInterface(detect.bridge_interface.as_str().into()),
        "InterfaceNamePrefix" => {
            LocalMode::InterfaceNamePrefix(detect.interface_name_prefix.as_str().into())
        }
        _ => {
            let networks = configuration.cluster_cidr.iter();
            LocalMode::ClusterCidr(networks.filter_map(|text| network_of(text)).collect())
        }
    }
}

fn sysctl(configuration: &Configuration) -> SysctlConfig {
    let conntrack = &configuration.conntrack;
    let count = |count: Option<i32>| count.and_then(|count| u32::try_from(count).ok());
    let time = |time: Option<GoDuration>| time.map(GoDuration::to_duration);
    SysctlConfig {
        strict_arp: configuration.ipvs.strict_arp,
        conntrack: Conntrack {
            max_per_core: count(conntrack.max_per_core),
            min: count(conntrack.min),
            tcp_established: time(conntrack.tcp_established_timeout),
            tcp_close_wait: time(conntrack.tcp_close_wait_timeout),
            tcp_be_liberal: conntrack.tcp_be_liberal,
            udp: time(Some(conntrack.udp_timeout)),
            udp_stream: time(Some(conntrack.udp_stream_timeout)),
        },
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
        let flags = FlagValues::parse(given.collect()).unwrap();
        resolve(&flags, None).unwrap().settings().unwrap()
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
        let flags = FlagValues::parse(given).unwrap();
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
