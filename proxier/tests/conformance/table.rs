//! kube-proxy's table of virtual servers for the conformance cluster, and our departures from it.

use serde_json::Value;

#[path = "recorded.rs"]
mod recorded;

pub(crate) use recorded::{Table, conformance, of_kube_proxy};

/// The ends of the names of frontends at which we depart from kube-proxy, and why. A node port stands for
/// its frontends at all addresses.
const DEPARTURES: [(&str, &str); 4] = [
    (
        "TCP 10.96.1.42:80",
        "int-local-np: internalTrafficPolicy Local, no local endpoint: refused",
    ),
    (
        "TCP 198.51.100.19:80",
        "lb-local-ranges: externalTrafficPolicy Local, no local endpoint",
    ),
    (":30097", "lb-local-ranges, its node port"),
    (
        ":30082",
        "np-local-remote: externalTrafficPolicy Local, no local endpoint",
    ),
];

/// Frontends of the API server's own Service, which is not among the manifests.
const NOT_IN_MANIFESTS: [&str; 1] = ["TCP 10.96.0.1:443"];

fn endpoint(address: &str, port: u64) -> String {
    match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

/// Returns the table in the JSON output of `plan` or `status`.
pub(crate) fn of_report(report: &Value) -> Table {
    let row = |server: &Value| {
        let text = |value: &Value, field: &str| value[field].as_str().unwrap().to_owned();
        let number = |value: &Value, field: &str| value[field].as_u64().unwrap();
        let address = endpoint(&text(server, "address"), number(server, "port"));
        let mut scheduler = text(server, "scheduler");
        match (
            number(server, "flags"),
            number(server, "persistenceTimeout"),
        ) {
            (0, 0) => {}
            (1, seconds) => scheduler += &format!(" persistent={seconds}"),
            other => panic!("{other:?}"),
        }
        let destination = |destination: &Value| {
            let endpoint = endpoint(&text(destination, "address"), number(destination, "port"));
            format!("{endpoint} masq w={}", number(destination, "weight"))
        };
        let destinations = server["destinations"].as_array().unwrap();
        let destinations = destinations.iter().map(destination).collect();
        (
            format!("{} {address}", text(server, "protocol")),
            (scheduler, destinations),
        )
    };
    report["virtualServers"]
        .as_array()
        .unwrap()
        .iter()
        .map(row)
        .collect()
}

/// Asserts that the tables are equal except for the departures, and that each departure exists.
#[track_caller]
pub(crate) fn compare(mut ours: Table, mut theirs: Table) {
    for frontend in NOT_IN_MANIFESTS {
        assert!(
            theirs.remove(frontend).is_some() && !ours.contains_key(frontend),
            "{frontend}"
        );
    }
    for (departure, why) in DEPARTURES {
        let frontends: Vec<String> = theirs
            .keys()
            .filter(|frontend| frontend.ends_with(departure))
            .cloned()
            .collect();
        assert!(
            !frontends.is_empty(),
            "no frontend of kube-proxy ends with {departure}"
        );
        for frontend in &frontends {
            let (ours, theirs) = (ours.remove(frontend), theirs.remove(frontend));
            let (_, destinations) = ours.unwrap();
            assert!(
                destinations.is_empty(),
                "{frontend} must have no destination: {why}"
            );
            assert!(
                !theirs.unwrap().1.is_empty(),
                "{frontend} is no departure: kube-proxy has no destination either"
            );
        }
    }
    assert_eq!(ours, theirs);
}
