//! The manifests and the chart of `deploy/`, with a real API server.
//!
//! `DEPLOY_TOOLS` names the directory of kubectl and helm, which `kubernetes-tools.sh` downloads.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use proxier::testing::events::Notice;
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, run};
use super::{NODES, SERVICES, SLICES, new_service};
use crate::credentials::with_kubeconfig;
use crate::events;
use crate::follower::{Follower, until};
use crate::objects::{node, slice};

/// The user of the Pods' service account.
const USER: &str = "system:serviceaccount:kube-system:ipvs-proxier";

/// kubectl and helm.
pub(super) struct Tools(PathBuf);

impl Tools {
    /// Returns the tools, or `None` without their directory.
    ///
    /// # Panics
    /// If they are missing where every test must run.
    pub(super) fn find(test: &str) -> Option<Self> {
        let folder = std::env::var_os("DEPLOY_TOOLS").map(PathBuf::from);
        if let Some(folder) = folder.filter(|folder| folder.join("helm").is_file()) {
            return Some(Self(folder));
        }
        assert!(
            std::env::var("PEERS_REQUIRED").as_deref() != Ok("1"),
            "DEPLOY_TOOLS names no folder with kubectl and helm"
        );
        let why = format!("SKIPPED {test}: DEPLOY_TOOLS names no folder with kubectl and helm\n");
        // Written to stderr directly, because the test harness captures `eprintln!`.
        std::io::stderr().write_all(why.as_bytes()).unwrap();
        None
    }

    pub(super) fn kubectl(&self) -> PathBuf {
        self.0.join("kubectl")
    }

    /// Returns the manifests of a directory with a `kustomization.yaml`.
    #[track_caller]
    fn kustomize(&self, directory: &str) -> String {
        let mut command = Command::new(self.kubectl());
        run(command.arg("kustomize").arg(deploy(directory)), "")
    }

    /// Returns the chart's manifests for these values, or helm's error.
    pub(super) fn helm(&self, values: &[&str]) -> Result<String, String> {
        let output = Command::new(self.0.join("helm"))
            .args(["template", "ipvs-proxier", "--namespace=kube-system"])
            .arg(deploy("chart"))
            .args(values)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    }
}

/// Returns a path in `deploy/`.
pub(super) fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(path)
}

/// Checks manifests on the server without storing them; an unknown field is an error.
const DRY_RUN: [&str; 5] = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];

/// The objects that every rendering creates.
const CREATED: [&str; 5] = [
    "serviceaccount/ipvs-proxier created",
    "clusterrole.rbac.authorization.k8s.io/ipvs-proxier created",
    "clusterrolebinding.rbac.authorization.k8s.io/ipvs-proxier created",
    "configmap/ipvs-proxier",
    "daemonset.apps/ipvs-proxier created",
];

/// The objects that the monitoring creates, by the chart and by kustomize.
const MONITORING: [&str; 3] = [
    "configmap/ipvs-proxier-dashboard created",
    "podmonitor.monitoring.coreos.com/ipvs-proxier created",
    "prometheusrule.monitoring.coreos.com/ipvs-proxier created",
];

/// Checks manifests with the server, then their arguments and configuration with the program.
#[track_caller]
fn check(plane: &ControlPlane, kubectl: &Path, manifests: &str, created: &[&str]) {
    let answer = plane.kubectl(kubectl, &DRY_RUN, manifests);
    for line in created {
        assert!(answer.contains(line), "no {line}: {answer}");
    }
    program_accepts(plane, kubectl, manifests);
}

#[test]
fn the_server_accepts_every_manifest() {
    let test = "the_server_accepts_every_manifest";
    let (Some(tools), Some(plane)) = (Tools::find(test), ControlPlane::start(test)) else {
        return;
    };
    let kubectl = tools.kubectl();
    for directory in ["base", "overlays/side-by-side", "overlays/takeover"] {
        check(&plane, &kubectl, &tools.kustomize(directory), &CREATED);
    }
    // The server rejects a field that it does not know.
    let wrong = tools
        .kustomize("base")
        .replace("maxUnavailable:", "maxUnavailables:");
    let errors = plane.kubectl_error(&kubectl, &DRY_RUN, &wrong);
    assert!(errors.contains("unknown field"), "{errors}");

    kube_proxy_leaves_labelled_nodes(&plane, &kubectl);
}

