//! kube-proxy's configuration: flags, files, defaults, validation.
//!
//! ```text
//!  flags ──▶ FlagValues ──┐
//!           (table FLAGS) ├─▶ Resolved: Configuration, origins, notices ─▶ validate ─▶ NodeSettings
//!  file ───▶ YamlNode ────┘            │
//!           (table FIELDS)             └─▶ write: the file of --write-config-to
//! ```
//!
//! Two tables are the definitions: [`FLAGS`] has kube-proxy's flags and [`FIELDS`] the fields of its
//! file (`KubeProxyConfiguration`, `kubeproxy.config.k8s.io/v1alpha1`). The command line, its help,
//! the file's reader and writer, the warnings about settings without an effect, and
//! `proxier/docs/configuration.md` are made from them or compared with them.
//!
//! All functions here are pure. kube-proxy 1.36.2 is the reference; `proxier/tests/configuration/`
//! runs it beside this program.

use std::collections::BTreeMap;

mod encoding;
mod fields;
mod file;
mod flags;
mod gates;
mod go;
mod node;
mod origin;
mod resolve;
mod slot;
mod tree;
mod validate;
mod write;

pub use fields::{FIELDS, Field};
pub(crate) use flags::FlagValues;
pub use flags::{FLAGS, Flag};
pub(crate) use go::{GoDuration, Quantity};
pub(crate) use node::{LogFormat, Logging, NodeSettings};
pub(crate) use origin::{InvalidSetting, SettingErrors};
pub(crate) use resolve::{Resolved, resolve};

/// The API version of configuration files.
pub(crate) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";

/// The kind of configuration files.
pub(crate) const KIND: &str = "KubeProxyConfiguration";

/// The effect of a flag or field in this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The same as in kube-proxy.
    Same,
    /// Something similar; the text says how it differs.
    Differs(&'static str),
    /// Nothing; the text says why. If it is set, the program logs one warning.
    Nothing(&'static str),
}

/// The content of a configuration file. The fields have the names of kube-proxy's, in snake case.
///
/// In [`Configuration::default`] every field is unset; it has none of kube-proxy's defaults. The durations are kube-proxy's,
/// so they may be negative until validated.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Configuration {
    pub(crate) feature_gates: BTreeMap<String, bool>,
    pub(crate) client_connection: ClientConnectionSection,
    pub(crate) logging: LoggingSection,
    pub(crate) hostname_override: String,
    pub(crate) bind_address: String,
    pub(crate) healthz_bind_address: String,
    pub(crate) metrics_bind_address: String,
    pub(crate) bind_address_hard_fail: bool,
    pub(crate) enable_profiling: bool,
    pub(crate) show_hidden_metrics_for_version: String,
    pub(crate) mode: String,
    pub(crate) iptables: IptablesSection,
    pub(crate) ipvs: IpvsSection,
    pub(crate) nftables: NftablesSection,
    pub(crate) winkernel: WinkernelSection,
    pub(crate) windows_run_as_service: bool,
    pub(crate) port_range: String,
    pub(crate) detect_local_mode: String,
    pub(crate) detect_local: DetectLocalSection,
    /// `clusterCIDR`, split at its commas; empty if the field is.
    pub(crate) cluster_cidr: Vec<String>,
    pub(crate) node_port_addresses: Option<Vec<String>>,
    pub(crate) oom_score_adj: Option<i32>,
    pub(crate) conntrack: ConntrackSection,
    pub(crate) config_sync_period: GoDuration,
}

/// `clientConnection`: how to talk to the API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClientConnectionSection {
    pub(crate) kubeconfig: String,
    pub(crate) accept_content_types: String,
    pub(crate) content_type: String,
    pub(crate) qps: f32,
    pub(crate) burst: i32,
}

/// `logging`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoggingSection {
    pub(crate) format: String,
    pub(crate) flush_frequency: FlushFrequency,
    pub(crate) verbosity: u32,
    pub(crate) vmodule: Vec<FilePattern>,
    pub(crate) text_split_stream: bool,
    pub(crate) text_info_buffer_size: Quantity,
    pub(crate) json_split_stream: bool,
    pub(crate) json_info_buffer_size: Quantity,
}

