//! The kernel settings that services need. A setting is written only if it differs.
//!
//! [`desired_settings`] is a pure function of the configuration, the kernel's version and the number
//! of processors. The list is kube-proxy's.
//!
//! Like kube-proxy, the daemon writes each setting once ([`Keeper`]). A later difference is reported
//! once and stays: these settings belong to the whole node, and an administrator who changes one
//! during an incident knows more than a flag. `net/ipv4/vs/*` are the exception and are restored at
//! each resync. They belong to IPVS: each load of its module resets them to the kernel's defaults,
//! and with these defaults the traffic of Services fails:
//!
//! | setting | without it |
//! |---|---|
//! | `conntrack` | packets of IPVS are not masqueraded: node ports and clients outside the cluster get no answer |
//! | `conn_reuse_mode` (4.1 to 5.8) | a reused client port costs a second or reaches a removed endpoint |
//! | `expire_nodest_conn` | packets to a removed endpoint vanish until the connection times out (TCP: 15 minutes) |
//! | `expire_quiescent_template` | session affinity sends new connections to draining endpoints |
//!
//! Services need `ip_forward` too. It is not restored: all other traffic of pods needs it as well, so
//! an administrator who clears it isolates the node on purpose.

use std::fmt;
use std::time::Duration;

mod keeper;

pub use keeper::Roots;
pub(crate) use keeper::{Keeper, Report};

/// The operator's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysctlConfig {
    /// Whether to send no ARP replies for service addresses (`--arp=strict`, `--ipvs-strict-arp`).
    pub strict_arp: bool,
    /// Connection tracking.
    pub conntrack: Conntrack,
}

/// The settings of connection tracking (`conntrack` in kube-proxy's configuration). `None` and a
/// time of 0 keep the kernel's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// The limit of tracked connections per processor; 0 keeps the kernel's limit.
    pub max_per_core: Option<u32>,
    /// The lower bound of the limit that results from `max_per_core`.
    pub min: Option<u32>,
    /// The timeout of an idle TCP connection; rounded down to seconds.
    pub tcp_established: Option<Duration>,
    /// The timeout of a TCP connection in CLOSE_WAIT; rounded down to seconds.
    pub tcp_close_wait: Option<Duration>,
    /// Whether packets outside the TCP window are valid.
    pub tcp_be_liberal: bool,
    /// The timeout of a UDP flow without a reply; rounded down to seconds.
    pub udp: Option<Duration>,
    /// The timeout of a UDP flow with replies; rounded down to seconds.
    pub udp_stream: Option<Duration>,
}

/// kube-proxy's upper limit of `nf_conntrack_max`.
const MAX_CONNECTIONS: u32 = 1_048_576;

/// A setting and its desired value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The setting.
    pub file: File,
    /// Its desired value.
    pub value: DesiredValue,
    /// The action when another program changes it later.
    pub upkeep: Upkeep,
}

/// The action on a setting that another program changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// The daemon reports the change and keeps it.
    Once,
    /// The daemon restores the desired value.
    Restored,
}

/// The file of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// Under `/proc/sys`.
    Sysctl(&'static str),
    /// Under `/sys/module`.
    Module(&'static str),
}

/// The desired value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredValue {
    /// Exactly this value.
    Exactly(u64),
    /// This value or a larger one.
    AtLeast(u64),
}

/// The first two numbers of a kernel version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// Parses a release, such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release
            .split(|character: char| !character.is_ascii_digit())
            .map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

/// Returns the settings that a node needs, in the order in which to write them.
///
/// `ipvs` is the version of the kernel whose IPVS serves; `None` without IPVS.
pub fn desired_settings(
    config: &SysctlConfig,
    ipvs: Option<KernelVersion>,
    processors: u32,
) -> Vec<Setting> {
    let mut settings = ipvs.map_or_else(Vec::new, of_ipvs);
    let mut set = |name| settings.push(once(File::Sysctl(name), DesiredValue::Exactly(1)));
    set("net/ipv4/ip_forward");
    if config.strict_arp {
        // kube-proxy's values. With 1, the node answers only for addresses of the device that was
        // asked, and service addresses are on another one. With 2, it asks with an address of the
        // sending device, so neighbours learn no service address.
        set("net/ipv4/conf/all/arp_ignore");
        let announce = File::Sysctl("net/ipv4/conf/all/arp_announce");
        settings.push(once(announce, DesiredValue::Exactly(2)));
    }
    settings.extend(of_conntrack(&config.conntrack, processors));
    settings
}

