//! Another program drops outgoing packets, for example ufw with `ufw default deny outgoing`.
//!
//! IPVS sends requests through the output hook. Our table could not mark all of them for a rule of ours, so the chain is
//! only named.

use proxier::testing::host::{ForeignChains, Treatment, Treatments};

use super::scene::{Scene, Subject, with_each_dataplane};
use super::services::Services;
use crate::{at, check};

/// Returns the lines about the foreign chains that drop packets of Services.
fn dropping<D: Subject>() -> Vec<String> {
    let treatments = Treatments {
        forward: Treatment::Accept,
        input: Treatment::Accept,
        mark: 1 << 12,
        are_translated: D::TRANSLATES,
    };
    let report = ForeignChains::open(treatments).unwrap().apply().unwrap();
    assert!(report.inserted.is_empty(), "{report:?}");
    report.dropping.iter().map(ToString::to_string).collect()
}

with_each_dataplane!(a_chain_that_drops_outgoing_packets_is_named);

fn a_chain_that_drops_outgoing_packets_is_named<D: Subject>() {
    let scene = Scene::<D>::serving(Services::dual());
    // With nftables, packets of other clients are forwarded.
    let client = if D::TRANSLATES { "node" } else { "pod3" };
    assert_eq!(dropping::<D>(), [""; 0]);
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    for (policy, last) in [("drop", ""), ("accept", "reject")] {
        scene.nft(&format!(
            "table inet others {{ chain out {{
                    type filter hook output priority 0; policy {policy};
                    ct state established,related accept
                    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
                    {last}
                }}; }}"
        ));
        let [tcp, ..] = cluster_ip.clone();
        let answers = scene.ask(client, &tcp, 1);
        assert!(
            !answers.iter().any(|answer| answer.contains("pod")),
            "{answers:?}"
        );
        let lines = dropping::<D>();
        let [line] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert!(line.starts_with("chain out of table inet others drops outgoing packets by its"));
        assert!(
            line.ends_with("accept the networks of Pods, nodes and Services in it"),
            "{line}"
        );
        // What the line says helps, for Pods and for the node.
        scene.nft(
            "insert rule inet others out ip daddr { 10.96.0.0/16, 10.244.0.0/16 } accept
                 insert rule inet others out ip6 daddr { fd00:10:96::/112, fd00:244::/32 } accept",
        );
        check(
            &scene,
            "pod3",
            &cluster_ip,
            &["pod1/client", "podB1/client"],
        );
        check(&scene, "node", &cluster_ip, &["pod1/node", "podB1/node"]);
        scene.nft("delete table inet others");
    }
}
