//! Maglev hashing.

use std::time::Duration;

use crate::error::Error;
use crate::kernel::hash::fold;
use crate::kernel::siphash::{Key, siphash13};
use crate::kernel::wrr::gcd;
use crate::kernel::{bit_length, is_eligible};
use crate::options::{Flags, MhTable, Options};
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// `mh`: the same server for the same client; few clients move when servers change.
///
/// *Formula*: each server has its own sequence of slots in a table of M slots, from hashes of its address
/// and port. M is prime: 4093 unless the kernel is configured otherwise. The servers take turns in list
/// order. In its turn a server takes the next free slots of its sequence, as many as its share of the
/// weights, until the table is full. A hash of the client's address, and of its port with
/// [`Flags::port`], selects the slot. If its server is not eligible, the connection is refused; with
/// [`Flags::fallback`], M further hashes are tried.
///
/// The shares come from [`Server::last_weight`]: if a weight becomes 0, the server's clients are refused
/// and not moved. Weights whose ratio exceeds 2<sup>6</sup> (half the table's index) are scaled down, but
/// every share is at least 1.
///
/// *Hash*: SipHash-1-3 as on 64-bit little-endian kernels. 32-bit kernels use another hash, which this
/// crate does not implement.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_mh.c`, `ip_vs_mh_schedule`, `ip_vs_mh_get_fallback`,
/// `ip_vs_mh_permutate`, `ip_vs_mh_populate`, `ip_vs_mh_reassign`, `ip_vs_mh_shift_weight`; Linux
/// 6.1.192, the same in 7.2; since 4.18.
///
/// *Complexity*: constant per pick. A change of the servers fills the table again in about M·ln M steps.
/// Memory: the table only.
///
/// *When to use*: sessions kept in the servers' memory, or several balancers that must agree without
/// communicating.
///
/// *More than M servers*: the kernel refuses to bind the scheduler ([`Error::TooManyServers`]). If servers
/// are added later, the kernel keeps the old table, and so does this crate. There is one difference until
/// the number is M again. For a slot of a removed server this crate refuses the connection. The kernel's
/// table holds a reference to that server, so the kernel still sends connections to it.
#[derive(Clone, Debug)]
pub struct Mh {
    flags: Flags,
    size: MhTable,
    slots: Divisor,
    table: Vec<Option<ServerId>>,
}

/// Key of the hash that gives a server's first slot, and a client's slot (`hash1`).
const OFFSET_KEY: Key = Key::twice(2_654_435_761);
/// Key of the hash that gives the distance between a server's slots (`hash2`).
const SKIP_KEY: Key = Key::twice(2_654_446_892);

/// A server that takes turns to fill the table.
struct Candidate {
    id: ServerId,
    position: u32,
    skip: u32,
    /// How many slots it takes per turn.
    turn: u32,
}

impl Mh {
    /// Creates a scheduler with the flags and the table size of `options`.
    pub fn new(options: &Options) -> Self {
        let size = options.mh_table;
        Self {
            flags: options.flags,
            size,
            slots: Divisor::new(size.slots()),
            table: vec![None; size.slots() as usize],
        }
    }

    /// Returns the table: the server of each slot. Each is `None` without servers.
    pub fn rows(&self) -> &[Option<ServerId>] {
        &self.table
    }

