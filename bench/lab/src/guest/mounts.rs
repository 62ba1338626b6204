//! The file systems of a usual Linux system. The root is the host's, /dev the guest kernel's.

use std::{fs, os::unix::fs::symlink};

use anyhow::{Context, Result};
use rustix::{
    io::Errno,
    mount::{MountFlags, mount},
};

/// Mounts all file systems and creates the links in /dev.
pub(super) fn all() -> Result<()> {
    for &(kind, target, data) in MOUNTS {
        if target.starts_with("/dev/") {
            fs::create_dir_all(target).with_context(|| format!("making {target}"))?;
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let flags = match kind {
            "devpts" => flags - MountFlags::NODEV,
            _ => flags,
        };
        let data = std::ffi::CString::new(data)?;
        match mount(kind, target, kind, flags, data.as_c_str()) {
            // Already mounted by the kernel.
            Ok(()) | Err(Errno::BUSY) => {}
            // The kernel lacks cgroup2, which no test needs.
            Err(_) if kind == "cgroup2" => {}
            Err(error) => return Err(error).with_context(|| format!("mounting {target}")),
        }
    }
    for (name, target) in LINKS {
        if !fs::exists(name).unwrap_or(false) {
            symlink(target, name).with_context(|| format!("making {name}"))?;
        }
    }
    Ok(())
}

/// Type, mount point and options, in the order of mounting.
const MOUNTS: &[(&str, &str, &str)] = &[
    ("devtmpfs", "/dev", "mode=0755"),
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("tmpfs", "/run", "mode=0755"),
    ("devpts", "/dev/pts", "mode=0620,gid=5,ptmxmode=0666"),
    ("tmpfs", "/dev/shm", "mode=1777"),
];

/// The links in /dev that shells use.
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];
