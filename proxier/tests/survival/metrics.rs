//! The pages of the daemon while it serves.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use lab::net::Cluster;

use super::daemon::Daemon;
use super::{AT_ONCE, POD_B1, POD1, POD2, http, serving};

/// Returns the body of a page of the metrics server, or an empty text without a response.
fn page(path: &str) -> String {
    http::get(10249, path).unwrap_or_default()
}

/// Returns the value of a series; `None` if it does not exist.
fn value(metrics: &str, series: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series));
    line.and_then(|value| value.trim().parse().ok())
}

/// Waits until the series has at least this value. Returns the page.
pub(super) fn await_value(daemon: &Daemon, series: &str, least: f64) -> String {
    let mut metrics = String::new();
    daemon.eventually(series, || {
        metrics = page("/metrics");
        value(&metrics, series).is_some_and(|value| value >= least)
    });
    metrics
}

#[test]
fn metrics_tell_rounds_requests_and_the_traffic_of_services() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--endpoint-metrics-limit=10"]].concat();
        let (cluster, daemon, _connections) = serving(&flags);
        for _ in 0..6 {
            assert!(cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some());
        }
        let labels = "namespace=\"default\",service=\"web\",port=\"http\",frontend=\"cluster_ip\",\
                      address=\"10.96.1.1:80\",protocol=\"TCP\"";
        // Six, and those that `serving` opened. The kernel updates its counters every 2 s.
        let series = format!("ipvs_proxier_service_connections_total{{{labels}}}");
        await_value(&daemon, &series, 10.0);
        // Linux 7.2 updates the counters of a virtual server and of its destinations at different times.
        let mut metrics = String::new();
        for (name, pod) in [("connections", "10.244.1.2"), ("sent_bytes", "10.244.1.3")] {
            let series =
                format!("ipvs_proxier_endpoint_{name}_total{{{labels},endpoint=\"{pod}:8080\"}}");
            metrics = await_value(&daemon, &series, 1.0);
        }
        for (series, least) in [
            (
                "ipvs_proxier_ops_total{op=\"add_destination\",result=\"success\"}",
                2.0,
            ),
            (
                "ipvs_proxier_ops_total{op=\"add_destination\",result=\"failure\"}",
                0.0,
            ),
            ("ipvs_proxier_healthy{probe=\"livez\"}", 1.0),
            ("ipvs_proxier_virtual_servers", 1.0),
            ("ipvs_proxier_api_age_seconds{objects=\"Services\"}", 0.0),
            (
                "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"}",
                1.0,
            ),
            (
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}",
                1.7e9,
            ),
            ("process_resident_memory_bytes", 1e6),
        ] {
            // The first round records them after it has published what the traffic above needs.
            metrics = await_value(&daemon, series, least);
        }
        assert!(metrics.contains("rest_client_requests_total{code=\"200\",host=\"127.0.0.1:"));

        // The latency of a change counts from the time that the cluster wrote into the slice.
        daemon.endpoints_changed_now(&[POD1]);
        daemon.await_endpoints(&[POD1]);
        let series = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}";
        let metrics = await_value(&daemon, series, 1.0);
        assert_eq!(value(&metrics, series), Some(1.0));
        // The page with the latency may lack this value of the same round, which is recorded later.
        let draining = "ipvs_proxier_draining_destinations";
        let metrics = await_value(&daemon, draining, 1.0);
        assert_eq!(
            value(&metrics, draining),
            Some(1.0),
            "pod2 has open connections"
        );
        daemon.endpoints(&[POD1, POD2]);

        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool, of Debian's package prometheus");
        let mut stdin = promtool.stdin.take().unwrap();
        // kube-proxy's gauges have names that promtool rejects; ours must keep them.
        let fixed = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        let rest: Vec<&str> = metrics
            .lines()
            .filter(|line| !line.contains(fixed))
            .collect();
        assert!(rest.len() < metrics.lines().count());
        stdin
            .write_all((rest.join("\n") + "\n").as_bytes())
            .unwrap();
        drop(stdin);
        let output = promtool.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && complaints.is_empty(),
            "{complaints}"
        );

        assert!(page("/configz").contains("\"mode\":\"ipvs\""));
        assert!(
            page("/statusz").contains("EndpointSlices: Watching"),
            "{}",
            page("/statusz")
        );
    });
}

/// Counters of nf_tables: of new connections only, and exact.
#[test]
fn nftables_counts_the_connections_of_services() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let flags = [&AT_ONCE[..], &["--dataplane=nftables"]].concat();
        let mut daemon = Daemon::new(&flags);
        daemon.endpoints(&[POD1, POD2]);
        let backends = |cluster: &Cluster, times: usize| -> BTreeSet<String> {
            let ask = |_| {
                cluster
                    .pod3
                    .ask_tcp("10.96.1.1:80")
                    .backend()
                    .map(Into::into)
            };
            (0..times).filter_map(ask).collect()
        };
        let labels = "namespace=\"default\",service=\"web\",port=\"http\",frontend=\"cluster_ip\",\
                      address=\"10.96.1.1:80\",protocol=\"TCP\"";
        let series = format!("ipvs_proxier_service_connections_total{{{labels}}}");
        daemon.start();
        await_value(&daemon, &series, 0.0);
        backends(&cluster, 6);
        // Packets of an open connection are not counted.
        let mut open = cluster.pod3.connect("10.96.1.1:80").unwrap();
        for _ in 0..5 {
            open.ask();
        }
        let metrics = await_value(&daemon, &series, 7.0);
        assert_eq!(value(&metrics, &series), Some(7.0));
        assert!(
            !metrics.contains("ipvs_proxier_service_received"),
            "{metrics}"
        );
        assert!(!metrics.contains("ipvs_proxier_service_sent"), "{metrics}");

        // The counter outlives a change of the endpoints, and the process.
        daemon.endpoints(&[POD1, POD2, POD_B1]);
        let has_changed = |cluster: &Cluster| backends(cluster, 1).contains("podB1");
        daemon.eventually("the endpoint is used", || has_changed(&cluster));
        daemon.terminate();
        daemon.start();
        let metrics = await_value(&daemon, &series, 8.0);
        let before = value(&metrics, &series).unwrap();
        backends(&cluster, 4);
        let metrics = await_value(&daemon, &series, before + 4.0);
        assert_eq!(value(&metrics, &series), Some(before + 4.0));

        let set = "list set inet ipvs-proxier-maps counted-4";
        let list = |cluster: &Cluster| {
            let set: Vec<&str> = ["/usr/sbin/nft"]
                .into_iter()
                .chain(set.split(' '))
                .collect();
            cluster.node.exec(&set)
        };
        let element = format!("10.96.1.1 . tcp . 80 counter packets {}", before + 4.0);
        assert!(list(&cluster).contains(&element), "{}", list(&cluster));
        // Above the limit, no frontend has a counter.
        daemon.terminate();
        daemon.set_flags(&[&flags[..], &["--service-metrics-limit=0"]].concat());
        daemon.start();
        daemon.eventually("no counter is left", || !list(&cluster).contains("packets"));
        assert!(!page("/metrics").contains("ipvs_proxier_service_connections_total"));
    });
}
