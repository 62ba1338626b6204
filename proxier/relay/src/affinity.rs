//! Session affinity: the endpoint of each client's last connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The maximum number of remembered clients of one virtual server. If there are more, the least recent quarter is
/// forgotten.
const MAX_CLIENTS: usize = 65_536;

/// The maximum number of remembered clients of all virtual servers. They take 80 bytes each.
const MAX_IN_ALL: usize = 4 * MAX_CLIENTS;

/// A virtual server may remember this many times the clients for which there is still room, so that no virtual server
/// takes all of it (as with descriptors: `budget.rs`).
const SHARE: usize = 8;

/// The room for the remembered clients of all virtual servers of a relay.
#[derive(Debug)]
pub struct AffinityRoom {
    limit: usize,
    used: AtomicUsize,
}

impl Default for AffinityRoom {
    fn default() -> Self {
        Self::new(MAX_IN_ALL)
    }
}

impl AffinityRoom {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            used: AtomicUsize::new(0),
        }
    }

    /// Returns the number of clients that a virtual server may remember now.
    fn share(&self) -> usize {
        // Relaxed here and below: the count guards no other memory.
        let free = self.limit.saturating_sub(self.used.load(Ordering::Relaxed));
        MAX_CLIENTS.min(free * SHARE)
    }

    /// Takes the room of a client. Returns false if none is left.
    fn take(&self) -> bool {
        let more = |used| Some(used + 1).filter(|&used| used <= self.limit);
        let order = Ordering::Relaxed;
        self.used.fetch_update(order, order, more).is_ok()
    }

    fn give_back(&self, clients: usize) {
        self.used.fetch_sub(clients, Ordering::Relaxed);
    }
}

/// The endpoints of the clients of one virtual server.
#[derive(Debug)]
pub(crate) struct Affinity {
    timeout: Duration,
    clients: HashMap<IpAddr, Memory>,
    room: Arc<AffinityRoom>,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    endpoint: SocketAddr,
    /// The time of the client's last new connection. As with the kernel's template, the timeout begins
    /// then.
    at: Duration,
}

impl Affinity {
    pub(crate) fn new(timeout: Duration, room: &Arc<AffinityRoom>) -> Self {
        Self {
            timeout,
            clients: HashMap::new(),
            room: room.clone(),
        }
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the endpoint of `client`, unless its timeout is over.
    pub(crate) fn find(&self, client: IpAddr, now: Duration) -> Option<SocketAddr> {
        let memory = self.clients.get(&client)?;
        (now < memory.at + self.timeout).then_some(memory.endpoint)
    }

    /// Remembers the endpoint of a client, if there is room.
    pub(crate) fn remember(&mut self, client: IpAddr, endpoint: SocketAddr, at: Duration) {
        let memory = Memory { endpoint, at };
        if let Some(known) = self.clients.get_mut(&client) {
            *known = memory;
            return;
        }
        if self.clients.len() >= self.room.share() {
            // A quarter at once, so that a full map costs a search only once per 16,384 new clients.
            self.keep(self.room.share() / 4 * 3, at);
        }
        if self.clients.len() < self.room.share() && self.room.take() {
            self.clients.insert(client, memory);
        }
    }

    /// Forgets the clients whose timeout is over, and the least recent ones that exceed the share.
    pub(crate) fn forget(&mut self, now: Duration) {
        self.keep(self.room.share(), now);
    }

    /// Forgets the clients whose timeout is over. If more than `most` are left, forgets the least recent ones.
    fn keep(&mut self, most: usize, now: Duration) {
        let (before, timeout) = (self.clients.len(), self.timeout);
        self.clients.retain(|_, memory| now < memory.at + timeout);
        if let Some(excess @ 1..) = self.clients.len().checked_sub(most) {
            let mut times: Vec<Duration> = self.clients.values().map(|memory| memory.at).collect();
            let (_, &mut newest, _) = times.select_nth_unstable(excess - 1);
            self.clients.retain(|_, memory| memory.at > newest);
        }
        self.room.give_back(before - self.clients.len());
        if self.clients.capacity() / 4 > self.clients.len() {
            // Other virtual servers need the memory.
            self.clients.shrink_to(self.clients.len() * 2);
        }
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        self.room.give_back(self.clients.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "10.0.0.1:80";

    #[test]
    fn a_client_is_forgotten_after_the_timeout_since_its_last_connection() {
        let seconds = Duration::from_secs;
        let client = IpAddr::from([192, 0, 2, 1]);
        let endpoint = A.parse().unwrap();
        let mut affinity = Affinity::new(seconds(10), &Arc::default());
        assert_eq!(affinity.find(client, seconds(0)), None);
        affinity.remember(client, endpoint, seconds(0));
        affinity.remember(client, endpoint, seconds(5));
        assert_eq!(affinity.find(client, seconds(14)), Some(endpoint));
        assert_eq!(affinity.find(client, seconds(15)), None);
    }

    #[test]
    fn memory_is_bounded_and_keeps_the_most_recent_clients() {
        let mut affinity = Affinity::new(Duration::from_secs(3_600), &Arc::default());
        let endpoint = A.parse().unwrap();
        let client = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(number));
        let count = 200_000_u32;
        for number in 0..count {
            let at = Duration::from_micros(number.into());
            affinity.remember(client(number), endpoint, at);
            assert!(affinity.clients.len() <= MAX_CLIENTS);
        }
        let now = Duration::from_secs(1);
        assert_eq!(affinity.find(client(count - 1), now), Some(endpoint));
        assert_eq!(affinity.find(client(0), now), None);
    }
    #[test]
    fn memory_of_all_virtual_servers_is_bounded_and_a_new_one_gets_a_share() {
        const LIMIT: usize = 1_000;
        let room = Arc::new(AffinityRoom::new(LIMIT));
        let endpoint = A.parse().unwrap();
        let client = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(number));
        let timeout = Duration::from_secs(3_600);
        let mut all: Vec<Affinity> = Vec::new();
        let mut at = Duration::ZERO;
        for _ in 0..50 {
            all.push(Affinity::new(timeout, &room));
            for number in 0..1_000 {
                at += Duration::from_micros(1);
                let newest = all.last_mut().unwrap();
                newest.remember(client(number), endpoint, at);
                assert_eq!(newest.find(client(number), at), Some(endpoint));
                let remembered: usize = all.iter().map(|it| it.clients.len()).sum();
                assert_eq!(room.used.load(Ordering::Relaxed), remembered);
                assert!(remembered <= LIMIT);
            }
            // As the relay does from time to time, so that a quiet one returns what exceeds its share.
            all.iter_mut().for_each(|it| it.forget(at));
        }
        let capacities: usize = all.iter().map(|it| it.clients.capacity()).sum();
        assert!(capacities <= 5 * LIMIT, "{capacities}");
        all.iter_mut().for_each(|it| it.forget(at + timeout));
        assert_eq!(room.used.load(Ordering::Relaxed), 0);
        all[0].remember(client(1), endpoint, at);
        drop(all);
        assert_eq!(room.used.load(Ordering::Relaxed), 0);
    }
}
