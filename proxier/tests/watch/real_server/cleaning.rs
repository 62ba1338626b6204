//! `deploy/pods/clean`, with a real API server.

use std::process::Stdio;

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::deployment::{Tools, deploy};
use crate::follower::until;

/// The pods of `kube-system`.
const PODS: &str = "/api/v1/namespaces/kube-system/pods";

/// Runs the script, ends the Pods that it creates as a kubelet would, and returns them.
fn clean(plane: &ControlPlane, tools: &Tools, arguments: &[&str], prefix: &str) -> Vec<Value> {
    let kubectl = tools.kubectl();
    let path = format!("{}:/usr/bin:/bin", kubectl.parent().unwrap().display());
    let mut script = plane.administer(&deploy("pods/clean"));
    script.args(arguments).env("PATH", path);
    let script = script.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let script = script.unwrap();
    let nodes = ["worker-1", "worker-2"];
    let names = nodes.map(|node| format!("{prefix}-{node}"));
    let pods = names.iter().map(|name| {
        let read = || plane.read(&format!("{PODS}/{name}"));
        until("created", read, || name)
    });
    let pods: Vec<Value> = pods.collect();
    for name in &names {
        let status = json!({"status": {"phase": "Succeeded"}}).to_string();
        let patch = [
            "-n",
            "kube-system",
            "patch",
            "pod",
            name,
            "--subresource=status",
        ];
        let patch = [&patch[..], &["--type=merge", "-p", &status]].concat();
        plane.kubectl(&kubectl, &patch, "");
    }
    let output = script.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    pods
}

#[test]
fn nodes_are_cleaned_with_the_image_and_the_flags_of_the_daemonset() {
    let test = "nodes_are_cleaned_with_the_image_and_the_flags_of_the_daemonset";
    let (Some(tools), Some(plane)) = (Tools::find(test), ControlPlane::start(test)) else {
        return;
    };
    let kubectl = tools.kubectl();
    let image = "registry.example.com/ipvs-proxier:v9";
    let values = [
        "--set=apiServer=https://192.0.2.1:6443",
        "--set=config.clusterCIDR=10.244.0.0/16",
        "--set=image.repository=registry.example.com/ipvs-proxier,image.tag=v9",
        "--set=imagePullSecrets[0].name=registry",
        "--set=serviceAddresses=dummy",
        "--set=extraArgs={--answer-ping}",
    ];
    let manifests = tools.helm(&values).unwrap();
    plane.kubectl(&kubectl, &["apply", "-f", "-"], &manifests);
    let pods = clean(
        &plane,
        &tools,
        &["worker-1", "worker-2"],
        "ipvs-proxier-cleanup",
    );
    for (pod, node) in pods.iter().zip(["worker-1", "worker-2"]) {
        let spec = &pod["spec"];
        assert_eq!(spec["nodeName"], node);
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "registry"}]));
        let container = &spec["containers"][0];
        assert_eq!(container["image"], image);
        let expected = json!(["cleanup", "--service-addresses=dummy"]);
        assert_eq!(container["args"], expected);
    }

    let labels = json!({"k8s-app": "kube-proxy"});
    let daemon_set = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "kube-proxy", "image": "kube-proxy:v1.35.1"}]},
            },
        },
    });
    let path = "/apis/apps/v1/namespaces/kube-system/daemonsets";
    plane.create(path, &daemon_set);
    let arguments = ["--kube-proxy", "worker-1", "worker-2"];
    let pods = clean(&plane, &tools, &arguments, "kube-proxy-cleanup");
    assert_eq!(pods[1]["spec"]["nodeName"], "worker-2");
    let container = &pods[1]["spec"]["containers"][0];
    assert_eq!(container["image"], "kube-proxy:v1.35.1");
    assert_eq!(container["command"], json!(["kube-proxy", "--cleanup"]));
}
