//! Edits of a Service that make virtual servers stale while these have connections.

use serde_json::json;

use super::*;
use crate::dataplane::ipvs::observed::Connections;

const DRAIN: Duration = Duration::from_secs(100);
const INGRESS: &str = "198.51.100.5";

fn web() -> Manifest {
    Manifest::service("web")
        .of_type("LoadBalancer")
        .cluster_ip("10.96.3.1")
        .port("http", "TCP", 80)
}

fn with_node_port(port: u16) -> Manifest {
    let port = json!([{"name": "http", "protocol": "TCP", "port": 80, "nodePort": port}]);
    web().spec("ports", port)
}

fn local(service: Manifest) -> Manifest {
    service.spec("externalTrafficPolicy", "Local")
}

/// A proxy with drain time, and what it serves.
struct Edited {
    proxier: Fake,
    now: Duration,
    directory: tempfile::TempDir,
}

impl Edited {
    /// Returns a proxy that serves `service`, whose virtual servers all have connections.
    fn serving(service: Manifest) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut kernel = FakeKernel::default();
        kernel.machine.addresses.insert([172, 18, 0, 2].into());
        let proxier = draining_proxier(kernel, &directory.path().join("ledger"), DRAIN);
        let mut edited = Self {
            proxier,
            now: START,
            directory,
        };
        edited.edit(&[service]);
        let kernel = &mut edited.proxier.dataplane.kernel;
        for (key, server) in kernel.state.virtual_servers.iter() {
            for destination in server.destinations.iter() {
                let open = Connections {
                    active: 1,
                    inactive: 0,
                };
                kernel.connections.insert((key, destination.key), open);
            }
        }
        edited
    }

    fn edit(&mut self, services: &[Manifest]) {
        self.receive(services);
        self.sync();
    }

    fn receive(&mut self, services: &[Manifest]) {
        let slice = Manifest::slice_of("web").port("http", "TCP", 8080);
        let here = json!({"nodeName": "node-a"});
        let slice = slice.endpoint_with("10.244.1.2", here);
        let slice = slice.endpoint_with("10.244.2.2", json!({"nodeName": "node-b"}));
        let others = [node(), slice];
        receive(&mut self.proxier, &[&others[..], services].concat());
    }

    fn sync(&mut self) {
        let applied = self.proxier.sync(self.now).unwrap();
        let failures: Vec<_> = applied.failures().collect();
        assert!(failures.is_empty(), "{failures:?}");
    }

    /// Makes the rounds that are due in the next seconds.
    fn pass(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while let Some(due) = self.proxier.next_due().filter(|due| *due <= end) {
            self.now = due;
            self.sync();
        }
        self.now = end;
    }

    /// Replaces the process by a new one, after SIGKILL.
    fn restart(&mut self) {
        let kernel = std::mem::take(&mut self.proxier.dataplane.kernel);
        let ledger = self.directory.path().join("ledger");
        self.proxier = draining_proxier(kernel, &ledger, DRAIN);
    }

    fn close_connections(&mut self) {
        self.proxier.dataplane.kernel.connections.clear();
    }

    fn servers(&self) -> Vec<String> {
        let servers = self.proxier.dataplane.kernel.state.virtual_servers.keys();
        servers.map(|key| key.to_string()).collect()
    }

    /// Returns the virtual servers that the plan lacks, each with the weights of its destinations.
    fn stale(&self) -> Vec<(String, Vec<u32>)> {
        let wanted = self.proxier.wanted();
        let servers = self.proxier.dataplane.kernel.state.virtual_servers.iter();
        let stale = servers.filter(|(key, _)| !wanted.contains(key));
        let weights = |server: &crate::dataplane::ipvs::observed::ObservedServer| {
            let destinations = server.destinations.iter();
            destinations.map(|destination| destination.weight).collect()
        };
        stale
            .map(|(key, server)| (key.to_string(), weights(server)))
            .collect()
    }

    fn has_address(&self, address: &str) -> bool {
        let addresses = &self.proxier.dataplane.kernel.state.addresses;
        addresses.contains_key(&address.parse().unwrap())
    }

    fn has_guard(&self, frontend: &str) -> bool {
        let rules = rules(&self.proxier);
        let chain = format!("chain {frontend} {{\n\t\tgoto refuse\n");
        rules.contains(&format!("jump {frontend}")) && rules.contains(&chain)
    }

    /// Asserts that the kernel has exactly the plan, and that nothing is left to do.
    #[track_caller]
    fn assert_settled(&mut self) {
        self.pass(60);
        assert_eq!(self.proxier.next_due(), None);
        assert_eq!(self.stale(), []);
        let state = &self.proxier.dataplane.kernel.state;
        let addresses = state.addresses.iter();
        let addresses: BTreeMap<_, _> = addresses.map(|(it, source)| (it, *source)).collect();
        assert_eq!(addresses, self.proxier.desired().addresses);
        let rules = rules_from_scratch(&self.proxier);
        assert_eq!(self.proxier.dataplane.kernel.rules, Some(rules));
        assert!(self.proxier.ledger().retired().is_empty());
    }
}

