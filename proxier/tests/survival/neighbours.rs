//! `status` names other network programs by their traces in the kernel.
//!
//! The devices and chains have the names that these programs give them; the programs themselves do not run.

use lab::net::Cluster;
use serde_json::Value;

use super::daemon::Daemon;

const TRACES: [&str; 6] = [
    "ip link add cali0a1b2c3d4e5 type dummy",
    "ip link add nodelocaldns type dummy",
    "nft add table inet firewalld",
    "nft add chain inet firewalld filter_INPUT",
    "nft add table ip nat",
    "nft add chain ip nat CNI-HOSTPORT-DNAT",
];

fn neighbours(daemon: &Daemon, flags: &[&str]) -> Vec<(String, String)> {
    let mut command = daemon.command("status");
    let output = command
        .args(flags)
        .args(["--output", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let neighbours = status["neighbours"].as_array().unwrap().iter();
    // The lab shares the file system of its host, where these programs may have a directory.
    let of_host = ["systemd-networkd", "NetworkManager"];
    neighbours
        .map(|found| (text(&found["name"]), text(&found["meaning"])))
        .filter(|(name, _)| !of_host.contains(&&**name))
        .collect()
}

#[test]
fn status_names_other_network_programs() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let daemon = Daemon::bare(&[]);
        assert_eq!(neighbours(&daemon, &[]), []);
        for command in TRACES {
            let command = format!("PATH=/usr/sbin:/usr/bin:/sbin:/bin; {command}");
            cluster.node.exec(&["/bin/sh", "-c", &command]);
        }
        let found = neighbours(&daemon, &[]);
        let names: Vec<&str> = found.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            names,
            [
                "Felix (Calico)",
                "portmap (CNI plugin)",
                "node-cache (NodeLocal DNSCache)",
                "firewalld",
            ]
        );
        assert!(found[0].1.contains("NetworkPolicy applies to Services"));
        let on_loopback = neighbours(&daemon, &["--service-addresses=loopback"]);
        assert!(on_loopback[0].1.contains("NetworkPolicy does NOT apply"));

        let text = daemon.command("status").output().unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(
            text.contains("Neighbours (4):\n  Felix (Calico) (device cali0a1b2c3d4e5): "),
            "{text}"
        );
    });
}
