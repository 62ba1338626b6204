//! The result of one test, from the output of libtest in the guest.

use super::fleet::Status;

/// Returns `Ok` if the test passed, else what happened as a predicate: `was killed after 3 s`.
pub(super) fn of(status: Status, output: &str) -> Result<(), String> {
    let status = match status {
        Status::Exit(status) => status,
        Status::Timeout(limit) => {
            return Err(format!(
                "was killed after {} s (LAB_TIMEOUT sets the limit)",
                limit.as_secs()
            ));
        }
    };
    match (status, passed(output)) {
        (0, Some(1)) => Ok(()),
        (0, Some(0)) => Err("did not run: the test binary has no test of this name".into()),
        (0, Some(_)) => Err("ran more than one test".into()),
        // A test that calls exit(0) does not pass.
        (0, None) => Err("ended without a result".into()),
        (FAILED, Some(_)) => Err("failed".into()),
        (signal @ 129..=192, _) => Err(format!("crashed (signal {})", signal - 128)),
        (status, _) => Err(format!("ended with status {status}")),
    }
}

/// Returns the output of the test `name`, without the lines that libtest adds.
pub(super) fn without_frame(output: &str, name: &str) -> String {
    let opening = format!("test {name} ... ");
    let is_frame = |line: &str| {
        let line = line.trim_ascii();
        ["", "ok", "FAILED", "failures:", "running 1 test", name].contains(&line)
            || line.starts_with(SUMMARY)
    };
    output
        .split_inclusive('\n')
        .map(|line| line.strip_prefix(&opening).unwrap_or(line))
        .filter(|line| !is_frame(line))
        .collect()
}

/// Returns the number of passed tests in libtest's summary.
fn passed(output: &str) -> Option<usize> {
    let summary = output
        .lines()
        .rev()
        .find(|line| line.starts_with(SUMMARY))?;
    let (before, _) = summary.split_once(" passed;")?;
    before.rsplit(' ').next()?.parse().ok()
}

const SUMMARY: &str = "test result: ";
/// The exit status of libtest after a failed test.
const FAILED: u32 = 101;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PASSED: &str = "\nrunning 1 test\ntest a::b ... hello\nok\n\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; \
        finished in 0.02s\n\n";
    const PANICKED: &str = "\nrunning 1 test\ntest a::b ... \nthread 'a::b' panicked at x.rs:1:2:\nno\n\
        FAILED\n\nfailures:\n\nfailures:\n    a::b\n\n\
        test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; \
        finished in 0.02s\n\n";
    const MISSING: &str = "\nrunning 0 tests\n\n\
        test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; \
        finished in 0.00s\n\n";

    #[test]
    fn one_passed_test_passes() {
        assert_eq!(of(Status::Exit(0), PASSED), Ok(()));
        assert_eq!(without_frame(PASSED, "a::b"), "hello\n");
    }

    #[test]
    fn missing_tests_crashes_and_timeouts_fail() {
        let reason = |status, output| of(status, output).unwrap_err();
        assert_eq!(reason(Status::Exit(101), PANICKED), "failed");
        assert!(reason(Status::Exit(0), MISSING).starts_with("did not run"));
        assert!(reason(Status::Exit(0), "").starts_with("ended without"));
        assert_eq!(reason(Status::Exit(134), "half"), "crashed (signal 6)");
        assert_eq!(reason(Status::Exit(127), ""), "ended with status 127");
        let timeout = Status::Timeout(Duration::from_secs(3));
        assert!(reason(timeout, PASSED).starts_with("was killed after 3 s"));
    }

    #[test]
    fn the_message_of_a_panic_is_kept() {
        assert_eq!(
            without_frame(PANICKED, "a::b"),
            "thread 'a::b' panicked at x.rs:1:2:\nno\n"
        );
    }
}
