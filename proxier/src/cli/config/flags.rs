//! kube-proxy's flags.

use serde_json::Value;

use super::fields::Field;
use super::kind::{Kind, boolean};
use super::values::Values;
use super::{Effect, SettingErrors};

/// A flag of kube-proxy.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// Its name of one letter.
    pub short: Option<char>,
    /// The kind of its value, for the help; empty for booleans, which need no value.
    pub value: &'static str,
    /// Its default, as kube-proxy's help has it; empty for a zero value.
    pub default: &'static str,
    /// One sentence for the help.
    pub help: &'static str,
    /// The setting or action that it stands for.
    pub(crate) target: Target,
}

/// The setting of a flag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The field of the configuration at this path.
    Field(&'static str),
    /// A setting that the file does not have.
    Command(Effect, Kind),
}

/// Makes a row of the table for a flag that sets a field.
macro_rules! field {
    ($name:literal, $value:literal, $default:literal, $path:literal, $help:literal) => {
        Flag {
            name: $name,
            short: None,
            value: $value,
            default: $default,
            help: $help,
            target: Target::Field($path),
        }
    };
}

/// Makes a row of the table for another flag.
macro_rules! command {
    ($name:literal, $value:literal, $default:literal, $effect:expr, $kind:ident, $help:literal) => {
        Flag {
            name: $name,
            short: None,
            value: $value,
            default: $default,
            help: $help,
            target: Target::Command($effect, Kind::$kind),
        }
    };
}

use Effect::{Differs, Nothing, Same};

const IDENTITY: Effect =
    Nothing("kube-proxy does not use it either; a library of it defines the flag");
const CLEANUP: Effect = Differs(
    "removes what this program added too; keeps virtual servers in --ipvs-exclude-cidrs; deletes the \
     ipsets of IPv6, which kube-proxy's leaves; prints the command for iptables-legacy instead of \
     running it",
);
const VERSION: Effect = Differs(
    "kube-proxy accepts its own version as a value, too; this program rejects every version",
);
const DEPRECATED_PORT: Effect = Differs(
    "deprecated, and as in kube-proxy it counts only without --config and without \
     --write-config-to: 0 removes the server's address, which the metrics server does not permit, and \
     another port completes an address without one",
);

const SERVERS: Effect = Differs(
    "several addresses are possible, separated by commas: if one does not answer, breaks its answers or is busy, the next one is asked within seconds. All have https, or none",
);
const WRITTEN: Effect = Differs("- means standard output, as /dev/stdout does");

