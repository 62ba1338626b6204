//! Tests of the former dataplane on the in-memory kernel.

use std::collections::BTreeSet;
use std::path::Path;

use ipvs_netlink as ipvs;

use super::*;
use crate::dataplane::ipvs::fake::{FakeKernel, Fault};
use crate::dataplane::ipvs::observed::{Carrier, Connections, ObservedServer};
use crate::dataplane::ipvs::op::AddressForm;
use crate::plan::frontend::Frontend;
use crate::plan::{FrontendKind, ServiceAddresses, example};

const CLUSTER_IP: [u8; 4] = [10, 96, 0, 1];
const NODE: [u8; 4] = [172, 18, 0, 2];
/// A service address on the device that no Service has.
const UNUSED: [u8; 4] = [10, 96, 0, 9];
/// The virtual servers of other programs, one of them at an address of the node.
const OF_OTHERS: [([u8; 4], u16); 2] = [(NODE, 443), ([192, 0, 2, 7], 443)];

fn config() -> PlanConfig {
    PlanConfig {
        node_name: "here".into(),
        service_addresses: ServiceAddresses::Loopback,
        drain: Duration::from_secs(60),
        ..PlanConfig::default()
    }
}

fn frontend(address: [u8; 4], port: u16) -> Frontend {
    Frontend {
        protocol: crate::cluster::model::Protocol::Tcp,
        address: address.into(),
        port,
    }
}

fn server(frontend: Frontend) -> (ipvs::ServiceKey, ObservedServer) {
    let key = ipvs::ServiceKey::from(frontend);
    let service = ipvs::Service::new(key, "rr".parse().unwrap());
    let endpoint: std::net::SocketAddr = "10.244.0.1:8080".parse().unwrap();
    let destination = ipvs::Destination::new(endpoint.into(), 1);
    let mut server = ObservedServer::empty(&service);
    server.destinations = vec![destination].into();
    (key, server)
}

/// Returns the Service port `default/web`, with a cluster IP and a node port.
fn desired() -> Desired {
    let mut desired = Desired::default();
    let cluster_ip = frontend(CLUSTER_IP, 80);
    (desired.frontends).insert(cluster_ip, example::cluster_ip(&[]));
    let mut node_port = example::cluster_ip(&[]);
    std::sync::Arc::make_mut(&mut node_port.profile).kind = FrontendKind::NodePort;
    (desired.frontends).insert(frontend(NODE, 30_080), node_port);
    desired.addresses.insert(CLUSTER_IP.into(), None);
    desired
}

/// Returns a snapshot with the Service of [`desired`].
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let owner = example::cluster_ip(&[]).owner.service;
    let service = api_server::Manifest::service(owner.name())
        .cluster_ip("10.96.0.1")
        .port("http", "TCP", 80);
    let options = crate::sources::manifests::Options {
        service_cidr: Vec::new(),
        node_name: "here".into(),
        permits_loopback: false,
    };
    let text = api_server::Manifest::documents([&service]);
    let loaded = crate::sources::manifests::parse(&text, "cluster.yaml", &options);
    assert_eq!(loaded.problems, []);
    for event in loaded.events {
        snapshot.apply(event, &mut Touched::All);
    }
    snapshot
}

fn former(kernel: FakeKernel, ledger: &Path) -> FormerIpvs<FakeKernel> {
    let file = || LedgerFile::new(ledger);
    let ipvs = Ipvs::new(kernel, file()).unwrap();
    FormerIpvs::new(ipvs, file(), config(), FilterConfig::default()).with_kube_proxys(Vec::new())
}

/// Returns a kernel with the virtual servers of kube-proxy and of other programs.
fn kernel() -> FakeKernel {
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses = [NODE.into()].into();
    kernel.state.carrier = Some(Carrier {
        is_ours: false,
        is_ready: false,
    });
    for address in [CLUSTER_IP, UNUSED] {
        let on_device = (address.into(), AddressForm::Address);
        kernel.state.leftovers.insert(on_device);
    }
    for (address, port) in [
        (CLUSTER_IP, 80),
        (UNUSED, 80),
        (NODE, 30_080),
        OF_OTHERS[0],
        OF_OTHERS[1],
    ] {
        let (key, server) = server(frontend(address, port));
        kernel.state.virtual_servers.insert(key, server);
    }
    kernel
}

fn keys(frontends: &[([u8; 4], u16)]) -> BTreeSet<ipvs::ServiceKey> {
    let keys = frontends.iter();
    keys.map(|(address, port)| frontend(*address, *port).into())
        .collect()
}

