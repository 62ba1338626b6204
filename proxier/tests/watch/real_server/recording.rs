//! Records the responses of a real server in both encodings.
//!
//! ```text
//! UPDATE_RECORDINGS=1 KUBEBUILDER_ASSETS=DIRECTORY cargo test -p proxier --test watch -- recording
//! INSTA_UPDATE=always cargo test -p proxier --test watch -- recorded
//! ```

use std::collections::BTreeMap;

use api_server::CannedResponse;
use proxier::testing::api::ANNOTATIONS;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::{NODES, SERVICES, SLICES};
use crate::follower::until;
use crate::recorded::{self, JSON, PROTOBUF, Recorded, replay};

/// A Service with every field that is read.
fn full_service() -> Value {
    let mut annotations = BTreeMap::new();
    annotations.insert("other.example/annotation".to_owned(), "x");
    for name in ANNOTATIONS {
        // Valid for one of them; each other value is a Problem.
        annotations.insert(format!("ipvs-proxier.io/{name}"), "wlc");
    }
    json!({
        "metadata": {
            "namespace": "a",
            "name": "full",
            "labels": {"service.kubernetes.io/other": "x", "empty": ""},
            "annotations": annotations,
        },
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.7",
            "clusterIPs": ["10.96.0.7", "fd00:10:96::7"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "externalIPs": ["192.0.2.1", "2001:db8::1"],
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30999,
            "internalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["198.51.100.0/24", "2001:db8:1::/48"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}},
            "selector": {"app": "full"},
            "trafficDistribution": "PreferClose",
            "ports": [
                {"name": "http", "port": 80, "nodePort": 30080, "targetPort": "web"},
                {"name": "dns", "port": 53, "nodePort": 30053, "protocol": "UDP"},
                {"name": "sctp", "port": 9, "nodePort": 30009, "protocol": "SCTP"},
            ],
        },
    })
}

/// A slice with endpoints in each state.
fn full_slice() -> Value {
    json!({
        "metadata": {
            "namespace": "a",
            "name": "full-1",
            "labels": {"kubernetes.io/service-name": "full"},
            "annotations": {
                "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z",
            },
        },
        "addressType": "IPv4",
        "ports": [
            {"name": "http", "port": 8080},
            {"name": "dns", "port": 5353, "protocol": "UDP"},
            {"name": "", "port": 9, "protocol": "SCTP"},
        ],
        "endpoints": [{
            "addresses": ["10.1.0.1"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "us",
            "zone": "north-1",
            "hints": {
                "forZones": [{"name": "north-1"}, {"name": "north-2"}],
                "forNodes": [{"name": "us"}],
            },
            "targetRef": {"kind": "Pod", "namespace": "a", "name": "full-x"},
        }, {
            "addresses": ["10.1.0.2", "10.1.0.3"],
        }, {
            "addresses": ["10.1.0.4"],
            "conditions": {"ready": false},
            "hostname": "four",
        }, {
            "addresses": ["10.1.0.5"],
            "conditions": {"ready": false, "serving": true, "terminating": true},
            "nodeName": "them",
        }],
    })
}

/// Creates the objects; returns the version of Services before the changes.
fn fill(plane: &ControlPlane) -> String {
    plane.create(SERVICES, &full_service());
    let ingress = json!([
        {"ip": "192.0.2.2", "ipMode": "VIP"},
        {"ip": "192.0.2.3", "ipMode": "Proxy"},
        {"ip": "2001:db8::2", "ipMode": "VIP"},
        {"hostname": "lb.example"},
    ]);
    let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
    plane.patch(&format!("{SERVICES}/full/status"), &status);
    let plain = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    plane.create(
        SERVICES,
        &plain(
            "plain",
            json!({"clusterIP": "10.96.0.8", "ports": [{"port": 80}]}),
        ),
    );
    let ports = json!([{"name": "a", "port": 1}, {"name": "b", "port": 65535}]);
    let six = json!({"clusterIP": "fd00:10:96::9", "ipFamilies": ["IPv6"], "ports": ports});
    plane.create(SERVICES, &plain("six", six));
    let external = json!({"type": "ExternalName", "externalName": "x.example"});
    plane.create(SERVICES, &plain("external", external));
    plane.create(SLICES, &full_slice());
    let mut six = full_slice();
    six["metadata"]["name"] = json!("full-2");
    six["addressType"] = json!("IPv6");
    six["endpoints"] = json!([{"addresses": ["fd00:1::1"]}]);
    plane.create(SLICES, &six);
    let mut names = full_slice();
    names["metadata"]["name"] = json!("full-3");
    names["addressType"] = json!("FQDN");
    names["endpoints"] = json!([{"addresses": ["x.example"]}]);
    plane.create(SLICES, &names);
    let mut empty = full_slice();
    empty["metadata"]["name"] = json!("empty");
    empty["endpoints"] = json!([]);
    plane.create(SLICES, &empty);
    fill_nodes(plane);
    let range = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/16"]}});
    plane.create("/apis/networking.k8s.io/v1/servicecidrs", &range);
    let list = plane.read(recorded::SERVICES).unwrap();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    plane.patch(
        &format!("{SERVICES}/plain"),
        &json!({"spec": {"externalIPs": ["192.0.2.9"]}}),
    );
    plane.create(
        SERVICES,
        &plain(
            "late",
            json!({"clusterIP": "10.96.0.10", "ports": [{"port": 1}]}),
        ),
    );
    plane.delete(&format!("{SERVICES}/late"));
    plane.patch(&format!("{SLICES}/full-2"), &json!({"endpoints": []}));
    plane.delete(&format!("{SLICES}/empty"));
    version.to_owned()
}

fn fill_nodes(plane: &ControlPlane) {
    let labels =
        json!({"topology.kubernetes.io/zone": "north-1", "topology.kubernetes.io/region": "north"});
    let taint =
        json!({"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"});
    plane.create(NODES, &json!({
        "metadata": {"name": "us", "labels": labels},
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"], "taints": [taint]},
    }));
    let addresses = json!([
        {"type": "Hostname", "address": "us"},
        {"type": "ExternalIP", "address": "203.0.113.1"},
        {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "InternalIP", "address": "2001:db8::9"},
    ]);
    let status = json!({"status": {"addresses": addresses}});
    plane.patch(&format!("{NODES}/us/status"), &status);
    plane.create(
        NODES,
        &json!({"metadata": {"name": "them", "finalizers": ["example.com/x"]}}),
    );
    // The finalizer keeps it, with a deletion timestamp.
    plane.delete(&format!("{NODES}/them"));
}

/// Requests the lists and watches in one encoding; returns them by name.
fn record(
    plane: &ControlPlane,
    version: &str,
    encoding: &Recorded,
) -> BTreeMap<&'static str, CannedResponse> {
    let stream = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&\
                  resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let watch =
        format!("watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=2");
    let us = format!("{stream}&fieldSelector=metadata.name%3Dus");
    let media_type = encoding.media_type;
    let whole = format!("{media_type},application/json");
    let partial = |kind| format!("{media_type};as={kind};g=meta.k8s.io;v=v1,application/json");
    let events = partial("PartialObjectMetadata");
    let list = partial("PartialObjectMetadataList");
    let requests = [
        ("services-stream", recorded::SERVICES, stream, &whole),
        (
            "services-list",
            recorded::SERVICES,
            "resourceVersion=0",
            &whole,
        ),
        ("services-watch", recorded::SERVICES, &watch, &whole),
        ("slices-stream", recorded::SLICES, stream, &whole),
        ("slices-list", recorded::SLICES, "resourceVersion=0", &whole),
        ("slices-watch", recorded::SLICES, &watch, &whole),
        ("node-stream", recorded::NODES, &us, &whole),
        ("metadata-stream", recorded::NODES, stream, &events),
        ("metadata-list", recorded::NODES, "resourceVersion=0", &list),
        ("cidrs-stream", recorded::CIDRS, stream, &whole),
    ];
    let responses = requests.map(|(name, path, query, accept)| {
        let response = fetch_whole(plane, name, &format!("{path}?{query}"), accept);
        let (_, content_type) = &response.headers[0];
        assert!(
            content_type.starts_with(media_type),
            "{name}: {content_type}"
        );
        (name, response)
    });
    responses.into()
}

