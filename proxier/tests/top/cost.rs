//! What looking costs at 10,000 Services.

use std::time::{Duration, Instant};

use lab::net::Cluster;
use serde_json::json;

use super::Daemon;

const SERVICES: u32 = 10_000;

/// The time between two looks, as of `top`.
const INTERVAL: Duration = Duration::from_secs(2);

/// The looks that are measured.
const LOOKS: u32 = 20;

/// Returns Services with an endpoint each, as JSON objects.
fn services() -> String {
    let mut objects = String::new();
    for number in 0..SERVICES {
        let [.., high, low] = number.to_be_bytes();
        let name = format!("s{number}");
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": name},
            "spec": {
                "clusterIP": format!("10.100.{high}.{low}"),
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            },
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": name,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": ["10.244.1.2"], "nodeName": "node-a"}],
        });
        objects += &format!("{service}\n---\n{slice}\n---\n");
    }
    objects
}

/// Looks at the largest cost: ordered by open connections, so that each destination is read.
///
/// The share of a processor is printed and not judged: the lab's prices are wrong, and the machine may be busy.
#[test]
fn the_order_of_ten_thousand_services_is_renewed_as_seldom_as_its_cost_demands() {
    lab::test(|| {
        let _cluster = Cluster::conformance();
        let daemon = Daemon::with(&services(), &["--ipvs-sync-period=1h"]);
        let view = daemon.await_view("all Services", &["--rows=40"], |view| {
            view["services"]["total"] == SERVICES
        });
        assert_eq!(view["services"]["rows"].as_array().unwrap().len(), 40);
        // The first census belongs to the look before; its cost is paid by the time until the next one.
        let (began, used) = (Instant::now(), daemon.processor_time());
        for _ in 0..LOOKS {
            std::thread::sleep(INTERVAL);
            let (is_success, text) = daemon.top(&["--rows=40", "--output=json"]);
            assert!(is_success, "{text}");
        }
        let share = (daemon.processor_time() - used).as_secs_f64() / began.elapsed().as_secs_f64();
        let census = &view["head"]["census"];
        eprintln!("{:.2} % of a processor; a census: {census}", share * 100.0);
        let [cost, interval] =
            ["costMillis", "intervalMillis"].map(|it| census[it].as_f64().unwrap());
        assert!(interval >= 199.0 * cost, "{census}");
    });
}
