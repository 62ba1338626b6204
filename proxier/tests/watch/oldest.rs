//! The oldest API server that is supported, 1.24, and the newest mean the same.
//!
//! What an old server lacks: streaming lists (it answers 422, because it forbids `resourceVersionMatch` for watches),
//! ServiceCIDRs (404), and the fields that came since. What it has instead: fields that went, `null` in place of empty lists.

use std::process::Command;

use api_server::ApiServer;
use serde_json::{Value, json};

/// Objects as 1.24 returns those that a cluster has had since 1.19: `null` where Go has an empty slice, no field that came
/// later.
fn old() -> [Value; 6] {
    let managed = json!([{"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}]);
    let meta = |name: &str, version: &str| {
        json!({
            "name": name, "namespace": "a", "uid": version, "resourceVersion": version,
            "creationTimestamp": null, "clusterName": "", "selfLink": format!("/old/{name}"),
            "managedFields": managed, "annotations": null, "finalizers": null,
        })
    };
    let slice = |name: &str, service: &str, endpoints: Value, ports: Value| {
        let mut metadata = meta(name, "5");
        metadata["labels"] = json!({"kubernetes.io/service-name": service});
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata, "addressType": "IPv4",
            "endpoints": endpoints, "ports": ports,
        })
    };
    let zone =
        |name: &str| json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "z"});
    [
        json!({
            "kind": "Service", "apiVersion": "v1", "metadata": meta("web", "1"),
            "spec": {
                "type": "NodePort", "clusterIP": "10.96.0.80", "sessionAffinity": "None", "externalIPs": null,
                "selector": {"app": "web"},
                "ports": [{"protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30080}],
            },
            "status": {"loadBalancer": {}},
        }),
        json!({
            "kind": "Service", "apiVersion": "v1", "metadata": meta("local", "2"),
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.81", "sessionAffinity": "ClientIP", "selector": null,
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}}, "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 30090, "loadBalancerIP": "203.0.113.80",
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30081}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.80"}]}},
        }),
        slice(
            "web-1",
            "web",
            json!([
                {"addresses": ["10.244.1.2"], "conditions": {"ready": true}, "deprecatedTopology": zone("us"), "nodeName": "us"},
                {"addresses": ["10.244.2.2"], "conditions": {"ready": null}, "deprecatedTopology": zone("them"), "nodeName": "them"},
                {"addresses": ["10.244.2.3"], "conditions": {"ready": false}, "targetRef": null, "nodeName": "them"},
            ]),
            json!([{"name": "", "protocol": "TCP", "port": 8080}]),
        ),
        slice("web-empty", "web", Value::Null, Value::Null),
        slice(
            "local-1",
            "local",
            json!([{"addresses": ["10.244.1.2"], "conditions": {"ready": true}, "hostname": null, "nodeName": "us"}]),
            json!([{"name": "http", "protocol": "TCP", "port": 8080}]),
        ),
        json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {"name": "us", "labels": {"failure-domain.beta.kubernetes.io/zone": "z"}, "creationTimestamp": null},
            "spec": {"podCIDR": "10.244.1.0/24", "taints": null},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}], "conditions": null, "images": null},
        }),
    ]
}

/// The same objects as the newest server returns them, with every default and field that came since.
fn new() -> Vec<Value> {
    let mut objects = old();
    for object in &mut objects {
        object["metadata"] = {
            let old = &object["metadata"];
            let mut metadata = json!({"name": old["name"], "labels": old["labels"]});
            metadata["namespace"] = old["namespace"].clone();
            metadata
        };
    }
    let [web, local, web_slice, empty, local_slice, node] = &mut objects;
    for (service, address) in [(web, "10.96.0.80"), (local, "10.96.0.81")] {
        let spec = &mut service["spec"];
        spec["clusterIPs"] = json!([address]);
        spec["ipFamilies"] = json!(["IPv4"]);
        spec["ipFamilyPolicy"] = json!("SingleStack");
        spec["internalTrafficPolicy"] = json!("Cluster");
        if spec["externalTrafficPolicy"].is_null() {
            spec["externalTrafficPolicy"] = json!("Cluster");
        } else {
            spec["allocateLoadBalancerNodePorts"] = json!(true);
            service["status"]["loadBalancer"]["ingress"][0]["ipMode"] = json!("VIP");
        }
    }
    empty["endpoints"] = json!([]);
    empty["ports"] = json!([]);
    for slice in [web_slice, local_slice] {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            let is_ready = endpoint["conditions"]["ready"] != false;
            endpoint["conditions"] =
                json!({"ready": is_ready, "serving": is_ready, "terminating": false});
            endpoint["zone"] = json!("z");
            endpoint
                .as_object_mut()
                .unwrap()
                .remove("deprecatedTopology");
        }
    }
    node["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "z"});
    node["spec"]["podCIDRs"] = json!(["10.244.1.0/24"]);
    node["status"]["features"] = json!({"supplementalGroupsPolicy": true});
    let cidr = json!({
        "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["10.96.0.0/12"]},
    });
    objects.into_iter().chain([cidr]).collect()
}

/// Returns what `plan` prints for the cluster of a server, and what it logs at the level WARN.
fn plan(server: &ApiServer) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args([
            "plan",
            "--against=empty",
            "--output=ops",
            "--node-name=us",
            "--cluster-cidr=10.244.0.0/16",
        ])
        .arg(format!("--master={}", server.url()))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    // Something would change.
    assert_eq!(output.status.code(), Some(2), "{log}");
    let warnings: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        .collect();
    (
        String::from_utf8(output.stdout).unwrap(),
        warnings.join("\n"),
    )
}

#[test]
fn the_oldest_server_means_what_the_newest_means() {
    let mut plans = Vec::new();
    for speaks_protobuf in [false, true] {
        let newest = ApiServer::start();
        newest.configure(|behaviour| behaviour.speaks_protobuf = speaks_protobuf);
        new().into_iter().for_each(|object| newest.apply(object));

        let oldest = ApiServer::start();
        oldest.configure(|behaviour| {
            behaviour.speaks_protobuf = speaks_protobuf;
            behaviour.streams_lists = false;
            behaviour.refused.insert("servicecidrs".into(), 404);
        });
        old().into_iter().for_each(|object| oldest.apply(object));

        plans.extend([plan(&newest), plan(&oldest)]);
        // Nothing else is asked for than what 1.24 has, and ServiceCIDRs.
        let mut paths: Vec<String> = oldest
            .requests()
            .into_iter()
            .map(|request| request.path)
            .collect();
        paths.sort();
        paths.dedup();
        assert_eq!(
            paths,
            [
                "/api/v1/nodes",
                "/api/v1/services",
                "/apis/discovery.k8s.io/v1/endpointslices",
                "/apis/networking.k8s.io/v1/servicecidrs",
            ]
        );
    }
    let (expected, _) = plans[0].clone();
    for (what, (plan, warnings)) in [
        "JSON of today",
        "JSON of 1.24",
        "protobuf of today",
        "protobuf of 1.24",
    ]
    .iter()
    .zip(plans)
    {
        assert_eq!(plan, expected, "{what}");
        assert_eq!(warnings, "", "{what}");
    }
    for address in [
        "10.96.0.80:80",
        "10.96.0.81:80",
        "192.0.2.1:30080",
        "203.0.113.80:80",
        "10.244.2.2:8080",
    ] {
        assert!(expected.contains(address), "{address}: {expected}");
    }
    assert!(!expected.contains("10.244.2.3"), "{expected}");
}
