//! Counts system calls with strace.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::process;

/// The path prefix of marks in the trace: names of missing files that are looked up.
const MARK: &str = "/bench-engine-mark/";

/// Begins `section` in the trace of this process.
pub(crate) fn mark(section: &str) {
    // The lookup fails; strace records it with the name.
    let _ = std::fs::metadata(format!("{MARK}{section}"));
}

/// The system calls of one section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Number of times that the section was entered.
    pub(crate) times: u64,
    /// Number of calls that send or receive; the measured process has only netlink sockets.
    pub(crate) netlink: u64,
    /// Number of sends that are not a dump request.
    pub(crate) other_requests: u64,
    /// Number of calls by name.
    pub(crate) by_name: BTreeMap<String, u64>,
}

impl Calls {
    pub(crate) fn all(&self) -> u64 {
        self.by_name.values().sum()
    }
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, count)) in self.by_name.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{count} {name}")?;
        }
        Ok(())
    }
}

/// Runs `program` under strace and returns its system calls by section.
pub(crate) fn count(program: &Command) -> anyhow::Result<BTreeMap<String, Calls>> {
    let path = process::temporary("strace");
    let mut strace = Command::new("strace");
    strace.arg("-qq").arg("-o").arg(&path);
    strace.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        if let Some(value) = value {
            strace.env(name, value);
        }
    }
    let status = strace
        .status()
        .context("running strace (install the package strace)")?;
    ensure!(status.success(), "strace: {status}");
    let trace = std::fs::read_to_string(&path)?;
    std::fs::remove_file(&path)?;
    Ok(sections(&trace))
}

fn sections(trace: &str) -> BTreeMap<String, Calls> {
    let mut sections: BTreeMap<String, Calls> = BTreeMap::new();
    let mut section = String::new();
    for line in trace.lines() {
        if let Some((_, rest)) = line.split_once(MARK) {
            section = rest.split('"').next().unwrap_or_default().to_owned();
            sections.entry(section.clone()).or_default().times += 1;
            continue;
        }
        let Some((name, arguments)) = line.split_once('(') else {
            continue;
        };
        // Elsewhere the vDSO reads the clock without a system call. User-Mode Linux has no vDSO.
        if name == "clock_gettime" {
            continue;
        }
        let calls = sections.entry(section.clone()).or_default();
        *calls.by_name.entry(name.to_owned()).or_default() += 1;
        match name {
            "sendto" | "sendmsg" => {
                calls.netlink += 1;
                calls.other_requests += u64::from(!is_dump(arguments));
            }
            "recvfrom" | "recvmsg" => calls.netlink += 1,
            _ => {}
        }
    }
    // Calls before the first mark: the start of the process.
    sections.remove("");
    sections
}

/// Returns whether a request is a dump.
///
/// Strace prints `NLM_F_DUMP` for the netlink families that it decodes, else the number 0x300.
fn is_dump(arguments: &str) -> bool {
    arguments.contains("NLM_F_DUMP") || arguments.contains("NLM_F_REQUEST|0x300")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_belongs_to_the_section_of_the_last_mark() {
        let trace = r#"brk(NULL) = 0x1
statx(AT_FDCWD, "/bench-engine-mark/added", 0, 0, 0x1) = -1 ENOENT (No such file)
clock_gettime(CLOCK_BOOTTIME, {tv_sec=1, tv_nsec=2}) = 0
sendto(3, [{nlmsg_len=80, nlmsg_flags=NLM_F_REQUEST|NLM_F_ACK}, "x"], 80, 0, {}, 12) = 80
recvfrom(3, [{nlmsg_len=36, nlmsg_type=NLMSG_ERROR}], 65536, 0, NULL, NULL) = 36
statx(AT_FDCWD, "/bench-engine-mark/resync", 0, 0, 0x1) = -1 ENOENT (No such file)
sendto(3, [{nlmsg_len=20, nlmsg_flags=NLM_F_REQUEST|NLM_F_DUMP}, "x"], 20, 0, {}, 12) = 20
write(5, "x", 1) = 1
"#;
        let sections = sections(trace);
        let added = &sections["added"];
        assert_eq!(
            (added.times, added.netlink, added.other_requests),
            (1, 2, 1)
        );
        assert_eq!(added.to_string(), "1 recvfrom, 1 sendto");
        let resync = &sections["resync"];
        assert_eq!((resync.netlink, resync.other_requests), (1, 0));
        assert_eq!(resync.to_string(), "1 sendto, 1 write");
    }
}