#[test]
fn the_server_accepts_the_chart_with_any_values() {
    let test = "the_server_accepts_the_chart_with_any_values";
    let (Some(tools), Some(plane)) = (Tools::find(test), ControlPlane::start(test)) else {
        return;
    };
    let kubectl = tools.kubectl();
    // The kinds of the Prometheus operator, reduced to the fields that the chart uses.
    let kinds = include_str!("monitoring.yaml");
    plane.kubectl(&kubectl, &["apply", "-f", "-"], kinds);
    let established = ["wait", "--for=condition=Established", "crd", "--all"];
    plane.kubectl(&kubectl, &established, "");

    let server = "--set=apiServer=https://192.0.2.1:6443";
    let cluster = "--set=config.clusterCIDR=10.244.0.0/16";
    let plain = tools.helm(&[server, cluster]).unwrap();
    check(&plane, &kubectl, &plain, &CREATED);

    for entry in std::fs::read_dir(deploy("chart/ci")).unwrap() {
        let file = entry.unwrap().path();
        let manifests = tools.helm(&[&format!("--values={}", file.display())]);
        check(&plane, &kubectl, &manifests.unwrap(), &CREATED);
    }
    let values = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(values.path(), include_str!("values.yaml")).unwrap();
    let file = format!("--values={}", values.path().display());
    let all = tools.helm(&[&file]).unwrap();
    check(
        &plane,
        &kubectl,
        &all,
        &[&CREATED[..], &MONITORING].concat(),
    );
    let monitoring = tools.kustomize("chart/monitoring");
    let answer = plane.kubectl(&kubectl, &DRY_RUN, &monitoring);
    for line in MONITORING {
        assert!(answer.contains(line), "no {line}: {answer}");
    }
    // Both have the same rules, targets and panels.
    for expected in [
        "alert: IpvsProxierUnhealthy",
        "- __meta_kubernetes_pod_node_name",
        "\"uid\": \"ipvs-proxier\"",
        "grafana_dashboard: \"1\"",
    ] {
        assert!(all.contains(expected), "no {expected}: {all}");
        assert!(monitoring.contains(expected), "no {expected}: {monitoring}");
    }
    for expected in [
        "registry.example.com/ipvs-proxier@sha256:",
        "--answer-ping",
        "bindAddress: '::'",
        "ipvs-proxier.io/proxy: ipvs-proxier",
    ] {
        assert!(all.contains(expected), "no {expected}: {all}");
    }

    // Mistakes are named before anything is sent to the cluster.
    for (values, reason) in [
        (&[cluster][..], "apiServer"),
        (
            &[server, cluster, "--set=podMonitor.enabled=true"],
            "metricsBindAddress",
        ),
        (&[server, cluster, "--set=imagee.tag=1"], "imagee"),
        (&[server], "config.clusterCIDR"),
        (
            &[server, cluster, "--set=config.clusterCidr=10.0.0.0/8"],
            "clusterCidr",
        ),
        (&[server, cluster, "--set=dataplane=ebpf"], "dataplane"),
    ] {
        let errors = tools.helm(values).unwrap_err();
        assert!(errors.contains(reason), "no {reason}: {errors}");
    }
}

