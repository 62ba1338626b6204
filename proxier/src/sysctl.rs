//! The kernel settings that services need: read first, written only where they differ.
//!
//! [`wanted`] is a pure function of what the operator chose, the kernel's version and the number of
//! processors; [`Roots::apply`] does it. The list is kube-proxy's.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

/// What the operator chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Service addresses are not announced on any link (`--ipvs-strict-arp`).
    pub strict_arp: bool,
    /// Connection tracking.
    pub conntrack: Conntrack,
}

/// The settings of connection tracking (`conntrack` in kube-proxy's configuration). `None`, and a
/// time of 0, leave the kernel's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// How many connections per processor are tracked at most; 0 leaves the kernel's limit.
    pub max_per_core: Option<u32>,
    /// How many are tracked at most, where `max_per_core` gives less.
    pub min: Option<u32>,
    /// How long an idle TCP connection is remembered; whole seconds.
    pub tcp_established: Option<Duration>,
    /// How long a half-closed one is; whole seconds.
    pub tcp_close_wait: Option<Duration>,
    /// Packets outside the TCP window are no reason to call them invalid.
    pub tcp_be_liberal: bool,
    /// How long a UDP flow without an answer is remembered; whole seconds.
    pub udp: Option<Duration>,
    /// How long one with answers is; whole seconds.
    pub udp_stream: Option<Duration>,
}

/// kube-proxy's bound of what it asks of the kernel.
const MOST_CONNECTIONS: u32 = 1_048_576;

/// A setting, and what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Where it is.
    pub file: File,
    /// What it should be.
    pub value: Wanted,
}

/// Where a setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// Under `/proc/sys`.
    Sysctl(&'static str),
    /// Under `/sys/module`.
    Module(&'static str),
}

/// What a setting should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// This.
    Exactly(u64),
    /// This or more.
    AtLeast(u64),
}

/// A version of the kernel: its first two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// Reads a release, such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release
            .split(|character: char| !character.is_ascii_digit())
            .map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

/// The settings that a node needs, in the order in which to write them.
pub fn wanted(config: &Config, kernel: KernelVersion, processors: u32) -> Vec<Setting> {
    use File::{Module, Sysctl};
    let mut settings = Vec::new();
    let mut set = |file, value| settings.push(Setting { file, value });
    let exactly = Wanted::Exactly;

    // Without it nothing that IPVS sends is masqueraded.
    set(Sysctl("net/ipv4/vs/conntrack"), exactly(1));
    // Reused ports cost a second of delay or a wrong endpoint, until the kernel learnt to tell
    // (Linux 5.9, "ipvs: allow connection reuse for unconfirmed conntrack"). Before 4.1 there is no
    // such setting.
    if (KernelVersion(4, 1)..KernelVersion(5, 9)).contains(&kernel) {
        set(Sysctl("net/ipv4/vs/conn_reuse_mode"), exactly(0));
    }
    // What was sent to a removed destination finds another one at once.
    set(Sysctl("net/ipv4/vs/expire_nodest_conn"), exactly(1));
    // Affinity does not hold clients to a destination that is going.
    set(Sysctl("net/ipv4/vs/expire_quiescent_template"), exactly(1));
    set(Sysctl("net/ipv4/ip_forward"), exactly(1));
    if config.strict_arp {
        set(Sysctl("net/ipv4/conf/all/arp_ignore"), exactly(1));
        set(Sysctl("net/ipv4/conf/all/arp_announce"), exactly(2));
    }

    let conntrack = &config.conntrack;
    if let Some(most) = most_connections(conntrack, processors) {
        let most = u64::from(most);
        set(Sysctl("net/netfilter/nf_conntrack_max"), exactly(most));
        let hash_size = Module("nf_conntrack/parameters/hashsize");
        set(hash_size, Wanted::AtLeast(most / 4));
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

/// `conntrack.maxPerCore` and `.min` as kube-proxy takes them: the bound wins over a larger minimum
/// only when the processors alone go beyond it.
fn most_connections(conntrack: &Conntrack, processors: u32) -> Option<u32> {
    let per_core = conntrack.max_per_core.filter(|&most| most > 0)?;
    let scaled = per_core.saturating_mul(processors);
    if scaled > MOST_CONNECTIONS {
        return Some(MOST_CONNECTIONS);
    }
    let most = scaled.max(conntrack.min.unwrap_or(0));
    (most > 0).then_some(most)
}

/// Where the settings of the machine are.
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

/// What became of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was written, with the value before, if it could be read.
    pub written: Vec<(Setting, Option<u64>)>,
    /// What is not as it should be.
    pub refused: Vec<Refused>,
}

/// A setting that could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The setting.
    pub setting: Setting,
    /// The value that it has, if it could be read.
    pub found: Option<u64>,
    /// Why.
    pub errno: Option<Errno>,
}

impl Roots {
    /// The settings of another machine, or of a test.
    pub fn at(sysctl: impl Into<PathBuf>, module: impl Into<PathBuf>) -> Self {
        Self {
            sysctl: sysctl.into(),
            module: module.into(),
        }
    }

