//! Malicious and meaningless texts.

use std::time::Duration;

use proptest::prelude::*;
use proxier::testing::manifests;
use proxier::testing::plan::{Capabilities, Machine, PlanConfig, desired};
use proxier::testing::store::{Snapshot, Touched};
use rustix::time::{ClockId, clock_gettime};

use super::{objects, options, problems};

/// Returns the problems of `text` and the number of its Services.
fn read(text: &str) -> (Vec<String>, usize) {
    let loaded = manifests::parse(text, "f", &options());
    let count = objects(&loaded)
        .0
        .iter()
        .filter(|service| service.object.is_some())
        .count();
    (problems(&loaded), count)
}

/// Returns the processor time of this thread so far.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Words of manifests.
const WORDS: &str = "\
     addressType addresses annotations apiVersion clientIP clusterIP clusterIPs \
     conditions discovery.k8s.io/v1 endpoints Endpoints EndpointSlice externalIPs fd00::1 forZones \
     healthCheckNodePort hints ingress ip ipFamilies ipMode IPv4 IPv6 items kind \
     kubernetes.io/service-name labels List loadBalancer LoadBalancer loadBalancerSourceRanges \
     Local metadata name namespace Node nodeName NodePort nodePort None port ports PreferDualStack \
     protocol Service ServiceList sessionAffinity sessionAffinityConfig spec status subsets TCP \
     timeoutSeconds type UDP v1 web 10.0.0.1 10.0.0.0/8";

/// A Service that must be read after any text.
const FINE: &str = "\n---\napiVersion: v1\nkind: Service\nmetadata: {name: fine}\nspec: {}\n";

#[test]
fn bombs_are_rejected_and_the_rest_is_read() {
    let laughs: String = (1..12)
        .map(|level| {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            format!("a{level}: &a{level} [{aliases}]\n")
        })
        .collect();
    let big = "x".repeat(1 << 20);
    let copies = vec!["*big"; 900].join(", ");
    for (what, bomb, language) in [
        ("billion laughs", format!("a0: &a0 lol\n{laughs}"), "YAML"),
        (
            "copies of a long text",
            format!("a: &big {big}\nb: [{copies}]\n"),
            "YAML",
        ),
        ("deep flow", "[".repeat(1 << 20), "YAML"),
        ("deep mappings", "{a: ".repeat(1 << 18), "YAML"),
        (
            "deep block",
            (0..2000).map(|depth| " ".repeat(depth) + "a:\n").collect(),
            "YAML",
        ),
        ("sequences in a line", "- ".repeat(1 << 16), "YAML"),
    ] {
        let start = processor_time();
        let (problems, count) = read(&(bomb + FINE));
        assert_eq!(count, 1, "{what}: {problems:?}");
        assert_eq!(problems.len(), 1, "{what}");
        assert!(problems[0].len() < 400, "{what}: {problems:?}");
        let words = format!("cannot be read as {language}");
        assert!(problems[0].contains(&words), "{what}: {problems:?}");
        let taken = processor_time() - start;
        assert!(taken.as_secs() < 20, "{what} took {taken:?}");
    }
}

/// Returns a Service with so many annotations of ours that do not exist.
fn misspelled(count: usize) -> String {
    let names = (0..count).map(|number| format!("    ipvs-proxier.io/misspelled-{number:03}: x\n"));
    let names: String = names.collect();
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  annotations:\n{names}spec: {{}}\n"
    )
}

/// Each node keeps the Problems of all objects in memory.
#[test]
fn unknown_annotations_of_an_object_are_one_problem() {
    let known = "scheduler, scheduler-flags";
    for (count, named, words) in [
        (1, 1, "is not one of "),
        (2, 2, "are 2 names, none of "),
        (150, 3, "are 150 names, none of "),
    ] {
        let (problems, _) = read(&misspelled(count));
        assert_eq!(problems.len(), 1, "{problems:?}");
        let names = (0..named).map(|number| format!("ipvs-proxier.io/misspelled-{number:03}"));
        let names = names.collect::<Vec<_>>().join(", ");
        let text =
            format!("Service default/web: metadata.annotations: \"{names}\": {words}{known}");
        assert!(problems[0].contains(&text), "{problems:?}");
    }
}

