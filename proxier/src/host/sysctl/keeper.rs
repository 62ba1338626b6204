//! Writes settings once, restores some of them, and notices changes of the others.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{File, Setting, Upkeep};

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

fn read(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn write(path: &Path, value: u64) -> io::Result<()> {
    // `create` is not set: outside of /proc a file would be created for a setting that the kernel
    // lacks.
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, value.to_string().as_bytes())
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
    use crate::host::sysctl::{DesiredValue, KernelVersion, SysctlConfig, desired_settings};

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
        let settings = desired_settings(&SysctlConfig::default(), Some(KernelVersion(5, 4)), 1);
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
        let settings = desired_settings(&SysctlConfig::default(), Some(KernelVersion(6, 1)), 1);
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