/// Edits of Service web: before, after, the stale virtual server, its address if it is a service
/// address, and the chain of its guard.
fn edits() -> [(
    Manifest,
    Manifest,
    &'static str,
    Option<&'static str>,
    &'static str,
); 5] {
    let external = json!([INGRESS]);
    [
        (
            web().ingress(INGRESS),
            web(),
            "TCP 198.51.100.5:80",
            Some(INGRESS),
            "ranges-tcp-198.51.100.5-80",
        ),
        (
            web().ingress(INGRESS).source_range("203.0.113.0/24"),
            web(),
            "TCP 198.51.100.5:80",
            Some(INGRESS),
            "ranges-tcp-198.51.100.5-80",
        ),
        (
            web().spec("externalIPs", external),
            web(),
            "TCP 198.51.100.5:80",
            Some(INGRESS),
            "ranges-tcp-198.51.100.5-80",
        ),
        (
            with_node_port(30_080),
            with_node_port(30_081),
            "TCP 172.18.0.2:30080",
            None,
            "ranges-tcp-172.18.0.2-30080",
        ),
        (
            web().ingress(INGRESS),
            web().of_type("ExternalName").spec("clusterIP", ""),
            "TCP 198.51.100.5:80",
            Some(INGRESS),
            "ranges-tcp-198.51.100.5-80",
        ),
    ]
}

#[test]
fn an_edit_retires_a_virtual_server_until_its_last_connection_ends() {
    for (before, after, server, address, guard) in edits() {
        let mut edited = Edited::serving(before);
        edited.edit(std::slice::from_ref(&after));
        let assert_retired = |edited: &Edited| {
            let stale = edited.stale();
            let retired = stale.iter().find(|(key, _)| key == server);
            let weights = retired.map(|(_, weights)| weights.as_slice());
            assert_eq!(weights, Some(&[0, 0][..]), "{server} among {stale:?}");
            assert!(address.is_none_or(|address| edited.has_address(address)));
            assert!(edited.has_guard(guard), "{}", rules(&edited.proxier));
        };
        assert_retired(&edited);
        edited.pass(40);
        assert_retired(&edited);

        // The next process continues, and has nothing to write.
        edited.restart();
        let writes = edited.proxier.dataplane.kernel.writes;
        edited.receive(std::slice::from_ref(&after));
        let preview = edited.proxier.preview(edited.now).unwrap();
        assert_eq!((preview.ops, preview.changes_rules), (vec![], false));
        edited.sync();
        assert_eq!(edited.proxier.dataplane.kernel.writes, writes);
        assert_retired(&edited);
        edited.proxier.resync(edited.now).unwrap();
        assert_eq!(edited.proxier.dataplane.kernel.writes, writes);

        edited.close_connections();
        edited.assert_settled();
    }
}

#[test]
fn a_retired_virtual_server_is_deleted_at_its_deadline() {
    for (before, after, ..) in edits() {
        let mut edited = Edited::serving(before);
        edited.edit(&[after]);
        edited.pass(50);
        edited.restart();
        edited.proxier.receive(None);
        edited.receive(&[web()]);
        edited.sync();
        assert_ne!(edited.stale(), []);
        edited.pass(51);
        edited.assert_settled();
    }
}

#[test]
fn a_retired_virtual_server_of_a_deleted_service_is_deleted_at_once() {
    for (before, after, ..) in edits() {
        let mut edited = Edited::serving(before.clone());
        edited.edit(&[]);
        assert_eq!(edited.servers(), [""; 0]);

        let mut edited = Edited::serving(before);
        edited.edit(&[after]);
        edited.edit(&[]);
        assert_eq!(edited.servers(), [""; 0]);
        edited.assert_settled();
    }
}

#[test]
fn an_undone_edit_serves_the_frontend_again() {
    for (before, after, server, ..) in edits() {
        let mut edited = Edited::serving(before.clone());
        edited.edit(&[after]);
        edited.edit(&[before]);
        assert!(edited.stale().iter().all(|(key, _)| key != server));
        let mut servers = edited.proxier.dataplane.kernel.state.virtual_servers.iter();
        let again = servers.find(|(key, _)| key.to_string() == server);
        let weights = again.unwrap().1.destinations.iter().map(|it| it.weight);
        assert!(weights.eq([1, 1]));
        drop(servers);
        edited.close_connections();
        edited.assert_settled();
    }
}

