//! A node: a balancer that knows only the node's own connections.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use schedulers::{Balancer, Error, Request, ServerId};

/// How long the kernel keeps a TCP connection after FIN (`FIN_WAIT`, `TIME_WAIT`), in seconds.
pub(crate) const AFTER_END: f64 = 120.0;
/// How long the kernel keeps a connection that was reset (`CLOSE`).
const AFTER_RESET: f64 = 10.0;
/// How long the kernel keeps a connection without an answer (`SYN_RECV`).
const UNANSWERED: f64 = 60.0;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both sides send a FIN.
    Orderly,
    /// The server's machine refuses or resets it (RST).
    Reset,
    /// The server does not answer.
    Silence,
}

/// A balancer and its connections that have ended but are not yet forgotten.
///
/// Connections are counted as in the kernel: active from the SYN to the end, then inactive until they are
/// forgotten.
#[derive(Debug)]
pub(crate) struct Node {
    balancer: Balancer,
    /// The id of each server by number; `None` if it was never listed.
    ids: Vec<Option<ServerId>>,
    /// The number of each server by [`ServerId::index`].
    numbers: Vec<u32>,
    ended: VecDeque<(f64, ServerId)>,
    reset: VecDeque<(f64, ServerId)>,
    unanswered: VecDeque<(f64, ServerId)>,
}

impl Node {
    /// Creates a node without servers, for at most `servers` of them, numbered from 0.
    pub(crate) fn new(balancer: Balancer, servers: usize) -> Self {
        Self {
            balancer,
            ids: vec![None; servers],
            numbers: Vec::new(),
            ended: VecDeque::new(),
            reset: VecDeque::new(),
            unanswered: VecDeque::new(),
        }
    }

