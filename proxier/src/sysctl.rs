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
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

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
    /// What happens when another program changes it later.
    pub upkeep: Upkeep,
}

/// What happens to a setting that another program changes.
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
pub fn desired_settings(
    config: &SysctlConfig,
    kernel: KernelVersion,
    processors: u32,
) -> Vec<Setting> {
    use File::{Module, Sysctl};
    let mut settings = Vec::new();
    let exactly = DesiredValue::Exactly;
    let mut restore = |file, value| {
        settings.push(Setting {
            file: Sysctl(file),
            value: exactly(value),
            upkeep: Upkeep::Restored,
        });
    };

    // With 0, IPVS leaves its packets untracked, and nf_tables masquerades tracked packets only.
    restore("net/ipv4/vs/conntrack", 1);
    // Before Linux 5.9 ("ipvs: allow connection reuse for unconfirmed conntrack"), a reused client
    // port costs a second of delay or reaches the wrong endpoint. Before 4.1 the setting does not
    // exist.
    if (KernelVersion(4, 1)..KernelVersion(5, 9)).contains(&kernel) {
        restore("net/ipv4/vs/conn_reuse_mode", 0);
    }
    // A connection whose destination was removed expires at its next packet, so that the client's
    // retry gets another destination.
    restore("net/ipv4/vs/expire_nodest_conn", 1);
    // Session affinity does not send new connections to a draining destination.
    restore("net/ipv4/vs/expire_quiescent_template", 1);

    let mut set = |file, value| {
        settings.push(Setting {
            file,
            value,
            upkeep: Upkeep::Once,
        });
    };
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
    /// The settings that were written for the first time, with their previous values, if readable.
    pub written: Vec<(Setting, Option<u64>)>,
    /// The settings that were written again, with the values of another program, if readable.
    pub restored: Vec<(Setting, Option<u64>)>,
    /// The settings that another program changed since the last report, with their new values.
    pub changed: Vec<(Setting, u64)>,
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
        Keeper::new(self.clone(), settings.to_vec()).check()
    }

    fn path(&self, file: File) -> PathBuf {
        match file {
            File::Sysctl(name) => self.sysctl.join(name),
            File::Module(name) => self.module.join(name),
        }
    }
}

/// Writes settings once, restores some of them, and notices changes of the others.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    roots: Roots,
    settings: Vec<KeptSetting>,
}

#[derive(Clone, Debug)]
struct KeptSetting {
    setting: Setting,
    /// Its last known value; `None` until it had the desired value once.
    last: Option<u64>,
}

impl Keeper {
    /// Returns a keeper that has written nothing yet.
    pub(crate) fn new(roots: Roots, settings: Vec<Setting>) -> Self {
        let kept = |setting| KeptSetting {
            setting,
            last: None,
        };
        Self {
            roots,
            settings: settings.into_iter().map(kept).collect(),
        }
    }

    /// Reads all settings, writes those that are new or to be restored, and returns the differences.
    ///
    /// Each call tries again to write a setting that failed before: the kernel may lack it only until
    /// a module is loaded.
    pub(crate) fn check(&mut self) -> Report {
        let mut report = Report::default();
        for kept in &mut self.settings {
            kept.check(&self.roots, &mut report);
        }
        report
    }
}