#[test]
fn an_edit_while_no_process_ran_retires_too() {
    for (before, after, server, address, guard) in edits() {
        let mut edited = Edited::serving(before);
        edited.restart();
        edited.edit(&[after]);
        let stale = edited.stale();
        assert!(stale.iter().any(|(key, _)| key == server), "{stale:?}");
        assert!(address.is_none_or(|address| edited.has_address(address)));
        assert!(edited.has_guard(guard), "{}", rules(&edited.proxier));
        edited.close_connections();
        edited.assert_settled();
    }
}

#[test]
fn a_service_without_drain_time_keeps_no_stale_virtual_server() {
    let zero = |service: Manifest| service.annotation("ipvs-proxier.io/drain-seconds", "0");
    for (before, after, ..) in edits() {
        let mut edited = Edited::serving(zero(before));
        edited.edit(&[zero(after)]);
        if edited.proxier.snapshot().services().count() > 0 {
            assert_eq!(edited.stale(), []);
        }
    }
}

#[test]
fn the_virtual_server_of_a_firewall_mark_is_retired_with_its_policy() {
    let service = web().ingress(INGRESS);
    let mut edited = Edited::serving(local(service.clone()));
    let marks = |edited: &Edited| {
        let keys = edited.proxier.dataplane.kernel.state.virtual_servers.keys();
        keys.filter(|key| key.address().is_none()).count()
    };
    assert_eq!(marks(&edited), 1);
    edited.edit(std::slice::from_ref(&service));
    assert_eq!(marks(&edited), 1);
    assert!(edited.stale().iter().all(|(_, weights)| *weights == [0, 0]));
    edited.edit(&[local(service.clone())]);
    assert_eq!((marks(&edited), edited.stale()), (1, vec![]));
    edited.edit(&[service]);
    edited.close_connections();
    edited.assert_settled();
    assert_eq!(marks(&edited), 0);
}

/// Clients inside the cluster use the load-balancer address through the virtual server of the firewall
/// mark. The node port keeps that one desired.
#[test]
fn an_address_stays_while_clients_inside_may_use_it() {
    let with_address = local(with_node_port(30_080).ingress(INGRESS));
    let mut edited = Edited::serving(with_address);
    let is_mark = |key: &ipvs::ServiceKey| key.address().is_none();
    let connections = &mut edited.proxier.dataplane.kernel.connections;
    connections.retain(|(key, _), _| is_mark(key));
    edited.edit(&[local(with_node_port(30_080))]);
    edited.pass(40);
    assert!(edited.has_address(INGRESS));
    assert_eq!(edited.stale().len(), 1);
    edited.close_connections();
    edited.assert_settled();
}

#[test]
fn the_address_of_a_retired_virtual_server_is_restored_if_another_program_deletes_it() {
    let mut edited = Edited::serving(web().ingress(INGRESS));
    edited.edit(&[web()]);
    edited.proxier.dataplane.kernel.state.addresses.clear();
    edited.proxier.resync(edited.now).unwrap();
    assert!(edited.has_address(INGRESS) && edited.has_address("10.96.3.1"));
    edited
        .proxier
        .dataplane
        .kernel
        .state
        .virtual_servers
        .clear();
    edited.proxier.resync(edited.now).unwrap();
    edited.assert_settled();
}

#[test]
fn another_service_gets_a_retired_frontend() {
    let mut edited = Edited::serving(web().ingress(INGRESS));
    let other = Manifest::service("other")
        .cluster_ip("10.96.3.2")
        .port("http", "TCP", 80);
    edited.edit(&[web(), other.clone()]);
    assert_eq!(edited.stale().len(), 1);
    let other = other.of_type("LoadBalancer").ingress(INGRESS);
    edited.edit(&[web(), other]);
    assert_eq!(edited.stale(), []);
    // Its destinations still drain.
    let draining = edited.proxier.ledger().drains().iter().count();
    assert_eq!(draining, 2);
    edited.close_connections();
    edited.assert_settled();
}

#[test]
fn a_failed_op_of_a_retirement_is_repeated() {
    for accepted in 0..8 {
        let mut edited = Edited::serving(web().ingress(INGRESS));
        edited.receive(&[web()]);
        refuse_after(&mut edited.proxier, accepted);
        let _ = edited.proxier.sync(edited.now).unwrap();
        edited.proxier.dataplane.kernel.faults.clear();
        edited.pass(30);
        let [(_, weights)] = &edited.stale()[..] else {
            panic!("{:?}", edited.stale());
        };
        assert_eq!(*weights, [0, 0], "{accepted} writes succeeded");
        assert!(edited.has_address(INGRESS));

        edited.close_connections();
        refuse_after(&mut edited.proxier, accepted);
        edited.now = edited.proxier.next_due().unwrap();
        let _ = edited.proxier.sync(edited.now).unwrap();
        edited.proxier.dataplane.kernel.faults.clear();
        edited.assert_settled();
    }
}
