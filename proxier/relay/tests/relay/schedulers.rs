//! A scheduler of another crate chooses.

use schedulers::{Registry, Request, Scheduler, ServerId, Servers};

use super::*;

/// Picks the oldest endpoint.
#[derive(Debug)]
struct Oldest;

impl Scheduler for Oldest {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let eligible = servers.iter().filter(|(_, server)| server.is_eligible());
        eligible.last().map(|(id, _)| id)
    }
}

#[test]
fn a_registered_scheduler_chooses() {
    let mut registry = Registry::kernel();
    registry.register("oldest", |_| Box::new(Oldest)).unwrap();
    let config = PoolConfig {
        scheduler: "oldest".to_owned(),
        options: Options::default(),
        affinity: None,
    };
    let pool =
        EndpointPool::sharing(Arc::default(), Arc::new(registry), &config, Duration::ZERO).unwrap();
    let pool = Arc::new(pool);
    for name in ["a", "b", "c"] {
        add(&pool, endpoint(name));
    }
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    for _ in 0..4 {
        assert_eq!(greeting(&mut connect(address)), 'a');
    }
    // The same registry serves later changes.
    pool.configure(&config, relay.now()).unwrap();
}
