//! Allocation of cluster IPs and node ports.

use std::collections::BTreeMap;

use api_server::Manifest;
use proptest::prelude::*;
use proxier::testing::manifests::{self, Allocated, Options};
use proxier::testing::model::Service;
use serde_json::json;

use super::{golden, objects, options, problems, show};

#[test]
fn missing_addresses_are_reported() {
    let manifests = [
        Manifest::service("a"),
        Manifest::service("b"),
        Manifest::service("six").spec("ipFamilies", json!(["IPv6"])),
        Manifest::service("both")
            .cluster_ip("10.0.0.3")
            .spec("ipFamilyPolicy", "RequireDualStack"),
        Manifest::service("either")
            .cluster_ip("10.0.0.4")
            .spec("ipFamilyPolicy", "PreferDualStack"),
        Manifest::service("f")
            .label("service.kubernetes.io/service-proxy-name", "x")
            .spec("ipFamilies", json!(["IPv6"])),
    ];
    let text = Manifest::documents(&manifests);
    let with = |service_cidr: &[&str]| {
        let options = Options {
            service_cidr: service_cidr
                .iter()
                .map(|text| text.parse().unwrap())
                .collect(),
            node_name: "node-a".into(),
            permits_loopback: false,
        };
        show(&manifests::parse(&text, "f", &options))
    };
    golden("crowded", &with(&["10.0.0.0/29"]));
    golden("nowhere", &with(&[]));
}

fn services(documents: &[String]) -> Vec<Service> {
    let loaded = manifests::parse(&documents.concat(), "f", &options());
    let parsed = objects(&loaded).0;
    parsed
        .iter()
        .filter_map(|service| service.object.clone())
        .collect()
}

/// The Services of a directory whose files are added while a process runs: their addresses and problems.
struct Running {
    directory: tempfile::TempDir,
    allocated: Allocated,
}

impl Running {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            allocated: Allocated::default(),
        }
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.directory.path().join(file), text).unwrap();
    }

    fn write_services(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let name = format!("s{number}");
            let service = Manifest::service(&name).spec("type", "NodePort");
            let service = service.port("http", "TCP", 80);
            self.write(&format!("{name}.yaml"), &service.yaml());
        }
    }

    /// Loads the directory, and returns the addresses and node ports of each Service, and the problems.
    fn load(&mut self) -> (BTreeMap<String, String>, Vec<String>) {
        let path = self.directory.path();
        let loaded = manifests::reload(path, &options(), &self.allocated).unwrap();
        self.allocated = loaded.allocated.clone();
        let services = objects(&loaded).0;
        let shown = services.iter().filter_map(|parsed| {
            let service = parsed.object.as_ref()?;
            let node_ports: Vec<_> = service.ports.iter().map(|port| port.node_port).collect();
            let shown = format!("{:?} {node_ports:?}", service.cluster_ips);
            Some((service.name.name().to_owned(), shown))
        });
        (shown.collect(), problems(&loaded))
    }
}

#[test]
fn a_running_process_keeps_what_it_allocated() {
    let mut running = Running::new();
    running.write_services(0..60);
    let (before, problems) = running.load();
    assert_eq!(problems, [""; 0]);
    running.write_services(60..200);
    let (after, problems) = running.load();
    assert_eq!(problems, [""; 0]);
    for (name, addresses) in &before {
        assert_eq!(&after[name], addresses, "{name}");
    }
    let mut restarted = Running {
        allocated: Allocated::default(),
        ..running
    };
    assert_ne!(
        restarted.load().0,
        after,
        "the test needs Services that move"
    );
}

#[test]
fn a_service_moves_if_a_manifest_specifies_its_address() {
    let mut running = Running::new();
    running.write_services(0..2);
    let (before, _) = running.load();
    let loaded = manifests::reload(running.directory.path(), &options(), &running.allocated);
    let address = objects(&loaded.unwrap()).0[0]
        .object
        .as_ref()
        .unwrap()
        .cluster_ips[0];
    running.write(
        "new.yaml",
        &Manifest::service("new")
            .cluster_ip(&address.to_string())
            .yaml(),
    );
    let (after, problems) = running.load();
    assert_ne!(before["s0"], after["s0"]);
    assert_eq!(before["s1"], after["s1"]);
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    let wanted = format!(
        "Service default/s0: spec.clusterIP: {address} was allocated before, but is specified now;"
    );
    assert!(problem.contains(&wanted), "{problem}");
    assert_eq!(running.load().1, [""; 0]);
}

