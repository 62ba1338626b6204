//! The counters of virtual servers and destinations.

use ipvs_netlink as ipvs;

use crate::dataplane::Failure;

/// Reads counters through a socket of its own, so that the daemon does not wait for a scrape.
#[derive(Debug)]
pub(crate) struct CounterReader(ipvs::Client);

impl CounterReader {
    /// Opens the socket, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel has no IPVS, or the socket cannot be opened.
    pub(crate) fn open() -> Result<Self, Failure> {
        Ok(Self(ipvs::Client::open()?))
    }

    /// Calls `each` with every virtual server, and with the destinations of those that `has_destinations`
    /// names.
    ///
    /// # Errors
    /// If they cannot be read whole.
    ///
    /// # Cost
    /// One dump, and three system calls for each virtual server whose destinations are read.
    pub(crate) fn read(
        &mut self,
        has_destinations: impl Fn(&ipvs::ServiceKey) -> bool,
        mut each: impl FnMut(&ipvs::ServiceEntry, &[ipvs::DestinationEntry]),
    ) -> Result<(), Failure> {
        for server in self.0.services()? {
            let key = &server.service.key;
            let destinations = match has_destinations(key) {
                true => self.0.destinations(key)?,
                false => Vec::new(),
            };
            each(&server, &destinations);
        }
        Ok(())
    }

    /// Calls `each` with these virtual servers and their destinations, as far as the kernel has them.
    ///
    /// # Errors
    /// If they cannot be read whole.
    ///
    /// # Cost
    /// Four system calls for each.
    pub(crate) fn read_some(
        &mut self,
        keys: impl Iterator<Item = ipvs::ServiceKey>,
        mut each: impl FnMut(&ipvs::ServiceEntry, &[ipvs::DestinationEntry]),
    ) -> Result<(), Failure> {
        for key in keys {
            let server = self.0.service(&key);
            let read = server.and_then(|server| Ok((server, self.0.destinations(&key)?)));
            match read {
                Ok((server, destinations)) => each(&server, &destinations),
                Err(error) if error.is_no_such_service() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