/// `logging.flushFrequency`: a duration, written as a string or as a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlushFrequency {
    /// The duration.
    pub(crate) duration: GoDuration,
    /// Whether the file has a number.
    pub(crate) is_number: bool,
}

/// An element of `logging.vmodule`: the verbosity of some source files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilePattern {
    /// The pattern of the files' names.
    pub(crate) pattern: String,
    /// Their verbosity.
    pub(crate) verbosity: u32,
}

/// `iptables`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IptablesSection {
    pub(crate) masquerade_bit: Option<i32>,
    pub(crate) masquerade_all: bool,
    pub(crate) localhost_node_ports: Option<bool>,
    pub(crate) sync_period: GoDuration,
    pub(crate) min_sync_period: GoDuration,
}

/// `ipvs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IpvsSection {
    pub(crate) sync_period: GoDuration,
    pub(crate) min_sync_period: GoDuration,
    pub(crate) scheduler: String,
    pub(crate) exclude_cidrs: Option<Vec<String>>,
    pub(crate) strict_arp: bool,
    pub(crate) tcp_timeout: GoDuration,
    pub(crate) tcp_fin_timeout: GoDuration,
    pub(crate) udp_timeout: GoDuration,
}

/// `nftables`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NftablesSection {
    pub(crate) masquerade_bit: Option<i32>,
    pub(crate) masquerade_all: bool,
    pub(crate) sync_period: GoDuration,
    pub(crate) min_sync_period: GoDuration,
}

/// `winkernel`: settings of kube-proxy on Windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WinkernelSection {
    pub(crate) network_name: String,
    pub(crate) source_vip: String,
    pub(crate) enable_dsr: bool,
    pub(crate) root_hns_endpoint_name: String,
    pub(crate) forward_health_check_vip: bool,
}

/// `detectLocal`: the argument of `detectLocalMode`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DetectLocalSection {
    pub(crate) bridge_interface: String,
    pub(crate) interface_name_prefix: String,
}

/// `conntrack`: settings of the kernel's connection tracking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConntrackSection {
    pub(crate) max_per_core: Option<i32>,
    pub(crate) min: Option<i32>,
    pub(crate) tcp_established_timeout: Option<GoDuration>,
    pub(crate) tcp_close_wait_timeout: Option<GoDuration>,
    pub(crate) tcp_be_liberal: bool,
    pub(crate) udp_timeout: GoDuration,
    pub(crate) udp_stream_timeout: GoDuration,
}

/// The mode that supplies the periods and `masqueradeAll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Iptables,
    Ipvs,
    Nftables,
}

impl Configuration {
    /// Sets the default of each unset field, as kube-proxy's `SetDefaults_KubeProxyConfiguration` does.
    ///
    /// A field with a value of 0 or "" counts as unset, except those that are an `Option` here.
    pub(crate) fn set_defaults(&mut self) {
        let seconds = GoDuration::from_secs;
        let is_v6 = self.bind_address.contains(':');
        let (any, loopback) = match is_v6 {
            true => ("[::]", "[::1]"),
            false => ("0.0.0.0", "127.0.0.1"),
        };
        default_text(&mut self.bind_address, "0.0.0.0");
        default_address(&mut self.healthz_bind_address, any, HEALTHZ_PORT);
        default_address(&mut self.metrics_bind_address, loopback, METRICS_PORT);
        self.oom_score_adj.get_or_insert(-999);
        default_text(
            &mut self.client_connection.content_type,
            "application/vnd.kubernetes.protobuf",
        );
        default(&mut self.client_connection.qps, 5.0);
        default(&mut self.client_connection.burst, 10);
        default_text(&mut self.logging.format, "text");
        if self.logging.flush_frequency.duration == GoDuration::ZERO {
            self.logging.flush_frequency = FlushFrequency {
                duration: seconds(5),
                is_number: false,
            };
        }
        self.iptables.masquerade_bit.get_or_insert(14);
        self.iptables.localhost_node_ports.get_or_insert(true);
        default(&mut self.iptables.sync_period, seconds(30));
        default(&mut self.iptables.min_sync_period, seconds(1));
        default(&mut self.ipvs.sync_period, seconds(30));
        self.nftables.masquerade_bit.get_or_insert(14);
        default(&mut self.nftables.sync_period, seconds(30));
        default(&mut self.nftables.min_sync_period, seconds(1));
        let conntrack = &mut self.conntrack;
        conntrack.max_per_core.get_or_insert(32_768);
        conntrack.min.get_or_insert(131_072);
        let day = seconds(24 * 3_600);
        conntrack.tcp_established_timeout.get_or_insert(day);
        let hour = seconds(3_600);
        conntrack.tcp_close_wait_timeout.get_or_insert(hour);
        default(&mut self.config_sync_period, seconds(900));
    }

