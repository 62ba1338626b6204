//! The chart's manifests for single values, without a server.

use super::deployment::Tools;

const SERVER: &str = "--set=apiServer=https://192.0.2.1:6443";
const CLUSTER: &str = "--set=config.clusterCIDR=10.244.0.0/16";

#[test]
fn probes_follow_the_health_server() {
    let Some(tools) = Tools::find("probes_follow_the_health_server") else {
        return;
    };
    let probed = |address: &str| {
        let address = format!("--set=config.healthzBindAddress={address}");
        tools.helm(&[SERVER, CLUSTER, &address]).unwrap()
    };
    for (address, port, host) in [
        ("", "containerPort: 10256", None),
        ("0.0.0.0", "containerPort: 10256", None),
        ("::", "containerPort: 10256", None),
        ("[::]:10356", "containerPort: 10356", None),
        (
            "127.0.0.1:10356",
            "containerPort: 10356",
            Some("host: \"127.0.0.1\""),
        ),
        (
            "[2001:db8::1]:9",
            "containerPort: 9",
            Some("host: \"2001:db8::1\""),
        ),
        (
            "2001:db8::1",
            "containerPort: 10256",
            Some("host: \"2001:db8::1\""),
        ),
    ] {
        let manifests = probed(address);
        assert!(manifests.contains(port), "{address}: {manifests}");
        let hosts = manifests
            .lines()
            .filter(|line| line.trim().starts_with("host: "));
        let expected = host.map_or(0, |_| 2);
        let hosts: Vec<&str> = hosts.map(str::trim).collect();
        assert_eq!(hosts, vec![host.unwrap_or_default(); expected], "{address}");
    }
}