/// Makes a round each second until nothing is left, at most `rounds`, with a resync every ten seconds. Returns whether nothing
/// is left, and the last state of the kernel.
fn rounds(former: &mut FormerIpvs<FakeKernel>, from: u64, count: u64) -> (bool, FakeKernel) {
    rounds_with(10, former, from, count)
}

/// As [`rounds`], with a resync every `resync` seconds.
fn rounds_with(
    resync: u64,
    former: &mut FormerIpvs<FakeKernel>,
    from: u64,
    rounds: u64,
) -> (bool, FakeKernel) {
    let (snapshot, desired) = (snapshot(), desired());
    let mut last = FakeKernel::default();
    for second in from..from + rounds {
        let Some(ipvs) = &mut former.ipvs else {
            return (true, last);
        };
        let machine = ipvs.kernel.machine.clone();
        let now = Duration::from_secs(second);
        let extent = match second % resync == 0 || !ipvs.is_known() {
            true => Extent::All,
            false => Extent::Pending,
        };
        let _refused = former.retire(&snapshot, &machine, &desired, extent, now);
        if let Some(ipvs) = &former.ipvs {
            last = ipvs.kernel.clone();
        }
    }
    (former.ipvs.is_none(), last)
}

/// Returns the kernel with an open connection at the frontend of the Service.
fn kernel_with_connection() -> FakeKernel {
    let mut kernel = kernel();
    let (key, server) = server(frontend(CLUSTER_IP, 80));
    let destination = server.destinations.iter().next().unwrap().key;
    let open = Connections {
        active: 1,
        ..Connections::default()
    };
    kernel.connections.insert((key, destination), open);
    kernel
}

/// If resyncs are frequent, each round is one.
#[test]
fn resyncs_alone_find_that_connections_have_ended() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = kernel_with_connection();
    let mut former = former(kernel, &directory.path().join("ledger"));
    assert!(!rounds_with(1, &mut former, 0, 10).0);
    former.ipvs.as_mut().unwrap().kernel.connections.clear();
    // Long before the deadline of 60 s.
    assert!(rounds_with(1, &mut former, 10, 30).0);
}

#[test]
fn what_kube_proxy_left_drains_and_what_others_have_stays() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let kernel = kernel_with_connection();
    let mut former = former(kernel, &ledger);
    let (is_done, left) = rounds(&mut former, 0, 10);
    assert!(!is_done);
    let servers: BTreeSet<_> = left.state.virtual_servers.keys().collect();
    let all = [&[(CLUSTER_IP, 80)][..], &OF_OTHERS].concat();
    assert_eq!(servers, keys(&all));
    assert!(
        left.state.has_address(CLUSTER_IP.into()),
        "{:?}",
        left.state
    );
    assert!(!left.state.has_address(UNUSED.into()), "{:?}", left.state);

    let ipvs = former.ipvs.as_mut().unwrap();
    ipvs.kernel.connections.clear();
    let (is_done, left) = rounds(&mut former, 10, 100);
    assert!(is_done);
    let servers: BTreeSet<_> = left.state.virtual_servers.keys().collect();
    assert_eq!(servers, keys(&OF_OTHERS));
    assert!(
        !left.state.has_address(CLUSTER_IP.into()),
        "{:?}",
        left.state
    );
    assert!(!ledger.exists());
}

/// Its addresses are those of an earlier process of ours, and the ledger names the virtual servers.
#[test]
fn a_device_of_ours_shows_no_kube_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let mut kernel = kernel();
    kernel.state.carrier = Some(Carrier {
        is_ours: true,
        is_ready: true,
    });
    let before = kernel.state.virtual_servers.clone();
    let mut former = former(kernel, &directory.path().join("ledger"));
    let (is_done, left) = rounds(&mut former, 0, 100);
    assert!(is_done);
    assert_eq!(left.state.virtual_servers, before);
}

#[test]
fn retirements_that_fail_are_tried_again_until_nothing_is_left() {
    let mut failed = 0;
    for fault in [Fault::Refused, Fault::AnswerLost, Fault::RequestLost] {
        for write in 0..12 {
            let directory = tempfile::tempdir().unwrap();
            let mut kernel = kernel();
            kernel.faults.insert(write, fault);
            let mut former = former(kernel, &directory.path().join("ledger"));
            let (is_done, left) = rounds(&mut former, 0, 200);
            assert!(is_done, "{fault:?} of write {write}: {:?}", left.state);
            failed += usize::from(left.writes > write);
            let servers: BTreeSet<_> = left.state.virtual_servers.keys().collect();
            assert_eq!(servers, keys(&OF_OTHERS), "{fault:?} of write {write}");
            assert_eq!(
                left.state.leftovers,
                [].into(),
                "{fault:?} of write {write}"
            );
        }
    }
    assert!(failed > 12, "{failed} faults took effect");
}
