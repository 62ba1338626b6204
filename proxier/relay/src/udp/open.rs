//! Opening UDP flows, and the flows that end for that.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::Interest;
use mio::net::UdpSocket;

use super::{FlowClient, FlowEndpoint, Moment, Opening, Socket, UdpFlow, UdpFlows};
use crate::Transport;
use crate::budget::{PER_FLOW, Permit};
use crate::datagrams::DatagramSocket;
use crate::frontend::SharedFrontend;
use crate::hops::Hops;
use crate::source;
use crate::tcp::ATTEMPTS;
use crate::worker::{is_exhausted, request};

/// If the table is full, the least recent one of this number of arbitrary flows is removed.
const SAMPLES: usize = 8;

impl UdpFlows {
    /// Opens a flow to an endpoint that has not refused it. `None` if no endpoint is left, so that the client's
    /// datagram is dropped.
    pub(super) fn open(
        &mut self,
        from: FlowClient,
        moment: Moment<'_>,
        mut opening: Opening,
    ) -> Option<usize> {
        let Some(Socket::Frontend { shared, .. }) = self.sockets.get(from.frontend) else {
            return None;
        };
        let (shared, client) = (shared.clone(), from.address);
        if self.index.len() >= self.limits.udp_flows {
            self.evict();
        }
        let canonical = SocketAddr::new(client.ip().to_canonical(), client.port());
        // Before the route, so that the next review notices a route that comes meanwhile.
        let revision = shared.revision();
        let route = shared.route();
        let pool = route.pool_for(canonical.ip())?;
        let request = request(shared.address(), canonical, moment.now);
        let mut permit = self.permit(&shared, canonical.ip())?;
        permit.revision = revision;
        while opening.refused.len() < ATTEMPTS.len()
            && let Some(lease) = pool.pick(&request, &opening.refused, Transport::Udp)
        {
            let endpoint = lease.address();
            let is_shown = route.shows(canonical.ip(), endpoint.ip(), shared.address().ip());
            let shown = is_shown.then_some(canonical.ip());
            let mut socket = match self.connect(shown, endpoint, opening.hops) {
                Ok(socket) => socket,
                Err(error) if is_exhausted(&error) => return None,
                // For example, no route leads to it.
                Err(_) => {
                    opening.refused.push(endpoint);
                    lease.fail(moment.now);
                    continue;
                }
            };
            let entry = self.sockets.vacant_entry();
            let key = entry.key();
            moment
                .registry
                .register(&mut socket, (self.token)(key), Interest::READABLE)
                .ok()?;
            entry.insert(Socket::UdpFlow(Box::new(UdpFlow {
                socket: DatagramSocket::connected(socket, endpoint),
                lease,
                permit,
                from,
                active_at: moment.now,
                endpoint: FlowEndpoint::Untried(opening),
            })));
            self.index.insert(from, key);
            return Some(key);
        }
        self.budget.statistics().refused.add();
        let datagram = opening.first.as_deref().unwrap_or_default();
        self.refusals
            .send(shared.address(), client, datagram, moment.now);
        None
    }

    /// Returns a socket that is connected to `endpoint`, from the address `shown` if that is possible.
    fn connect(
        &mut self,
        shown: Option<IpAddr>,
        endpoint: SocketAddr,
        hops: Hops,
    ) -> io::Result<UdpSocket> {
        let open = |shown| source::datagrams(shown, endpoint, hops);
        let socket = match open(shown) {
            Err(error) if is_exhausted(&error) => {
                self.budget.statistics().exhausted.add();
                self.evict();
                open(shown)
            }
            // `IP_TRANSPARENT` needs a privilege. An endpoint that sees this node is better than
            // none.
            Err(_) if shown.is_some() => {
                self.budget.statistics().hidden.add();
                open(None)
            }
            other => other,
        }?;
        socket.connect(endpoint)?;
        Ok(socket)
    }

    /// Takes a descriptor for a flow, from another flow if none is left.
    fn permit(&mut self, frontend: &Arc<SharedFrontend>, client: IpAddr) -> Option<Permit> {
        let budget = self.budget.clone();
        let take = || budget.reserve(frontend, client, PER_FLOW);
        take().or_else(|| {
            budget.statistics().over_share.add();
            self.evict();
            take()
        })
    }

    /// Removes the least recent of a few flows. A list ordered by time would change with every datagram.
    fn evict(&mut self) {
        let slots = self.sockets.capacity();
        let mut candidates: Vec<(Duration, usize)> = Vec::with_capacity(SAMPLES);
        for _ in 0..slots {
            self.hand = (self.hand + 1) % slots.max(1);
            if let Some(Socket::UdpFlow(flow)) = self.sockets.get(self.hand) {
                candidates.push((flow.active_at, self.hand));
            }
            if candidates.len() == SAMPLES {
                break;
            }
        }
        if let Some(&(_, key)) = candidates.iter().min() {
            self.remove(key);
        }
    }
}