fn once(file: File, value: DesiredValue) -> Setting {
    Setting {
        file,
        value,
        upkeep: Upkeep::Once,
    }
}

fn of_ipvs(kernel: KernelVersion) -> Vec<Setting> {
    // Before Linux 5.9 ("ipvs: allow connection reuse for unconfirmed conntrack"), a reused client
    // port costs a second of delay or reaches the wrong endpoint. Before 4.1 the setting does not
    // exist.
    let has_reuse_fault = (KernelVersion(4, 1)..KernelVersion(5, 9)).contains(&kernel);
    let settings = [
        // With 0, IPVS leaves its packets untracked, and nf_tables masquerades tracked packets only.
        Some(("net/ipv4/vs/conntrack", 1)),
        has_reuse_fault.then_some(("net/ipv4/vs/conn_reuse_mode", 0)),
        // A connection whose destination was removed expires at its next packet, so that the client's
        // retry gets another destination.
        Some(("net/ipv4/vs/expire_nodest_conn", 1)),
        // Session affinity does not send new connections to a draining destination.
        Some(("net/ipv4/vs/expire_quiescent_template", 1)),
    ];
    let restored = |(name, value)| Setting {
        file: File::Sysctl(name),
        value: DesiredValue::Exactly(value),
        upkeep: Upkeep::Restored,
    };
    settings.into_iter().flatten().map(restored).collect()
}

fn of_conntrack(conntrack: &Conntrack, processors: u32) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut set = |file, value| settings.push(once(file, value));
    if let Some(most) = max_connections(conntrack, processors) {
        let most = u64::from(most);
        let limit = File::Sysctl("net/netfilter/nf_conntrack_max");
        set(limit, DesiredValue::Exactly(most));
        let buckets = File::Module("nf_conntrack/parameters/hashsize");
        // As kube-proxy: four connections for each bucket, and never fewer buckets than before.
        set(buckets, DesiredValue::AtLeast(most / 4));
    }
    if conntrack.tcp_be_liberal {
        let liberal = File::Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal");
        set(liberal, DesiredValue::Exactly(1));
    }
    for (name, time) in [
        (
            "net/netfilter/nf_conntrack_tcp_timeout_established",
            conntrack.tcp_established,
        ),
        (
            "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            conntrack.tcp_close_wait,
        ),
        ("net/netfilter/nf_conntrack_udp_timeout", conntrack.udp),
        (
            "net/netfilter/nf_conntrack_udp_timeout_stream",
            conntrack.udp_stream,
        ),
    ] {
        if let Some(time) = time.filter(|time| !time.is_zero()) {
            set(File::Sysctl(name), DesiredValue::Exactly(time.as_secs()));
        }
    }
    settings
}

/// Returns the limit of tracked connections; `None` keeps the kernel's.
///
/// Combines `conntrack.maxPerCore` and `.min` as kube-proxy does. [`MAX_CONNECTIONS`] limits the
/// product of `maxPerCore` and the number of processors, but not the minimum.
fn max_connections(conntrack: &Conntrack, processors: u32) -> Option<u32> {
    let per_core = conntrack.max_per_core.filter(|&most| most > 0)?;
    let scaled = per_core.saturating_mul(processors);
    if scaled > MAX_CONNECTIONS {
        return Some(MAX_CONNECTIONS);
    }
    let most = scaled.max(conntrack.min.unwrap_or(0));
    (most > 0).then_some(most)
}

