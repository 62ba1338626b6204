//! `plan` and `plan --audit` on a node where the real kube-proxy serves, with read access only.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::{NODES, SERVICES, SLICES, new_service};
use crate::program::Program;

const USER: &str = "system:serviceaccount:a:reader";

/// Returns the kubeconfig of an account that may get, list and watch, and nothing else.
fn reader(plane: &ControlPlane) -> std::path::PathBuf {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([
        {"apiGroups": [""], "resources": ["services", "nodes"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"]},
    ]);
    let mut role = json!({"metadata": {"name": "reader"}, "rules": rules});
    for rule in role["rules"].as_array_mut().unwrap() {
        rule["verbs"] = json!(["get", "list", "watch"]);
    }
    plane.create(&format!("{rbac}/clusterroles"), &role);
    let binding = json!({
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "a"}],
    });
    plane.create(&format!("{rbac}/clusterrolebindings"), &binding);
    let accounts = "/api/v1/namespaces/a/serviceaccounts";
    plane.create(accounts, &json!({"metadata": {"name": "reader"}}));
    let request = json!({"spec": {"expirationSeconds": 600}});
    let answer = plane.create(&format!("{accounts}/reader/token"), &request);
    plane.kubeconfig("reader", &json!({"token": answer["status"]["token"]}))
}

/// Creates the Service `web` with an endpoint, and `local` with policy Local and an endpoint on another
/// node.
fn create_objects(plane: &ControlPlane) {
    plane.create(NODES, &json!({"metadata": {"name": "node-a"}}));
    let addresses = json!([{"type": "InternalIP", "address": "172.18.0.2"}]);
    plane.patch(
        &format!("{NODES}/node-a/status"),
        &json!({"status": {"addresses": addresses}}),
    );
    let mut local = new_service("local");
    local["spec"]["type"] = json!("NodePort");
    local["spec"]["externalTrafficPolicy"] = json!("Local");
    local["spec"]["ports"][0]["nodePort"] = json!(30_080);
    for (service, address, node) in [
        (new_service("web"), "10.244.1.2", "node-a"),
        (local, "10.244.2.2", "node-b"),
    ] {
        plane.create(SERVICES, &service);
        let name = &service["metadata"]["name"];
        let slice = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 8080}],
            "endpoints": [{
                "addresses": [address], "nodeName": node, "conditions": {"ready": true},
            }],
        });
        plane.create(SLICES, &slice);
    }
}

/// Returns everything that a service proxy programs.
fn kernel() -> String {
    let print = |words: &[&str]| {
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    [
        &["ipvsadm", "--save", "--numeric"][..],
        &["ip", "-oneline", "address"],
        &["ip", "route", "show", "table", "local"],
        &["nft", "--stateless", "list", "ruleset"],
        &["ipset", "list", "-output", "save"],
    ]
    .map(print)
    .concat()
}

/// Waits until kube-proxy has programmed everything. Returns the state of the kernel.
fn settled() -> String {
    let servers = [
        "-a -t 172.18.0.2:30080 -r 10.244.2.2:8080 -m -w 1",
        "-r 10.244.1.2:8080",
    ];
    // The last rule of KUBE-IPVS-FILTER, which kube-proxy writes last of all, for each family on its own. Its
    // chains and its sets stand seconds before on a slow machine.
    let last_rule = "ct state new xt match set counter reject";
    let settled = lab::await_some(Duration::from_secs(1), || {
        let found = kernel();
        let programmed = servers.iter().all(|part| found.contains(part))
            && found.matches(last_rule).count() == 2;
        if !programmed {
            return None;
        }
        std::thread::sleep(Duration::from_secs(3));
        (kernel() == found).then_some(found)
    });
    settled.unwrap_or_else(|| panic!("kube-proxy is never ready: {}", kernel()))
}

fn plan(kubeconfig: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args(["plan", "--node-name=node-a", "--kubeconfig"])
        .arg(kubeconfig)
        .args(arguments)
        .output()
        .unwrap()
}

#[track_caller]
fn text(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_node_where_kube_proxy_serves_is_explained_and_audited() {
    lab::test(|| {
        let test = "a_node_where_kube_proxy_serves_is_explained_and_audited";
        let Some(plane) = ControlPlane::start(test) else {
            return;
        };
        for line in [
            "link add ext0 type dummy",
            "address add 172.18.0.2/24 dev ext0",
            "link set ext0 up",
            "route add default via 172.18.0.1",
        ] {
            let words = line.split(' ');
            assert!(Command::new("ip").args(words).status().unwrap().success());
        }
        create_objects(&plane);
        let mut kube_proxy = Command::new(plane.program("kube-proxy"));
        kube_proxy
            .arg("--kubeconfig")
            .arg(plane.follower())
            .args(["--hostname-override=node-a", "--proxy-mode=ipvs"])
            // It writes its rules again at each sync.
            .arg("--ipvs-sync-period=10m")
            .arg("--conntrack-max-per-core=0")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let kube_proxy = Program(kube_proxy.spawn().unwrap());
        let before = settled();
        let reader = reader(&plane);

        let changes = text(&plan(&reader, &[]), 2);
        let line = "TCP 172.18.0.2:30080: remove destination 10.244.2.2:8080, because \
                    externalTrafficPolicy is Local, and no endpoint on this node serves\n";
        assert!(changes.contains(line), "{changes}");
        assert!(!changes.contains("Service a/web"), "{changes}");
        assert!(
            changes.contains(" as planned, 1 to change, 1 to add, 0 to delete."),
            "{changes}"
        );
        let findings = text(&plan(&reader, &["--audit"]), 2);
        assert!(
            findings.contains("Service a/local\n  TCP 172.18.0.2:30080 ["),
            "{findings}"
        );
        assert!(
            findings.ends_with("1 finding at 1 Service. Nothing was changed.\n"),
            "{findings}"
        );
        let report = text(&plan(&reader, &["--audit", "--output=json"]), 2);
        let report: Value = serde_json::from_str(&report).unwrap();
        let found = &report["findings"][0];
        assert_eq!(found["rule"], "external-traffic-policy-local");
        assert_eq!(
            (&found["scope"], &found["service"]),
            (&json!("service"), &json!("a/local"))
        );

        for (before, after) in before.lines().zip(kernel().lines()) {
            assert_eq!(after, before, "the kernel changed");
        }
        for event in plane.requests_of(USER) {
            let verb = event["verb"].as_str().unwrap();
            assert!(["get", "list", "watch"].contains(&verb), "{event}");
            assert_ne!(event["responseStatus"]["code"], 403, "{event}");
        }

        // Once the endpoint is on this node, kube-proxy's table is as documented.
        let local = json!({"endpoints": [{
            "addresses": ["10.244.2.2"], "nodeName": "node-a", "conditions": {"ready": true},
        }]});
        plane.patch(&format!("{SLICES}/local"), &local);
        let findings = text(&plan(&reader, &["--audit"]), 0);
        assert_eq!(findings, "The table is as the documentation demands.\n");
        drop(kube_proxy);

        let mut user = Command::new("setpriv");
        user.args(["--reuid=65534", "--clear-groups", "--inh-caps=-all"]);
        user.arg(env!("CARGO_BIN_EXE_ipvs-proxier"));
        user.args(["plan", "--node-name=node-a", "--manifests=/dev/null"]);
        let refused = user.output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let words = String::from_utf8(refused.stderr).unwrap();
        assert!(
            words.contains("table cannot be read") && words.contains("needs CAP_NET_ADMIN"),
            "{words}"
        );
    });
}