/// Repeats a request until the response is whole: the time of a watch can end before a server that stood still has sent
/// its events.
fn fetch_whole(plane: &ControlPlane, name: &str, path: &str, accept: &str) -> CannedResponse {
    let (status, last) = match name.rsplit_once('-') {
        Some((_, "stream")) => (200, "initial-events-end"),
        Some((_, "watch")) => (200, "DELETED"),
        Some((_, "list")) => (200, ""),
        Some((_, "expired")) => (200, "Expired"),
        Some((_, "gone")) => (410, "Expired"),
        _ => panic!("{name}"),
    };
    let is_whole = |response: &CannedResponse| {
        let body = String::from_utf8_lossy(&response.body);
        response.status == status && body.contains(last)
    };
    let fetch = || Some(plane.fetch(path, accept)).filter(is_whole);
    until("whole", fetch, || name)
}

/// Requests versions that the server no longer has; returns its refusals by name.
fn record_refusals(
    plane: &ControlPlane,
    encoding: &Recorded,
) -> BTreeMap<&'static str, CannedResponse> {
    let requests = [
        (
            "services-expired",
            "watch=1&resourceVersion=1&timeoutSeconds=1",
        ),
        (
            "services-gone",
            "resourceVersion=1&resourceVersionMatch=Exact",
        ),
    ];
    let responses = requests.map(|(name, query)| {
        let path = format!("{}?{query}", recorded::SERVICES);
        (name, fetch_whole(plane, name, &path, encoding.media_type))
    });
    responses.into()
}

#[test]
fn a_recording_means_the_same_in_both_encodings() {
    let Some(mut plane) = ControlPlane::start("a_recording_means_the_same_in_both_encodings")
    else {
        return;
    };
    let version = fill(&plane);
    let mut recordings = [&JSON, &PROTOBUF].map(|encoding| record(&plane, &version, encoding));
    // The cache of a restarted server has no history.
    plane.compact();
    plane.stop_server();
    plane.start_server();
    for (recording, encoding) in recordings.iter_mut().zip([&JSON, &PROTOBUF]) {
        recording.extend(record_refusals(&plane, encoding));
        if std::env::var_os("UPDATE_RECORDINGS").is_some() {
            for (name, response) in recording {
                std::fs::write(recorded::file(name, encoding), &response.body).unwrap();
            }
        }
    }
    let [json, protobuf] = recordings.map(|recording| replay(|name| recording[name].clone()));
    recorded::assert_equal(&json, &protobuf);
}
