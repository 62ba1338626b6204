//! Whatever changes in between, and whoever dies: when the objects are those of the conformance
//! cluster, the kernel's table is the one that kube-proxy made for them, and the packet rules are
//! those of the plan.

#[path = "../conformance/table.rs"]
mod table;

use std::time::{Duration, Instant};

use api_server::Key;
use lab::net::Cluster;
use serde_json::{Value, json};

use super::AT_ONCE;
use super::daemon::Daemon;
use super::dice::Dice;

/// How long the daemon may take for everything that has changed; the lab is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many changes a history has.
const CHANGES: u32 = 250;

/// Where clients inside the cluster come from.
const CLUSTER_CIDR: [&str; 2] = ["--cluster-cidr", "10.244.0.0/16,fd00:244::/32"];

/// What the program would set, or what is there.
fn print(daemon: &Daemon, command: &str, output: &str) -> String {
    let mut print = daemon.command(command);
    if command == "plan" {
        print.args(CLUSTER_CIDR);
    }
    let output = print.args(["--output", output]).output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(complaints.is_empty(), "{complaints}");
    String::from_utf8(output.stdout).unwrap()
}

fn report(daemon: &Daemon, command: &str) -> Value {
    serde_json::from_str(&print(daemon, command, "json")).unwrap()
}

/// The objects of the conformance cluster.
fn objects() -> Vec<Value> {
    let text = std::fs::read_to_string(table::conformance("cluster.yaml")).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Makes one change of any kind, which may be a return to what `objects` has.
fn change(daemon: &mut Daemon, objects: &[Value], dice: &mut Dice) {
    let original = &objects[dice.draw(objects.len())];
    let mut object = original.clone();
    let key = Key::of(original).unwrap();
    match (dice.draw(12), object["kind"].as_str().unwrap()) {
        (0, _) => {
            daemon.kill();
            return daemon.start();
        }
        (1, _) => return daemon.api.compact(),
        (2, _) => return daemon.api.break_connections(),
        (3, _) => std::thread::sleep(Duration::from_millis(20)),
        (4 | 5, _) => {}
        // A node cannot do without its own object; the others come and go.
        (_, "Node") => {
            object["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!("zone-b");
        }
        (6, _) => return daemon.api.delete(&key),
        (_, "EndpointSlice") => change_slice(&mut object, dice),
        (7, _) => rival(&mut object, dice),
        (_, _) => change_service(&mut object, dice),
    }
    daemon.api.apply(object);
}

fn change_slice(slice: &mut Value, dice: &mut Dice) {
    let endpoints = slice["endpoints"].as_array_mut().unwrap();
    if dice.is(3) {
        endpoints.clear();
    }
    for endpoint in &mut *endpoints {
        match dice.draw(4) {
            0 => endpoint["conditions"] = json!({"ready": false, "serving": dice.is(2)}),
            1 => endpoint["nodeName"] = json!(if dice.is(2) { "node-a" } else { "node-b" }),
            _ => {}
        }
    }
    if dice.is(4) {
        slice["ports"][0]["port"] = json!(9_000 + dice.draw(3));
    }
}

fn change_service(service: &mut Value, dice: &mut Dice) {
    let spec = &mut service["spec"];
    let policy = |dice: &mut Dice| json!(if dice.is(2) { "Local" } else { "Cluster" });
    match dice.draw(8) {
        0 => spec["ports"][0]["port"] = json!(1_000 + dice.draw(3)),
        1 => spec["internalTrafficPolicy"] = policy(dice),
        2 => spec["externalTrafficPolicy"] = policy(dice),
        3 => spec["externalIPs"] = json!([format!("203.0.113.{}", 100 + dice.draw(3))]),
        4 => spec["sessionAffinity"] = json!("ClientIP"),
        5 => spec["loadBalancerSourceRanges"] = json!(["192.0.2.0/24"]),
        6 => service["metadata"]["annotations"] = json!({"ipvs-proxier.io/scheduler": "lc"}),
        _ => spec["type"] = json!("ExternalName"),
    }
}

/// Another Service at the same addresses, older or younger.
fn rival(service: &mut Value, dice: &mut Dice) {
    service["metadata"]["name"] = json!(format!("rival-{}", dice.draw(3)));
    let year = if dice.is(2) { 2001 } else { 2026 };
    service["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
}

/// Leaves the API server with `objects` alone.
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

fn history(seed: u32) {
    let _network = Cluster::conformance();
    let objects = objects();
    let flags = [&AT_ONCE[..], &["--drain-timeout", "0s"], &CLUSTER_CIDR].concat();
    let mut daemon = Daemon::bare(&flags);
    daemon.start();
    let mut dice = Dice::new(seed);
    for _ in 0..CHANGES {
        change(&mut daemon, &objects, &mut dice);
    }
    restore(&daemon, &objects);

    let planned = report(&daemon, "plan");
    assert_eq!(planned["problems"], json!([]));
    let deadline = Instant::now() + lab::patience(PATIENCE);
    while report(&daemon, "status") != planned && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
    }
    let observed = report(&daemon, "status");
    assert_eq!(observed, planned);
    table::compare(table::of_report(&observed), table::of_kube_proxy());
    // What the daemon made of the rules by single steps is what the plan makes at once.
    assert_eq!(print(&daemon, "plan", "text"), "");
}

#[test]
fn the_table_is_kube_proxys_after_any_changes() {
    lab::test(|| history(20_261_121));
}

#[test]
fn the_table_is_kube_proxys_after_other_changes() {
    lab::test(|| history(7));
}
