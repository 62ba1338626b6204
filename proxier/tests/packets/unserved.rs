//! Frontends whose virtual server the kernel lacks: no daemon of the node answers for the Service.

use ipvs_netlink as ipvs;
use proxier::testing::clock;
use proxier::testing::plan::ServiceAddresses;

use super::scene::Scene;
use super::services::Services;
use crate::{at, check};

#[test]
fn a_frontend_without_virtual_server_is_rejected_with_service_addresses_as_routes() {
    lab::test(|| a_frontend_without_virtual_server_is_rejected(ServiceAddresses::Routes));
}

#[test]
fn a_frontend_without_virtual_server_is_rejected_with_service_addresses_on_a_device() {
    lab::test(|| a_frontend_without_virtual_server_is_rejected(ServiceAddresses::Dummy));
}

fn a_frontend_without_virtual_server_is_rejected(form: ServiceAddresses) {
    let mut scene = Scene::with(Services::dual(), form, |_| {});
    // The node's daemons listen on all addresses, at the ports of Service web.
    scene.client("node").serve_tcp(80);
    scene.client("node").serve_udp(53);
    let web = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    let own = at("172.18.0.2", "fd00:172:18::2", 80, 53);
    let pods = ["pod1/client", "podB1/client"];
    check(&scene, "pod3", &web, &pods);

    // To clients, a virtual server that another program deleted is the same as one that the kernel
    // refused to add.
    let mut client = ipvs::Client::open().unwrap();
    // On Linux 6.1, a dump may lack some while another test deletes virtual servers.
    loop {
        let entries = client.services().unwrap();
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            client.delete_service(&entry.service.key).unwrap();
        }
    }
    for asking in ["pod3", "ext", "node"] {
        check(&scene, asking, &web, &["refused"]);
    }
    // At the node's own addresses, its daemons answer.
    check(&scene, "ext", &own, &["node-a/client"]);
    check(&scene, "node", &own, &["node-a/node"]);

    let applied = scene.proxier.resync(clock::since_boot()).unwrap();
    assert_eq!(applied.failures().count(), 0);
    check(&scene, "pod3", &web, &pods);
}