// One row a line is easier to compare with kube-proxy's help than rustfmt's six.
#[rustfmt::skip]
/// Every flag of kube-proxy 1.36.2 except `--help`, sorted by name, with its two hidden ones.
pub const FLAGS: [Flag; 58] = [
    field!("bind-address", "IP", "0.0.0.0", "bindAddress",
        "Address whose family decides the default addresses of the servers; no socket is bound to it"),
    field!("bind-address-hard-fail", "", "false", "bindAddressHardFail",
        "Exit if the health or the metrics server cannot bind its address"),
    command!("boot-id-file", "FILE[,FILE]", "/proc/sys/kernel/random/boot_id", IDENTITY, Text,
        "Files that may have the machine's boot id"),
    command!("cleanup", "", "false", CLEANUP, Bool,
        "Remove everything that this program added to the kernel, and exit"),
    field!("cluster-cidr", "CIDR[,CIDR]", "", "clusterCIDR",
        "Address ranges of Pods, at most one of each family; every other address is outside the cluster"),
    command!("config", "FILE", "", Same, Text,
        "Configuration file (KubeProxyConfiguration); it replaces all flags that have a field in it except those of logging and --hostname-override"),
    field!("config-sync-period", "DURATION", "15m0s", "configSyncPeriod",
        "How often to read all objects again"),
    field!("conntrack-max-per-core", "COUNT", "32768", "conntrack.maxPerCore",
        "Maximum of tracked connections per processor; 0 keeps the kernel's limit"),
    field!("conntrack-min", "COUNT", "131072", "conntrack.min",
        "Lower bound of the limit that --conntrack-max-per-core gives"),
    field!("conntrack-tcp-be-liberal", "", "false", "conntrack.tcpBeLiberal",
        "Treat TCP packets outside the window as valid, too"),
    field!("conntrack-tcp-timeout-close-wait", "DURATION", "1h0m0s", "conntrack.tcpCloseWaitTimeout",
        "How long the kernel tracks half-closed TCP connections; 0 keeps its setting"),
    field!("conntrack-tcp-timeout-established", "DURATION", "24h0m0s", "conntrack.tcpEstablishedTimeout",
        "How long the kernel tracks idle TCP connections; 0 keeps its setting"),
    field!("conntrack-udp-timeout", "DURATION", "", "conntrack.udpTimeout",
        "How long the kernel tracks UDP flows without an answer; 0 keeps its setting"),
    field!("conntrack-udp-timeout-stream", "DURATION", "", "conntrack.udpStreamTimeout",
        "How long the kernel tracks UDP flows with answers; 0 keeps its setting"),
    field!("detect-local-mode", "MODE", "", "detectLocalMode",
        "How to recognise connections from inside the cluster: ClusterCIDR (the default), NodeCIDR, BridgeInterface or InterfaceNamePrefix"),
    field!("feature-gates", "NAME=BOOL[,..]", "", "featureGates",
        "Feature gates"),
    field!("healthz-bind-address", "IP[:PORT]", "0.0.0.0:10256", "healthzBindAddress",
        "Address of the health server"),
    command!("healthz-port", "PORT", "", DEPRECATED_PORT, Integer,
        "Deprecated: port of the health server; 0 switches it off"),
    field!("hostname-override", "NAME", "", "hostnameOverride",
        "Name of this node, as in nodeName of endpoints [default: the host name]"),
    command!("init-only", "", "false", Same, Bool,
        "Write the kernel settings that need a privileged container, and exit"),
    field!("iptables-localhost-nodeports", "", "true", "iptables.localhostNodePorts",
        "Serve node ports on loopback addresses"),
    field!("iptables-masquerade-bit", "BIT", "14", "iptables.masqueradeBit",
        "Bit of the packet mark that requests masquerading: 0 to 31"),
    field!("iptables-min-sync-period", "DURATION", "1s", "iptables.minSyncPeriod",
        "--ipvs-min-sync-period, if --proxy-mode is iptables"),
    field!("iptables-sync-period", "DURATION", "30s", "iptables.syncPeriod",
        "--ipvs-sync-period, if --proxy-mode is iptables"),
    field!("ipvs-exclude-cidrs", "CIDR[,CIDR]", "", "ipvs.excludeCIDRs",
        "Never delete virtual servers with an address in these ranges"),
    field!("ipvs-min-sync-period", "DURATION", "1s", "ipvs.minSyncPeriod",
        "Minimum time between two rounds of changes; 0 applies each change at once"),
    field!("ipvs-scheduler", "NAME", "", "ipvs.scheduler",
        "Scheduler of Services without the annotation ipvs-proxier.io/scheduler [default: rr]"),
    field!("ipvs-strict-arp", "", "false", "ipvs.strictARP",
        "Do not answer or announce service addresses by ARP (arp_ignore=1, arp_announce=2)"),
    field!("ipvs-sync-period", "DURATION", "30s", "ipvs.syncPeriod",
        "Interval of resyncs: each reads the kernel back and repairs differences"),
    field!("ipvs-tcp-timeout", "DURATION", "", "ipvs.tcpTimeout",
        "How long IPVS keeps idle TCP connections; 0 keeps the kernel's setting"),
    field!("ipvs-tcpfin-timeout", "DURATION", "", "ipvs.tcpFinTimeout",
        "How long IPVS keeps TCP connections after a FIN; 0 keeps the kernel's setting"),
    field!("ipvs-udp-timeout", "DURATION", "", "ipvs.udpTimeout",
        "How long IPVS keeps idle UDP flows; 0 keeps the kernel's setting"),
    field!("kube-api-burst", "COUNT", "10", "clientConnection.burst",
        "Limit of requests to the API server at once"),
    field!("kube-api-content-type", "TYPE", "application/vnd.kubernetes.protobuf", "clientConnection.contentType",
        "Content type of requests to the API server"),
    field!("kube-api-qps", "NUMBER", "5", "clientConnection.qps",
        "Limit of requests to the API server per second"),
    field!("kubeconfig", "FILE", "", "clientConnection.kubeconfig",
        "File with address and credentials of the API server [default: the Pod's service account]"),
    field!("log-flush-frequency", "DURATION", "5s", "logging.flushFrequency",
        "Maximum time between two flushes of the log"),
    field!("log-json-info-buffer-size", "SIZE", "", "logging.options.json.infoBufferSize",
        "Size of the log's buffer in JSON format"),
    field!("log-json-split-stream", "", "false", "logging.options.json.splitStream",
        "Write errors and information to different streams in JSON format"),
    field!("log-text-info-buffer-size", "SIZE", "", "logging.options.text.infoBufferSize",
        "Size of the log's buffer in text format"),
    field!("log-text-split-stream", "", "false", "logging.options.text.splitStream",
        "Write errors and information to different streams in text format"),
    field!("logging-format", "FORMAT", "text", "logging.format",
        "Format of the log: text or json"),
    command!("machine-id-file", "FILE[,FILE]", "/etc/machine-id,/var/lib/dbus/machine-id", IDENTITY, Text,
        "Files that may have the machine's id"),
    field!("masquerade-all", "", "false", "iptables.masqueradeAll",
        "Masquerade all connections to cluster IPs"),
    command!("master", "URL[,URL]", "", SERVERS, Text,
        "Address of the API server, or of several: if one does not answer, the next one is asked. Overrides those in the kubeconfig"),
    field!("metrics-bind-address", "IP[:PORT]", "127.0.0.1:10249", "metricsBindAddress",
        "Address of the metrics server"),
    command!("metrics-port", "PORT", "", DEPRECATED_PORT, Integer,
        "Deprecated: port of the metrics server"),
    field!("nodeport-addresses", "CIDR[,CIDR]", "", "nodePortAddresses",
        "Addresses that serve node ports: networks, or primary for the Node object's main addresses [default: all]"),
    field!("oom-score-adj", "NUMBER", "-999", "oomScoreAdj",
        "How readily the kernel kills this process when memory is short: -1000 (never) to 1000"),
    field!("pod-bridge-interface", "NAME", "", "detectLocal.bridgeInterface",
        "Bridge interface of the Pods, for --detect-local-mode=BridgeInterface"),
    field!("pod-interface-name-prefix", "PREFIX", "", "detectLocal.interfaceNamePrefix",
        "Name prefix of the Pods' interfaces, for --detect-local-mode=InterfaceNamePrefix"),
    field!("profiling", "", "false", "enableProfiling",
        "Serve profiles at /debug/pprof"),
    field!("proxy-mode", "MODE", "", "mode",
        "kube-proxy's mode: nftables chooses the dataplane nftables, iptables and ipvs choose IPVS"),
    field!("show-hidden-metrics-for-version", "VERSION", "", "showHiddenMetricsForVersion",
        "Serve the metrics that this version of Kubernetes hid"),
    Flag {
        name: "v",
        short: Some('v'),
        value: "LEVEL",
        default: "0",
        help: "Verbosity of the log: 0 to 3 information, 4 debug, 5 and more trace",
        target: Target::Field("logging.verbosity"),
    },
    command!("version", "", "false", VERSION, Text,
        "Print the version and exit; --version=raw prints its parts"),
    field!("vmodule", "PATTERN=LEVEL[,..]", "", "logging.vmodule",
        "Verbosity of single source files"),
    command!("write-config-to", "FILE", "", WRITTEN, Text,
        "Write the configuration that these flags mean to this file, or to standard output (-), and exit"),
];