    /// Adds server `number` to the list.
    pub(crate) fn list(&mut self, number: usize, weight: u32) -> Result<(), Error> {
        let id = self.balancer.add(server_address(number), weight)?;
        self.ids[number] = Some(id);
        if self.numbers.len() <= id.index() {
            self.numbers.resize(id.index() + 1, 0);
        }
        self.numbers[id.index()] = u32::try_from(number).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Removes server `number` from the list.
    pub(crate) fn unlist(&mut self, number: usize) -> Result<(), Error> {
        self.balancer.remove(self.id(number)?)
    }

    pub(crate) fn set_weight(&mut self, number: usize, weight: u32) -> Result<(), Error> {
        self.balancer.set_weight(self.id(number)?, weight)
    }

    /// Counts a connection that ended before the simulation starts, but is not yet forgotten.
    pub(crate) fn remember(&mut self, request: &Request) -> Result<(), Error> {
        if let Some(number) = self.connect(request)? {
            self.ended(number, request.at.as_secs_f64(), End::Orderly)?;
        }
        Ok(())
    }

    /// Chooses a server for `request`, counts the connection, and returns the server's number.
    pub(crate) fn connect(&mut self, request: &Request) -> Result<Option<usize>, Error> {
        self.forget_until(request.at.as_secs_f64())?;
        let Some(id) = self.balancer.pick(request) else {
            return Ok(None);
        };
        self.balancer.connected(id)?;
        Ok(Some(self.numbers[id.index()] as usize))
    }

    /// Counts the end of a connection to server `number`.
    pub(crate) fn ended(&mut self, number: usize, at: f64, end: End) -> Result<(), Error> {
        let id = self.id(number)?;
        match end {
            End::Orderly => {
                self.balancer.deactivated(id)?;
                self.ended.push_back((at + AFTER_END, id));
            }
            End::Reset => {
                self.balancer.deactivated(id)?;
                self.reset.push_back((at + AFTER_RESET, id));
            }
            // The kernel counts a connection in SYN_RECV as active, so it stays active until it is
            // forgotten.
            End::Silence => self.unanswered.push_back((at + UNANSWERED, id)),
        }
        Ok(())
    }

    /// Reports a latency of server `number` in seconds.
    pub(crate) fn measured(&mut self, number: usize, latency: f64, at: f64) -> Result<(), Error> {
        let id = self.id(number)?;
        let (latency, at) = (duration(latency), duration(at));
        self.balancer.measured(id, latency, at)
    }

    /// Forgets the connections that the kernel would have forgotten.
    ///
    /// It runs before each pick. This is often enough, because only picks read the counts.
    fn forget_until(&mut self, at: f64) -> Result<(), Error> {
        for queue in [&mut self.ended, &mut self.reset] {
            while let Some(id) = pop_due(queue, at) {
                self.balancer.closed(id)?;
            }
        }
        while let Some(id) = pop_due(&mut self.unanswered, at) {
            self.balancer.disconnected(id)?;
        }
        Ok(())
    }

    fn id(&self, number: usize) -> Result<ServerId, Error> {
        self.ids[number].ok_or(Error::NotFound)
    }
}

fn pop_due(queue: &mut VecDeque<(f64, ServerId)>, at: f64) -> Option<ServerId> {
    let &(due, id) = queue.front()?;
    if due > at {
        return None;
    }
    queue.pop_front();
    Some(id)
}

/// Converts a time in seconds.
pub(crate) fn duration(secs: f64) -> Duration {
    Duration::try_from_secs_f64(secs).unwrap_or_default()
}

fn server_address(number: usize) -> SocketAddr {
    let host = u32::try_from(number).unwrap_or(u32::MAX) & 0x000f_ffff;
    SocketAddr::new(Ipv4Addr::from_bits(0xac10_0001 + host).into(), 8080)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedulers::{Options, Registry};

    fn node(servers: usize) -> Node {
        let options = Options::default();
        let scheduler = Registry::kernel().build("lc", &options).unwrap();
        let mut node = Node::new(Balancer::new(scheduler, &options), servers);
        for number in 0..servers {
            node.list(number, 1).unwrap();
        }
        node
    }

    fn connect(node: &mut Node, at: f64) -> Option<usize> {
        let request = Request {
            source: crate::compare::workload::client_address(1, 1),
            source_port: 40_000,
            destination: crate::compare::workload::destination_address(0),
            destination_port: 80,
            at: duration(at),
        };
        node.connect(&request).unwrap()
    }

    /// Returns the active and inactive connections of each server.
    fn counts(node: &Node) -> Vec<(u32, u32)> {
        let count = |id: &Option<ServerId>| {
            let server = node.balancer.servers().get(id.unwrap()).unwrap();
            (server.active(), server.inactive())
        };
        node.ids.iter().map(count).collect()
    }

    #[test]
    fn connections_are_counted_as_long_as_in_the_kernel() {
        let mut node = node(3);
        assert_eq!(connect(&mut node, 0.0), Some(2));
        assert_eq!(connect(&mut node, 0.0), Some(1));
        assert_eq!(connect(&mut node, 0.0), Some(0));
        node.ended(2, 1.0, End::Orderly).unwrap();
        node.ended(1, 1.0, End::Reset).unwrap();
        node.ended(0, 1.0, End::Silence).unwrap();
        assert_eq!(counts(&node), [(1, 0), (0, 1), (0, 1)]);
        // The reset connection is forgotten first, so lc picks its server.
        assert_eq!(connect(&mut node, 11.0), Some(1));
        node.forget_until(61.0).unwrap();
        assert_eq!(counts(&node), [(0, 0), (1, 0), (0, 1)]);
        node.forget_until(121.0).unwrap();
        assert_eq!(counts(&node), [(0, 0), (1, 0), (0, 0)]);
    }

    #[test]
    fn a_removed_server_gets_no_connections_and_is_forgotten_with_its_last_one() {
        let mut node = node(2);
        assert_eq!(connect(&mut node, 0.0), Some(1));
        node.unlist(1).unwrap();
        assert_eq!(connect(&mut node, 0.1), Some(0));
        assert_eq!(connect(&mut node, 0.2), Some(0));
        node.ended(1, 1.0, End::Orderly).unwrap();
        node.forget_until(1_000.0).unwrap();
        assert!(node.set_weight(1, 1).is_err());
    }
}
