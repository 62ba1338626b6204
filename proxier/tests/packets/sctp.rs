//! SCTP: every kind of client and address, and stale flows.
//!
//! Kernels 6.1 and 7.2 translate SCTP wherever they translate TCP and UDP. This holds for associations
//! with one address at each end; Kubernetes supports no others. Further addresses would be inside the
//! chunks, which the kernel does not translate.

use lab::net::Connection;
use proxier::testing::model::Protocol;

use super::scene::{Scene, flows};
use super::services::{POD1, Services};
use crate::check;

/// Returns the network with SCTP servers.
fn scene() -> Scene {
    let scene = Scene::new(services());
    for pod in ["pod1", "pod2", "pod3", "podB1"] {
        scene.client(pod).serve_sctp(5353);
    }
    scene
}

/// Returns the Services with SCTP instead of UDP.
fn services() -> Services {
    Services::dual().instead_of_udp("SCTP")
}

/// Returns the frontends of both families.
fn at(v4: &str, v6: &str, port: u16) -> [String; 2] {
    [format!("sctp {v4}:{port}"), format!("sctp [{v6}]:{port}")]
}

#[test]
fn each_client_reaches_each_service() {
    lab::test(|| {
        let scene = scene();
        let both = ["pod1/client", "podB1/client"];
        let masqueraded = ["pod1/node", "podB1/node"];

        let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 53);
        check(&scene, "pod3", &cluster_ip, &both);
        check(&scene, "ext", &cluster_ip, &masqueraded);
        check(&scene, "node", &cluster_ip, &masqueraded);
        check(&scene, "pod1", &cluster_ip, &["pod1/node", "podB1/client"]);
        for external in [
            at("198.51.100.1", "2001:db8:51::1", 53),
            at("198.51.100.2", "2001:db8:51::2", 53),
            at("172.18.0.2", "fd00:172:18::2", 30053),
        ] {
            for client in ["pod3", "ext", "peer", "node"] {
                check(&scene, client, &external, &masqueraded);
            }
        }
        for local in [
            at("198.51.100.3", "2001:db8:51::3", 53),
            at("198.51.100.4", "2001:db8:51::4", 53),
            at("172.18.0.2", "fd00:172:18::2", 30054),
        ] {
            check(&scene, "ext", &local, &["pod2/client"]);
            check(&scene, "pod3", &local, &["pod2/client", "podB1/client"]);
            check(&scene, "node", &local, &["pod2/node", "podB1/node"]);
        }
        let ranged = at("198.51.100.5", "2001:db8:51::5", 53);
        for client in ["ext", "node"] {
            check(&scene, client, &ranged, &["pod1/node"]);
        }
        check(&scene, "ext2", &ranged, &["timeout"]);
        for refusing in [
            at("10.96.4.1", "fd00:10:96::4:1", 53),
            at("198.51.100.6", "2001:db8:51::6", 53),
            at("172.18.0.2", "fd00:172:18::2", 30055),
            // A port of no Service.
            at("10.96.1.1", "fd00:10:96::1", 9999),
        ] {
            for client in ["pod3", "ext"] {
                check(&scene, client, &refusing, &["refused"]);
            }
        }
    });
}

#[test]
fn only_stale_associations_are_deleted() {
    lab::test(|| {
        let mut scene = scene();
        let open = |scene: &Scene, to: &str| -> Connection {
            scene.client("pod3").connect_sctp(to).unwrap()
        };
        // One association with each endpoint.
        let mut web: Vec<_> = (0..2).map(|_| open(&scene, "10.96.1.1:53")).collect();
        let mut web6 = open(&scene, "[fd00:10:96::1]:53");
        let flows = || flows(Protocol::Sctp);
        let before = flows();
        assert!(
            before.contains("10.96.1.1:53 at 10.244.1.2:5353"),
            "{before:?}"
        );
        assert!(
            before.contains("10.96.1.1:53 at 10.244.2.2:5353"),
            "{before:?}"
        );

        // pod1 is no longer an endpoint in IPv4.
        let left = services().edit("web", |web| web.slice_v4().remove(POD1));
        scene.program(&left);
        let mut expected = before.clone();
        expected.remove("10.96.1.1:53 at 10.244.1.2:5353");
        assert_eq!(flows(), expected);

        // The associations with the other endpoint and over IPv6 stay open.
        let survivor = web
            .iter_mut()
            .find(|it| it.greeting().backend() == Some("podB1"));
        assert_eq!(survivor.unwrap().ask().backend(), Some("podB1"));
        assert!(web6.ask().backend().is_some());
        let to = ["sctp 10.96.1.1:53".to_owned()];
        check(&scene, "pod3", &to, &["podB1/client"]);

        scene.program(left.without("web"));
        assert!(flows().is_empty());
    });
}