/// The overlay's patch leaves all other parts of kube-proxy's DaemonSet as kubeadm writes them.
fn kube_proxy_leaves_labelled_nodes(plane: &ControlPlane, kubectl: &Path) {
    let labels = json!({"k8s-app": "kube-proxy"});
    let daemon_set = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{"name": "kube-proxy", "image": "kube-proxy:v1.36.2"}],
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                },
            },
        },
    });
    plane.create(
        "/apis/apps/v1/namespaces/kube-system/daemonsets",
        &daemon_set,
    );
    let kube_system = "--namespace=kube-system";
    let saved = [
        kube_system,
        "get",
        "daemonset",
        "kube-proxy",
        "--output=yaml",
    ];
    let saved = plane.kubectl(kubectl, &saved, "");
    let patch = deploy("overlays/side-by-side/kube-proxy.yaml");
    let arguments = [
        kube_system,
        "patch",
        "daemonset",
        "kube-proxy",
        "--patch-file",
        patch.to_str().unwrap(),
        "--output=json",
    ];
    let patched: Value = serde_json::from_str(&plane.kubectl(kubectl, &arguments, "")).unwrap();
    let spec = &patched["spec"]["template"]["spec"];
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = &spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
    let excluded = json!({"key": "ipvs-proxier.io/proxy", "operator": "DoesNotExist"});
    assert_eq!(terms[0]["matchExpressions"][0], excluded);
    assert_eq!(spec["nodeSelector"]["kubernetes.io/os"], "linux");

    // The way back: the migration page saves the object without these two lines.
    let is_kept = |line: &&str| !line.contains("resourceVersion:") && !line.contains("uid:");
    let copy: Vec<&str> = saved.lines().filter(is_kept).collect();
    plane.kubectl(
        kubectl,
        &[kube_system, "delete", "daemonset", "kube-proxy"],
        "",
    );
    plane.kubectl(kubectl, &["apply", "-f", "-"], &copy.join("\n"));
    let again = [
        kube_system,
        "get",
        "daemonset",
        "kube-proxy",
        "--output=json",
    ];
    let again: Value = serde_json::from_str(&plane.kubectl(kubectl, &again, "")).unwrap();
    assert!(
        again["spec"]["template"]["spec"]["affinity"].is_null(),
        "{again}"
    );
}

/// A permission: verb, API group, resource.
type Permission = (String, String, String);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the permissions of the role on the server.
fn granted(plane: &ControlPlane, kubectl: &Path) -> BTreeSet<Permission> {
    let role = plane.kubectl(
        kubectl,
        &["get", "clusterrole", "ipvs-proxier", "--output=json"],
        "",
    );
    let role: Value = serde_json::from_str(&role).unwrap();
    let strings = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().unwrap().iter().map(text).collect()
    };
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for verb in strings(rule, "verbs") {
            for group in strings(rule, "apiGroups") {
                for resource in strings(rule, "resources") {
                    granted.insert((verb.clone(), group.clone(), resource));
                }
            }
        }
    }
    granted
}

/// Waits until the server's authorizer knows the role and its binding, which it learns after they were created.
fn await_role(plane: &ControlPlane) {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": USER,
            "resourceAttributes": {"verb": "list", "resource": "services"},
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let is_allowed = || {
        let answer = plane.create(path, &review);
        (answer["status"]["allowed"] == json!(true)).then_some(())
    };
    until("permitted", is_allowed, || USER);
}

/// Reports a Problem of a Service as the service account, until its Event was counted twice.
fn report_problem(plane: &ControlPlane, file: &Path) {
    plane.create(SERVICES, &new_service("web"));
    let mut config = with_kubeconfig(file);
    config.events = Some(events::TIMES);
    let follower = Follower::with(config);
    let starting = Notice::starting(std::time::SystemTime::UNIX_EPOCH);
    follower
        .watch
        .report([starting, events::notice()].into_iter());
    let read = |namespace: &str, name: &str| {
        plane.read(&format!(
            "/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}"
        ))
    };
    let (namespace, name) = events::notice().event_name("us");
    let counted =
        || read(&namespace, &name).filter(|event| event["series"]["count"].as_u64() >= Some(3));
    let event = until("counted", counted, || read(&namespace, &name));
    let service = plane.read(&format!("{SERVICES}/web")).unwrap();
    assert_eq!(event["regarding"]["uid"], service["metadata"]["uid"]);
    assert_eq!(event["type"], "Warning");
    let (namespace, name) = Notice::starting(std::time::SystemTime::UNIX_EPOCH).event_name("us");
    let started = || read(&namespace, &name);
    let event = until("started", started, || ());
    assert_eq!(event["regarding"]["kind"], "Node");
    assert!(event["series"].is_null(), "{event}");
}

