//! Passive health: an endpoint that drops packets silently gets no new connections.

use std::thread;
use std::time::Duration;

use lab::net::{Host, ask_tcp_within};
use proxier::testing::clock;

use super::load::PATIENCE;
use super::scene::{Scene, nft};
use super::services::Services;

/// The kernel adds to the counters of IPVS every two seconds.
const COUNTED: Duration = Duration::from_millis(2_500);
/// How long a client waits for the endpoint that drops its packets.
const SHORT: Duration = Duration::from_secs(1);
/// The connections after which an endpoint is left out.
const LIMIT: usize = 3;

const DEAF: &str = "table inet deaf {\n chain input {\n type filter hook input priority 0\n tcp dport 8080 drop\n }\n}\n";

#[test]
fn a_silent_endpoint_costs_a_few_connections_and_returns_when_it_answers() {
    lab::test(|| {
        let mut scene = Scene::new(Services::dual().edit("web", |web| {
            web.annotations = vec![("passive-health", "3")];
        }));
        let Scene {
            cluster, proxier, ..
        } = &mut scene;
        let client = &cluster.pod3;
        let mut now = clock::since_boot();
        // Each round is later than the next reading of the counters.
        let mut round = |pause: u64| {
            thread::sleep(lab::patience(COUNTED));
            now += Duration::from_secs(pause);
            let applied = proxier.sync(now).unwrap();
            assert_eq!(applied.failures().count(), 0);
            proxier
                .problems()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(answered(client, 8, PATIENCE), 8);
        round(6);
        nft(&cluster.pod1, DEAF);
        // The scheduler takes turns, so half of the connections are lost, until the endpoint is left out.
        let lost = 2 * LIMIT - answered(client, 2 * LIMIT, SHORT);
        assert_eq!(lost, LIMIT);
        assert_eq!(round(6), Vec::<String>::new());
        let problems = round(6);
        assert!(
            problems
                .iter()
                .any(|it| it.contains("10.244.1.2") && it.contains("passive-health")),
            "{problems:?}"
        );
        assert_eq!(answered(client, 20, PATIENCE), 20);
        // After the pause it is tried again: one more connection is enough, and the next pause is longer.
        assert_eq!(round(12), Vec::<String>::new());
        assert_eq!(answered(client, 2, SHORT), 1);
        round(6);
        assert_eq!(round(6).len(), 1);
        assert_eq!(round(12).len(), 1);
        nft(&cluster.pod1, "delete table inet deaf\n");
        assert_eq!(round(12), Vec::<String>::new());
        assert_eq!(answered(client, 20, PATIENCE), 20);
        assert_eq!(round(6), Vec::<String>::new());
    });
}

/// Returns how many of these connections of `client` are answered.
fn answered(client: &Host, times: usize, patience: Duration) -> usize {
    let to = "10.96.1.1:80".parse().unwrap();
    let is_answered = |_: &usize| ask_tcp_within(to, patience).backend().is_some();
    client.run(|| (0..times).filter(is_answered).count())
}
