//! Manifests as people write them, kubectl prints them, and accidents leave them.

use std::path::Path;

use proxier::manifests::{self, Loaded, Options};
use proxier::store::{Change, Event};

#[test]
fn the_conformance_cluster_loads_without_a_problem() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/cluster.yaml");
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
    };
    let Loaded { events, problems } = manifests::load(&path, &options).unwrap();
    assert_eq!(problems, []);
    let [
        Event::Services(Change::Reset(services)),
        Event::EndpointSlices(Change::Reset(slices)),
        Event::Node(node),
    ] = &events[..]
    else {
        panic!("{events:#?}");
    };
    assert_eq!(services.len(), 44);
    assert_eq!(
        services
            .iter()
            .filter(|service| service.object.is_some())
            .count(),
        41
    );
    assert!(services.iter().all(|service| service.problems.is_empty()));
    assert_eq!(
        slices.iter().filter(|slice| slice.object.is_some()).count(),
        slices.len()
    );
    assert!(slices.iter().all(|slice| slice.problems.is_empty()));
    assert_eq!(node.addresses.len(), 2);
    assert_eq!(node.zone.as_deref(), Some("zone-a"));
}
