//! What a process learnt of endpoints survives it.

use ipvs_netlink as ipvs;
use serde_json::json;

use super::daemon::{virtual_server, web};
use super::{AT_ONCE, POD1, POD2, serving};

/// Returns the weights of Service web, sorted.
fn weights() -> Vec<u32> {
    let mut client = ipvs::Client::open().unwrap();
    let entries = client.destinations(&virtual_server()).unwrap();
    let mut weights: Vec<u32> = entries.iter().map(|it| it.destination.weight).collect();
    weights.sort_unstable();
    weights
}

#[test]
fn a_new_endpoint_stays_new_over_a_restart_and_plan_knows_it() {
    lab::test(|| {
        let (_cluster, mut daemon, _) = serving(&AT_ONCE);
        let mut slow = web(&json!({}));
        slow["metadata"]["annotations"] = json!({
            "ipvs-proxier.io/slow-start": "10m", "ipvs-proxier.io/scheduler": "wlc",
        });
        daemon.api.apply(slow);
        daemon.eventually("room for smaller weights", || weights() == [8, 8]);
        daemon.endpoints(&[POD1, POD2, (2, 2)]);
        daemon.eventually("a small weight", || weights() == [1, 8, 8]);
        let file = daemon.ledger().with_extension("standings");
        daemon.eventually("a record of it", || {
            std::fs::read_to_string(&file).is_ok_and(|text| text.contains("10.244.2.2"))
        });
        daemon.kill();
        daemon.start();
        let mut other = web(&json!({}));
        other["metadata"]["name"] = json!("other");
        other["spec"]["clusterIP"] = json!("10.96.1.2");
        other["spec"]["clusterIPs"] = json!(["10.96.1.2"]);
        daemon.api.apply(other);
        daemon.eventually("a round of the next process", || {
            let servers = ipvs::Client::open().unwrap().services().unwrap();
            servers.len() == 2
        });
        assert_eq!(weights(), [1, 8, 8]);
        let plan = daemon.command("plan").output().unwrap();
        assert_eq!(plan.status.code(), Some(0), "{plan:?}");
    });
}
