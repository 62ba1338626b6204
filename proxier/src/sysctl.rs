//! The kernel settings that services need. A setting is written only if it differs.
//!
//! [`desired_settings`] is a pure function of the configuration, the kernel's version and the number
//! of processors. [`Roots::apply`] writes the settings. The list is kube-proxy's.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

/// The operator's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysctlConfig {
    /// Whether to send no ARP replies for service addresses (`--ipvs-strict-arp`).
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
pub fn desired_settings(
    config: &SysctlConfig,
    kernel: KernelVersion,
    processors: u32,
) -> Vec<Setting> {
    use File::{Module, Sysctl};
    let mut settings = Vec::new();
    let mut set = |file, value| settings.push(Setting { file, value });
    let exactly = DesiredValue::Exactly;

    // IPVS leaves its packets untracked unless this is set, so none of them would be masqueraded.
    set(Sysctl("net/ipv4/vs/conntrack"), exactly(1));
    // Before Linux 5.9 ("ipvs: allow connection reuse for unconfirmed conntrack"), a reused client
    // port costs a second of delay or reaches the wrong endpoint. Before 4.1 the setting does not
    // exist.
    if (KernelVersion(4, 1)..KernelVersion(5, 9)).contains(&kernel) {
        set(Sysctl("net/ipv4/vs/conn_reuse_mode"), exactly(0));
    }
    // A connection whose destination was removed expires at its next packet, so that the client's
    // retry gets another destination.
    set(Sysctl("net/ipv4/vs/expire_nodest_conn"), exactly(1));
    // Session affinity does not send new connections to a draining destination.
    set(Sysctl("net/ipv4/vs/expire_quiescent_template"), exactly(1));
    set(Sysctl("net/ipv4/ip_forward"), exactly(1));
    if config.strict_arp {
        set(Sysctl("net/ipv4/conf/all/arp_ignore"), exactly(1));
        set(Sysctl("net/ipv4/conf/all/arp_announce"), exactly(2));
    }

    let conntrack = &config.conntrack;
    if let Some(most) = max_connections(conntrack, processors) {
        let most = u64::from(most);
        set(Sysctl("net/netfilter/nf_conntrack_max"), exactly(most));
        let hash_size = Module("nf_conntrack/parameters/hashsize");
        set(hash_size, DesiredValue::AtLeast(most / 4));
    }
    if conntrack.tcp_be_liberal {
        set(
            Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal"),
            exactly(1),
        );
    }
    for (file, time) in [
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
            set(Sysctl(file), exactly(time.as_secs()));
        }
    }
    settings
}

/// Combines `conntrack.maxPerCore` and `.min` as kube-proxy does: [`MAX_CONNECTIONS`] limits only the
/// product with the processors, not a larger minimum.
fn max_connections(conntrack: &Conntrack, processors: u32) -> Option<u32> {
    let per_core = conntrack.max_per_core.filter(|&most| most > 0)?;
    let scaled = per_core.saturating_mul(processors);
    if scaled > MAX_CONNECTIONS {
        return Some(MAX_CONNECTIONS);
    }
    let most = scaled.max(conntrack.min.unwrap_or(0));
    (most > 0).then_some(most)
}

/// The directories of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    sysctl: PathBuf,
    module: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self::at("/proc/sys", "/sys/module")
    }
}

/// The result of applying settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The settings that were written, with their previous values, if readable.
    pub written: Vec<(Setting, Option<u64>)>,
    /// The settings that could not be written.
    pub failed: Vec<FailedSetting>,
}

/// A setting that could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSetting {
    /// The setting.
    pub setting: Setting,
    /// Its current value, if readable.
    pub found: Option<u64>,
    /// The reason.
    pub errno: Option<Errno>,
}

impl Roots {
    /// Returns other directories, for tests.
    pub fn at(sysctl: impl Into<PathBuf>, module: impl Into<PathBuf>) -> Self {
        Self {
            sysctl: sysctl.into(),
            module: module.into(),
        }
    }

    /// Writes those of `settings` whose values differ, and returns the result.
    ///
    /// A failure does not affect the other settings.
    pub fn apply(&self, settings: &[Setting]) -> Report {
        let mut report = Report::default();
        for &setting in settings {
            let path = self.path(setting.file);
            let found = read(&path);
            if found.is_some_and(|found| setting.value.is_met_by(found)) {
                continue;
            }
            match write(&path, setting.value.number()) {
                Ok(()) => report.written.push((setting, found)),
                Err(error) => report.failed.push(FailedSetting {
                    setting,
                    found,
                    errno: Errno::from_io_error(&error),
                }),
            }
        }
        report
    }

