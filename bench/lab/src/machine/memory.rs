//! The guest's main memory, a file on the host that the kernel maps.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Result, bail};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

/// An amount of memory, in whole mebibytes, at least 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Memory(u32);

impl Memory {
    /// The default amount. The host allocates only what the guest uses.
    pub const DEFAULT: Self = Self(1024);

    fn bytes(self) -> u64 {
        u64::from(self.0) << 20
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}M", self.0)
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an amount of memory; write 512M or 2G");
        let (digits, factor) = match text.as_bytes().last() {
            Some(b'M' | b'm') => (&text[..text.len() - 1], 1),
            Some(b'G' | b'g') => (&text[..text.len() - 1], 1024),
            _ => return Err(wrong()),
        };
        let count: u32 = digits.parse().map_err(|_| wrong())?;
        match count.checked_mul(factor) {
            Some(mebibytes @ 32..) => Ok(Self(mebibytes)),
            Some(_) => Err("a guest needs at least 32M".into()),
            None => Err(wrong()),
        }
    }
}

/// Returns a directory for the memory file, which the kernel opens and unlinks at once.
///
/// It is the first usable one of `$TMPDIR`, /dev/shm, /tmp and /var/tmp. The guest executes code
/// from its memory, so a file system with `noexec` is unusable. Docker mounts /dev/shm with
/// `noexec`. If the file system is full, SIGBUS kills the guest.
pub(super) fn directory(memory: Memory) -> Result<PathBuf> {
    let named = env::var_os("TMPDIR").filter(|name| !name.is_empty());
    let candidates = named.map(PathBuf::from).into_iter().chain(
        ["/dev/shm", "/tmp", "/var/tmp"]
            .into_iter()
            .map(PathBuf::from),
    );
    let mut reasons = Vec::new();
    for directory in candidates {
        match fault(&directory, memory) {
            None => return Ok(directory),
            Some(reason) => reasons.push(format!("{} {reason}", directory.display())),
        }
    }
    bail!(
        "no directory for the guest's memory ({memory}): {}; \
         set TMPDIR to a directory with more space, or use less with --memory",
        reasons.join(", ")
    )
}

/// Returns why `directory` cannot hold the memory file, or `None` if it can.
fn fault(directory: &Path, memory: Memory) -> Option<String> {
    if !directory.is_absolute() {
        return Some("is not an absolute path".into());
    }
    if !directory.is_dir() {
        return Some("is not a directory".into());
    }
    if access(directory, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Some("is not writable".into());
    }
    let stat = match statvfs(directory) {
        Ok(stat) => stat,
        Err(error) => return Some(format!("cannot be examined: {error}")),
    };
    if stat.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Some("is mounted noexec".into());
    }
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    (free < memory.bytes()).then(|| format!("has only {} MiB free", free >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_mebibytes() {
        assert_eq!("512M".parse(), Ok(Memory(512)));
        assert_eq!("2g".parse(), Ok(Memory(2048)));
        assert_eq!(Memory(2048).to_string(), "2048M");
        for wrong in ["", "M", "1024", "1k", "-1M", "16M", "4294967295G", "é"] {
            assert!(wrong.parse::<Memory>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_unusable_directory_has_a_reason() {
        assert_eq!(
            fault(Path::new("tmp"), Memory(32)).unwrap(),
            "is not an absolute path"
        );
        assert_eq!(
            fault(Path::new("/proc/self/exe"), Memory(32)).unwrap(),
            "is not a directory"
        );
        let everything = Memory(u32::MAX);
        assert!(
            fault(Path::new("/tmp"), everything)
                .unwrap()
                .contains("free")
        );
    }
}
