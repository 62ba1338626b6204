//! The observations of clients with kube-proxy, and what clients of our proxy should observe.

use std::collections::BTreeSet;

use serde_json::Value;

/// The answers that a client received at a frontend.
#[derive(Debug)]
pub(crate) struct Row {
    /// For example `tcp 10.96.1.1:80`.
    pub(crate) frontend: String,
    pub(crate) client: String,
    pub(crate) answers: BTreeSet<String>,
}

/// Returns all rows of the conformance data.
pub(crate) fn rows(data: &str) -> Vec<Row> {
    let data: Value = serde_json::from_str(data).unwrap();
    let mut rows = Vec::new();
    for (frontend, clients) in data["observed"].as_object().unwrap() {
        let [protocol, address, port] = frontend.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{frontend}");
        };
        let address = match address.contains(':') {
            true => format!("[{address}]"),
            false => address.to_owned(),
        };
        for (client, answers) in clients.as_object().unwrap() {
            let answers = answers.as_array().unwrap().iter();
            rows.push(Row {
                frontend: format!("{protocol} {address}:{port}"),
                client: client.clone(),
                answers: answers.map(|it| it.as_str().unwrap().to_owned()).collect(),
            });
        }
    }
    assert!(rows.len() > 300, "{}", rows.len());
    rows
}

/// The departures from kube-proxy: frontends, clients, and the answers that the Kubernetes documentation
/// demands (`tests/conformance/README.md`).
const DOCUMENTED: [(&str, &[&str], &[&str]); 19] = [
    // With externalTrafficPolicy Local, clients inside reach all endpoints.
    (
        "tcp 172.18.0.2:30081",
        &["node"],
        &["pod1/node", "podB1/node"],
    ),
    (
        "tcp 172.18.0.2:30081",
        &["pod3"],
        &["pod1/client", "podB1/client"],
    ),
    ("tcp 172.18.0.2:30083", &["node"], &["podB1/node"]),
    ("tcp 172.18.0.2:30083", &["pod3"], &["podB1/client"]),
    (
        "tcp 172.18.0.2:30091",
        &["node"],
        &["pod1/node", "podB1/node"],
    ),
    (
        "tcp 172.18.0.2:30091",
        &["pod3"],
        &["pod1/client", "podB1/client"],
    ),
    (
        "tcp 198.51.100.11:80",
        &["node"],
        &["pod1/node", "podB1/node"],
    ),
    (
        "tcp 198.51.100.11:80",
        &["pod3"],
        &["pod1/client", "podB1/client"],
    ),
    (
        "tcp 198.51.100.21:80",
        &["node"],
        &["pod2/node", "podB2/node"],
    ),
    (
        "tcp 198.51.100.21:80",
        &["pod3"],
        &["pod2/client", "podB2/client"],
    ),
    (
        "udp 172.18.0.2:30054",
        &["node"],
        &["pod1/node", "podB1/node"],
    ),
    (
        "udp 172.18.0.2:30054",
        &["pod3"],
        &["pod1/client", "podB1/client"],
    ),
    // With externalTrafficPolicy Local, clients outside reach no endpoint of another node.
    (
        "tcp 172.18.0.2:30082",
        &["ext", "ext2", "peer"],
        &["timeout"],
    ),
    (
        "tcp 172.18.0.2:30097",
        &["ext", "ext2", "peer"],
        &["timeout"],
    ),
    ("tcp 172.18.0.2:30097", &["pod3"], &["podB1/client"]),
    ("tcp 198.51.100.19:80", &["ext"], &["timeout"]),
    // internalTrafficPolicy Local, without a local endpoint.
    (
        "tcp 10.96.1.42:80",
        &["ext", "ext2", "node", "peer", "pod3"],
        &["refused"],
    ),
    // A cluster IP whose port is another Service's node port.
    ("tcp 10.96.1.38:30080", &["pod3"], &["pod2/client"]),
    // Affinity keeps a client at one endpoint, but at any of them: see `Row::difference`.
    (AFFINITY, &["ext", "ext2", "node", "peer", "pod3"], &[]),
];

/// A frontend with session affinity.
pub(crate) const AFFINITY: &str = "tcp 10.96.1.4:80";

impl Row {
    /// Returns whether clients may get these answers, perhaps not all that they may get.
    pub(crate) fn permits(&self, answers: &BTreeSet<String>) -> bool {
        let expected = self.expected();
        let expected = without_icmp_errors(&expected);
        self.frontend == AFFINITY || (without_icmp_errors(answers)).is_subset(&expected)
    }

    /// Returns the answers that clients of our proxy should get.
    pub(crate) fn expected(&self) -> BTreeSet<String> {
        let is_for_self = |(frontend, clients, _): &&(&str, &[&str], &[&str])| {
            *frontend == self.frontend && clients.contains(&&*self.client)
        };
        match DOCUMENTED.iter().find(is_for_self) {
            Some((.., answers)) => answers.iter().map(|&it| it.to_owned()).collect(),
            None => self.answers.iter().map(|it| self.as_ours(it)).collect(),
        }
    }

    /// Returns our proxy's equivalent of kube-proxy's `answer`.
    ///
    /// With our proxy, processes of the node connect from the node's address, because service addresses
    /// are routes. With kube-proxy they connect from the service address, because it is on a device.
    fn as_ours(&self, answer: &str) -> String {
        match answer.split_once('/') {
            Some((backend, "vip")) if self.client == "node" => format!("{backend}/node"),
            Some((backend, "client")) if self.client == "node" => format!("{backend}/node"),
            _ => answer.to_owned(),
        }
    }
}

/// Returns the answers with `timeout` for every kind of unreachable.
///
/// A client that waits cannot tell a dropped packet from a packet without a route.
pub(crate) fn without_icmp_errors(answers: &BTreeSet<String>) -> BTreeSet<&str> {
    let word = |answer| match answer {
        "unreachable" | "enetunreach" | "ehostunreach" => "timeout",
        other => other,
    };
    answers.iter().map(|answer| word(&**answer)).collect()
}
