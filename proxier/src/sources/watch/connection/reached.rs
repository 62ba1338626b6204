//! The addresses to which connections to the API server led.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of addresses that are remembered. A cluster has a few API servers.
const MOST: usize = 16;

/// The addresses of the last connections that were opened. Clones are the same value.
#[derive(Clone, Debug, Default)]
pub(in crate::sources::watch) struct ReachedServers(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// The last one comes last.
    in_order: VecDeque<IpAddr>,
    all: Arc<BTreeSet<IpAddr>>,
}

impl ReachedServers {
    /// Adds the address of a connection that was opened. Drops the one that was not used for the longest time.
    pub(super) fn add(&self, address: IpAddr) {
        let inner = &mut *self.lock();
        inner.in_order.retain(|known| *known != address);
        inner.in_order.push_back(address);
        if inner.in_order.len() > MOST {
            inner.in_order.pop_front();
        }
        let all = inner.in_order.iter().copied().collect();
        if *inner.all != all {
            inner.all = Arc::new(all);
        }
    }

    /// Returns the addresses.
    pub(in crate::sources::watch) fn addresses(&self) -> Arc<BTreeSet<IpAddr>> {
        self.lock().all.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn remembers_the_last_addresses() {
        let servers = ReachedServers::default();
        let address = |last: usize| Ipv4Addr::new(10, 0, 0, u8::try_from(last).unwrap()).into();
        for last in 0..MOST {
            servers.add(address(last));
        }
        let before = servers.addresses();
        servers.add(address(0));
        assert!(Arc::ptr_eq(&before, &servers.addresses()), "nothing new");
        servers.add(address(MOST));
        let expected: BTreeSet<IpAddr> =
            (0..=MOST).filter(|last| *last != 1).map(address).collect();
        assert_eq!(*servers.addresses(), expected);
    }
}
