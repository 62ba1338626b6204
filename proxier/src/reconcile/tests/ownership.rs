//! Ownership of virtual servers when the ledger's file is lost.

use super::*;
use crate::cluster::model::{ObjectName, ServiceCidr};
use crate::cluster::store::Parsed;
use crate::dataplane::ipvs::op::AddressForm;

/// Returns a process with the whole input, after one that served everything and lost its ledger.
fn successor_without_ledger(ledger: &Path) -> Fake {
    let kernel = serving(ledger).dataplane.kernel;
    std::fs::remove_file(ledger).unwrap();
    let mut next = proxier(kernel, ledger);
    receive(&mut next, &whole_cluster());
    next
}

#[test]
fn a_process_without_the_ledger_adopts_the_virtual_servers_of_the_plan() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut next = successor_without_ledger(&ledger);
    assert_eq!(next.sync(START).unwrap().changes.ops, []);
    assert_eq!(next.ledger().owned().len(), 2);
    // The next process reads the adopted virtual servers from the ledger.
    let mut last = proxier(next.dataplane.kernel, &ledger);
    receive(&mut last, &[node()]);
    assert_removed(&mut last, START);
}

#[test]
fn a_preview_does_not_write_what_it_adopts() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut next = successor_without_ledger(&ledger);
    assert_eq!(next.preview(START).unwrap().ops, []);
    assert!(!ledger.exists());
}

#[test]
fn a_ledger_that_another_program_removes_is_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("run");
    let ledger = folder.join("ledger");
    let mut first = serving(&ledger);
    std::fs::remove_dir_all(&folder).unwrap();
    first.resync(START).unwrap();
    assert!(ledger.exists());
    // If a round changes the ledger, it writes the file anew without waiting for a resync.
    std::fs::remove_dir_all(&folder).unwrap();
    let more = open_service("more", "10.96.3.2", "198.51.100.6");
    receive(&mut first, &[&whole_cluster()[..], &[more]].concat());
    first.sync(START).unwrap();
    let mut next = proxier(first.dataplane.kernel, &ledger);
    assert_eq!(next.ledger().owned().len(), 4);
    receive(&mut next, &[node()]);
    assert_removed(&mut next, START);
}

#[test]
fn the_ledger_names_the_service_to_which_a_frontend_passed() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let key = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Udp,
        address: [198, 51, 100, 5].into(),
        port: 53,
    };
    let owner = |proxier: &Fake| proxier.ledger().owned().owner(&key).cloned();
    assert_eq!(owner(&proxier), Some("default/ranged:dns".into()));
    let other = open_service("other", "10.96.3.2", "198.51.100.5");
    receive(&mut proxier, &[node(), other]);
    proxier.sync(START).unwrap();
    assert_eq!(owner(&proxier), Some("default/other:dns".into()));
}

#[test]
fn a_doubtful_service_range_deletes_nothing_of_another_program() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let node_address: IpAddr = [172, 18, 0, 2].into();
    proxier
        .dataplane
        .kernel
        .machine
        .addresses
        .insert(node_address);
    let foreign = |address: [u8; 4]| ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Tcp,
        address: address.into(),
        port: 80,
    };
    let others = [foreign([172, 18, 0, 9]), foreign([203, 0, 113, 9])];
    let stale = foreign([10, 96, 0, 9]);
    for key in others.into_iter().chain([stale]) {
        let service = ipvs::Service::new(key, "rr".parse().unwrap());
        proxier.dataplane.kernel.apply(&[Op::AddService(service)]);
    }
    let ranges = ["0.0.0.0/0", "172.18.0.0/16", "10.96.0.0/16"];
    proxier.receive([Event::ServiceCidrs(Update::Apply(Parsed {
        name: ObjectName::new("", "oops"),
        object: Some(ServiceCidr {
            name: "oops".into(),
            ranges: ranges.map(|range| Cidr::parse(range).unwrap()).to_vec(),
        }),
        problems: Vec::new(),
        changed: None,
    }))]);
    proxier.resync(START).unwrap();
    let found = &proxier.dataplane.kernel.state.virtual_servers;
    assert!(others.iter().all(|key| found.contains_key(key)));
    assert!(!found.contains_key(&stale));
    let problems = proxier.problems().into_iter();
    let problems = problems.filter(|problem| problem.object == "ServiceCIDR oops");
    let problems: Vec<String> = problems.map(|problem| problem.to_string()).collect();
    let instead = "virtual servers in it are not deleted because of it, and packets to its unallocated addresses are not \
                   rejected";
    assert_eq!(
        problems,
        [
            format!("ServiceCIDR oops: spec.cidrs[0]: \"0.0.0.0/0\": is larger than /8; {instead}"),
            format!(
                "ServiceCIDR oops: spec.cidrs[1]: \"172.18.0.0/16\": contains 172.18.0.2, an address of this node; \
                 {instead}"
            ),
        ]
    );
}