#[test]
fn the_address_of_an_unreadable_service_is_not_free() {
    let mut running = Running::new();
    running.write_services(0..100);
    let (before, _) = running.load();
    for number in 0..100 {
        running.write(&format!("s{number}.yaml"), "kind: [");
    }
    running.write_services(100..200);
    let (new, _) = running.load();
    running.write_services(0..100);
    let (after, _) = running.load();
    assert_eq!(after.len(), 200);
    for (name, addresses) in before.iter().chain(&new) {
        assert_eq!(&after[name], addresses, "{name}");
    }
    for number in 0..200 {
        std::fs::remove_file(running.directory.path().join(format!("s{number}.yaml"))).unwrap();
    }
    running.write("none.yaml", "# none\n");
    running.load();
    assert_eq!(
        running.allocated,
        manifests::load(running.directory.path(), &options())
            .unwrap()
            .allocated
    );
}

/// Services of every type, some with addresses and node ports and some without.
fn any_services() -> impl Strategy<Value = Vec<String>> {
    let types = ["ClusterIP", "NodePort", "LoadBalancer"];
    let policies = ["SingleStack", "PreferDualStack", "RequireDualStack"];
    let spec = (
        proptest::sample::select(types.to_vec()),
        proptest::sample::select(policies.to_vec()),
        proptest::option::of(1..255_u8),
        proptest::option::of(30_000..32_768_u16),
    );
    proptest::collection::vec(spec, 1..40).prop_map(|specs| {
        let document = |(index, (kind, policy, address, node_port))| {
            let address = Option::map(address, |low: u8| format!("clusterIP: 10.96.0.{low}"));
            let node_port = Option::map(node_port, |port: u16| format!("nodePort: {port}"));
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{index}}}\n\
                 spec:\n  type: {kind}\n  ipFamilyPolicy: {policy}\n  \
                 externalTrafficPolicy: Local\n  {}\n  ports:\n  - port: 80\n    {}\n  \
                 - {{name: other, port: 81}}\n",
                address.unwrap_or_default(),
                node_port.unwrap_or_default(),
            )
        };
        specs.into_iter().enumerate().map(document).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_order_of_documents_does_not_matter(
        (documents, shuffled) in any_services()
            .prop_flat_map(|documents| (Just(documents.clone()), Just(documents).prop_shuffle())),
    ) {
        let of_sorted = services(&documents);
        prop_assert_eq!(&of_sorted, &services(&shuffled));
        prop_assert_eq!(of_sorted.len(), documents.len());
    }

    #[test]
    fn no_address_or_port_is_allocated_twice(documents in any_services()) {
        let plain: Vec<String> = documents
            .iter()
            .map(|document| {
                let is_kept =
                    |line: &&str| !line.contains("clusterIP:") && !line.contains("nodePort:");
                document
                    .lines()
                    .filter(is_kept)
                    .map(|line| format!("{line}\n"))
                    .collect()
            })
            .collect();
        let services = services(&plain);
        let addresses: Vec<_> = services.iter().flat_map(|service| &service.cluster_ips).collect();
        let ports: Vec<u16> = services
            .iter()
            .flat_map(|service| {
                let node_ports = service.ports.iter().filter_map(|port| port.node_port);
                node_ports.chain(service.health_check_node_port)
            })
            .collect();
        let distinct: std::collections::BTreeSet<_> = addresses.iter().collect();
        prop_assert_eq!(distinct.len(), addresses.len());
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        prop_assert_eq!(distinct.len(), ports.len());
        prop_assert!(ports.iter().all(|port| (30_086..32_768).contains(port)));
    }
}