impl KeptSetting {
    fn check(&mut self, roots: &Roots, report: &mut Report) {
        let setting = self.setting;
        let path = roots.path(setting.file);
        let found = read(&path);
        let is_first = self.last.is_none();
        let is_met = found.is_some_and(|found| setting.value.is_met_by(found));
        if is_met || !(is_first || setting.upkeep == Upkeep::Restored) {
            if let Some(found) = found {
                let last = self.last.replace(found);
                if !is_met && last != Some(found) {
                    report.changed.push((setting, found));
                }
            }
            return;
        }
        let value = setting.value.number();
        match write(&path, value) {
            Ok(()) => {
                // The kernel may round the value. Comparing with the written one would then report a
                // change by another program.
                self.last = Some(read(&path).unwrap_or(value));
                match is_first {
                    true => report.written.push((setting, found)),
                    false => report.restored.push((setting, found)),
                }
            }
            Err(error) => report.failed.push(FailedSetting {
                setting,
                found,
                errno: Errno::from_io_error(&error),
            }),
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

    fn once(file: File, value: DesiredValue) -> Setting {
        Setting {
            file,
            value,
            upkeep: Upkeep::Once,
        }
    }

    #[test]
    fn only_differences_are_written() {
        let (directory, roots) = sandbox();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("net/ipv4/vs")).unwrap();
        std::fs::write(at("net/ipv4/vs/conntrack"), "0\n").unwrap();
        std::fs::write(at("net/ipv4/ip_forward"), "1\n").unwrap();
        let settings = [
            "net/ipv4/vs/conntrack",
            "net/ipv4/ip_forward",
            "net/ipv4/missing",
        ]
        .map(|name| once(File::Sysctl(name), DesiredValue::Exactly(1)));
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
        let setting = once(File::Module("size"), DesiredValue::AtLeast(100));
        std::fs::write(&path, "200").unwrap();
        assert_eq!(roots.apply(&[setting]), Report::default());
        std::fs::write(&path, "99").unwrap();
        assert_eq!(roots.apply(&[setting]).written, [(setting, Some(99))]);
    }

    #[test]
    fn a_later_change_is_reported_once_and_stays() {
        let (directory, roots) = sandbox();
        let path = directory.path().join("max");
        let setting = once(File::Sysctl("max"), DesiredValue::Exactly(131_072));
        let mut keeper = Keeper::new(roots, vec![setting]);
        // Until the kernel has the setting, each check tries to write it.
        assert_eq!(keeper.check().failed.len(), 1);
        std::fs::write(&path, "65536").unwrap();
        assert_eq!(keeper.check().written, [(setting, Some(65_536))]);
        assert_eq!(keeper.check(), Report::default());
        for raised in [500_000, 1_000_000] {
            std::fs::write(&path, raised.to_string()).unwrap();
            assert_eq!(keeper.check().changed, [(setting, raised)]);
            assert_eq!(keeper.check(), Report::default());
            assert_eq!(read(&path), Some(raised));
        }
        std::fs::write(&path, "131072").unwrap();
        assert_eq!(keeper.check(), Report::default());
        std::fs::write(&path, "1000000").unwrap();
        assert_eq!(keeper.check().changed, [(setting, 1_000_000)]);
    }

    #[test]
    fn only_settings_of_ipvs_are_restored() {
        let settings = desired_settings(&SysctlConfig::default(), KernelVersion(5, 4), 1);
        let is_of_ipvs = |setting: &Setting| setting.to_string().starts_with("net.ipv4.vs.");
        for setting in &settings {
            let is_restored = setting.upkeep == Upkeep::Restored;
            assert_eq!(is_restored, is_of_ipvs(setting), "{setting}");
        }
        let (directory, roots) = sandbox();
        std::fs::create_dir_all(directory.path().join("net/ipv4/vs")).unwrap();
        let path = directory.path().join("net/ipv4/vs/conntrack");
        let mut keeper = Keeper::new(roots, settings[..1].to_vec());
        std::fs::write(&path, "0").unwrap();
        assert_eq!(keeper.check().written, [(settings[0], Some(0))]);
        std::fs::write(&path, "0").unwrap();
        assert_eq!(keeper.check().restored, [(settings[0], Some(0))]);
        assert_eq!(read(&path), Some(1));
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
            failed: failed.collect(),
            ..Report::default()
        };
        let [line] = &report.warnings()[..] else {
            panic!("{:?}", report.warnings());
        };
        assert!(line.contains("read-only") && line.contains("net.ipv4.ip_forward=1"));
    }
}