impl Flag {
    /// Returns what the flag does in this program.
    pub fn effect(&self) -> Effect {
        match self.target {
            Target::Command(effect, _) => effect,
            Target::Field(path) => Field::find(path).map_or(Same, |field| field.effect),
        }
    }

    /// Returns the path of the field that the flag sets.
    pub fn path(&self) -> Option<&'static str> {
        match self.target {
            Target::Field(path) => Some(path),
            Target::Command(..) => None,
        }
    }

    /// Returns whether the flag counts beside `--config`, as in kube-proxy.
    fn counts_with_file(&self) -> bool {
        match self.target {
            Target::Command(..) => !["healthz-port", "metrics-port"].contains(&self.name),
            Target::Field("hostnameOverride") => true,
            Target::Field(path) => path.starts_with("logging."),
        }
    }

    /// Returns whether the flag may be given without a value, which then is `true`.
    pub(crate) fn is_switch(&self) -> bool {
        self.value.is_empty()
    }
}

/// The flags of a command line, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlagValues {
    pub(super) given: Vec<(&'static Flag, Value)>,
    /// The values of those without a field, by their names.
    pub(crate) command: Values,
    /// The names of flags that count beside `--config`, too, though not in kube-proxy.
    pub(crate) beside_file: &'static [&'static str],
}

impl FlagValues {
    /// Returns whether the flag counts beside `--config`.
    pub(super) fn counts_with_file(&self, flag: &Flag) -> bool {
        flag.counts_with_file() || self.beside_file.contains(&flag.name)
    }

    /// Parses the values of flags, in the order of the command line.
    ///
    /// # Errors
    /// If a value has the wrong syntax, even if a configuration file will replace it. All such flags
    /// are named.
    pub(crate) fn parse(texts: &[(&'static Flag, String)]) -> Result<Self, SettingErrors> {
        let mut flags = Self::default();
        let mut errors = Vec::new();
        for (flag, text) in texts {
            let kind = match flag.target {
                Target::Command(_, kind) => kind,
                Target::Field(path) => Field::find(path).map_or(Kind::Text, |field| field.kind),
            };
            match kind.parse(text) {
                Ok(value) => flags.given.push((flag, value)),
                Err(reason) => errors.push(format!("--{}: {reason}", flag.name)),
            }
        }
        for (flag, value) in &flags.given {
            if let Target::Command(..) = flag.target {
                flags.command.set(flag.name, value.clone());
            }
        }
        let version = flags.command.text("version");
        if !matches!(&*version, "" | "raw") && boolean(&version).is_none() {
            errors.push(format!(
                "--version: invalid value {version:?}: must be true, false or raw"
            ));
        }
        SettingErrors::unless_empty(errors)?;
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_sorted_unique_and_set_an_existing_field() {
        assert!(FLAGS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for flag in &FLAGS {
            if let Some(path) = flag.path() {
                assert!(Field::find(path).is_some(), "--{}: {path}", flag.name);
            }
        }
    }
}
