//! Session affinity: the endpoint of each client's last connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The maximum number of remembered clients. If there are more, the least recent quarter is forgotten.
const MAX_CLIENTS: usize = 65_536;

/// The endpoints of the clients of one virtual server.
#[derive(Debug)]
pub(super) struct Affinity {
    timeout: Duration,
    clients: HashMap<IpAddr, Memory>,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    endpoint: SocketAddr,
    /// The time of the client's last new connection. As with the kernel's template, the timeout begins
    /// then.
    at: Duration,
}

impl Affinity {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            clients: HashMap::new(),
        }
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the endpoint of `client`, unless its timeout is over.
    pub(super) fn find(&self, client: IpAddr, now: Duration) -> Option<SocketAddr> {
        let memory = self.clients.get(&client)?;
        (now < memory.at + self.timeout).then_some(memory.endpoint)
    }

    pub(super) fn remember(&mut self, client: IpAddr, endpoint: SocketAddr, at: Duration) {
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&client) {
            self.forget(at);
        }
        self.clients.insert(client, Memory { endpoint, at });
    }

    /// Forgets the clients whose timeout is over. If these are less than a quarter, forgets the least recent
    /// quarter.
    fn forget(&mut self, now: Duration) {
        let timeout = self.timeout;
        self.clients.retain(|_, memory| now < memory.at + timeout);
        if self.clients.len() <= MAX_CLIENTS / 4 * 3 {
            return;
        }
        // A quarter at once, so that a full map costs a search only once per 16,384 new clients.
        let mut times: Vec<Duration> = self.clients.values().map(|memory| memory.at).collect();
        let (_, &mut oldest_kept, _) = times.select_nth_unstable(MAX_CLIENTS / 4);
        self.clients.retain(|_, memory| memory.at > oldest_kept);
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
        let mut affinity = Affinity::new(seconds(10));
        assert_eq!(affinity.find(client, seconds(0)), None);
        affinity.remember(client, endpoint, seconds(0));
        affinity.remember(client, endpoint, seconds(5));
        assert_eq!(affinity.find(client, seconds(14)), Some(endpoint));
        assert_eq!(affinity.find(client, seconds(15)), None);
    }

    #[test]
    fn memory_is_bounded_and_keeps_the_most_recent_clients() {
        let mut affinity = Affinity::new(Duration::from_secs(3_600));
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
}
