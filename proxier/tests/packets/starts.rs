//! Slow start: the shares of a new endpoint, before and after its step.

use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use lab::net::{Host, ask_udp_within};
use proxier::testing::clock;

use super::load::{PATIENCE, meanwhile, newcomer_over_tcp};
use super::scene::{Scene, Subject, program, with_each_dataplane};
use super::services::{Endpoint, POD_B1, POD1, POD2, Services};

/// The number of connections of which a share is counted.
const DRAWS: usize = 240;
/// How many of them an endpoint may get of which 14 or 80 are expected: within four standard deviations.
const EIGHTH: RangeInclusive<usize> = 1..=29;
const WHOLE: RangeInclusive<usize> = 51..=109;

with_each_dataplane!(a_new_endpoint_gets_few_connections_until_its_step_and_none_is_lost);

fn a_new_endpoint_gets_few_connections_until_its_step_and_none_is_lost<D: Subject>() {
    let services = |endpoints: &[Endpoint]| {
        Services::dual().edit("web", |web| {
            web.annotations = vec![("scheduler", "wrr"), ("slow-start", "60s")];
            for slice in &mut web.slices {
                slice.endpoints = endpoints.into();
            }
        })
    };
    let mut scene = Scene::<D>::serving(services(&[POD1, POD_B1]));
    let Scene {
        cluster, proxier, ..
    } = &mut scene;
    let clients = [
        (&*cluster.ext, "198.51.100.2:80"),
        (&cluster.pod3, "[fd00:10:96::1]:80"),
    ];
    let count = || share(&cluster.pod3, "10.96.1.1:53", "pod2");
    let mut shares = Vec::new();
    let tallies = meanwhile(&clients, newcomer_over_tcp, || {
        program(proxier, services(&[POD1, POD_B1, POD2]));
        shares.push(count());
        let step = clock::since_boot() + Duration::from_secs(60);
        let applied = proxier.sync(step).unwrap();
        assert_eq!(applied.failures().count(), 0);
        shares.push(count());
        // A fast lab counts in less time than the clients need for their questions.
        thread::sleep(lab::patience(Duration::from_millis(500)));
    });
    let [before, after] = shares[..] else {
        panic!("{shares:?}")
    };
    assert!(EIGHTH.contains(&before), "{shares:?}");
    assert!(WHOLE.contains(&after), "{shares:?}");
    for tally in &tallies {
        assert!(tally.asked > 10 && tally.lost.is_empty(), "{tally:?}");
    }
}

/// Returns how many of [`DRAWS`] questions of `client` the endpoint `name` answers.
fn share(client: &Host, to: &str, name: &str) -> usize {
    let to = to.parse().unwrap();
    let is_of = |answer: lab::net::Answer| answer.backend().unwrap() == name;
    client.run(|| {
        (0..DRAWS)
            .filter(|_| is_of(ask_udp_within(to, PATIENCE)))
            .count()
    })
}