/// Returns the version of the running kernel.
pub(crate) fn kernel() -> Option<KernelVersion> {
    let uname = rustix::system::uname();
    KernelVersion::parse(uname.release().to_str().ok()?)
}

impl DesiredValue {
    fn is_met_by(self, found: u64) -> bool {
        match self {
            Self::Exactly(value) => found == value,
            Self::AtLeast(least) => found >= least,
        }
    }

    /// Returns the number to write.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Exactly(value) | Self::AtLeast(value) => value,
        }
    }
}

/// The argument of `sysctl -w`, or a path with its value.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.file, self.value.number())
    }
}

/// The name of the sysctl, or a path.
impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(path) => f.write_str(&path.replace('/', ".")),
            Self::Module(path) => write!(f, "/sys/module/{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(config: &SysctlConfig, kernel: KernelVersion) -> Vec<String> {
        let settings = desired_settings(config, Some(kernel), 4);
        settings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_settings_are_those_of_kube_proxy() {
        let always = [
            "net.ipv4.vs.conntrack=1",
            "net.ipv4.vs.expire_nodest_conn=1",
            "net.ipv4.vs.expire_quiescent_template=1",
            "net.ipv4.ip_forward=1",
        ];
        let plain = SysctlConfig::default();
        assert_eq!(lines(&plain, KernelVersion(6, 1)), always);
        assert_eq!(lines(&plain, KernelVersion(5, 9)), always);
        assert_eq!(lines(&plain, KernelVersion(3, 10)), always);
        for old in [KernelVersion(4, 1), KernelVersion(5, 8)] {
            assert_eq!(lines(&plain, old)[1], "net.ipv4.vs.conn_reuse_mode=0");
        }
        let strict = SysctlConfig {
            strict_arp: true,
            conntrack: Conntrack {
                max_per_core: Some(32_768),
                min: Some(131_072),
                tcp_established: Some(Duration::from_secs(86_400)),
                tcp_close_wait: Some(Duration::from_millis(1500)),
                tcp_be_liberal: true,
                udp: Some(Duration::ZERO),
                udp_stream: Some(Duration::from_millis(300)),
            },
        };
        assert_eq!(
            lines(&strict, KernelVersion(6, 1))[4..],
            [
                "net.ipv4.conf.all.arp_ignore=1",
                "net.ipv4.conf.all.arp_announce=2",
                "net.netfilter.nf_conntrack_max=131072",
                "/sys/module/nf_conntrack/parameters/hashsize=32768",
                "net.netfilter.nf_conntrack_tcp_be_liberal=1",
                "net.netfilter.nf_conntrack_tcp_timeout_established=86400",
                "net.netfilter.nf_conntrack_tcp_timeout_close_wait=1",
                "net.netfilter.nf_conntrack_udp_timeout_stream=0",
            ]
        );
    }

    #[test]
    fn the_connection_limit_scales_with_processors() {
        let most = |max_per_core, min, processors| {
            let conntrack = Conntrack {
                max_per_core,
                min,
                ..Conntrack::default()
            };
            max_connections(&conntrack, processors)
        };
        assert_eq!(most(None, Some(131_072), 8), None);
        assert_eq!(most(Some(0), Some(131_072), 8), None);
        assert_eq!(most(Some(32_768), Some(131_072), 8), Some(262_144));
        assert_eq!(most(Some(32_768), Some(131_072), 2), Some(131_072));
        assert_eq!(most(Some(32_768), Some(131_072), 64), Some(1_048_576));
        assert_eq!(most(Some(1), Some(2_000_000), 2), Some(2_000_000));
    }

    #[test]
    fn kernel_releases_are_parsed() {
        let version = KernelVersion::parse;
        assert_eq!(
            version("6.1.0-18-amd64").unwrap_or(KernelVersion(0, 0)),
            KernelVersion(6, 1)
        );
        assert_eq!(version("5.10+"), Some(KernelVersion(5, 10)));
        assert_eq!(version("6"), None);
        assert_eq!(version("x.y"), None);
    }
}
