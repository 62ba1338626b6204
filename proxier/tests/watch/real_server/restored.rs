//! A real control plane whose database is replaced by a backup.

use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::net::unused_port;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::{NODES, SERVICES, SLICES, new_service};
use crate::credentials::with_kubeconfig;
use crate::follower::{Follower, PATIENCE, until};
use crate::objects::{node, slice};
use crate::program::Program;

/// Creates a Service with a node port and an endpoint, and returns the port.
fn create(plane: &ControlPlane, name: &str) -> u16 {
    let mut slice = slice(name);
    slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!(name);
    plane.create(SLICES, &slice);
    let mut service = new_service(name);
    service["spec"]["type"] = json!("NodePort");
    let port = plane.create(SERVICES, &service)["spec"]["ports"][0]["nodePort"].clone();
    u16::try_from(port.as_u64().unwrap()).unwrap()
}

fn version(plane: &ControlPlane) -> u64 {
    let list = plane.read(SERVICES).unwrap();
    let version = list["metadata"]["resourceVersion"].as_str();
    version.unwrap().parse().unwrap()
}

/// Waits until the program serves the node port, or no longer does.
fn await_port(port: u16, is_open: bool) {
    let is_so = || {
        let opened = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        (opened == is_open).then_some(())
    };
    until("programmed", is_so, || (port, is_open));
}

#[test]
fn a_real_server_restored_from_a_backup_is_followed_again() {
    let test = "a_real_server_restored_from_a_backup_is_followed_again";
    let Some(mut plane) = ControlPlane::start(test) else {
        return;
    };
    plane.create(NODES, &node("us", "127.0.0.1"));
    let kept = create(&plane, "kept");
    plane.back_up("backup");
    for index in 0..100 {
        let change = json!({"metadata": {"labels": {"change": index.to_string()}}});
        plane.patch(&format!("{SERVICES}/kept"), &change);
    }
    let late = create(&plane, "late");

    let directory = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"));
    program.args(["run", "--dataplane=userspace", "--node-name=us"]);
    program.args(["--nodeport-addresses=127.0.0.0/8", "--kubeconfig"]);
    program.arg(plane.follower()).arg("--state-file");
    program.arg(directory.path().join("state"));
    for server in ["healthz", "metrics"] {
        program.arg(format!(
            "--{server}-bind-address=127.0.0.1:{}",
            unused_port()
        ));
    }
    let _program = Program(program.stderr(Stdio::null()).spawn().unwrap());
    await_port(kept, true);
    await_port(late, true);
    // An outage leads to a list of the first follower. The second one learns of the backup from its first watch.
    let followers = [Duration::ZERO, PATIENCE].map(|outage| {
        let mut config = with_kubeconfig(&plane.follower());
        config.timeouts.outage = outage;
        Follower::with(config)
    });
    for follower in &followers {
        assert!(follower.services().contains("a/late"));
        follower.drain();
    }
    let known = version(&plane);

    plane.restore("backup");
    let returned = Instant::now();
    let new = create(&plane, "new");
    await_port(new, true);
    println!("programmed after {:.0?}", returned.elapsed());
    await_port(late, false);
    for follower in &followers {
        let mut seen = follower.services();
        while !seen.starts_with("reset") {
            seen = follower.services();
        }
        println!("listed after {:.0?}", returned.elapsed());
        assert!(
            seen.contains("a/kept") && !seen.contains("a/late"),
            "{seen}"
        );
        if !seen.contains("a/new") {
            assert_eq!(follower.services(), "apply a/new");
        }
    }
    // Otherwise the watches would have resumed in any case.
    assert!(version(&plane) < known, "{:?}", Value::from(known));
}
