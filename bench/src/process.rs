//! Processes: how to find programs, their CPU time and their memory.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Resident memory (`VmRSS`).
    pub(crate) resident: u64,
    /// The part of it that no file backs (`RssAnon`): heap and stacks.
    pub(crate) anonymous: u64,
    /// The highest value of `resident` so far (`VmHWM`).
    pub(crate) peak: u64,
}

impl Memory {
    pub(crate) fn of(process: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{process}/status");
        let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let field = |name: &str| -> anyhow::Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            let number = number.with_context(|| format!("{path} has no {name}"))?;
            Ok(number.parse()?)
        };
        Ok(Self {
            resident: field("VmRSS:")?,
            anonymous: field("RssAnon:")?,
            peak: field("VmHWM:")?,
        })
    }

    /// Makes the present resident memory of a process its peak.
    pub(crate) fn reset_peak(process: u32) -> anyhow::Result<()> {
        let path = format!("/proc/{process}/clear_refs");
        // 5 resets the peak and leaves the pages alone (proc(5)).
        std::fs::write(&path, "5").with_context(|| format!("writing {path}"))
    }
}

/// CPU time of a process, in seconds.
///
/// The kernel counts the sum exactly and divides it into user and system time by samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) user: f64,
    pub(crate) system: f64,
    /// User and system time of child processes that have ended.
    pub(crate) children: f64,
}

impl Cpu {
    pub(crate) fn of(process: u32) -> anyhow::Result<Self> {
        read_stat(process, Self::parse)
    }

    /// Reads the fields 14 to 17 of proc(5), which follow the name in brackets.
    fn parse(stat: &str) -> Option<Self> {
        /// User-Mode Linux and all common kernels count in units of 10 ms.
        const TICKS: f64 = 100.0;
        let times = fields(stat, 14)?.take(4);
        let times: Result<Vec<f64>, _> = times.map(str::parse).collect();
        let &[user, system, child_user, child_system] = times.ok()?.as_slice() else {
            return None;
        };
        Some(Self {
            user: user / TICKS,
            system: system / TICKS,
            children: (child_user + child_system) / TICKS,
        })
    }

    pub(crate) fn all(self) -> f64 {
        self.user + self.system + self.children
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            user: self.user - before.user,
            system: self.system - before.system,
            children: self.children - before.children,
        }
    }
}

/// Returns the number of page faults of a process.
pub(crate) fn page_faults(process: u32) -> anyhow::Result<u64> {
    read_stat(process, |stat| {
        // Fields 10 and 12 of proc(5): without and with a read of the file.
        let mut faults = fields(stat, 10)?.step_by(2);
        Some(faults.next()?.parse::<u64>().ok()? + faults.next()?.parse::<u64>().ok()?)
    })
}

/// Reads `/proc/PROCESS/stat` with `parse`.
fn read_stat<T>(process: u32, parse: impl Fn(&str) -> Option<T>) -> anyhow::Result<T> {
    let path = format!("/proc/{process}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    parse(&stat).with_context(|| format!("{path} has another format: {stat}"))
}

/// Returns the fields of proc(5) from number `first` on, at least 3, the first one behind the name.
fn fields(stat: &str, first: usize) -> Option<impl Iterator<Item = &str>> {
    // From the last bracket: the name may contain brackets and spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().skip(first - 3))
}

/// Returns the CPU time of this thread, system time included.
///
/// Unlike the time of day, it excludes the time of other programs.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the command that runs a tool for administrators.
///
/// The `PATH` of other users often lacks the directories of such tools.
pub(crate) fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    command
}

/// Returns the executable `ipvs-proxier`: `given`, or the one in this program's directory.
pub(crate) fn proxier(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    match given {
        Some(path) => Ok(path),
        None => Ok(std::env::current_exe()
            .context("finding this program")?
            .with_file_name("ipvs-proxier")),
    }
}

/// Returns a unique path for a temporary file.
///
/// The name contains the time: lab kernels share the host's file system and assign equal process
/// ids.
pub(crate) fn temporary(what: &str) -> PathBuf {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let process = std::process::id();
    let name = format!("bench-{what}-{process}-{}", since.as_nanos());
    std::env::temp_dir().join(name)
}

/// Runs `ip` with these arguments, separated by spaces.
pub(crate) fn ip(arguments: &str) -> anyhow::Result<()> {
    let status = tool("ip")
        .args(arguments.split(' '))
        .status()
        .context("running ip (install the package iproute2)")?;
    ensure!(status.success(), "ip {arguments}: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_name_in_brackets() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 300 100 20 0 1 0 5";
        let cpu = Cpu::parse(stat).unwrap();
        assert_eq!((cpu.user, cpu.system, cpu.children), (1.5, 0.5, 4.0));
        assert_eq!(Cpu::parse("7 (a) S 1"), None);
        assert!(Cpu::of(std::process::id()).unwrap().all() >= 0.0);
    }

    #[test]
    fn this_process_has_page_faults() {
        let before = page_faults(std::process::id()).unwrap();
        std::hint::black_box(vec![1_u8; 16 << 20]);
        assert!(page_faults(std::process::id()).unwrap() > before);
    }

    #[test]
    fn this_process_has_memory() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.peak >= memory.resident && memory.resident > memory.anonymous);
    }
}
