//! Weighted random twos choice.

use crate::kernel::random::Random;
use crate::options::Options;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `twos`: the less loaded of two servers drawn by weight.
///
/// *Formula*: two numbers are drawn independently from 0 to W, *both included*, where W is the sum of the
/// eligible servers' weights. Each number selects the first server at which the added-up weights reach
/// it; because 0 is included, the first server is drawn a little more often. The second server is picked
/// if its overhead per weight is less than that of the first. The comparison multiplies crosswise in 32
/// bits that wrap.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_twos.c`, `ip_vs_twos_schedule`; Linux 6.1.192, the same in 7.2;
/// since 5.13.
///
/// *Parity*: the kernel draws true random numbers, so tests compare the result of given numbers and the
/// frequency of each server, not the sequence of picks. Here a generator started with [`Options::seed`]
/// draws them: the same seed gives the same picks. Neither generator is biased.
///
/// *Complexity*: reads every server once to add up the weights, and again up to the second one drawn.
///
/// *When to use*: many balancers, each of which sees only its own connections. With wlc all of them would
/// pick the same server; with twos they do not.
#[derive(Clone, Debug)]
pub struct Twos {
    random: Random,
}

impl Twos {
    /// Creates a scheduler with the seed of `options`.
    pub fn new(options: &Options) -> Self {
        Self {
            random: Random::new(options.seed),
        }
    }
}

impl Scheduler for Twos {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        pick_of_two(servers, |ceiling| self.random.below(ceiling))
    }
}

/// Picks by the two numbers that `draw` returns: each from 0 to its argument less 1.
fn pick_of_two(servers: &Servers, mut draw: impl FnMut(u32) -> u32) -> Option<ServerId> {
    let candidates = || servers.iter().filter(|(_, server)| server.is_eligible());
    candidates().next()?;
    let weights = candidates().map(|(_, server)| server.weight);
    // 1 more than the sum: `ip_vs_twos_schedule` draws from 0 to the sum, both included.
    let ceiling = weights.fold(1, i32::wrapping_add).cast_unsigned();
    let mut rests = [0; 2].map(|_| draw(ceiling).cast_signed());
    let mut drawn = [None; 2];
    let mut last = None;
    for (id, server) in candidates() {
        last = Some(id);
        for (rest, drawn) in rests.iter_mut().zip(&mut drawn) {
            *rest = rest.wrapping_sub(server.weight);
            if *rest <= 0 && drawn.is_none() {
                *drawn = Some((id, server.weight, server.overhead(servers.flavour())));
            }
        }
        if drawn.iter().all(Option::is_some) {
            break;
        }
    }
    // A number exceeds all weights only if their sum has wrapped. The kernel then takes the last
    // server, with the weight -1 and the load 0 of its uninitialised choice.
    let one = drawn[0].or_else(|| last.map(|id| (id, -1, 0)))?;
    let lighter = drawn[1].filter(|other| {
        let (load, other_load) = (other.1.wrapping_mul(one.2), one.1.wrapping_mul(other.2));
        load > other_load
    });
    Some(lighter.unwrap_or(one).0)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::balancer::Balancer;

    /// Returns servers A, B, C of weights 1, 2, 3 with 0, 1, 3 active connections.
    fn three() -> (Balancer<Twos>, [ServerId; 3]) {
        let options = Options::default();
        let mut balancer = Balancer::new(Twos::new(&options), &options);
        let ids = [(1, 0), (2, 1), (3, 3)].map(|(weight, active)| {
            let address = SocketAddr::from(([10, 0, 0, 1], 80 + weight));
            let id = balancer.add(address, weight.into()).unwrap();
            balancer.set_connections(id, active, 0).unwrap();
            id
        });
        (balancer, ids)
    }

    #[test]
    fn given_numbers_lead_to_the_kernels_choice() {
        let (balancer, [a, b, c]) = three();
        let examples = [
            ([0, 0], c),
            ([3, 4], b),
            ([4, 3], b),
            ([6, 5], a),
            ([6, 6], a),
        ];
        for (draws, expected) in examples {
            let mut draws = draws.into_iter();
            let picked = pick_of_two(balancer.servers(), |ceiling| {
                assert_eq!(ceiling, 7);
                draws.next().unwrap()
            });
            assert_eq!(picked, Some(expected));
        }
    }

    #[test]
    fn the_first_server_is_drawn_a_little_more_often() {
        let (mut balancer, ids) = three();
        for id in ids {
            balancer.set_connections(id, 0, 0).unwrap();
        }
        let request = Request {
            source: [192, 0, 2, 1].into(),
            source_port: 1,
            destination: [192, 0, 2, 2].into(),
            destination_port: 80,
            at: Duration::ZERO,
        };
        // Loads are equal, so the first number decides: 4, 2 and 1 of 7 are expected.
        let mut counts = [0_i32; 3];
        for _ in 0..70_000 {
            let picked = balancer.pick(&request).unwrap();
            let index = ids.iter().position(|&id| id == picked).unwrap();
            counts[index] += 1;
        }
        for (count, expected) in counts.into_iter().zip([10_000, 20_000, 40_000]) {
            assert!((count - expected).abs() < 600, "{counts:?}");
        }
    }

    #[test]
    fn weights_whose_sum_wraps_still_give_a_pick() {
        let options = Options::default();
        let mut balancer = Balancer::new(Twos::new(&options), &options);
        let most = i32::MAX.unsigned_abs();
        for port in 1..=3 {
            let address = SocketAddr::from(([10, 0, 0, 1], port));
            balancer.add(address, most).unwrap();
        }
        for draws in [[0, 0], [0, u32::MAX], [i32::MAX as u32, 1 << 31]] {
            let mut draws = draws.into_iter();
            let picked = pick_of_two(balancer.servers(), |_| draws.next().unwrap());
            assert!(picked.is_some());
        }
    }
}