    /// Makes `settings` what they should be, and says what that took.
    ///
    /// Writes nothing where nothing differs; a failure stops nothing else.
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
                Err(error) => report.refused.push(Refused {
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

/// The machine's kernel, as `/proc/sys/kernel/osrelease` has it.
pub fn kernel() -> Option<KernelVersion> {
    let uname = rustix::system::uname();
    KernelVersion::parse(uname.release().to_str().ok()?)
}

fn read(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn write(path: &Path, value: u64) -> io::Result<()> {
    // Not created: a setting that the kernel does not have is not made by making a file.
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, value.to_string().as_bytes())
}

impl Wanted {
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

/// As `sysctl -w` takes it, or a path with its value.
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
    /// What an operator should know, one line for each reason. Empty when all is well.
    pub fn complaints(&self) -> Vec<String> {
        let is_locked = |refused: &&Refused| {
            matches!(
                refused.errno,
                Some(Errno::ROFS | Errno::ACCESS | Errno::PERM)
            )
        };
        let mut lines = Vec::new();
        let locked: Vec<String> = self
            .refused
            .iter()
            .filter(is_locked)
            .map(|refused| refused.setting.to_string())
            .collect();
        if !locked.is_empty() {
            lines.push(format!(
                "kernel settings are read-only for this process (a container has to be privileged \
                 for that); set them on the node: {}",
                locked.join(" ")
            ));
        }
        for refused in self.refused.iter().filter(|refused| !is_locked(refused)) {
            let reason = match refused.errno {
                Some(Errno::NOENT) => "this kernel has no such setting".to_owned(),
                Some(errno) => io::Error::from(errno).to_string(),
                None => "it could not be written".to_owned(),
            };
            lines.push(format!("{}: {reason}", refused.setting));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(config: &Config, kernel: KernelVersion) -> Vec<String> {
        let settings = wanted(config, kernel, 4);
        settings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_kube_proxy_sets() {
        let always = [
            "net.ipv4.vs.conntrack=1",
            "net.ipv4.vs.expire_nodest_conn=1",
            "net.ipv4.vs.expire_quiescent_template=1",
            "net.ipv4.ip_forward=1",
        ];
        let plain = Config::default();
        assert_eq!(lines(&plain, KernelVersion(6, 1)), always);
        assert_eq!(lines(&plain, KernelVersion(5, 9)), always);
        assert_eq!(lines(&plain, KernelVersion(3, 10)), always);
        for old in [KernelVersion(4, 1), KernelVersion(5, 8)] {
            assert_eq!(lines(&plain, old)[1], "net.ipv4.vs.conn_reuse_mode=0");
        }
        let strict = Config {
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
    fn connections_scale_with_processors() {
        let most = |max_per_core, min, processors| {
            let conntrack = Conntrack {
                max_per_core,
                min,
                ..Conntrack::default()
            };
            most_connections(&conntrack, processors)
        };
        assert_eq!(most(None, Some(131_072), 8), None);
        assert_eq!(most(Some(0), Some(131_072), 8), None);
        assert_eq!(most(Some(32_768), Some(131_072), 8), Some(262_144));
        assert_eq!(most(Some(32_768), Some(131_072), 2), Some(131_072));
        assert_eq!(most(Some(32_768), Some(131_072), 64), Some(1_048_576));
        assert_eq!(most(Some(1), Some(2_000_000), 2), Some(2_000_000));
    }

    #[test]
    fn releases() {
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
                value: Wanted::Exactly(1),
            },
            Setting {
                file: File::Sysctl("net/ipv4/ip_forward"),
                value: Wanted::Exactly(1),
            },
            Setting {
                file: File::Sysctl("net/ipv4/missing"),
                value: Wanted::Exactly(1),
            },
        ];
        let report = roots.apply(&settings);
        assert_eq!(report.written, [(settings[0], Some(0))]);
        assert_eq!(
            report.complaints(),
            ["net.ipv4.missing=1: this kernel has no such setting"]
        );
        assert!(!at("net/ipv4/missing").exists());
        assert_eq!(roots.apply(&settings[..2]), Report::default());
    }

    #[test]
    fn more_than_enough_is_left_alone() {
        let (directory, roots) = sandbox();
        std::fs::create_dir(directory.path().join("module")).unwrap();
        let path = directory.path().join("module/size");
        let setting = Setting {
            file: File::Module("size"),
            value: Wanted::AtLeast(100),
        };
        std::fs::write(&path, "200").unwrap();
        assert_eq!(roots.apply(&[setting]), Report::default());
        std::fs::write(&path, "99").unwrap();
        assert_eq!(roots.apply(&[setting]).written, [(setting, Some(99))]);
    }

    #[test]
    fn read_only_settings_are_explained_in_one_line() {
        let settings = wanted(&Config::default(), KernelVersion(6, 1), 1);
        let refused = settings.iter().map(|&setting| Refused {
            setting,
            found: Some(0),
            errno: Some(Errno::ROFS),
        });
        let report = Report {
            written: Vec::new(),
            refused: refused.collect(),
        };
        let [line] = &report.complaints()[..] else {
            panic!("{:?}", report.complaints());
        };
        assert!(line.contains("read-only") && line.contains("net.ipv4.ip_forward=1"));
    }
}