/// The API server accepts 40,000 ports, and each change of such a Service is planned on every node.
#[test]
fn a_service_with_very_many_ports_is_planned_in_time_in_proportion_to_them() {
    let ports: String = (1..=40_000)
        .map(|port| format!("  - {{name: p{port}, port: {port}}}\n"))
        .collect();
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec:\n  clusterIP: 10.96.0.80\n  ports:\n{ports}"
    );
    let mut snapshot = Snapshot::default();
    for event in manifests::parse(&text, "f", &options()).events {
        snapshot.apply(event, &mut Touched::none());
    }
    let config = PlanConfig {
        node_name: "node-a".into(),
        ..PlanConfig::default()
    };
    let start = processor_time();
    let (machine, capabilities) = (Machine::default(), Capabilities::default());
    let (plan, problems) = desired(&snapshot, &machine, &capabilities, &config);
    let taken = processor_time() - start;
    assert_eq!((plan.frontends.len(), problems.len()), (40_000, 0));
    // A search among all frontends for each takes thirty times as long as a set of them.
    assert!(taken < Duration::from_secs(10), "{taken:?}");
}

#[test]
fn a_huge_name_affects_only_its_object() {
    let huge = "x".repeat(1 << 20);
    for (object, field) in [
        (
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {huge}}}"),
            "metadata.name",
        ),
        (
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a, namespace: {huge}}}"),
            "metadata.namespace",
        ),
        (format!("apiVersion: v1\nkind: {huge}"), "kind"),
        (
            format!("apiVersion: v1\nkind: {huge}List\nitems: []"),
            "kind",
        ),
        (
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {huge}, labels: 5}}"),
            "labels",
        ),
    ] {
        let (problems, count) = read(&(object + FINE));
        assert_eq!(count, 1, "{problems:?}");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains(field) && problems[0].len() < 800,
            "{problems:?}"
        );
    }
}

#[test]
fn unusual_texts_are_handled() {
    for text in [
        "",
        "\u{feff}",
        "---",
        "---\n---\n",
        "%YAML 1.2\n",
        "# nothing\n...\n",
        "null",
    ] {
        assert_eq!(read(text), (Vec::new(), 0), "{text:?}");
    }
    for text in [
        "{", "[", "}", "\u{0}", "\t", "5", "a", "[5]", "{}{}", "{} x", "&a", "*a", "!x",
    ] {
        read(text);
    }
    let windows = FINE.replace('\n', "\r\n");
    assert_eq!(read(&(windows.clone() + &windows)).1, 1);
    assert_eq!(
        read(&("{apiVersion: v1, kind: Pod}".to_owned() + FINE)),
        (Vec::new(), 1)
    );
    let json = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}"#;
    assert_eq!(read(&format!("{json}{json} # twice")).1, 1);
    assert_eq!(read(&format!("{json}\n---\n{json}{FINE}")).1, 2);
}

/// Values of every type, with the words of manifests.
fn any_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (0..70_000).prop_map(|number: i32| number.into()),
        any::<f64>().prop_map(Into::into),
        word().prop_map(Into::into),
        // Printable only: YAML rejects some characters that JSON allows.
        "[ -~é]*".prop_map(Into::into),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            proptest::collection::vec((word(), inner), 0..8)
                .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn word() -> impl Strategy<Value = String> {
    proptest::sample::select(WORDS.split(' ').collect::<Vec<_>>()).prop_map(str::to_owned)
}

/// An object of a known kind with arbitrary fields.
fn any_object() -> impl Strategy<Value = serde_json::Value> {
    let kinds = [
        "Service",
        "EndpointSlice",
        "Endpoints",
        "Node",
        "List",
        "ServiceList",
    ];
    let fields = [
        "metadata",
        "spec",
        "status",
        "ports",
        "endpoints",
        "subsets",
        "items",
    ];
    let field = (proptest::sample::select(fields.to_vec()), any_value());
    let fields = proptest::collection::vec(field, 0..5);
    (proptest::sample::select(kinds.to_vec()), fields).prop_map(|(kind, fields)| {
        let version = if kind == "EndpointSlice" {
            "discovery.k8s.io/v1"
        } else {
            "v1"
        };
        let mut object = serde_json::json!({"apiVersion": version, "kind": kind});
        object["metadata"] = serde_json::json!({"name": "a"});
        object["addressType"] = "IPv4".into();
        for (field, value) in fields {
            object[field] = value;
        }
        object
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_text_is_parsed_without_panic(text in ".*") {
        read(&text);
    }

    #[test]
    fn any_yaml_like_text_is_parsed_without_panic(text in "([-\\[\\]{}:,&*!|>'\"%@`#?~ \n]|[a-c0-2]){0,200}") {
        read(&text);
    }

    #[test]
    fn any_object_gives_the_same_as_json_and_as_yaml(
        objects in proptest::collection::vec(any_object(), 0..4),
    ) {
        let json: String = objects.iter().map(|object| format!("{object:#}\n")).collect();
        let yaml: String = objects.iter().map(|object| format!("--- {object}\n")).collect();
        let (of_json, of_yaml) = (read(&json), read(&yaml));
        prop_assert_eq!(of_json.1, of_yaml.1, "{:?} {:?}", of_json, of_yaml);
    }
}
