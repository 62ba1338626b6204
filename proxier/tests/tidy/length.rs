//! The length of files.

use super::{assert_none, sources};

/// The maximum number of lines of a file, tests included.
const LIMIT: usize = 500;

/// Longer files, each with the reason why it is not divided.
const LONG_FILES: [(&str, &str); 1] = [(
    "ipvs-netlink/netlink/src/transport.rs",
    "one socket with the recovery from every netlink error",
)];

#[test]
fn no_file_is_longer_than_the_limit() {
    let mut faults = Vec::new();
    let mut excused = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        let is_listed = LONG_FILES.iter().any(|(path, _)| *path == source.path);
        if is_listed {
            excused.push(source.path.clone());
        }
        let path = &source.path;
        match (lines > LIMIT, is_listed) {
            (true, false) => faults.push(format!(
                "{path} has {lines} lines; divide it, or list it in LONG_FILES with a reason"
            )),
            (false, true) => faults.push(format!(
                "{path} has only {lines} lines; remove it from LONG_FILES"
            )),
            _ => {}
        }
    }
    for (path, _) in LONG_FILES {
        if !excused.iter().any(|found| found == path) {
            faults.push(format!("{path} does not exist; remove it from LONG_FILES"));
        }
    }
    assert_none(&faults);
}
