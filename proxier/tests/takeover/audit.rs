//! `plan --audit` on a node where kube-proxy serves in nftables mode.

use std::process::Output;

use api_server::{Key, Manifest};
use serde_json::{Value, json};

use super::programs::Iptables;
use super::scene::Scene;

/// What the audit says after [`change`].
const FINDINGS: &str = include_str!("audit.txt");

/// Returns the objects of the conformance cluster, and the Services that change, from `a-1` to `a-7`.
fn cluster() -> Vec<Value> {
    let text = include_str!("../conformance/cluster.yaml");
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    for object in &mut objects {
        // An API server fills in this default. Without it, kube-proxy ignores the policy of external IPs.
        if object["kind"] == "Service" && object["spec"]["type"].is_null() {
            object["spec"]["type"] = json!("ClusterIP");
        }
    }
    objects.push(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
    }));
    for number in 1..=7 {
        objects.push(service(number));
        objects.push(slice(number, &[("10.244.1.2", true), ("10.244.2.2", true)]));
    }
    objects
}

fn service(number: usize) -> Value {
    let service = Manifest::service(&format!("a-{number}"))
        .of_type("NodePort")
        .cluster_ip(&format!("10.96.7.{number}"))
        .port("http", "TCP", 80)
        .node_port(30_700 + u16::try_from(number).unwrap());
    object(&service)
}

/// Returns the EndpointSlice of Service `a-NUMBER`, with endpoints that are ready or not.
fn slice(number: usize, endpoints: &[(&str, bool)]) -> Value {
    let slice = Manifest::slice_of(&format!("a-{number}")).port("http", "TCP", 8080);
    let slice = endpoints.iter().fold(slice, |slice, (address, is_ready)| {
        let node = if address.starts_with("10.244.1.") {
            "node-a"
        } else {
            "node-b"
        };
        let fields = json!({"nodeName": node, "conditions": {"ready": is_ready}});
        slice.endpoint_with(address, fields)
    });
    object(&slice)
}

fn object(manifest: &Manifest) -> Value {
    let mut object: Value = serde_saphyr::from_str(&manifest.yaml()).unwrap();
    object["metadata"]["namespace"] = json!("default");
    object
}

/// Changes the cluster, one Service after the other.
fn change(scene: &Scene) {
    let api = &scene.api;
    api.apply(slice(1, &[("10.244.1.2", true)]));
    api.apply(slice(2, &[("10.244.1.2", true), ("10.244.2.2", false)]));
    let more = [
        ("10.244.1.2", true),
        ("10.244.2.2", true),
        ("10.244.2.3", true),
    ];
    api.apply(slice(3, &more));
    let mut edited = service(4);
    edited["spec"]["sessionAffinity"] = json!("ClientIP");
    api.apply(edited);
    let mut edited = service(5);
    edited["spec"]["externalTrafficPolicy"] = json!("Local");
    edited["spec"]["internalTrafficPolicy"] = json!("Local");
    api.apply(edited);
    api.delete(&Key::new("Service", "default", "a-6").unwrap());
    api.apply(service(8));
}

fn audit(scene: &Scene) -> Output {
    let mut command = scene.our_command("plan");
    let flags = ["--proxy-mode=nftables", "--audit"];
    command.args(scene.flags()).args(flags).output().unwrap()
}

fn text(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn an_audit_names_what_kube_proxys_nftables_mode_gets_wrong() {
    lab::test(|| {
        let Some(scene) = Scene::with(Iptables::Nft, cluster()) else {
            return;
        };
        let mut theirs = scene.kube_proxy("nftables");
        // One for each family.
        theirs.eventually("kube-proxy has its rules", || {
            theirs.log().matches("SyncProxyRules complete").count() >= 2
        });
        theirs.terminate();
        let rules = || scene.sh("nft list ruleset");
        let before = rules();
        let found = audit(&scene);
        assert_eq!(text(&found), "The table is as the documentation demands.\n");
        assert_eq!(rules(), before);
        assert!(found.status.success(), "{found:?}");

        // A kube-proxy that no longer hears of changes.
        change(&scene);
        // Nor does it notice this one.
        let map = "element ip kube-proxy service-ips";
        scene.sh(&format!("nft delete {map} '{{ 10.96.7.7 . tcp . 80 }}'"));
        let found = audit(&scene);
        assert_eq!(text(&found), FINDINGS, "{found:?}");
        assert_eq!(found.status.code(), Some(2), "{found:?}");
    });
}
