//! Weighted random twos choice.

use crate::kernel::lots::Lots;
use crate::options::Options;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `twos`: two servers drawn by weight, and the less loaded one of them.
///
/// *Formula*: with W the sum of the eligible servers' weights, two numbers are drawn independently from
/// 0 to W, *both included*. Each names the first server of the list up to which the weights add up to
/// at least the number, so the first of the list is drawn a little more often. The second one is
/// picked if its overhead per weight is less than the first one's, compared crosswise in 32 bits,
/// which wrap.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_twos.c`, `ip_vs_twos_schedule`; Linux 6.1.192, the same in 7.2;
/// since 5.13.
///
/// *Parity*: the kernel draws from its entropy, so no sequence of picks can be compared, only what two
/// given numbers lead to, and how often each server is picked. Here the numbers come from a generator
/// that begins with [`Options::seed`]: the same seed, the same picks. Both draw without bias.
///
/// *Complexity*: reads every server up to the second one drawn, twice.
///
/// *When to use*: many balancers that each see only their own connections: unlike wlc they do not all
/// agree on the same server.
#[derive(Clone, Debug)]
pub struct Twos {
    lots: Lots,
}

impl Twos {
    /// With the seed that `options` name.
    pub fn new(options: &Options) -> Self {
        Self {
            lots: Lots::new(options.seed),
        }
    }
}

impl Scheduler for Twos {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        pick_of_two(servers, |ceiling| self.lots.below(ceiling))
    }
}

/// `draw` gives a number from 0 to one less than its argument, twice.
fn pick_of_two(servers: &Servers, mut draw: impl FnMut(u32) -> u32) -> Option<ServerId> {
    let candidates = || servers.iter().filter(|(_, server)| server.is_eligible());
    candidates().next()?;
    let weights = candidates().map(|(_, server)| server.weight);
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
    // A number stands above all only when the sum has wrapped; the last server stands in for it.
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

    /// C, B, A with weights 3, 2, 1 and 3, 1, 0 active connections.
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
    fn draws_lead_to_the_kernels_choice() {
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
    fn the_first_is_drawn_a_little_more_often() {
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
        // Equal loads: the first draw decides. Expected 4, 2 and 1 of 7.
        let mut counts = [0_i32; 3];
        for _ in 0..70_000 {
            let picked = balancer.pick(&request).unwrap();
            let place = ids.iter().position(|&id| id == picked).unwrap();
            counts[place] += 1;
        }
        for (count, expected) in counts.into_iter().zip([10_000, 20_000, 40_000]) {
            assert!((count - expected).abs() < 600, "{counts:?}");
        }
    }

    #[test]
    fn a_sum_that_wraps_picks_somebody() {
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
