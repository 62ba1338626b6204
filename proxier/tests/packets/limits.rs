//! The annotation `max-connections`.

use lab::net::{Answer, Connection};
use proxier::testing::dataplane::nftables::Nftables;

use super::scene::Scene;
use super::services::{POD_B1, POD1, Service, Services};

/// The most connections of an endpoint.
const MOST: usize = 4;

const CLUSTER_IP: &str = "10.96.30.1:80";

fn limited() -> Services {
    let service = Service::new("limited", ["10.96.30.1", "fd00:10:96::30:1"]);
    let service = service.endpoints(&[POD1, POD_B1]);
    Services::dual().with(service).edit("limited", |service| {
        service.annotations = vec![("max-connections", "4"), ("drain-seconds", "60")];
    })
}

/// Each endpoint gets as many connections as it may, and a further client is refused.
#[test]
fn an_endpoint_gets_no_more_connections_than_its_limit() {
    lab::test(|| {
        let mut scene = Scene::new(limited());
        let connect = |scene: &Scene| scene.client("pod3").connect(CLUSTER_IP);
        let backend = |it: &Connection| it.greeting().backend().unwrap().to_owned();
        let mut open: Vec<Connection> = Vec::new();
        for _ in 0..2 * MOST {
            open.push(connect(&scene).unwrap());
        }
        for pod in ["pod1", "podB1"] {
            let count = open.iter().filter(|it| backend(it) == pod).count();
            assert_eq!(count, MOST, "{pod}");
        }
        let refused = |scene: &Scene| matches!(connect(scene), Err(Answer::Refused));
        assert!(refused(&scene));
        // Without the annotation nothing is limited. An edit disturbs no open connection.
        scene.program(limited().edit("limited", |it| it.annotations.clear()));
        for _ in 0..3 * MOST {
            open.push(connect(&scene).unwrap());
        }
        assert!(open.iter_mut().all(|it| it.ask().backend().is_some()));
    });
}

#[test]
fn the_dataplane_nftables_reports_a_limit() {
    lab::test(|| {
        let scene = Scene::<Nftables>::serving(limited());
        let problems = scene.proxier.problems();
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        let is_about_limit = |it: &String| it.contains("max-connections") && it.contains("limited");
        assert!(
            matches!(&problems[..], [one] if is_about_limit(one)),
            "{problems:?}"
        );
        for _ in 0..3 {
            assert!(scene.client("pod3").ask_tcp(CLUSTER_IP).backend().is_some());
        }
    });
}