/// Returns a virtual server of another program, with a destination.
fn foreign_server(
    kernel: &mut FakeKernel,
    address: [u8; 4],
    protocol: ipvs::Protocol,
    port: u16,
) -> ipvs::ServiceKey {
    let key = ipvs::ServiceKey::Address {
        protocol,
        address: address.into(),
        port,
    };
    let destination = ipvs::DestinationKey {
        address: [192, 0, 2, 99].into(),
        port: 6443,
    };
    let ops = [
        Op::AddService(ipvs::Service::new(key, "wlc".parse().unwrap())),
        Op::AddDestination(key, ipvs::Destination::new(destination, 1)),
    ];
    assert!(kernel.apply(&ops).iter().all(Result::is_ok));
    key
}

/// Returns the cluster with Service `greedy`, which asks for UDP port 53 at an address, and for a node port.
fn with_greedy(address: &str) -> [Manifest; 4] {
    let greedy = open_service("greedy", "10.96.3.9", address).node_port(30_053);
    let [node, service, slice] = whole_cluster();
    [node, service, slice, greedy]
}

const VIP: [u8; 4] = [198, 51, 100, 99];

#[test]
fn a_virtual_server_of_another_program_is_not_adopted() {
    for (is_running, address) in [(false, VIP), (true, VIP), (true, [172, 18, 0, 2])] {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger");
        let mut kernel = FakeKernel::default();
        let node_address: IpAddr = [172, 18, 0, 2].into();
        kernel.machine.addresses.insert(node_address);
        let mut proxier = proxier(kernel, &ledger);
        receive(&mut proxier, &whole_cluster());
        if is_running {
            proxier.sync(START).unwrap();
        }
        let key = foreign_server(
            &mut proxier.dataplane.kernel,
            address,
            ipvs::Protocol::Udp,
            53,
        );
        let before = proxier.dataplane.kernel.state.virtual_servers[&key].clone();
        receive(
            &mut proxier,
            &with_greedy(&IpAddr::from(address).to_string()),
        );
        let mut now = START;
        let applied = proxier.sync(now).unwrap();
        assert_eq!(applied.failures().count(), usize::from(is_running));
        while let Some(due) = proxier.next_due() {
            now = due;
            proxier.sync(now).unwrap();
        }
        assert_eq!(proxier.resync(now).unwrap().changes.ops, []);
        let state = &proxier.dataplane.kernel.state;
        assert_eq!(state.virtual_servers[&key], before);
        assert!(!proxier.ledger().owned().contains(&key));
        assert!(!state.addresses.contains_key(&VIP.into()));
        let problems = proxier.problems().into_iter();
        let problems: Vec<String> = problems.map(|problem| problem.to_string()).collect();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains("a virtual server of another program"),
            "{problems:?}"
        );
        // The rest of the Service is served.
        let node_port = ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Udp,
            address: node_address,
            port: 30_053,
        };
        assert!(state.virtual_servers.contains_key(&node_port));

        // The other program ends.
        proxier.dataplane.kernel.apply(&[Op::DeleteService(key)]);
        proxier.resync(now).unwrap();
        assert!(proxier.ledger().owned().contains(&key));
        assert_eq!(proxier.problems(), []);
    }
}

