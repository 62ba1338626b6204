//! A panic in any thread ends the process.
//!
//! The program has no way to make a thread panic on request, so the test runs itself as a child that
//! does what `main` does first.

use std::process::{Command, Stdio};
use std::time::Duration;

use proxier::exit_on_panic;

/// Set in the child.
const IS_CHILD: &str = "IPVS_PROXIER_TEST_PANICS";

#[test]
fn a_panic_in_any_thread_ends_the_process_with_a_message() {
    if std::env::var_os(IS_CHILD).is_some() {
        exit_on_panic();
        let worker = std::thread::Builder::new().name("worker".into());
        let _worker = worker.spawn(|| panic!("the thread's own message")).unwrap();
        // The main thread would wait for messages for ever.
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(0);
    }
    // The child ends itself.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("a_panic_in_any_thread_ends_the_process_with_a_message")
        .env(IS_CHILD, "1")
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(101),
        "the process must exit with code 101: {log}"
    );
    assert!(log.contains("the thread's own message"), "{log}");
    assert!(
        log.contains("thread 'worker' panicked, which is a bug"),
        "{log}"
    );
}
