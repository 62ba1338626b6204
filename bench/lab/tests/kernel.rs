//! The environment of a test.

use std::{env, net::TcpListener, process::Command, time::Duration};

#[test]
fn a_test_is_root_on_a_kernel_with_ipvs() {
    lab::test(|| {
        assert!(rustix::process::geteuid().is_root());
        assert!(std::fs::exists("/proc/thread-self/net/ip_vs").unwrap());
        assert!(!lab::kernel_release().is_empty());
    });
}

#[test]
fn a_test_has_its_own_network() {
    lab::test(|| {
        let links = Command::new("ip").args(["-o", "link"]).output().unwrap();
        let links = String::from_utf8(links.stdout).unwrap();
        assert!(links.contains("lo: <LOOPBACK,UP"), "{links}");
        TcpListener::bind("127.0.0.1:1").unwrap();
    });
}

#[test]
fn a_test_knows_the_cost_of_a_system_call() {
    lab::test(|| {
        let cost = lab::syscall_cost();
        eprintln!("a system call takes {cost:?}");
        assert!(cost > Duration::ZERO);
        assert!(lab::patience(Duration::from_secs(1)) >= Duration::from_secs(1));
        // Natively it is a tenth of a microsecond, and durations stay as they are.
        let is_lab = env::var_os("LAB_SYSCALL_COST").is_some();
        assert_eq!(is_lab, cost > Duration::from_micros(3), "{cost:?}");
    });
}