#[test]
fn another_port_of_an_address_that_we_made_local_stays_foreign_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut first = serving(&ledger);
    let udp = ipvs::Protocol::Udp;
    let key = foreign_server(&mut first.dataplane.kernel, VIP, udp, 443);
    first.resync(START).unwrap();
    let before = first.dataplane.kernel.state.virtual_servers[&key].clone();
    // A tenant's Service with the port of the other program, and another port, so that the address becomes local.
    let tenant = open_service("tenant", "10.96.4.1", "198.51.100.99").port("other", "UDP", 443);
    let all = [&whole_cluster()[..], &[tenant]].concat();
    receive(&mut first, &all);
    first.sync(START).unwrap();
    let state = &first.dataplane.kernel.state;
    assert!(state.addresses.contains_key(&VIP.into()));
    let mut next = proxier(first.dataplane.kernel, &ledger);
    receive(&mut next, &all);
    next.sync(START).unwrap();
    next.resync(START).unwrap();
    assert_eq!(next.dataplane.kernel.state.virtual_servers[&key], before);
    assert!(!next.ledger().owned().contains(&key));
}

#[test]
fn what_an_earlier_process_left_is_deleted_without_its_ledger() {
    for has_node in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger");
        let mut kernel = FakeKernel::default();
        kernel.machine.addresses.insert([172, 18, 0, 2].into());
        let mut first = proxier(kernel, &ledger);
        receive(&mut first, &with_greedy("198.51.100.99"));
        first.sync(START).unwrap();
        let mut kernel = first.dataplane.kernel;
        std::fs::remove_file(&ledger).unwrap();
        let ours: Vec<_> = kernel.state.virtual_servers.keys().collect();
        let udp = ipvs::Protocol::Udp;
        let others = [
            foreign_server(&mut kernel, [172, 18, 0, 2], udp, 53),
            foreign_server(&mut kernel, [192, 0, 2, 7], udp, 30_053),
        ];
        let mut next = proxier(kernel, &ledger);
        // Greedy was deleted meanwhile.
        let known = usize::from(!has_node);
        receive(&mut next, &whole_cluster()[known..]);
        next.resync(START).unwrap();
        let node_port = |proxier: &Fake| {
            let mut keys = proxier.dataplane.kernel.state.virtual_servers.keys();
            keys.any(|key| matches!(key, ipvs::ServiceKey::Address { port: 30_053, .. } if key != others[1]))
        };
        assert_eq!(node_port(&next), !has_node);
        receive(&mut next, &whole_cluster());
        next.resync(START).unwrap();
        assert!(!node_port(&next));
        let left: Vec<_> = next.dataplane.kernel.state.virtual_servers.keys().collect();
        let is_greedy = |key: &ipvs::ServiceKey| next.ledger().owned().owner(key).is_none();
        let strangers = left.iter().filter(|key| is_greedy(key));
        // Without service ranges, its cluster IP is recognised by our route.
        assert_eq!(strangers.copied().collect::<Vec<_>>(), others, "{ours:?}");
    }
}

/// The packet rules tell which firewall marks and which frontends at the node's addresses were ours.
#[test]
fn marks_and_external_ips_of_a_lost_ledger_are_recognised_by_the_packet_rules() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses.insert([172, 18, 0, 2].into());
    let mut first = proxier(kernel, &ledger);
    let local =
        open_service("local", "10.96.3.9", "172.18.0.2").spec("externalTrafficPolicy", "Local");
    let endpoint = Manifest::slice_of("local")
        .port("dns", "UDP", 53)
        .endpoint("10.244.9.9");
    receive(
        &mut first,
        &[&whole_cluster()[..], &[local, endpoint]].concat(),
    );
    first.sync(START).unwrap();
    let mark = first.marks().keys().next().unwrap();
    let external = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Udp,
        address: [172, 18, 0, 2].into(),
        port: 53,
    };
    assert!(first.ledger().owned().contains(&external));
    let mut kernel = first.dataplane.kernel;
    std::fs::remove_file(&ledger).unwrap();
    let other = ipvs::ServiceKey::Mark {
        family: ipvs::Family::V4,
        mark: 0x273a,
    };
    kernel.apply(&[Op::AddService(ipvs::Service::new(
        other,
        "rr".parse().unwrap(),
    ))]);
    let mut next = proxier(kernel, &ledger);
    receive(&mut next, &whole_cluster());
    next.resync(START).unwrap();
    let left = &next.dataplane.kernel.state.virtual_servers;
    assert!(!left.contains_key(&mark) && !left.contains_key(&external));
    assert!(left.contains_key(&other));
    // What may be of the earlier process is named, until it is gone.
    let problems = |proxier: &Fake| -> Vec<String> {
        let all = proxier.problems().into_iter();
        all.map(|problem| problem.to_string()).collect()
    };
    let told = problems(&next);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains(&other.to_string()) && told[0].contains("ledger was lost"),
        "{told:?}"
    );
    next.dataplane.kernel.apply(&[Op::DeleteService(other)]);
    next.resync(START).unwrap();
    assert_eq!(problems(&next), [] as [String; 0]);
}