    fn path(&self, file: File) -> PathBuf {
        match file {
            File::Sysctl(name) => self.sysctl.join(name),
            File::Module(name) => self.module.join(name),
        }
    }
}

/// Returns the version of the running kernel.
pub(crate) fn kernel() -> Option<KernelVersion> {
    let uname = rustix::system::uname();
    KernelVersion::parse(uname.release().to_str().ok()?)
}

fn read(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn write(path: &Path, value: u64) -> io::Result<()> {
    // `create` is not set: outside of /proc a file would be created for a setting that the kernel
    // lacks.
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, value.to_string().as_bytes())
}

impl DesiredValue {
    fn is_met_by(self, found: u64) -> bool {
        match self {
            Self::Exactly(value) => found == value,
            Self::AtLeast(least) => found >= least,
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::Exactly(value) | Self::AtLeast(value) => value,
        }
    }
}

/// The argument of `sysctl -w`, or a path with its value.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.number();
        match self.file {
            File::Sysctl(path) => write!(f, "{}={value}", path.replace('/', ".")),
            File::Module(path) => write!(f, "/sys/module/{path}={value}"),
        }
    }
}

impl Report {
    /// Returns one line for each reason of a failure; empty without failures.
    pub fn warnings(&self) -> Vec<String> {
        let is_locked = |failed: &&FailedSetting| {
            matches!(
                failed.errno,
                Some(Errno::ROFS | Errno::ACCESS | Errno::PERM)
            )
        };
        let mut lines = Vec::new();
        let locked: Vec<String> = self
            .failed
            .iter()
            .filter(is_locked)
            .map(|failed| failed.setting.to_string())
            .collect();
        if !locked.is_empty() {
            lines.push(format!(
                "kernel settings are read-only for this process (only a privileged container can write \
                 them); set them on the node: {}",
                locked.join(" ")
            ));
        }
        for failed in self.failed.iter().filter(|failed| !is_locked(failed)) {
            let reason = match failed.errno {
                Some(Errno::NOENT) => "this kernel lacks the setting".to_owned(),
                Some(errno) => io::Error::from(errno).to_string(),
                None => "writing failed".to_owned(),
            };
            lines.push(format!("{}: {reason}", failed.setting));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(config: &SysctlConfig, kernel: KernelVersion) -> Vec<String> {
        let settings = desired_settings(config, kernel, 4);
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

    fn sandbox() -> (tempfile::TempDir, Roots) {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::at(directory.path(), directory.path().join("module"));
        (directory, roots)
    }

    #[test]
    fn only_differences_are_written() {
        let (directory, roots) = sandbox();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("net/ipv4/vs")).unwrap();
        std::fs::write(at("net/ipv4/vs/conntrack"), "0\n").unwrap();
        std::fs::write(at("net/ipv4/ip_forward"), "1\n").unwrap();
        let settings = [
            Setting {
                file: File::Sysctl("net/ipv4/vs/conntrack"),
                value: DesiredValue::Exactly(1),
            },
            Setting {
                file: File::Sysctl("net/ipv4/ip_forward"),
                value: DesiredValue::Exactly(1),
            },
            Setting {
                file: File::Sysctl("net/ipv4/missing"),
                value: DesiredValue::Exactly(1),
            },
        ];
        let report = roots.apply(&settings);
        assert_eq!(report.written, [(settings[0], Some(0))]);
        assert_eq!(
            report.warnings(),
            ["net.ipv4.missing=1: this kernel lacks the setting"]
        );
        assert!(!at("net/ipv4/missing").exists());
        assert_eq!(roots.apply(&settings[..2]), Report::default());
    }

    #[test]
    fn a_value_above_the_minimum_is_kept() {
        let (directory, roots) = sandbox();
        std::fs::create_dir(directory.path().join("module")).unwrap();
        let path = directory.path().join("module/size");
        let setting = Setting {
            file: File::Module("size"),
            value: DesiredValue::AtLeast(100),
        };
        std::fs::write(&path, "200").unwrap();
        assert_eq!(roots.apply(&[setting]), Report::default());
        std::fs::write(&path, "99").unwrap();
        assert_eq!(roots.apply(&[setting]).written, [(setting, Some(99))]);
    }

    #[test]
    fn read_only_settings_are_explained_in_one_line() {
        let settings = desired_settings(&SysctlConfig::default(), KernelVersion(6, 1), 1);
        let failed = settings.iter().map(|&setting| FailedSetting {
            setting,
            found: Some(0),
            errno: Some(Errno::ROFS),
        });
        let report = Report {
            written: Vec::new(),
            failed: failed.collect(),
        };
        let [line] = &report.warnings()[..] else {
            panic!("{:?}", report.warnings());
        };
        assert!(line.contains("read-only") && line.contains("net.ipv4.ip_forward=1"));
    }
}
