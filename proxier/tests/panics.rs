//! A panic in any thread ends the process.
//!
//! The program has no way to make a thread panic on request, so the test runs itself as a child that
//! does what `main` does first.

use std::io::Read as _;
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
        std::thread::sleep(Duration::from_secs(600));
        std::process::exit(0);
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("a_panic_in_any_thread_ends_the_process_with_a_message")
        .env(IS_CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut status = None;
    for _ in 0..600 {
        status = child.try_wait().unwrap();
        if status.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    if status.is_none() {
        child.kill().unwrap();
    }
    let mut log = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut log)
        .unwrap();
    let code = status.map(|status| status.code());
    assert_eq!(
        code,
        Some(Some(101)),
        "the process must exit with code 101: {log}"
    );
    assert!(log.contains("the thread's own message"), "{log}");
    assert!(
        log.contains("thread 'worker' panicked, which is a bug"),
        "{log}"
    );
}