/// kube-proxy's virtual servers are at addresses of its device, or are node ports.
#[test]
fn the_virtual_servers_of_kube_proxy_are_adopted() {
    for has_ledger in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger");
        let node_address: IpAddr = [172, 18, 0, 2].into();
        let mut kernel = FakeKernel::default();
        if has_ledger {
            kernel = serving(&ledger).dataplane.kernel;
        }
        kernel.machine.addresses.insert(node_address);
        for address in [[10, 96, 3, 9], VIP] {
            let form = AddressForm::Address;
            kernel.state.leftovers.insert((address.into(), form));
        }
        kernel.state.carrier = Some(crate::dataplane::ipvs::observed::Carrier {
            is_ours: false,
            is_ready: true,
        });
        let udp = ipvs::Protocol::Udp;
        let left = [
            foreign_server(&mut kernel, [10, 96, 3, 9], udp, 53),
            foreign_server(&mut kernel, VIP, udp, 53),
            foreign_server(&mut kernel, [172, 18, 0, 2], udp, 30_053),
        ];
        let keepalived = foreign_server(&mut kernel, [172, 18, 0, 2], udp, 53);
        let mut proxier = proxier(kernel, &ledger);
        // The node ports come in a later round, when kube-proxy's addresses are gone.
        receive(&mut proxier, &with_greedy("198.51.100.99")[1..]);
        let mut now = START;
        proxier.sync(now).unwrap();
        while let Some(due) = proxier.next_due() {
            now = due;
            proxier.sync(now).unwrap();
        }
        receive(&mut proxier, &with_greedy("198.51.100.99"));
        proxier.resync(now).unwrap();
        assert_eq!(proxier.problems(), []);
        assert!(
            left.iter()
                .all(|key| proxier.ledger().owned().contains(key))
        );
        let own = open_service("own", "10.96.3.8", "172.18.0.2");
        receive(
            &mut proxier,
            &[&with_greedy("198.51.100.99")[..], &[own]].concat(),
        );
        proxier.resync(now).unwrap();
        assert_eq!(proxier.problems().len(), 1);
        assert!(!proxier.ledger().owned().contains(&keepalived));
    }
}

#[test]
fn events_of_endpoints_read_no_machine_for_an_address_that_is_not_served() {
    use crate::plan::ExternalRanges;
    for is_foreign in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger");
        let mut proxier = proxier(FakeKernel::default(), &ledger);
        if is_foreign {
            let udp = ipvs::Protocol::Udp;
            foreign_server(&mut proxier.dataplane.kernel, VIP, udp, 53);
        } else {
            proxier.cluster.planner = Planner::new(PlanConfig {
                external_ranges: ExternalRanges {
                    load_balancer_ips: vec!["203.0.113.0/24".parse().unwrap()],
                    ..ExternalRanges::default()
                },
                ..proxier.cluster.planner.config().clone()
            });
        }
        receive(&mut proxier, &with_greedy("198.51.100.99"));
        proxier.sync(START).unwrap();
        let reads = proxier.dataplane.kernel.peer_reads;
        let slice = Manifest::slice_of("greedy").port("dns", "UDP", 53);
        proxier.receive(
            events(&[slice.endpoint("10.244.1.9")])
                .into_iter()
                .filter_map(|event| match event {
                    Event::EndpointSlices(Update::Reset(all)) => {
                        Some(Event::EndpointSlices(Update::Merge(all)))
                    }
                    _ => None,
                }),
        );
        proxier.sync(START).unwrap();
        assert_eq!(proxier.dataplane.kernel.peer_reads, reads, "{is_foreign}");
        // A new address may be another machine's.
        let new = open_service("new", "10.96.3.10", "203.0.113.7");
        proxier.receive(events(&[new]).into_iter().filter_map(|event| match event {
            Event::Services(Update::Reset(all)) => Some(Event::Services(Update::Merge(all))),
            _ => None,
        }));
        proxier.sync(START).unwrap();
        let asked = proxier.dataplane.kernel.peer_reads;
        assert_eq!(asked, reads + 1, "{is_foreign}");
    }
}
