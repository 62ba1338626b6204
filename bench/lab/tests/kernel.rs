//! Tests that need the lab, and what happens to them when things go wrong.

use std::{net::TcpListener, process::Command};

#[test]
fn a_test_is_root_on_a_kernel_with_ipvs() {
    lab::test(|| {
        assert!(rustix::process::geteuid().is_root());
        assert!(std::fs::exists("/proc/thread-self/net/ip_vs").unwrap());
        assert!(!lab::kernel_release().is_empty());
    });
}

#[test]
fn a_test_has_a_network_of_its_own() {
    lab::test(|| {
        let links = Command::new("ip").args(["-o", "link"]).output().unwrap();
        let links = String::from_utf8(links.stdout).unwrap();
        assert!(links.contains("lo: <LOOPBACK,UP"), "{links}");
        TcpListener::bind("127.0.0.1:1").unwrap();
    });
}
