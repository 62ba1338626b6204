//! The lab kernels of the tests that start programs of their own, and the processes of these.

use std::{fs, path::PathBuf};

use lab::kernel;

/// Returns the lab kernels; `None` if there is none, or if this test binary runs in one.
///
/// Without a kernel, prints SKIP, or fails if tests must not be skipped.
pub(crate) fn lab_kernels() -> Option<Vec<PathBuf>> {
    let named = kernel::named().expect("LAB_KERNEL names kernels");
    let kernels = match kernel::cached() {
        Ok(Some(cached)) if named.is_empty() => vec![cached],
        _ => named,
    };
    if kernels.is_empty() || is_lab_kernel() {
        lab::test(|| ());
        return None;
    }
    Some(kernels)
}

/// Returns whether this test binary runs in a lab kernel.
pub(crate) fn is_lab_kernel() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("User Mode Linux"))
}

/// Returns the parent of a process; `None` if the process has ended.
pub(crate) fn parent_of(process: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields after the name: state, parent.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}
