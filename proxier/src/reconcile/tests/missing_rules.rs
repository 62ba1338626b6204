//! Rounds on a kernel without nf_tables.

use super::*;

/// Returns a node with a Service of each kind of frontend, each with one endpoint.
fn cluster() -> Vec<Manifest> {
    let service = |name: &str, address: &str| {
        let service = Manifest::service(name).cluster_ip(address);
        service.port("dns", "UDP", 53)
    };
    let slice = |name: &str| {
        let slice = Manifest::slice_of(name).port("dns", "UDP", 53);
        slice.endpoint("10.244.1.2")
    };
    let local = open_service("local", "10.96.3.2", "198.51.100.6");
    vec![
        node(),
        service("plain", "10.96.3.3"),
        slice("plain"),
        // Source ranges.
        service_for("203.0.113.0/24"),
        slice("ranged"),
        // Policy Local: a firewall mark.
        local.spec("externalTrafficPolicy", "Local"),
        slice("local"),
        // Masquerade.
        open_service("open", "10.96.3.4", "198.51.100.7"),
        slice("open"),
    ]
}

fn addresses(proxier: &Fake) -> Vec<String> {
    let addresses = proxier.dataplane.kernel.state.addresses.keys();
    addresses.map(|address| address.to_string()).collect()
}

#[test]
fn without_nf_tables_only_frontends_that_need_no_rules_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses.insert([172, 18, 0, 2].into());
    kernel.lacks_nf_tables = true;
    let mut proxier = proxier(kernel, &directory.path().join("ledger"));
    receive(&mut proxier, &cluster());
    let cluster_ips = ["10.96.3.1", "10.96.3.2", "10.96.3.3", "10.96.3.4"];
    let mut now = START;
    for _ in 0..3 {
        let applied = proxier.sync(now).unwrap();
        assert_eq!(applied.failures().count(), 1, "only the rules fail");
        let held_back: Vec<String> = applied.held_back.iter().map(ToString::to_string).collect();
        assert_eq!(held_back.len(), 6, "{held_back:?}");
        // The first three are node ports.
        assert_eq!(
            held_back[3..],
            [
                "UDP 198.51.100.5:53",
                "UDP 198.51.100.6:53",
                "UDP 198.51.100.7:53"
            ]
        );
        assert_eq!(addresses(&proxier), cluster_ips);
        now = proxier.next_due().unwrap();
    }
    // A resync changes nothing, and holds the same frontends back.
    let applied = proxier.resync(now).unwrap();
    assert_eq!((applied.changes.ops.len(), applied.held_back.len()), (0, 6));

    // The administrator runs modprobe nf_tables.
    proxier.dataplane.kernel.lacks_nf_tables = false;
    let due = proxier.next_due().unwrap();
    let applied = proxier.sync(due).unwrap();
    assert_eq!(
        (applied.failures().count(), applied.held_back.len()),
        (0, 0)
    );
    assert_eq!(addresses(&proxier).len(), cluster_ips.len() + 3);
    assert_eq!(
        proxier.dataplane.kernel.state.virtual_servers.len(),
        4 + 6 + 1
    );
    assert_eq!(
        proxier.dataplane.kernel.rules,
        Some(rules_from_scratch(&proxier))
    );
}

/// A process that starts on such a kernel keeps the frontends that an earlier one created.
#[test]
fn without_nf_tables_existing_frontends_stay() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    receive(&mut first, &cluster());
    first.sync(START).unwrap();
    let mut kernel = first.dataplane.kernel.clone();
    let state = kernel.state.clone();
    kernel.rules = None;
    kernel.lacks_nf_tables = true;
    let mut next = proxier(kernel, &directory.path().join("ledger"));
    receive(&mut next, &cluster());
    let applied = next.sync(START).unwrap();
    assert_eq!(applied.held_back.len(), 0);
    assert_eq!(next.dataplane.kernel.state, state);
}