    /// Sets what depends on the mode, as kube-proxy does when it converts the file's content to its
    /// internal form: only the section of the mode has periods.
    pub(crate) fn normalize(&mut self) {
        default_text(&mut self.mode, "iptables");
        default_text(&mut self.detect_local_mode, "ClusterCIDR");
        let zero = GoDuration::ZERO;
        let mode = self.mode();
        if mode != Some(Mode::Iptables) {
            (self.iptables.sync_period, self.iptables.min_sync_period) = (zero, zero);
        }
        if mode != Some(Mode::Ipvs) {
            (self.ipvs.sync_period, self.ipvs.min_sync_period) = (zero, zero);
        }
        if mode == Some(Mode::Nftables) {
            self.iptables.masquerade_all = false;
            let primary = || vec!["primary".to_owned()];
            self.node_port_addresses.get_or_insert_with(primary);
        } else {
            (self.nftables.sync_period, self.nftables.min_sync_period) = (zero, zero);
            self.nftables.masquerade_all = false;
        }
        // kube-proxy's conversion drops this field.
        self.port_range.clear();
    }

    /// Returns the mode; `None` if there is no such mode.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match &*self.mode {
            "" | "iptables" => Some(Mode::Iptables),
            "ipvs" => Some(Mode::Ipvs),
            "nftables" => Some(Mode::Nftables),
            _ => None,
        }
    }

    /// Returns the period of resyncs and the shortest time between rounds, with the path of their
    /// section.
    pub(crate) fn periods(&self) -> (&'static str, GoDuration, GoDuration) {
        match self.mode() {
            Some(Mode::Ipvs) => ("ipvs", self.ipvs.sync_period, self.ipvs.min_sync_period),
            Some(Mode::Nftables) => (
                "nftables",
                self.nftables.sync_period,
                self.nftables.min_sync_period,
            ),
            Some(Mode::Iptables) | None => (
                "iptables",
                self.iptables.sync_period,
                self.iptables.min_sync_period,
            ),
        }
    }
}

/// The default port of the health server.
pub(crate) const HEALTHZ_PORT: u16 = 10_256;

/// The default port of the metrics server.
pub(crate) const METRICS_PORT: u16 = 10_249;

fn default<T: Default + PartialEq>(field: &mut T, value: T) {
    if *field == T::default() {
        *field = value;
    }
}

fn default_text(field: &mut String, value: &str) {
    if field.is_empty() {
        value.clone_into(field);
    }
}

/// Completes an empty address, and a bare IP address.
fn default_address(field: &mut String, host: &str, port: u16) {
    if field.is_empty() {
        *field = format!("{host}:{port}");
    } else {
        append_port(field, port);
    }
}

/// Appends the port to a bare IP address.
pub(crate) fn append_port(field: &mut String, port: u16) {
    match field.parse() {
        Ok(std::net::IpAddr::V4(address)) => *field = format!("{address}:{port}"),
        Ok(std::net::IpAddr::V6(address)) => *field = format!("[{address}]:{port}"),
        Err(_) => {}
    }
}