    fn fill(&mut self, servers: &Servers) -> Result<(), Error> {
        let slots = self.size.slots();
        if servers.len() > self.table.len() {
            return Err(Error::TooManyServers { limit: slots });
        }
        self.table.fill(None);
        let mut candidates = self.candidates(servers);
        // Without servers, or if none ever had a weight, the loop below would never end.
        if candidates.iter().all(|candidate| candidate.turn == 0) {
            return Ok(());
        }
        let mut free = slots;
        // `ip_vs_mh_populate`: the servers take turns until no slot is free.
        loop {
            for candidate in &mut candidates {
                for _ in 0..candidate.turn {
                    while self.table[candidate.position as usize].is_some() {
                        candidate.position += candidate.skip;
                        if candidate.position >= slots {
                            candidate.position -= slots;
                        }
                    }
                    self.table[candidate.position as usize] = Some(candidate.id);
                    free -= 1;
                    if free == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn candidates(&self, servers: &Servers) -> Vec<Candidate> {
        let slots = self.size.slots();
        let weights = servers.iter().map(|(_, server)| server.last_weight);
        let (divisor, greatest) = weights.fold((0, 0), |(divisor, greatest), weight| {
            (gcd(divisor, weight), greatest.max(weight))
        });
        let divisor = divisor.max(1);
        // `ip_vs_mh_shift_weight`: shares are scaled so that no server takes 2^table_bits slots per turn.
        let table_bits = self.size.index() / 2;
        let shift = bit_length(greatest / divisor).saturating_sub(table_bits);
        let turn = |server: &Server| {
            let share = (server.last_weight / divisor) >> shift;
            share.max(server.last_weight.min(1)).unsigned_abs()
        };
        let hash = |key, server: &Server| {
            hash(
                key,
                fold(servers.family(), server.address()),
                server.port(),
                0,
            )
        };
        servers
            .iter()
            .map(|(id, server)| Candidate {
                id,
                position: hash(OFFSET_KEY, server) % slots,
                // From 1 to M - 1: with a prime M every such distance visits all slots before one
                // repeats.
                skip: hash(SKIP_KEY, server) % (slots - 1) + 1,
                turn: turn(server),
            })
            .collect()
    }
}

/// Computes remainders without a division: a division takes a third of the time of a pick.
///
/// Exact for 32 bits: Lemire, Kaser, Kurz, "Faster remainder by direct computation" (2019).
#[derive(Clone, Copy, Debug)]
struct Divisor {
    divisor: u32,
    /// 2^64 / divisor, rounded up.
    reciprocal: u64,
}

impl Divisor {
    /// `divisor` must be above 1.
    fn new(divisor: u32) -> Self {
        Self {
            divisor,
            reciprocal: u64::MAX / u64::from(divisor) + 1,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the product of 64 and 32 bits without its lower 64 bits"
    )]
    fn remainder(self, number: u32) -> u32 {
        let fraction = self.reciprocal.wrapping_mul(number.into());
        ((u128::from(fraction) * u128::from(self.divisor)) >> 64) as u32
    }
}

fn hash(key: Key, folded: u32, port: u16, offset: u32) -> u32 {
    siphash13(key, folded.wrapping_add(port.into()).wrapping_add(offset))
}

impl Scheduler for Mh {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        let slots = self.slots;
        let client = fold(servers.family(), request.source);
        let port = if self.flags.port {
            request.source_port
        } else {
            0
        };
        let slot = |offset| slots.remainder(hash(OFFSET_KEY, client, port, offset));
        let slot_of_client = slot(0);
        let first = self.table[slot_of_client as usize]?;
        if is_eligible(servers, first) {
            return Some(first);
        }
        if !self.flags.fallback {
            return None;
        }
        // `ip_vs_mh_get_fallback` does not try the next slots: it hashes the client again, with an
        // offset that starts at the client's slot.
        (0..slots.divisor)
            .map(|offset| slot(slots.remainder(offset + slot_of_client)))
            // The kernel gives up at the first empty slot: then the whole table is empty.
            .map_while(|slot| self.table[slot as usize])
            .find(|&id| is_eligible(servers, id))
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), Error> {
        self.fill(servers)
    }

    // Fills the table again. If there are too many servers, the old table stays, as in the kernel.
    fn changed(&mut self, servers: &Servers) {
        let _ = self.fill(servers);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::balancer::Balancer;

    /// Returns the first 16 slots, and how many slots A, B and C have: 10.0.0.1 to .3, port 80.
    fn table(options: &Options, weights: [u32; 3]) -> (String, [usize; 3]) {
        let mut balancer = Balancer::new(Mh::new(options), options);
        let ids = [1, 2, 3].map(|host| {
            let address = SocketAddr::from(([10, 0, 0, host], 80));
            balancer
                .add(address, weights[usize::from(host) - 1])
                .unwrap()
        });
        let table = &balancer.scheduler().table;
        let owned = ids.map(|id| table.iter().filter(|&&slot| slot == Some(id)).count());
        let index = |slot: &Option<ServerId>| ids.iter().position(|&id| Some(id) == *slot).unwrap();
        let name = |slot| ["A", "B", "C"][index(slot)];
        (table.iter().take(16).map(name).collect(), owned)
    }

    #[test]
    fn tables_equal_the_kernels() {
        let options = Options::default();
        let check = |weights, first: &str, owned| {
            assert_eq!(table(&options, weights), (first.replace(' ', ""), owned));
        };
        check(
            [1, 1, 1],
            "A B B C C A B C C A A B B A A C",
            [1364, 1364, 1365],
        );
        check(
            [1, 2, 3],
            "C B B C C C B C C A A B B B A C",
            [682, 1364, 2047],
        );
        assert_eq!(table(&options, [100, 50, 25]).1, [2338, 1170, 585]);
        assert_eq!(table(&options, [10, 10, 1000]).1, [78, 78, 3937]);
        let small = Options {
            mh_table: MhTable::from_index(8).unwrap(),
            ..options
        };
        let first = "BBAAAABBBAAABBBB".to_owned();
        assert_eq!(table(&small, [1, 1, 1]), (first, [83, 84, 84]));
    }

    #[test]
    fn remainders_equal_those_of_a_division() {
        for index in 8..=17 {
            let divisor = MhTable::from_index(index).unwrap().slots();
            let slots = Divisor::new(divisor);
            let edges = [
                0,
                1,
                divisor - 1,
                divisor,
                u32::MAX / divisor * divisor,
                u32::MAX,
            ];
            let many = (0..100_000_u32).map(|number| number.wrapping_mul(0x9e37_79b9));
            for number in edges.into_iter().chain(many) {
                assert_eq!(slots.remainder(number), number % divisor);
            }
        }
    }

    #[test]
    fn a_removal_moves_few_slots_of_other_servers() {
        let options = Options::default();
        let mut balancer = Balancer::new(Mh::new(&options), &options);
        let [a, b, c] = [1, 2, 3].map(|host| {
            let address = SocketAddr::from(([10, 0, 0, host], 80));
            balancer.add(address, 1).unwrap()
        });
        let before = balancer.scheduler().table.clone();
        balancer.remove(b).unwrap();
        let after = &balancer.scheduler().table;
        let count = |id| after.iter().filter(|&&slot| slot == Some(id)).count();
        assert_eq!([count(a), count(c)], [2046, 2047]);
        let mut moved = before.iter().zip(after);
        let moved = moved
            .by_ref()
            .filter(|(old, new)| **old != Some(b) && old != new);
        assert_eq!(moved.count(), 4);
    }

    #[test]
    fn with_too_many_servers_the_table_stays_and_binding_fails() {
        let options = Options {
            mh_table: MhTable::from_index(8).unwrap(),
            ..Options::default()
        };
        let mut balancer = Balancer::new(Mh::new(&options), &options);
        let ids: Vec<ServerId> = (1..=251)
            .map(|port| balancer.add(([10, 0, 0, 1], port).into(), 1).unwrap())
            .collect();
        let before = balancer.scheduler().table.clone();
        balancer.add(([10, 0, 0, 2], 80).into(), 1).unwrap();
        assert_eq!(balancer.scheduler().table, before);
        let refused = balancer.reschedule(Mh::new(&options), Duration::ZERO);
        assert_eq!(refused, Err(Error::TooManyServers { limit: 251 }));
        balancer.remove(ids[0]).unwrap();
        assert_ne!(balancer.scheduler().table, before);
    }
}
