//! Ejection of endpoints that fail.

use super::*;

const CLIENT: [u8; 4] = [192, 0, 2, 9];

fn endpoint(number: u8) -> SocketAddr {
    ([192, 0, 2, number], 80).into()
}

/// Returns a pool of this number of endpoints, which are chosen in turn.
fn pool(endpoints: u8) -> Arc<EndpointPool> {
    let config = PoolConfig {
        scheduler: "rr".to_owned(),
        options: Options::default(),
        affinity: None,
    };
    let pool = EndpointPool::new(&config, Duration::ZERO).unwrap();
    for number in 0..endpoints {
        let thresholds = Thresholds::default();
        pool.add(endpoint(number), 1, thresholds).unwrap();
    }
    Arc::new(pool)
}

fn pick(pool: &Arc<EndpointPool>, at: Duration) -> Lease {
    let request = Request {
        source: CLIENT.into(),
        source_port: 1_000,
        destination: CLIENT.into(),
        destination_port: 80,
        at,
    };
    let lease = pool.pick(&request, &[], Transport::Udp);
    lease.expect("a pool with endpoints always has one")
}

/// Picks until `endpoint` is chosen, among few.
fn pick_one(pool: &Arc<EndpointPool>, endpoint: SocketAddr, at: Duration) -> Option<Lease> {
    (0..10)
        .map(|_| pick(pool, at))
        .find(|lease| lease.address() == endpoint)
}

#[test]
fn the_last_endpoint_is_never_ejected() {
    let pool = pool(3);
    let mut now = Duration::ZERO;
    for _ in 0..1_000 {
        now += Duration::from_millis(10);
        let lease = pick(&pool, now);
        lease.fail(now);
        let state = pool.lock();
        let ejected = state.endpoints.values();
        let ejected = ejected.filter(|it| it.ejected_until.is_some()).count();
        assert!(ejected < 3);
        assert_eq!(ejected, state.ejected.len());
    }
    // All of them return.
    now += LAST_EJECTION;
    for number in 0..3 {
        assert!(pick_one(&pool, endpoint(number), now).is_some());
    }
}

#[test]
fn each_further_failure_doubles_the_pause_up_to_a_minute_and_a_success_ends_that() {
    let pool = pool(2);
    let failing = endpoint(0);
    let mut now = Duration::ZERO;
    let mut fail_for = |seconds: u64| {
        let moment = Duration::from_millis(1);
        pick_one(&pool, failing, now).unwrap().fail(now);
        let pause = Duration::from_secs(seconds);
        assert!(pick_one(&pool, failing, now + pause - moment).is_none());
        now += pause;
        assert!(pick_one(&pool, failing, now).is_some(), "after {seconds} s");
    };
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        fail_for(seconds);
    }
    pick_one(&pool, failing, Duration::from_secs(1_000))
        .unwrap()
        .succeed();
    fail_for(1);
}
