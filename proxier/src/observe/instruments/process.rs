//! The metrics that every program has, from `/proc/self`.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use metrics::gauge;
use rustix::process::{Resource, getrlimit};

use super::table::{Instrument, InstrumentKind};
use super::write_head;

/// The metrics that [`write_cpu`] writes.
pub(super) const METRICS: &[Instrument] = &[Instrument {
    name: "process_cpu_seconds_total",
    kind: InstrumentKind::Counter,
    labels: &[],
    help: "User and system time of the process in seconds",
    known: &[],
}];

/// Clock ticks per second in `/proc/PID/stat`: 100 on every architecture that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Records the present values. A file that cannot be read leaves the old ones.
pub(super) fn record(started: SystemTime) {
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        set_memory(&status);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        // One of them is this directory.
        set("process_open_fds", files.count().saturating_sub(1) as f64);
    }
    let limit = getrlimit(Resource::Nofile).current;
    set("process_max_fds", limit.unwrap_or(u64::MAX) as f64);
    let started = started.duration_since(SystemTime::UNIX_EPOCH);
    set(
        "process_start_time_seconds",
        started.unwrap_or(Duration::ZERO).as_secs_f64(),
    );
    gauge!("ipvs_proxier_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// Appends the CPU time. The recorder cannot keep it: its counters are integers.
pub(super) fn write_cpu(text: &mut String) {
    let stat = std::fs::read_to_string("/proc/self/stat");
    let Some(ticks) = stat.ok().and_then(|stat| cpu_ticks(&stat)) else {
        return;
    };
    for metric in METRICS {
        write_head(text, metric);
        let seconds = ticks as f64 / TICKS_PER_SECOND;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {seconds}", metric.name);
    }
}

fn set(name: &'static str, value: f64) {
    gauge!(name).set(value);
}

/// Sets memory and threads from the text of `/proc/self/status`.
fn set_memory(status: &str) {
    for line in status.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let number = value.split_whitespace().next();
        let Some(number) = number.and_then(|number| number.parse::<f64>().ok()) else {
            continue;
        };
        match name {
            "VmRSS" => set("process_resident_memory_bytes", number * 1_024.0),
            "VmSize" => set("process_virtual_memory_bytes", number * 1_024.0),
            "Threads" => set("process_threads", number),
            _ => {}
        }
    }
}

/// Returns user and system time from the text of `/proc/self/stat`.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name, which may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_does_not_move_the_fields() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 99";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("7 (a) S"), None);
    }
}
