//! Counts the system calls of a running process and its children with strace.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::process;

/// A running strace.
pub(crate) struct Trace {
    strace: Child,
    output: std::path::PathBuf,
}

impl Trace {
    /// Starts to count the calls of a process.
    pub(crate) fn start(traced: u32) -> anyhow::Result<Self> {
        let output = process::temporary("strace");
        let strace = Command::new("strace")
            .args(["-f", "-c", "-qq", "-p", &traced.to_string(), "-o"])
            .arg(&output)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("running strace (install the package strace)")?;
        // strace does not report when it has attached to all threads.
        std::thread::sleep(Duration::from_secs(1));
        Ok(Self { strace, output })
    }

    /// Detaches, and returns the number of calls.
    pub(crate) fn stop(mut self) -> anyhow::Result<u64> {
        // At SIGINT strace detaches and writes its table; SIGKILL would lose the table.
        kill_process(Pid::from_child(&self.strace), Signal::INT)?;
        self.strace.wait()?;
        let summary = std::fs::read_to_string(&self.output)?;
        std::fs::remove_file(&self.output)?;
        calls(&summary).with_context(|| format!("strace prints no table:\n{summary}"))
    }
}

/// Returns the sum of the calls in a summary, without those that only User-Mode Linux needs.
fn calls(summary: &str) -> Option<u64> {
    let mut sum = None;
    for line in summary.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(name), Some(count)) = (words.last(), words.get(3)) else {
            continue;
        };
        let Ok(count) = count.parse::<u64>() else {
            continue;
        };
        // Elsewhere the vDSO reads the clock without a system call. User-Mode Linux has no vDSO.
        if !["total", "clock_gettime", "gettimeofday"].contains(name) {
            *sum.get_or_insert(0) += count;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_summed_without_the_clock() {
        let summary = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000300          10        30         3 recvfrom
 20.00    0.000100          10        10           clock_gettime
 20.00    0.000100          10        12           sendto
------ ----------- ----------- --------- --------- ----------------
100.00    0.000500                    52         3 total
";
        assert_eq!(calls(summary), Some(42));
        assert_eq!(calls("strace: attach: no"), None);
    }
}