/// Follows all kinds as the service account, with changes, until each kind was listed.
fn scenario(plane: &ControlPlane, file: &Path, name: &str) {
    let follower = Follower::with(with_kubeconfig(file));
    follower.watch.set_other_nodes(true);
    follower.until("synced", |status| {
        let kinds = status.kinds();
        kinds.iter().all(|(_, kind)| kind.is_synced())
    });
    follower.drain();
    plane.create(SERVICES, &new_service(name));
    assert_eq!(follower.services(), format!("apply a/{name}"));
    plane.create(SLICES, &slice(&format!("{name}-1")));
    assert_eq!(follower.slices(), format!("apply a/{name}-1"));
    plane.delete(&format!("{SERVICES}/{name}"));
    assert_eq!(follower.services(), format!("delete a/{name}"));
}

#[test]
fn the_role_permits_exactly_what_the_program_requests() {
    let test = "the_role_permits_exactly_what_the_program_requests";
    let (Some(tools), Some(mut plane)) = (Tools::find(test), ControlPlane::start(test)) else {
        return;
    };
    let kubectl = tools.kubectl();
    plane.kubectl(&kubectl, &["apply", "-f", "-"], &tools.kustomize("base"));
    let account = ["--namespace=kube-system", "create", "token", "ipvs-proxier"];
    let token = plane.kubectl(&kubectl, &account, "");
    plane.create(NODES, &node("us", "192.0.2.1"));
    let file = plane.kubeconfig("account", &json!({"token": token.trim()}));
    await_role(&plane);
    scenario(&plane, &file, "streamed");
    report_problem(&plane, &file);
    // A server without streaming lists, as those before Kubernetes 1.32.
    plane.stop_server();
    plane.flags = vec!["--feature-gates=WatchList=false"];
    plane.start_server();
    scenario(&plane, &file, "listed");

    let plan = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
        .args(["plan", "--against=empty", "--node-name=us", "--kubeconfig"])
        .arg(&file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&plan.stderr);
    // Exit code 2: the plan has changes.
    assert_eq!(plan.status.code(), Some(2), "{errors}");

    let granted = granted(&plane, &kubectl);
    let requested = || {
        let events = plane.requests_of(USER);
        let permission = |event: &Value| {
            let object = &event["objectRef"];
            (
                text(&event["verb"]),
                text(&object["apiGroup"]),
                text(&object["resource"]),
            )
        };
        events.iter().map(permission).collect::<BTreeSet<_>>()
    };
    // The last requests may not be in the log yet.
    until(
        "requested",
        || (requested() == granted).then_some(()),
        || (requested(), &granted),
    );
    for event in plane.requests_of(USER) {
        assert_ne!(event["responseStatus"]["code"], 403, "{event}");
    }
}

/// Runs each container's command with the ConfigMap's files; each must be valid, without a warning.
fn program_accepts(plane: &ControlPlane, kubectl: &Path, manifests: &str) {
    let parse = ["create", "--dry-run=client", "--output=json", "-f", "-"];
    let parsed = plane.kubectl(kubectl, &parse, manifests);
    let stream = serde_json::Deserializer::from_str(&parsed).into_iter::<Value>();
    let objects: Vec<Value> = stream.map(Result::unwrap).collect();
    let find = |kind: &str| {
        objects
            .iter()
            .find(|object| object["kind"] == kind)
            .unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let files = find("ConfigMap")["data"].as_object().unwrap();
    for (name, content) in files {
        std::fs::write(directory.path().join(name), text(content)).unwrap();
    }
    let pod = &find("DaemonSet")["spec"]["template"]["spec"];
    let own = directory.path().to_str().unwrap();
    for containers in ["initContainers", "containers"] {
        let container = &pod[containers][0];
        let arguments = container["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|argument| {
                text(argument)
                    .replace("/var/lib/kube-proxy", own)
                    .replace("$(NODE_NAME)", "us")
            });
        let written = directory.path().join("written");
        // This flag makes the program write its configuration and exit.
        let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
            .args(arguments)
            .arg(format!("--write-config-to={}", written.display()))
            .env_remove("RUST_LOG")
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && written.exists(),
            "{container}: {log}"
        );
        assert!(!log.contains("WARN"), "{container}: {log}");
    }
}
