//! Random histories of changes, kills and outages that end with the objects of the conformance cluster.
//!
//! After each, the kernel's table is the one that kube-proxy made for these objects, and the packet rules
//! are those of the plan.

#[path = "../conformance/table.rs"]
mod table;

use std::time::Duration;

use api_server::Key;
use lab::net::Cluster;
use serde_json::{Value, json};

use super::AT_ONCE;
use super::daemon::{Daemon, NFTABLES};
use super::dice::Dice;

/// The number of changes in a history.
const CHANGES: u32 = 250;

/// The Pod networks.
const CLUSTER_CIDR: [&str; 2] = ["--cluster-cidr", "10.244.0.0/16,fd00:244::/32"];

/// Returns what the program's `command` prints, in the format `output`.
fn print(daemon: &Daemon, command: &str, output: &str) -> String {
    let mut program = daemon.command(command);
    // On a busy machine, `plan` logs at level `info` that it waits for its Node.
    program.env("RUST_LOG", "warn");
    if command == "plan" {
        program.args(CLUSTER_CIDR);
    }
    let output = program.args(["--output", output]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns what the program's `command` prints as JSON.
fn report(daemon: &Daemon, command: &str) -> Value {
    let mut report: Value = serde_json::from_str(&print(daemon, command, "json")).unwrap();
    // Only `status` names neighbours and timeouts, and only `plan` has differences.
    for field in ["neighbours", "timeouts", "changes", "summary"] {
        report.as_object_mut().unwrap().remove(field);
    }
    report
}

/// Returns the objects of the conformance cluster.
fn objects() -> Vec<Value> {
    let text = std::fs::read_to_string(table::conformance("cluster.yaml")).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Makes one random change. It may restore an object that an earlier one changed.
fn change(daemon: &mut Daemon, objects: &[Value], dice: &mut Dice) {
    let original = &objects[dice.below(objects.len())];
    let mut object = original.clone();
    let key = Key::of(original).unwrap();
    match (dice.below(12), object["kind"].as_str().unwrap()) {
        (0, _) => {
            daemon.kill();
            return daemon.start();
        }
        (1, _) => return daemon.api.compact(),
        (2, _) => return daemon.api.break_connections(),
        (3, _) => std::thread::sleep(Duration::from_millis(20)),
        (4 | 5, _) => {}
        // Our Node is changed, but never deleted, because the daemon needs it.
        (_, "Node") => {
            object["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!("zone-b");
        }
        (6, _) => return daemon.api.delete(&key),
        (_, "EndpointSlice") => change_slice(&mut object, dice),
        (7, _) => make_rival(&mut object, dice),
        (_, _) => change_service(&mut object, dice),
    }
    daemon.api.apply(object);
}

fn change_slice(slice: &mut Value, dice: &mut Dice) {
    let endpoints = slice["endpoints"].as_array_mut().unwrap();
    if dice.one_in(3) {
        endpoints.clear();
    }
    for endpoint in &mut *endpoints {
        match dice.below(4) {
            0 => endpoint["conditions"] = json!({"ready": false, "serving": dice.one_in(2)}),
            1 => endpoint["nodeName"] = json!(if dice.one_in(2) { "node-a" } else { "node-b" }),
            _ => {}
        }
    }
    if dice.one_in(4) {
        slice["ports"][0]["port"] = json!(9_000 + dice.below(3));
    }
}

fn change_service(service: &mut Value, dice: &mut Dice) {
    let spec = &mut service["spec"];
    let policy = |dice: &mut Dice| json!(if dice.one_in(2) { "Local" } else { "Cluster" });
    match dice.below(8) {
        0 => spec["ports"][0]["port"] = json!(1_000 + dice.below(3)),
        1 => spec["internalTrafficPolicy"] = policy(dice),
        2 => spec["externalTrafficPolicy"] = policy(dice),
        3 => spec["externalIPs"] = json!([format!("203.0.113.{}", 100 + dice.below(3))]),
        4 => spec["sessionAffinity"] = json!("ClientIP"),
        5 => spec["loadBalancerSourceRanges"] = json!(["192.0.2.0/24"]),
        6 => service["metadata"]["annotations"] = json!({"ipvs-proxier.io/scheduler": "lc"}),
        _ => spec["type"] = json!("ExternalName"),
    }
}

/// Renames the Service and changes its age, so that it contests the addresses of the original.
fn make_rival(service: &mut Value, dice: &mut Dice) {
    service["metadata"]["name"] = json!(format!("rival-{}", dice.below(3)));
    let year = if dice.one_in(2) { 2001 } else { 2026 };
    service["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
}

/// Makes `objects` the only objects of the API server.
fn restore(daemon: &Daemon, objects: &[Value]) {
    for number in 0..3 {
        let name = format!("rival-{number}");
        daemon
            .api
            .delete(&Key::new("Service", "default", &name).unwrap());
    }
    for object in objects {
        daemon.api.apply(object.clone());
    }
}

/// Runs a random history of a daemon with these flags. Returns its network and the daemon.
fn changed(seed: u32, flags: &[&str]) -> (Cluster, Daemon) {
    let network = Cluster::conformance();
    let objects = objects();
    let flags = [
        &AT_ONCE[..],
        &["--drain-timeout", "0s"],
        &CLUSTER_CIDR,
        flags,
    ]
    .concat();
    let mut daemon = Daemon::bare(&flags);
    daemon.start();
    let mut dice = Dice::new(seed);
    for _ in 0..CHANGES {
        change(&mut daemon, &objects, &mut dice);
    }
    restore(&daemon, &objects);
    (network, daemon)
}

/// Runs a random history with IPVS.
fn history(seed: u32) {
    let (_network, daemon) = changed(seed, &[]);
    // A plan made before the first round of the last process may have no key of marks, and then draws its own.
    // The report that equals the plan is kept: on Linux 6.1, changes in other network namespaces may hide a
    // virtual server from the next one.
    let (mut planned, mut observed) = (Value::Null, Value::Null);
    let _is_equal = lab::await_true(Duration::from_millis(200), || {
        planned = report(&daemon, "plan");
        observed = report(&daemon, "status");
        observed == planned
    });
    assert_eq!(observed, planned);
    assert_eq!(planned["problems"], json!([]));
    table::compare(table::of_report(&observed), table::of_kube_proxy());
    // The rules that the daemon changed step by step are the rules of a plan from scratch.
    assert_eq!(print(&daemon, "plan", "ops"), "");
}

#[test]
fn the_table_is_kube_proxys_after_250_random_changes() {
    lab::test(|| history(20_261_121));
}

/// The slots are drawn at random, so the table is compared with that of a plan from scratch.
#[test]
fn the_maps_are_those_of_the_plan_after_250_random_changes() {
    lab::test(|| {
        let (_network, daemon) = changed(20_261_121, &[NFTABLES]);
        let plan = || {
            let mut plan = daemon.command("plan");
            plan.args(CLUSTER_CIDR).args([NFTABLES, "--output=json"]);
            let output = plan.output().unwrap();
            assert_ne!(output.status.code(), Some(1), "{output:?}");
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        };
        let expected = json!({"changes": [], "problems": []});
        daemon.eventually("the table is that of the plan", || plan() == expected);
        // Each frontend of the plan with endpoints, and no other.
        let status = daemon
            .command("status")
            .args(["--output=json"])
            .output()
            .unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        let frontends = status["maps"].as_array().unwrap().len();
        assert!(frontends > 50, "{frontends} frontends");
    });
}

#[test]
fn the_table_is_kube_proxys_after_250_other_random_changes() {
    lab::test(|| history(7));
}
