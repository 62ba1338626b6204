//! The configuration in the terms of this program.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::checks::Checks;
use super::gates;
use super::origin::SettingErrors;
use super::resolve::Resolved;
use crate::cluster::model::Cidr;
use crate::dataplane::ipvs::filter::{LocalMode, MarkBit};
use crate::host::sysctl::SysctlConfig;
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
    /// Whether kube-proxy's settings ask for node ports at loopback addresses.
    pub(crate) localhost_node_ports: bool,
    /// The ranges in which no virtual server is deleted.
    pub(crate) exclude: Vec<Cidr>,
    /// How clients inside the cluster are recognised.
    pub(crate) local_mode: LocalMode,
    /// Whether to masquerade all connections to cluster IPs.
    pub(crate) masquerade_all: bool,
    /// Whether kube-proxy would run in its nftables mode.
    pub(crate) is_nftables: bool,
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

impl NodeSettings {
    /// Returns a warning if the Pods' networks are unknown, as kube-proxy has one.
    pub(crate) fn unknown_networks(&self) -> Option<&'static str> {
        let is_unknown = self.local_mode == LocalMode::ClusterCidr(Vec::new());
        is_unknown.then_some(
            "clusterCIDR is not set, and detectLocalMode is ClusterCIDR: only this node's Pods count as inside the \
             cluster, so Pods of other nodes reach Services with externalTrafficPolicy Local as outside clients do",
        )
    }
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
        let localhost_node_ports = checks.localhost_node_ports();
        let local_mode = checks.local_mode();
        let is_nftables = self.section() == "nftables";
        let section = if is_nftables { "nftables" } else { "iptables" };
        let masquerade_bit = checks.range(&format!("{section}.masqueradeBit"), 0, 31);
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
        let (_, types) = self.accepted_types();
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        // As kube-proxy does: kubelet registers a Node with its name in lower case.
        let name = values.text("hostnameOverride").trim().to_lowercase();
        Ok(NodeSettings {
            node_name: non_empty(name).map(Arc::from),
            scheduler: scheduler?,
            node_port_addresses,
            localhost_node_ports,
            exclude,
            local_mode,
            masquerade_all: values.is_true(&format!("{section}.masqueradeAll")),
            is_nftables,
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
